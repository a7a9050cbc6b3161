"""Where tasks run on this host: in the engine's thread, in threads, in processes."""

from __future__ import annotations

from wbengine.runtime.in_process import CANCEL_GRACE as CANCEL_GRACE
from wbengine.runtime.in_process import SerialTaskExecutor as SerialTaskExecutor
from wbengine.runtime.in_process import ThreadTaskExecutor as ThreadTaskExecutor
from wbengine.runtime.processes import FutureProcessTaskExecutor as FutureProcessTaskExecutor
from wbengine.runtime.processes import ProcessTaskExecutor as ProcessTaskExecutor

__all__ = [
    "CANCEL_GRACE",
    "FutureProcessTaskExecutor",
    "ProcessTaskExecutor",
    "SerialTaskExecutor",
    "ThreadTaskExecutor",
]
