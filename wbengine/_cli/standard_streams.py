"""Standard streams for commands that are started without some of them (`>&-`, some supervisors).

Otherwise the next file that the process opens would become its standard output and receive
everything that it prints, and `sys.stdout` would be None.
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
    """Connect closed streams to the null device. Call this first in a command.

    Characters that the encoding of a stream does not support are replaced on output.
    """
    for number, name in enumerate(_MODES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Opens the lowest free descriptor: `number`.
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, _MODES[name], encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Redirect standard output to standard error, also for child processes.

    Use this while other code may print, because standard output is reserved for data.
    """
    sys.stdout.flush()
    saved_output = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved_output, 1)
        os.close(saved_output)


def forget_output() -> None:
    """Connect standard output to the null device, because its reader has ended (`| head`)."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
