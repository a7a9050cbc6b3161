"""Crash points: places at which tests kill the process.

Each write, publication and acknowledgement has a crash point directly before or after it. In
production, crash points have no effect.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["crashpoint", "install"]

_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """Mark a crash point. Thread-safe."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook` at each crash point, in its thread. None removes the hook."""
    global _hook
    _hook = hook
