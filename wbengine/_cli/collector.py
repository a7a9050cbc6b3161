"""Garbage collection in a process that runs one command.

The objects of modules exist until the process ends. While a command loads its modules, collections
would only cost time, and so would the examination of these objects by later collections and at the
end of the process.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["loading", "release", "take_over"]

_is_ours = False


def take_over() -> None:
    """Let `loading` control the collector, because this process only runs one command."""
    global _is_ours
    _is_ours = gc.isenabled()


def release() -> None:
    """Leave the collector unchanged from now on, because objects of users may exist."""
    global _is_ours
    _is_ours = False


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Disable the collector. At the end, exclude all objects from collections, and enable it."""
    if not _is_ours:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
