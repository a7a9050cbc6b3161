"""Transfer of log records from child processes to the loggers of their parent.

A child applies the log levels that its parent had when the child started, so records below these
levels cost nothing. The child sends records of a call before the result of the call. Records that
threads log between two calls are sent with the next call.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from wbengine._concurrency import contexts

__all__ = ["Levels", "Relay", "levels", "replay"]

#: Levels of loggers by name, and the level up to which logging is disabled.
Levels = tuple[Mapping[str, int], int]

#: Maximum number of records that wait for the next call.
_MAX_WAITING_RECORDS: Final = 1000

#: Attributes of all records. Others were added with `extra`.
_STANDARD_ATTRIBUTES: Final = frozenset(
    {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
)

_FORMATTER: Final = logging.Formatter()
_ERROR_HANDLER: Final = logging.Handler()


def levels() -> Levels:
    manager = logging.Logger.manager
    levels_by_name = {
        name: logger.level
        for name, logger in list(manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {**levels_by_name, logging.root.name: logging.root.level}, manager.disable


class Relay(logging.Handler):
    """In a child: the only handler of the root logger.

    `send` receives each record as bytes. It must be thread-safe, and reentrant for signal handlers.
    """

    def __init__(self, send: Callable[[bytes], object]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()
        self._is_sending = False
        self._waiting: collections.deque[bytes] = collections.deque(maxlen=_MAX_WAITING_RECORDS)

    def install(self, parent_levels: Levels) -> None:
        """Set levels, and remove the handlers that the import of `__main__` installed."""
        for logger in [*logging.Logger.manager.loggerDict.values(), logging.root]:
            if isinstance(logger, logging.Logger):
                logger.handlers[:] = []
                logger.propagate = True
        by_name, disabled = parent_levels
        for name, level in by_name.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(disabled)
        logging.root.addHandler(self)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Send records during a `with` block. Outside of it, records wait."""
        self.acquire()
        try:
            self._is_sending = True
            while self._waiting:
                self._send(self._waiting.popleft())
        finally:
            self.release()
        try:
            yield
        finally:
            self.acquire()
            self._is_sending = False
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:  # The pipe does not belong to a fork that a call created.
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        try:
            data = _packed(record)
        except Exception:
            self.handleError(record)
            return
        if self._is_sending:
            self._send(data)
        else:
            self._waiting.append(data)


def replay(data: bytes) -> None:
    """In the parent: pass a record to its logger, as if it had been logged here.

    Errors are printed to stderr, as `logging` handlers do.
    """
    record = logging.makeLogRecord({})
    try:
        standard_attributes, extra_attributes = pickle.loads(data)
        record = logging.makeLogRecord(standard_attributes)
        for name, (value, text) in extra_attributes.items():
            try:
                record.__dict__[name] = pickle.loads(value)
            except Exception:
                record.__dict__[name] = text
        record.levelname = logging.getLevelName(record.levelno)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:
        _ERROR_HANDLER.handleError(record)


def _packed(record: logging.LogRecord) -> bytes:
    """Pickle a record. Message and traceback are text; other attributes are text if necessary."""
    standard_attributes = {
        name: value for name, value in record.__dict__.items() if name in _STANDARD_ATTRIBUTES
    }
    standard_attributes["msg"], standard_attributes["args"] = record.getMessage(), None
    if record.exc_info and not record.exc_text:
        standard_attributes["exc_text"] = _FORMATTER.formatException(record.exc_info)
    standard_attributes["exc_info"] = None
    extra_attributes = {
        name: _pair(value)
        for name, value in {**contexts.log_fields(), **record.__dict__}.items()
        if name not in _STANDARD_ATTRIBUTES
    }
    return pickle.dumps((standard_attributes, extra_attributes), pickle.HIGHEST_PROTOCOL)


def _pair(value: Any) -> tuple[bytes, str]:
    """Return a value as bytes, and a text for receivers that cannot unpickle it."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL), text
    except Exception:
        return pickle.dumps(text), text
