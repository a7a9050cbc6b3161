"""The id of this process, and the exit of a fork when the call that created it ends."""

from __future__ import annotations

import os
import traceback
from typing import Any

from wbengine.types import failure as ft

__all__ = ["current_pid", "end_fork"]

#: The id of this process. Unlike `os.getpid`, it costs no system call.
current_pid = os.getpid()


def end_fork(pid: int, value: Any = None) -> None:
    """Exit this process if it is a fork of `pid` that has left the call in which it was created.

    :param value: the result of the call. A `Failure` is printed, and the exit code is then 1, or
        that of `SystemExit`.
    """
    if current_pid == pid:
        return
    exit_code: Any = 0
    try:
        error = value.exception if isinstance(value, ft.Failure) else None
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            exit_code = error.code or 0
        elif error is not None:
            exit_code = 1
            traceback.print_exception(error)
    finally:
        os._exit(exit_code & 0xFF)


def _update_pid() -> None:
    global current_pid
    current_pid = os.getpid()


os.register_at_fork(after_in_child=_update_pid)
