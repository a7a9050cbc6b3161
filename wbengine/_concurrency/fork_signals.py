"""Handlers of signals that forks of this process do not inherit.

Tasks may fork. `multiprocessing`, for example, ends processes with SIGTERM.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

__all__ = ["NUMBERS", "handle"]

_WITHOUT_HANDLERS = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
#: The signals, and their default handlers in Python.
_DEFAULT_HANDLERS: Final[dict[int, Any]] = {
    **dict.fromkeys(_WITHOUT_HANDLERS, signal.SIG_DFL),
    signal.SIGINT: signal.default_int_handler,
}
NUMBERS: Final = tuple(_DEFAULT_HANDLERS)

_Handler = Callable[[int, FrameType | None], object]
_handlers: set[_Handler] = set()
_masks = threading.local()


def handle(handler: _Handler, numbers: Iterable[int] = NUMBERS) -> dict[int, Any]:
    """Install a handler of these signals in the main thread, and return the earlier handlers."""
    _handlers.add(handler)
    _register()
    return {number: signal.signal(number, handler) for number in numbers}


@functools.cache
def _register() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_block, after_in_parent=_unblock, after_in_child=_restore_default_handlers
        )


def _block() -> None:
    """Block the signals until the fork has its handlers: a signal to it must not be lost."""
    _masks.earlier = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.earlier)


def _restore_default_handlers() -> None:
    signal.set_wakeup_fd(-1)  # Otherwise signals of the fork would wake the parent.
    for number, default in _DEFAULT_HANDLERS.items():
        if signal.getsignal(number) in _handlers:
            signal.signal(number, default)
    _unblock()
