"""The log of a command, for whoever reads it on a terminal or in a file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine._terminal import visible

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler

__all__ = ["CHOICES", "Lines", "install", "is_installed", "wants_colour", "write"]

#: When lines are coloured.
AUTO: Final = "auto"
ALWAYS: Final = "always"
NEVER: Final = "never"
CHOICES: Final = (AUTO, ALWAYS, NEVER)

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_RESET: Final = "\x1b[0m"
#: From which level on, highest first.
_COLOURS: Final = (
    (logging.ERROR, "\x1b[31m"),
    (logging.WARNING, "\x1b[33m"),
    (logging.INFO, ""),
    (logging.NOTSET, "\x1b[2m"),
)


def wants_colour(choice: str, stream: Any, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written to `stream` is to be coloured.

    With 'auto' on a terminal only; `NO_COLOR` in the environment forbids it, `FORCE_COLOR` has it
    elsewhere too (what is empty is not there; the first of both wins).
    """
    if choice != AUTO:
        return choice == ALWAYS
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    try:
        terminal = bool(stream.isatty())
    except (AttributeError, ValueError, OSError):  # closed, or nothing of the kind
        return False
    return terminal and environment.get("TERM") != "dumb"


class Lines(logging.Formatter):
    """One line for each record, each in the colour of its level.

    What else belongs to a record, such as a traceback, is indented below it: no text of others can
    look like a record.  Control characters are escaped, and `mask` takes secrets out.
    """

    def __init__(self, colour: bool = False, mask: Callable[[str], str] = str) -> None:
        super().__init__(_FORMAT)
        self._colour = colour
        self._mask = mask
        self._second = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return self._time(record.created, record.msecs)

    def _time(self, created: float, msecs: float) -> str:
        second, text = self._second
        if second != int(created):  # many lines are of the same one
            second = int(created)
            text = time.strftime("%Y-%m-%d %H:%M:%S", self.converter(second))
            self._second = second, text
        return f"{text},{int(msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        return self._coloured(record.levelno, _shown(self._mask(super().format(record))))

    def line(self, level: int, name: str, created: float, text: str) -> str:
        """What `format` makes of a record of such a level, logger, moment, and message, in which
        are no secrets.
        """
        moment = self._time(created, created % 1 * 1000)
        told = f"{moment} {logging.getLevelName(level)} {name}: {text}"
        return self._coloured(level, _shown(told))

    def _coloured(self, found: int, text: str) -> str:
        if not self._colour:
            return text
        colour = next(code for level, code in _COLOURS if found >= level)
        return f"{colour}{text}{_RESET}" if colour else text


def _shown(text: str) -> str:
    return visible(text, lines=True).replace("\n", "\n    ")


class _Handler(_StreamHandler):
    def __init__(self, stream: Any, lines: Lines) -> None:
        super().__init__(stream)
        self.setFormatter(lines)
        self.lines = lines

    def write(self, text: str) -> None:
        """Never raises."""
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
    """Whether this is the process of a command, whose log `install` has written."""
    return _installed is not None


def write(
    log: logging.Logger, level: int, message: str, told: Sequence[tuple[float, tuple[object, ...]]]
) -> None:
    """Tell `log` the message with different arguments, each at its moment in unix seconds.

    Where `install` has all of it written, and nobody else hears of it, that is one write, and no
    records are made: it costs a fraction, and who writes lets other threads go first, besides.
    There must be no secrets in it.
    """
    if (handler := _installed) is not None and _alone(log, handler):
        line, end, name = handler.lines.line, handler.terminator, log.name
        handler.write("".join([line(level, name, at, message % args) + end for at, args in told]))
        return
    for moment, args in told:
        record = log.makeRecord(log.name, level, __file__, 0, message, args, None)
        record.created, record.msecs = moment, moment % 1 * 1000
        log.handle(record)


def _alone(log: logging.Logger, handler: _Handler) -> bool:
    if log.filters or handler.filters or handler.level:
        return False
    found: logging.Logger | None = log
    while found is not None and found.parent is not None:
        if not found.propagate or any(type(h) is not logging.NullHandler for h in found.handlers):
            return False
        found = found.parent
    plain = logging.getLogRecordFactory() is logging.LogRecord
    return plain and found is not None and found.handlers == [handler]


def install(level: str, choice: str, stream: Any, mask: Callable[[str], str] = str) -> None:
    """Write what is logged, from this level on, to `stream`; unless somebody did that already.

    `mask` takes secrets out of a text.
    """
    global _installed
    root = logging.getLogger()
    if root.handlers:
        return
    _installed = _Handler(stream, Lines(wants_colour(choice, stream), mask))
    root.addHandler(_installed)
    root.setLevel(level.upper())
    # Found out for each line otherwise, and shown in none.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
