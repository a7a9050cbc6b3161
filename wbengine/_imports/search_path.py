"""The module search path of programs that were started by `python -m`."""

from __future__ import annotations

import os
import sys

__all__ = ["COMMAND", "current_folder", "put_current_folder_last"]

#: Command line of `wbengine` for a child process. `-P` excludes the current folder from the search
#: path.
COMMAND = (sys.executable, "-P", "-m", "wbengine")


def current_folder() -> str | None:
    """Return the current folder, or None if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def put_current_folder_last() -> None:
    """Move the current folder to the end of `sys.path`.

    `python -m` puts it first, so that its files would hide modules of Python and of packages.
    """
    if not sys.flags.safe_path and sys.path[0] in ("", current_folder()):
        sys.path.append(sys.path.pop(0))
