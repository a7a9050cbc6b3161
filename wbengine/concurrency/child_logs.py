"""Log records of child processes, which come out of the loggers of their parent.

The child keeps the levels that its parent had when it started, so what nobody wants costs nothing.
What is logged while a call runs is sent before the call's result; what threads that a call left
behind log between two calls, with the next one.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["Levels", "Relay", "levels", "replay"]

#: What is to be logged in a child: the levels of loggers by name, and the one up to which nothing
#: is logged at all.
Levels = tuple[Mapping[str, int], int]

#: So many records at most wait for the next call.
_MOST: Final = 1000

#: What every record has; all else was added by who logged it (`extra`).
_OWN: Final = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"})

_FORMATTER: Final = logging.Formatter()
_PROBLEM: Final = logging.Handler()


def levels() -> Levels:
    """Those of this process."""
    manager = logging.Logger.manager
    found = {
        name: logger.level
        for name, logger in list(manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {**found, logging.root.name: logging.root.level}, manager.disable


class Relay(logging.Handler):
    """In a child: the handler of the root logger, in the place of all others.

    `send` is given each record, as bytes.  It may be called by any thread, and within itself (by a
    handler of signals, for example).
    """

    def __init__(self, send: Callable[[bytes], object]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()
        self._heard = False
        self._waiting: collections.deque[bytes] = collections.deque(maxlen=_MOST)

    def install(self, wanted: Levels) -> None:
        """Take the place of handlers that importing `__main__` has installed."""
        for logger in [*logging.Logger.manager.loggerDict.values(), logging.root]:
            if isinstance(logger, logging.Logger):
                logger.handlers[:] = []
                logger.propagate = True
        by_name, disabled = wanted
        for name, level in by_name.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(disabled)
        logging.root.addHandler(self)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """The parent listens during a `with` block, and only then."""
        self.acquire()
        try:
            self._heard = True
            while self._waiting:
                self._send(self._waiting.popleft())
        finally:
            self.release()
        try:
            yield
        finally:
            self.acquire()
            self._heard = False
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:  # a fork that a call made: the pipe is not its own
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        try:
            data = _packed(record)
        except Exception:
            self.handleError(record)
            return
        if self._heard:
            self._send(data)
        else:
            self._waiting.append(data)


def replay(data: bytes) -> None:
    """In the parent: hand a record to the logger of its name, as if it had been logged here.

    What goes wrong is told as by handlers, on stderr.
    """
    record = logging.makeLogRecord({})
    try:
        own, more = pickle.loads(data)
        record = logging.makeLogRecord(own)
        for name, (value, told) in more.items():
            try:
                record.__dict__[name] = pickle.loads(value)
            except Exception:
                record.__dict__[name] = told
        record.levelname = logging.getLevelName(record.levelno)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:
        _PROBLEM.handleError(record)


def _packed(record: logging.LogRecord) -> bytes:
    """What of a record can travel: its message and traceback as text, the rest as far as it can."""
    own = {name: value for name, value in record.__dict__.items() if name in _OWN}
    own["msg"], own["args"] = record.getMessage(), None
    if record.exc_info and not record.exc_text:
        own["exc_text"] = _FORMATTER.formatException(record.exc_info)
    own["exc_info"] = None
    more = {name: _pair(value) for name, value in record.__dict__.items() if name not in _OWN}
    return pickle.dumps((own, more), pickle.HIGHEST_PROTOCOL)


def _pair(value: Any) -> tuple[bytes, str]:
    """A value as bytes, and as the text that takes its place where they cannot be read."""
    try:
        told = repr(value)
    except Exception:
        told = f"<{type(value).__name__}>"
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL), told
    except Exception:
        return pickle.dumps(told), told
