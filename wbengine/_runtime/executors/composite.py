"""An executor that runs some tasks in the engine's own process, and the others elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from wbengine._calls.invocation import Done, Invocation, TaskExecutor
from wbengine.task import Task

__all__ = ["CompositeExecutor", "LocalTasks"]


class LocalTasks:
    """The tasks that must run in the engine's own process: `local` ones, and those in `names`."""

    __slots__ = ("names",)

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = frozenset(names)

    def __contains__(self, task: Task) -> bool:
        return task.local or task.name in self.names


class CompositeExecutor(TaskExecutor):
    """Submits `local` calls to one executor, and all others to another, whose properties it has."""

    def __init__(self, local: TaskExecutor, remote: TaskExecutor) -> None:
        self._local = local
        self._remote = remote

    def submit(self, invocation: Invocation, done: Done) -> None:
        (self._local if invocation.local else self._remote).submit(invocation, done)

    @property
    def survives_engine(self) -> bool:  # type: ignore[override]
        return self._remote.survives_engine

    @property
    def has_ledger(self) -> bool:  # type: ignore[override]
        return self._remote.has_ledger

    @property
    def keeps_times(self) -> bool:  # type: ignore[override]
        return self._remote.keeps_times

    def disown(self) -> None:
        self._local.disown()
        self._remote.disown()

    def submit_many(self, invocations: Iterable[Invocation], done: Done) -> None:
        self._remote.submit_many(self._without_local(invocations, done), done)

    def _without_local(self, invocations: Iterable[Invocation], done: Done) -> Iterator[Invocation]:
        for invocation in invocations:
            if invocation.local:
                self._local.submit(invocation, done)
            else:
                yield invocation

    def withdraw(self) -> list[Invocation]:
        return [*self._local.withdraw(), *self._remote.withdraw()]

    def cancel(self, invocations: Iterable[Invocation]) -> None:
        calls = list(invocations)
        self._local.cancel([call for call in calls if call.local])
        self._remote.cancel([call for call in calls if not call.local])

    def retire(self, invocations: Iterable[Invocation]) -> None:
        self._remote.retire([call for call in invocations if not call.local])

    def abandon_detached(self) -> None:
        self._local.abandon_detached()
        self._remote.abandon_detached()

    def start(self) -> None:
        self._remote.start()
        self._local.start()

    def finish(self) -> None:
        self._remote.finish()
        self._local.finish()

    def stop(self) -> None:
        try:
            self._remote.stop()
        finally:
            self._local.stop()
