"""The log of a command, for whoever reads it on a terminal or in a file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["CHOICES", "Lines", "install", "wants_colour"]

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
    """One line for each record (and its traceback), each in the colour of its level."""

    def __init__(self, colour: bool = False) -> None:
        super().__init__(_FORMAT)
        self._colour = colour
        self._second = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second, text = self._second
        if second != int(record.created):  # many lines are of the same one
            text = super().formatTime(record, "%Y-%m-%d %H:%M:%S")
            self._second = int(record.created), text
        return f"{text},{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._colour:
            return text
        colour = next(code for level, code in _COLOURS if record.levelno >= level)
        return f"{colour}{text}{_RESET}" if colour else text


def install(level: str, choice: str, stream: Any) -> None:
    """Write what is logged, from this level on, to `stream`; unless somebody did that already."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines(wants_colour(choice, stream)))
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Found out for each line otherwise, and shown in none.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
