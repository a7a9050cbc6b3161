"""The log format of commands, for terminals and files."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine._text.terminal_text import visible

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler

__all__ = ["CHOICES", "Lines", "Stderr", "install", "is_installed", "wants_colour", "write"]

#: When to use colours.
AUTO: Final = "auto"
ALWAYS: Final = "always"
NEVER: Final = "never"
CHOICES: Final = (AUTO, ALWAYS, NEVER)

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_RESET: Final = "\x1b[0m"
#: Minimum level -> colour, highest level first.
_COLOURS: Final = (
    (logging.ERROR, "\x1b[31m"),
    (logging.WARNING, "\x1b[33m"),
    (logging.INFO, ""),
    (logging.NOTSET, "\x1b[2m"),
)


def wants_colour(choice: str, stream: Any, environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if the output to `stream` must be coloured.

    With 'auto', only terminals are coloured; a non-empty `NO_COLOR` in the environment disables
    colours, otherwise a non-empty `FORCE_COLOR` enables them.
    """
    if choice != AUTO:
        return choice == ALWAYS
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    try:
        terminal = bool(stream.isatty())
    except (AttributeError, ValueError, OSError):  # The stream is closed, or is not a file.
        return False
    return terminal and environment.get("TERM") != "dumb"


class Lines(logging.Formatter):
    """A formatter that writes each record as one line in the colour of its level.

    Further lines of a record, such as a traceback, are indented, so that no text can imitate a
    record. Control characters are escaped, and `mask` removes secrets.
    """

    def __init__(
        self, colour: bool = False, mask: Callable[[str], str] = str, all_frames: bool = False
    ) -> None:
        super().__init__(_FORMAT)
        self._colour = colour
        self._mask = mask
        self._all_frames = all_frames
        self._second = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return self._time(record.created, record.msecs)

    def formatException(self, ei: Any) -> str:
        if self._all_frames or ei[1] is None:
            return super().formatException(ei)
        from wbengine.types import _user_frames

        return _user_frames.traceback_text(ei[1]).rstrip("\n")

    def _time(self, created: float, msecs: float) -> str:
        second, text = self._second
        if second != int(created):  # Many records have the same second.
            second = int(created)
            text = time.strftime("%Y-%m-%d %H:%M:%S", self.converter(second))
            self._second = second, text
        return f"{text},{int(msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        return self._coloured(record.levelno, _safe_lines(self._mask(super().format(record))))

    def line(self, level: int, name: str, created: float, text: str) -> str:
        """Format a line like `format`, without a record. The text must not contain secrets."""
        moment = self._time(created, created % 1 * 1000)
        line = f"{moment} {logging.getLevelName(level)} {name}: {text}"
        return self._coloured(level, _safe_lines(line))

    def _coloured(self, level: int, text: str) -> str:
        if not self._colour:
            return text
        colour = next(code for threshold, code in _COLOURS if level >= threshold)
        return f"{colour}{text}{_RESET}" if colour else text


def _safe_lines(text: str) -> str:
    return visible(text, lines=True).replace("\n", "\n    ")


class Stderr:
    """A stream for handlers that writes to the present `sys.stderr`.

    A live display replaces `sys.stderr`, and prints what is written to it above itself.
    """

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _Handler(_StreamHandler):
    def __init__(self, lines: Lines) -> None:
        super().__init__(Stderr())
        self.setFormatter(lines)
        self.lines = lines

    def write(self, text: str) -> None:
        """Write to the stream. Never raises an exception."""
        self.acquire()
        try:
            self.stream.write(text)
            self.flush()
        except Exception:
            self.handleError(logging.makeLogRecord({"msg": text.rstrip()}))
        finally:
            self.release()


_installed: _Handler | None = None


def is_installed() -> bool:
    """Return True if `install` has configured logging in this process."""
    return _installed is not None


def write(
    log: logging.Logger,
    level: int,
    message: str,
    entries: Sequence[tuple[float, tuple[object, ...]]],
) -> None:
    """Log the message several times with different arguments, each at its Unix time in seconds.

    If `install` added the only handler, all lines are a single write without log records. This is
    much cheaper and switches threads less often. The arguments must not contain secrets.
    """
    if (handler := _installed) is not None and _is_only_handler(log, handler):
        line, end, name = handler.lines.line, handler.terminator, log.name
        handler.write(
            "".join([line(level, name, at, message % args) + end for at, args in entries])
        )
        return
    for moment, args in entries:
        record = log.makeRecord(log.name, level, __file__, 0, message, args, None)
        record.created, record.msecs = moment, moment % 1 * 1000
        log.handle(record)


def _is_only_handler(log: logging.Logger, handler: _Handler) -> bool:
    if log.filters or handler.filters or handler.level:
        return False
    logger: logging.Logger | None = log
    while logger is not None and logger.parent is not None:
        if not logger.propagate or any(type(h) is not logging.NullHandler for h in logger.handlers):
            return False
        logger = logger.parent
    plain = logging.getLogRecordFactory() is logging.LogRecord
    return plain and logger is not None and logger.handlers == [handler]


def install(
    level: str, choice: str, mask: Callable[[str], str] = str, all_frames: bool = False
) -> None:
    """Write the log from this level to the standard error, unless the root logger has a handler.

    :param mask: removes secrets from a text.
    :param all_frames: show all frames of failures, not only those of the user's code.
    """
    global _installed
    root = logging.getLogger()
    if root.handlers:
        return
    _installed = _Handler(Lines(wants_colour(choice, sys.stderr), mask, all_frames))
    root.addHandler(_installed)
    root.setLevel(level.upper())
    # Never displayed; otherwise computed for each record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
