"""What tasks log while they run, so that it can be kept with their flow.

A record that the loggers of this process let through, made by the code of a task, is told by the
task as an event (`EVENT`), together with others: about once a second, and when the task ends.
Threads that a task starts have a context of their own: what they log is not the task's, unless they
were given its context (as by `asyncio.to_thread`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine import running

__all__ = ["EVENT", "MOST_CHARACTERS", "MOST_LINES", "Line", "TaskLog", "capture", "lines_of"]

#: The type of the events that tell lines; their details are `{"lines": [Line, ...]}`.
EVENT: Final = "wbengine.logs"

#: So much of one execution is kept: lines, and characters of their texts.
MOST_LINES: Final = 1000
MOST_CHARACTERS: Final = 65_536
#: Seconds between two events of a task that logs as it runs.
_EVERY: Final = 1.0

_FORMATTER: Final = logging.Formatter()


class Line(NamedTuple):
    """What was logged once: when (unix seconds), at which level, by which logger."""

    at: float
    level: str
    logger: str
    text: str


class TaskLog:
    """The lines of one execution, on their way to who keeps them.

    The rest of an execution that logs more than is kept is counted, and told as one more line.
    """

    __slots__ = ("_characters", "_events", "_left_out", "_lines", "_sending", "_told", "_told_at")

    def __init__(self, events: Any) -> None:
        self._events = events
        self._lines: list[Line] = []
        self._told = self._characters = self._left_out = 0
        self._told_at = time.monotonic()
        self._sending = False

    def add(self, record: logging.LogRecord) -> None:
        """Keep a record; never raises, and may be called within itself."""
        text = _text_of(record)[:MOST_CHARACTERS]
        self._characters += len(text)
        if self._characters > MOST_CHARACTERS or self._told + len(self._lines) >= MOST_LINES:
            self._characters = MOST_CHARACTERS  # nothing that comes later is kept either
            self._left_out += 1
            return
        self._lines.append(Line(record.created, record.levelname, record.name, text))
        if time.monotonic() - self._told_at >= _EVERY:
            self._tell()

    def close(self) -> None:
        """The execution is over: tell what was not told yet."""
        if self._left_out:
            text = f"{self._left_out} more lines are not kept"
            self._lines.append(Line(time.time(), "INFO", __name__, text))
        self._tell()

    def _tell(self) -> None:
        if self._sending or not self._lines:
            return  # who takes them logs something
        self._sending = True
        try:
            lines, self._lines = self._lines, []
            self._told += len(lines)
            self._told_at = time.monotonic()
            self._events(EVENT, {"lines": [list(line) for line in lines]})
        except Exception:
            LOG.debug("what a task logged cannot be told", exc_info=True)
        finally:
            self._sending = False


LOG = logging.getLogger(__name__)


def lines_of(details: Mapping[str, Any]) -> tuple[Line, ...]:
    """The lines of an event, which may come from anywhere: what is none is left out."""
    told = details.get("lines")
    found = (_line_of(each) for each in told[:MOST_LINES]) if isinstance(told, list) else ()
    return tuple(line for line in found if line is not None)


def _line_of(told: Any) -> Line | None:
    if not isinstance(told, list | tuple) or len(told) != len(Line._fields):
        return None
    at, *texts = told
    is_time = isinstance(at, int | float) and abs(at) < 1e11
    if not is_time or not all(isinstance(text, str) for text in texts):
        return None
    return Line(float(at), *(text[:MOST_CHARACTERS] for text in texts))


def _text_of(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # its handlers tell what is wrong with it
        text = str(record.msg)
    if record.exc_info and record.exc_info[0] is not None:
        text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
    return text


class _Factory:
    """Makes log records as `made` does, and gives those of tasks to their logs."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __call__(self, *args: Any, **options: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._made(*args, **options)
        call = running.CURRENT.get()
        # Records that came from another process are made without a name.
        if call is not None and call.captures and record.name:
            if call.log is None:
                call.log = TaskLog(call.events)
            call.log.add(record)
        return record


def capture() -> None:
    """Let the logs of tasks of this process be heard from now on; idempotent.

    Programs that set a factory of records of their own set it before, or have theirs call the one
    that was there.
    """
    made = logging.getLogRecordFactory()
    if not isinstance(made, _Factory):
        logging.setLogRecordFactory(_Factory(made))
