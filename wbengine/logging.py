"""The standard library's logging with a level below DEBUG, for very frequent events."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

#: A level below DEBUG, as in `multiprocessing`.
BLATHER: Final = 5
TRACE: Final = BLATHER

CRITICAL: Final = logging.CRITICAL
DEBUG: Final = logging.DEBUG
ERROR: Final = logging.ERROR
FATAL: Final = logging.FATAL
INFO: Final = logging.INFO
NOTSET: Final = logging.NOTSET
WARN: Final = logging.WARNING
WARNING: Final = logging.WARNING


class TraceLogger(_Adapter):
    """A logger with the additional method `trace`."""

    def trace(self, msg: object, *args: Any, **kwargs: Any) -> None:
        self.log(TRACE, msg, *args, **kwargs)

    def warn(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a warning. This is the old name of `warning`."""
        self.warning(msg, *args, **kwargs)


def getLogger(name: str = "wbengine", extra: Mapping[str, Any] | None = None) -> TraceLogger:
    """Return the logger of this name. If logging is not configured, warnings go to stderr."""
    return TraceLogger(logging.getLogger(name), extra)
