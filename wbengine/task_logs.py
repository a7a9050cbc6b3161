"""Capture of the log records of running tasks, to store them with the flow.

A record that the loggers of this process accept by its level is sent as an event of the task
(`EVENT`). Records are sent in groups, after at most a second and at the end of the task. Filters
and handlers have no effect. Threads that a task starts have their own context, so their records are
not captured unless they use the task's context (as `asyncio.to_thread` does).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import running
from wbengine.concurrency import interrupts, timers

__all__ = [
    "DEFAULT_LEVEL", "EVENT", "MAX_CHARACTERS", "MAX_LINES", "MAX_CHARACTERS_PER_ATTEMPT", "Line",
    "LogAllowance", "TaskLog", "capture", "excluding_level", "lines_of",
]  # fmt: skip

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
#: Interval at which lines of a running task are sent.
_SEND_INTERVAL_SECONDS: Final = 1.0

_FORMATTER: Final = logging.Formatter()

_lock: Final = threading.Lock()
_capturing = False


class Line(NamedTuple):
    """A log record: time (Unix seconds), level, logger, text."""

    at: float
    level: str
    logger: str
    text: str


class TaskLog:
    """Collects the lines of one execution and sends them.

    Logging only appends to a queue. The timer thread sends the lines; `close` sends the rest. Lines
    beyond the maximum are only counted, and the last line contains their number.
    """

    __slots__ = (
        "_characters",
        "_count",
        "_dropped_count",
        "_events",
        "_lines",
        "_send_lock",
        "_timer",
    )

    def __init__(self, events: Any) -> None:
        self._events = events
        self._lines: deque[Line] = deque()
        self._count = self._characters = self._dropped_count = 0
        self._send_lock = threading.RLock()
        self._timer: timers.Timer | None = None

    def add(self, record: logging.LogRecord) -> None:
        """Add a record. Thread-safe and reentrant."""
        with interrupts.masked():
            if self._dropped_count or self._count >= MAX_LINES:
                self._dropped_count += 1
                return
            text = _text_of(record)
            self._characters += len(text) + len(record.name)
            if self._characters > MAX_CHARACTERS:
                self._dropped_count = 1
                return
            self._count += 1
            self._lines.append(Line(record.created, record.levelname, record.name, text))
            if self._timer is None:
                self._timer = timers.of_process().after(_SEND_INTERVAL_SECONDS, self._send)

    def close(self) -> None:
        """Send the remaining lines at the end of the execution."""
        with interrupts.masked():
            if self._timer is not None:
                timers.of_process().cancel(self._timer)
            if self._dropped_count:
                text = f"{self._dropped_count} more lines are not stored"
                self._lines.append(Line(time.time(), "INFO", __name__, text))
            self._send()

    def _send(self) -> None:
        with self._send_lock:  # Preserves the order.
            self._timer = None
            lines = [list(self._lines.popleft()) for _ in range(len(self._lines))]
            try:
                if lines:
                    self._events(EVENT, {"lines": lines})
            except Exception:
                LOG.debug("cannot record a log line of a task", exc_info=True)


LOG = logging.getLogger(__name__)


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
            return (*fitting_lines, Line(time.time(), "WARNING", __name__, text))


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


def _text_of(record: logging.LogRecord) -> str:
    """Return the message with its traceback, or a replacement if it cannot be formatted."""
    try:
        text = record.getMessage()
    except Exception:  # Its handlers report the error.
        text = record.msg if isinstance(record.msg, str) else f"<{type(record.msg).__name__}>"
    if record.exc_info:
        try:
            text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
        except Exception:
            text = f"{text}\n<exception that cannot be formatted>"
    return text


class _Factory:
    """A factory of log records that also adds records of tasks to their `TaskLog`."""

    def __init__(self, make_record: Any) -> None:
        self._make_record = make_record

    def __call__(self, *args: Any, **options: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make_record(*args, **options)
        call = running.CURRENT.get()
        # Records from other processes are created without a name.
        if call is not None and call.captures and record.name:
            if call.log is None:
                call.log = TaskLog(call.events)
            call.log.add(record)
        return record


def capture() -> None:
    """Start capturing the log records of tasks in this process. Idempotent.

    If a program later sets its own record factory, that factory must call the previous one.
    """
    global _capturing
    with _lock:
        if not _capturing:
            logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))
            _capturing = True
