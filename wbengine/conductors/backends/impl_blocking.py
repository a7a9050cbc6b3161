"""A conductor that runs one flow after the other, in the thread of its `run`."""

from __future__ import annotations

from concurrent import futures

import futurist

from wbengine.conductors.backends import impl_executor

__all__ = ["BlockingConductor"]


class BlockingConductor(impl_executor.ExecutorConductor):
    """An `ExecutorConductor` whose flows run in the thread that called `run`."""

    MAX_SIMULTANEOUS_JOBS = 1

    def _executor_factory(self) -> futures.Executor:
        made: futures.Executor = futurist.SynchronousExecutor()
        return made
