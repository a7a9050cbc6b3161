"""An executor whose tasks run when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from wbengine import invocation


class HeldTasks(invocation.TaskExecutor):
    """Runs tasks when they are released, or at once if it is not `held`; writes down in `log` what
    it is asked.
    """

    in_process = True

    def __init__(self, log: list[Any] | None = None, held: bool = False) -> None:
        self.log: list[Any] = [] if log is None else log
        self.held = held
        self.waiting: list[tuple[invocation.Invocation, invocation.Done]] = []
        self.came = threading.Event()
        self.seen: list[invocation.Invocation] = []
        #: How many came together, each time.
        self.batches: list[int] = []

    @property
    def names(self) -> list[str]:
        return [call.task.name for call, _ in self.waiting]

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self.log.append(("submit", call.task.name, call.action))
        self.seen.append(call)
        if self.held:
            self.waiting.append((call, done))
            self.came.set()
        else:
            done(call, invocation.invoke(call))

    def submit_many(self, calls: Any, done: invocation.Done) -> None:
        before = len(self.seen)
        super().submit_many(calls, done)
        self.batches.append(len(self.seen) - before)

    def release(self, name: str | None = None) -> None:
        """Run what waits under this name, or else what came first."""
        call, done = self.waiting.pop(0 if name is None else self.names.index(name))
        done(call, invocation.invoke(call))

    def withdraw(self) -> list[invocation.Invocation]:
        taken, self.waiting = self.waiting, []
        return [call for call, _ in taken]

    def retire(self, calls: Iterable[invocation.Invocation]) -> None:
        self.log.append(("retire", sorted(call.task.name for call in calls)))
