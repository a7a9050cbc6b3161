"""One engine's part of an executor that serves several."""

from __future__ import annotations

from collections.abc import Iterable

from wbengine import invocation
from wbengine.engines.worker_based.executor import WorkerTaskExecutor


class Share(invocation.TaskExecutor):
    """What one flow's engine has of an executor that several use: what it submits, no more.

    It starts the executor if nobody did; whoever made the executor stops it.
    """

    def __init__(self, executor: WorkerTaskExecutor, flow: str) -> None:
        self._executor = executor
        self._flow = flow

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self._executor.submit(call, done)

    def submit_many(
        self, invocations: Iterable[invocation.Invocation], done: invocation.Done
    ) -> None:
        self._executor.submit_many(invocations, done)

    def withdraw(self) -> list[invocation.Invocation]:
        return self._executor.withdraw(self._flow)

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._executor.retire(invocations)

    def disown(self) -> None:
        self._executor.disown(self._flow)

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self._executor.remembers

    @property
    def knows_all(self) -> bool:  # type: ignore[override]
        return self._executor.knows_all

    def start(self) -> None:
        self._executor.start()

    def finish(self) -> None:
        self._executor.finish(self._flow)

    def stop(self) -> None:
        self._executor.leave(self._flow)
