"""The places at which a process may die with the most interesting things left behind.

Every write, publication and acknowledgement is announced here, right before or after it happens,
so that tests can end the process at each of them in turn.  In production it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["crashpoint", "install"]

_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """The process is at the place `name`; from any thread."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Have `hook` called at each place from now on, by whichever thread comes there; None: no more.

    For tests.
    """
    global _hook
    _hook = hook
