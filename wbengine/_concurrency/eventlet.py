"""Checks for conflicts with eventlet's patches of the standard library."""

from __future__ import annotations

import importlib
import select
import sys
from concurrent import futures

__all__ = ["check_executor", "check_poll"]


def check_executor(executor: futures.Executor) -> None:
    """Reject an executor of green threads that would never run.

    :raises ValueError: if the standard library is not patched.
    """
    futurist = sys.modules.get("futurist")  # loaded if the executor is one of its classes
    if futurist is None or not isinstance(executor, futurist.GreenThreadPoolExecutor):
        return
    patcher = importlib.import_module("eventlet.patcher")
    if not patcher.is_monkey_patched("thread"):
        raise ValueError(
            f"executor={type(executor).__name__} requires eventlet.monkey_patch(): call it"
            " at the beginning of the program, or use executor='threads'"
        )


def check_poll(what: str) -> None:
    """Reject features that need `select.poll`, which eventlet removes.

    :raises ValueError: if it is removed.
    """
    if not hasattr(select, "poll"):
        raise ValueError(
            f"{what} requires select.poll, which eventlet.monkey_patch() has removed: use"
            " gevent, or threads without monkey patching"
        )
