"""The standard library's logging, with a level below DEBUG: for what happens many times a second.

`getLogger` gives an adapter that also has `trace`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

#: Below DEBUG, as in `multiprocessing`.
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
    """A logger that knows one level more."""

    def trace(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log at level `TRACE`."""
        self.log(TRACE, msg, *args, **kwargs)

    def warn(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """The old name of `warning`."""
        self.warning(msg, *args, **kwargs)


def getLogger(name: str = "wbengine", extra: Mapping[str, Any] | None = None) -> TraceLogger:
    """The logger of that name; where nobody configured logging, warnings go to stderr."""
    return TraceLogger(logging.getLogger(name), extra)
