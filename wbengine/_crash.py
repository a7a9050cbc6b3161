"""Crash points: places at which tests kill the process.

Each write, publication and acknowledgement has a crash point directly before or after it, so that
tests can kill the process at each of them. In production they have no effect.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["crashpoint", "install"]

_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """Mark a crash point. May be called from any thread."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook` at each crash point, in its thread; None removes the hook. For tests."""
    global _hook
    _hook = hook
