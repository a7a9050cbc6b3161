"""A conductor that runs several flows at a time, each in a thread."""

from __future__ import annotations

from concurrent import futures

from wbengine._compat import threading_utils
from wbengine.conductors.backends import impl_executor

__all__ = ["NonBlockingConductor"]


class NonBlockingConductor(impl_executor.ExecutorConductor):
    """An `ExecutorConductor` with one thread for each flow that runs at a time."""

    MAX_SIMULTANEOUS_JOBS = threading_utils.get_optimal_thread_count()

    def _executor_factory(self) -> futures.Executor:
        if self._custom_factory is not None:
            return self._custom_factory()
        return futures.ThreadPoolExecutor(
            max_workers=self._max_simultaneous_jobs
            if self._max_simultaneous_jobs > 0
            else threading_utils.get_optimal_thread_count(),
            thread_name_prefix="wbengine-conductor",
        )
