"""Standard streams for a command that was started without some of them (`>&-`, some supervisors).

Otherwise the next file that the process opens becomes its standard output, and whatever says
something writes into that file; and Python's own `sys.stdout` is None.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Final

_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def ensure() -> None:
    """Let streams that are closed lead nowhere.  The first thing that a command does.

    What the encoding of a stream lacks is replaced when it is written, rather than an error.
    """
    for number, name in enumerate(_MODES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, _MODES[name], encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What is printed meanwhile, by anybody and by processes that begin, goes to the standard
    error: the standard output is for the data of a command, and not for what its guests say.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def forget_output() -> None:
    """The reader of the standard output left (`| head`): let it lead nowhere, quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
