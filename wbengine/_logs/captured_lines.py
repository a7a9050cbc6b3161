"""Capture of the log records of running tasks, to store them with the flow.

A record that the loggers of this process accept by its level is sent as an event of the task
(`logged_lines.EVENT`). Records are sent in groups, after at most a second and at the end of the
task. Filters and handlers have no effect. Threads that a task starts have their own context, so
their records are not captured unless they use the task's context (as `asyncio.to_thread` does).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from wbengine import running
from wbengine._concurrency import interrupts, timers
from wbengine._logs.stored_lines import EVENT, MAX_CHARACTERS, MAX_LINES, Line
from wbengine._security import masking

__all__ = ["TaskLog", "capture"]

LOG = logging.getLogger(__name__)

#: Interval at which lines of a running task are sent.
_SEND_INTERVAL_SECONDS: Final = 1.0

#: Maximum number of values in the arguments that are searched for secrets (about 10 ms).
_MAX_SEARCHED_VALUES: Final = 10_000

_FORMATTER: Final = logging.Formatter()

_lock: Final = threading.Lock()
_capturing = False


class TaskLog:
    """Collects the lines of one execution, masks the secrets among its arguments, and sends them.

    Logging only appends to a queue. The timer thread sends the lines; `close` sends the rest. Lines
    beyond the maximum are only counted, and the last line contains their number.
    """

    __slots__ = (
        "_characters",
        "_count",
        "_dropped_count",
        "_events",
        "_lines",
        "_secrets",
        "_send_lock",
        "_timer",
    )

    def __init__(self, events: Any, arguments: Mapping[str, Any]) -> None:
        self._events = events
        # The record of a step does not always contain all arguments, so readers cannot mask them.
        found = masking.secrets_in([arguments], _MAX_SEARCHED_VALUES)
        self._secrets = masking.SecretMatcher(found)
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
            text = self._secrets.hide(_text_of(record), masking.MASK)
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
                call.log = TaskLog(call.events, call.arguments)
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
