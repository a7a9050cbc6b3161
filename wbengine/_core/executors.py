"""Where tasks run on this host: in the engine's thread, in threads, in processes."""

from __future__ import annotations

from wbengine._core.in_process import CANCEL_GRACE as CANCEL_GRACE
from wbengine._core.in_process import SerialTaskExecutor as SerialTaskExecutor
from wbengine._core.in_process import ThreadTaskExecutor as ThreadTaskExecutor
from wbengine._core.processes import FutureProcessTaskExecutor as FutureProcessTaskExecutor
from wbengine._core.processes import ProcessTaskExecutor as ProcessTaskExecutor

__all__ = [
    "CANCEL_GRACE",
    "FutureProcessTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]
