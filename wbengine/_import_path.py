"""Where modules are looked for, by a program that Python was told to run by `-m`."""

from __future__ import annotations

import os
import sys

__all__ = ["COMMAND", "put_current_folder_last"]

#: How this command is started in a process of its own, without a look into the current folder
#: (Python 3.10 cannot be told so).
COMMAND = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()), "-m", "wbengine")


def put_current_folder_last() -> None:
    """Python looks into the current folder first, for `python -m`: a file there would take the
    place of a module of Python's, or of a package, that is imported from now on.
    """
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] == os.getcwd():
        sys.path.append(sys.path.pop(0))
