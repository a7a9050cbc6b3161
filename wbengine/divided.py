"""Two executors as one, and which tasks stay at home."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from wbengine.invocation import Done, Invocation, TaskExecutor
from wbengine.task import Task

__all__ = ["Divided", "Home"]


class Home:
    """Which tasks of a flow must run in the engine's own process.

    Those marked `local`, and those of these names.
    """

    __slots__ = ("names",)

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = frozenset(names)

    def holds(self, task: Task) -> bool:
        return task.local or task.name in self.names


class Divided(TaskExecutor):
    """Two executors as one: what is `local` goes to the near one, the rest to the far one."""

    def __init__(self, near: TaskExecutor, far: TaskExecutor) -> None:
        self._near = near
        self._far = far

    def submit(self, invocation: Invocation, done: Done) -> None:
        (self._near if invocation.local else self._far).submit(invocation, done)

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self._far.remembers

    @property
    def knows_all(self) -> bool:  # type: ignore[override]
        return self._far.knows_all

    @property
    def keeps_times(self) -> bool:  # type: ignore[override]
        return self._far.keeps_times

    def disown(self) -> None:
        self._near.disown()
        self._far.disown()

    def submit_many(self, invocations: Iterable[Invocation], done: Done) -> None:
        self._far.submit_many(self._without_local(invocations, done), done)

    def _without_local(self, invocations: Iterable[Invocation], done: Done) -> Iterator[Invocation]:
        for invocation in invocations:
            if invocation.local:
                self._near.submit(invocation, done)
            else:
                yield invocation

    def withdraw(self) -> list[Invocation]:
        return [*self._near.withdraw(), *self._far.withdraw()]

    def cancel(self, invocations: Iterable[Invocation]) -> None:
        calls = list(invocations)
        self._near.cancel([call for call in calls if call.local])
        self._far.cancel([call for call in calls if not call.local])

    def retire(self, invocations: Iterable[Invocation]) -> None:
        self._far.retire([call for call in invocations if not call.local])

    def leave_detached(self) -> None:
        self._near.leave_detached()
        self._far.leave_detached()

    def start(self) -> None:
        self._far.start()
        self._near.start()

    def finish(self) -> None:
        self._far.finish()
        self._near.finish()

    def stop(self) -> None:
        try:
            self._far.stop()
        finally:
            self._near.stop()
