"""What tasks log while they run, so that it can be kept with their flow.

A record of a level that the loggers of this process let through, made by the code of a task, is
told by the task as an event (`EVENT`), together with others: a second later at most, and when the
task ends.  Filters, and handlers with theirs, come after that, and are not asked.
Threads that a task starts have a context of their own: what they log is not the task's, unless they
were given its context (as by `asyncio.to_thread`).
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
    "EVENT", "MAX_CHARACTERS", "MAX_LINES", "ROOM", "Line", "LogAllowance", "TaskLog", "capture",
    "lines_of",
]  # fmt: skip

#: The type of the events that tell lines; their details are `{"lines": [Line, ...]}`.
EVENT: Final = "wbengine.logs"

#: So much of one execution is kept: lines, and characters of their texts.
MAX_LINES: Final = 1000
MAX_CHARACTERS: Final = 65_536
#: What those who keep it allow one attempt at a task, whatever its workers tell: characters, of
#: which each line takes some for itself.  Several may run it, one after the other.
ROOM: Final = 4 * 2 * MAX_CHARACTERS
_LINE: Final = MAX_CHARACTERS // MAX_LINES
#: And one run of a flow: of all of its lines.
MAX_CHARACTERS_OF_FLOW: Final = 64 * 2**20
#: Seconds after which a line is told of a task that still runs.
_EVERY: Final = 1.0

_FORMATTER: Final = logging.Formatter()

_lock: Final = threading.Lock()
_capturing = False


class Line(NamedTuple):
    """What was logged once: when (unix seconds), at which level, by which logger."""

    at: float
    level: str
    logger: str
    text: str


class TaskLog:
    """The lines of one execution, on their way to who keeps them.

    To log only appends: lines are told in the thread for timers, and at the end.  The rest of an
    execution that logs more than is kept is counted, and told as one more line.
    """

    __slots__ = ("_characters", "_count", "_events", "_left_out", "_lines", "_telling", "_timer")

    def __init__(self, events: Any) -> None:
        self._events = events
        self._lines: deque[Line] = deque()
        self._count = self._characters = self._left_out = 0
        self._telling = threading.RLock()
        self._timer: timers.Timer | None = None

    def add(self, record: logging.LogRecord) -> None:
        """Keep a record; any thread, and also in the midst of itself."""
        with interrupts.masked():  # what has to end soon ends after this
            if self._left_out or self._count >= MAX_LINES:
                self._left_out += 1
                return
            text = _text_of(record)
            self._characters += len(text) + len(record.name)
            if self._characters > MAX_CHARACTERS:
                self._left_out = 1
                return
            self._count += 1
            self._lines.append(Line(record.created, record.levelname, record.name, text))
            if self._timer is None:
                self._timer = timers.of_process().after(_EVERY, self._tell)

    def close(self) -> None:
        """The execution is over: tell what was not told yet."""
        with interrupts.masked():
            if self._timer is not None:
                timers.of_process().cancel(self._timer)
            if self._left_out:
                text = f"{self._left_out} more lines are not kept"
                self._lines.append(Line(time.time(), "INFO", __name__, text))
            self._tell()

    def _tell(self) -> None:
        with self._telling:  # in order
            self._timer = None
            lines = [list(self._lines.popleft()) for _ in range(len(self._lines))]
            try:
                if lines:
                    self._events(EVENT, {"lines": lines})
            except Exception:
                LOG.debug("what a task logged cannot be told", exc_info=True)


LOG = logging.getLogger(__name__)


class LogAllowance:
    """How much is kept of what is logged in one run of a flow.  Thread-safe."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._lock = threading.Lock()
        self._left = MAX_CHARACTERS_OF_FLOW
        # Of the attempts that logged something.
        self._room: dict[Hashable, int] = {}

    def take(self, attempt: Hashable, lines: tuple[Line, ...]) -> tuple[Line, ...]:
        """As many of these lines as there is room for; the last one of the flow says so."""
        with self._lock:
            if self._left < 0:
                return ()
            lines, self._room[attempt] = _within(lines, self._room.get(attempt, ROOM))
            taken, self._left = _within(lines, self._left)
            if self._left >= 0:
                return taken
            text = (
                "no more lines of this flow are kept: its tasks logged more than"
                f" {MAX_CHARACTERS_OF_FLOW:,} characters"
            )
            LOG.warning("flow %s: %s", self._flow, text)
            return (*taken, Line(time.time(), "WARNING", __name__, text))


def lines_of(details: Mapping[str, Any]) -> tuple[Line, ...]:
    """The lines of an event, which may come from anywhere: what is none is left out."""
    told = details.get("lines")
    found = (_line_of(each) for each in told[: MAX_LINES + 1]) if isinstance(told, list) else ()
    return tuple(line for line in found if line is not None)


def _within(lines: tuple[Line, ...], room: int) -> tuple[tuple[Line, ...], int]:
    """The first of `lines`, which there is room for, and what room is left; below 0: for none."""
    found = []
    for line in lines:
        if room < 0:
            break
        room -= _LINE + len(line.level) + len(line.logger) + len(line.text)
        if room >= 0:
            found.append(line)
    return tuple(found), room


def _line_of(told: Any) -> Line | None:
    if not isinstance(told, list | tuple) or len(told) != len(Line._fields):
        return None
    at, *texts = told
    is_time = isinstance(at, int | float) and abs(at) < 1e11
    if not is_time or not all(isinstance(text, str) for text in texts):
        return None
    return Line(float(at), *(text[:MAX_CHARACTERS] for text in texts))


def _text_of(record: logging.LogRecord) -> str:
    """What it says, and its traceback; of what cannot be printed what it is."""
    try:
        text = record.getMessage()
    except Exception:  # its handlers tell what is wrong with it
        text = record.msg if isinstance(record.msg, str) else f"<{type(record.msg).__name__}>"
    if record.exc_info:
        try:
            text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
        except Exception:
            text = f"{text}\n<an exception that cannot be printed>"
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

    A program that sets a factory of records of its own later has it call the one that was there.
    """
    global _capturing
    with _lock:
        if not _capturing:
            logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))
            _capturing = True
