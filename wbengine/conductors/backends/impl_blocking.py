"""A conductor that runs one flow at a time, in the thread of its `run`."""

from __future__ import annotations

from concurrent import futures

import futurist

from wbengine.conductors.backends import impl_executor

__all__ = ["BlockingConductor"]


class BlockingConductor(impl_executor.ExecutorConductor):
    """An `ExecutorConductor` that runs flows in the thread that called `run`."""

    MAX_SIMULTANEOUS_JOBS = 1

    def _executor_factory(self) -> futures.Executor:
        executor: futures.Executor = futurist.SynchronousExecutor()
        return executor
