"""Executors for tasks on this host: in the thread of the engine, in threads, in processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine._runtime.executors.base import CANCEL_GRACE_SECONDS, LocalTaskExecutor
    from wbengine._runtime.executors.processes import FutureProcessTaskExecutor, ProcessTaskExecutor
    from wbengine._runtime.executors.serial import SerialTaskExecutor
    from wbengine._runtime.executors.threads import ThreadTaskExecutor

__all__ = [
    "CANCEL_GRACE_SECONDS",
    "FutureProcessTaskExecutor",
    "LocalTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        ".base": ("CANCEL_GRACE_SECONDS", "LocalTaskExecutor"),
        ".processes": ("FutureProcessTaskExecutor", "ProcessTaskExecutor"),
        ".serial": ("SerialTaskExecutor",),
        ".threads": ("ThreadTaskExecutor",),
    },
)
