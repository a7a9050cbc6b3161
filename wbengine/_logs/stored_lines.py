"""Log lines of tasks as they are sent and stored, and their limits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

__all__ = [
    "DEFAULT_LEVEL",
    "EVENT",
    "MAX_CHARACTERS",
    "MAX_CHARACTERS_PER_ATTEMPT",
    "MAX_LINES",
    "Line",
    "LogAllowance",
    "excluding_level",
    "lines_of",
]

LOG = logging.getLogger("wbengine._logs.captured_lines")

#: Minimum level of the task logs that the commands store.
DEFAULT_LEVEL: Final = logging.INFO

#: Type of the events. Their details are `{"lines": [Line, ...]}`.
EVENT: Final = "wbengine.logs"

#: Maximum number of lines of an execution, and of the characters in all of them.
MAX_LINES: Final = 1000
MAX_CHARACTERS: Final = 65_536
#: Maximum number of characters that are stored for one attempt, including a fixed number for each
#: line. Several workers may run an attempt one after the other.
MAX_CHARACTERS_PER_ATTEMPT: Final = 4 * 2 * MAX_CHARACTERS
_CHARACTERS_PER_LINE: Final = MAX_CHARACTERS // MAX_LINES
#: Maximum number of characters for one run of a flow.
MAX_CHARACTERS_OF_FLOW: Final = 64 * 2**20


class Line(NamedTuple):
    """A log record: time (Unix seconds), level, logger, text."""

    at: float
    level: str
    logger: str
    text: str


class LogAllowance:
    """Limits the logs that are stored for one run of a flow. Thread-safe."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._lock = threading.Lock()
        self._remaining = MAX_CHARACTERS_OF_FLOW
        # Remaining characters of each attempt with logs.
        self._remaining_by_attempt: dict[Hashable, int] = {}

    def take(self, attempt: Hashable, lines: tuple[Line, ...]) -> tuple[Line, ...]:
        """Return the lines that fit. If the flow exceeds its limit, the last line reports this."""
        with self._lock:
            if self._remaining < 0:
                return ()
            lines, self._remaining_by_attempt[attempt] = _fitting(
                lines, self._remaining_by_attempt.get(attempt, MAX_CHARACTERS_PER_ATTEMPT)
            )
            fitting_lines, self._remaining = _fitting(lines, self._remaining)
            if self._remaining >= 0:
                return fitting_lines
            text = (
                "no more log lines are stored: the tasks of this flow logged more than"
                f" {MAX_CHARACTERS_OF_FLOW:,} characters"
            )
            LOG.warning("flow %s: %s", self._flow, text)
            return (*fitting_lines, Line(time.time(), "WARNING", LOG.name, text))


def excluding_level() -> str | None:
    """Return the level of the root logger if it excludes records of `DEFAULT_LEVEL`, or None."""
    level = logging.getLogger().level
    return logging.getLevelName(level) if level > DEFAULT_LEVEL else None


def lines_of(details: Mapping[str, Any]) -> tuple[Line, ...]:
    """Return the valid lines of an event, which may come from an untrusted sender."""
    raw_lines = details.get("lines")
    lines = (
        (_line_of(raw_line) for raw_line in raw_lines[: MAX_LINES + 1])
        if isinstance(raw_lines, list)
        else ()
    )
    return tuple(line for line in lines if line is not None)


def _fitting(lines: tuple[Line, ...], remaining: int) -> tuple[tuple[Line, ...], int]:
    """Return the lines that fit, and the remaining characters (negative: exceeded)."""
    fitting_lines = []
    for line in lines:
        if remaining < 0:
            break
        remaining -= _CHARACTERS_PER_LINE + len(line.level) + len(line.logger) + len(line.text)
        if remaining >= 0:
            fitting_lines.append(line)
    return tuple(fitting_lines), remaining


def _line_of(fields: Any) -> Line | None:
    if not isinstance(fields, list | tuple) or len(fields) != len(Line._fields):
        return None
    at, *texts = fields
    is_time = isinstance(at, int | float) and abs(at) < 1e11
    if not is_time or not all(isinstance(text, str) for text in texts):
        return None
    return Line(float(at), *(text[:MAX_CHARACTERS] for text in texts))
