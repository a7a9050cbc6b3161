"""What is refused in a process whose standard library eventlet has patched, or has not."""

from __future__ import annotations

import importlib
import select
from concurrent import futures

import futurist

__all__ = ["check_executor", "check_poll"]


def check_executor(executor: futures.Executor) -> None:
    """Refuse green threads that would never run: the engine's waiting must let them.

    :raises ValueError: the standard library is not patched for them.
    """
    if not isinstance(executor, futurist.GreenThreadPoolExecutor):
        return
    patcher = importlib.import_module("eventlet.patcher")
    if not patcher.is_monkey_patched("thread"):
        raise ValueError(
            f"Option executor={type(executor).__name__} runs nothing before"
            " eventlet.monkey_patch() is called, at the beginning of the program: call it, or take"
            " executor='threads'"
        )


def check_poll(what: str) -> None:
    """Refuse what has to wait for descriptors of any number: eventlet takes `select.poll` away.

    :raises ValueError: naming `what`, and the way out.
    """
    if not hasattr(select, "poll"):
        raise ValueError(
            f"{what} cannot be used where eventlet.monkey_patch() has taken select.poll away:"
            " use gevent, or threads that are not patched"
        )
