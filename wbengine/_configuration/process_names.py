"""The name under which servers show the connections of this process."""

from __future__ import annotations

import os
import socket

__all__ = ["set_program", "shown"]

_DEFAULT = "wbengine"
_program = _DEFAULT


def set_program(program: str | None) -> None:
    """Set the program, such as 'wbengine worker'. None: the default, 'wbengine'."""
    global _program
    _program = program or _DEFAULT


def shown() -> str:
    """Return program, process id and host, such as 'wbengine worker 4711@host'."""
    return f"{_program} {os.getpid()}@{socket.gethostname()}"
