"""Engines that run every task on this host."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent import futures
from typing import Any, Final

from wbengine import _names
from wbengine import invocation as calls
from wbengine.concurrency import eventlet, limits
from wbengine.engines import base, options
from wbengine.runtime import executors

__all__ = ["ParallelActionEngine", "SerialActionEngine"]


def _common(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What each executor of this host is made with."""
    return {"strict": settings["strict_results"], "limit": settings["timelimit"]}


class SerialActionEngine(base.Engine):
    """Runs one task after the other, in the thread that calls `run`.

    Async bodies run in an event loop of the engine's own, one after the other too.  The options of
    the parallel engine are accepted and mean nothing here, so that which of the two it is can be a
    matter of configuration.
    """

    OPTIONS = options.LOCAL

    def _make_executor(self) -> calls.TaskExecutor:
        return executors.SerialTaskExecutor(**_common(self._settings))


_THREADS, _PROCESSES = "threads", "processes"

#: What each word for an executor means.
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("threads", "thread", "threaded"), _THREADS),
    **dict.fromkeys(("greenthreads", "greenthread", "greenthreaded"), _THREADS),
    **dict.fromkeys(("processes", "process"), _PROCESSES),
}


class ParallelActionEngine(base.Engine):
    """Runs tasks in threads or processes, as many at a time as there are.

    Options: `executor`: 'threads' (the default; also 'thread', 'threaded'), 'processes' (also
    'process'), or a `concurrent.futures.Executor` of either sort, which is used as it is and not
    shut down; `max_workers`: the size of an own pool.

    'greenthreads' (also 'greenthread', 'greenthreaded') are threads too: green ones where eventlet
    has patched the standard library, real ones elsewhere (a `futurist.GreenThreadPoolExecutor` is
    refused there).  For many tasks that only wait there are
    async bodies: with threads, as many as there are run at once, whatever the size of the pool.

    `cancel_grace` (10 seconds, None: never): after so long a task that was cancelled is killed, if
    it runs in a process of its own.  `wait_timeout` (of TaskFlow's process executor) is accepted:
    nothing is polled here.
    """

    OPTIONS = options.LOCAL

    def _make_executor(self) -> calls.TaskExecutor:
        wanted: Any = self._settings["executor"]
        workers, common = self._settings["max_workers"], _common(self._settings)
        if wanted is None:
            wanted = _THREADS
        if isinstance(wanted, str):
            kind = _KINDS.get(wanted.strip().lower())
            if kind is None:
                raise ValueError(
                    f"Unknown executor {wanted!r}{_names.hint(wanted, _KINDS)}; known:"
                    f" {', '.join(_KINDS)}, or a concurrent.futures.Executor"
                )
            if kind == _PROCESSES:
                grace = self._settings["cancel_grace"]
                return executors.ProcessTaskExecutor(workers, grace=grace, **common)
            return executors.ThreadTaskExecutor(max_workers=workers, **common)
        if isinstance(wanted, calls.TaskExecutor):
            self._check_unchanged()
            return wanted
        if isinstance(wanted, futures.ProcessPoolExecutor):
            return executors.FutureProcessTaskExecutor(wanted, **common)
        if isinstance(wanted, futures.Executor):
            eventlet.check_executor(wanted)
            return executors.ThreadTaskExecutor(wanted, **common)
        raise TypeError(
            f"Option executor must be a word or a concurrent.futures.Executor, not {wanted!r}"
        )

    def _check_unchanged(self) -> None:
        """Refuse options that a given executor was to be made with."""
        common = _common(self._settings)
        for name, how, given in (
            ("strict_results", "strict=True", common["strict"]),
            ("timelimit", "limit=...", common["limit"] != limits.UNLIMITED),
        ):
            if given:
                raise ValueError(
                    f"Option {name} cannot change a TaskExecutor that was made already:"
                    f" make it with {how}"
                )
