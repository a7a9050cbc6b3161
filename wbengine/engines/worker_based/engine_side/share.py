"""One engine's part of an executor that serves several."""

from __future__ import annotations

from collections.abc import Iterable

from wbengine import invocation
from wbengine.engines.worker_based.executor import WorkerTaskExecutor


class Share(invocation.TaskExecutor):
    """What one flow's engine has of an executor that several use: what it submits, no more.

    The executor runs as long as one of those engines does; or, where whoever made it started it,
    until he stops it.
    """

    keeps_times = True

    def __init__(self, executor: WorkerTaskExecutor, flow: str) -> None:
        self._executor = executor
        self._flow = flow
        self._attached = False

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self._executor.submit(call, done)

    def submit_many(
        self, invocations: Iterable[invocation.Invocation], done: invocation.Done
    ) -> None:
        self._executor.submit_many(invocations, done)

    def withdraw(self) -> list[invocation.Invocation]:
        return self._executor.withdraw(self._flow)

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._executor.cancel(invocations)

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._executor.retire(invocations)

    def disown(self) -> None:
        self._executor.disown(self._flow)

    @property
    def survives_engine(self) -> bool:  # type: ignore[override]
        return self._executor.survives_engine

    @property
    def has_ledger(self) -> bool:  # type: ignore[override]
        return self._executor.has_ledger

    def start(self) -> None:
        if not self._attached:
            self._executor.attach()
            self._attached = True

    def finish(self) -> None:
        self._executor.finish(self._flow)

    def stop(self) -> None:
        self._executor.leave(self._flow)
        if self._attached:
            self._attached = False
            self._executor.detach()
