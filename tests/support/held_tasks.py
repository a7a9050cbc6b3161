"""An executor that runs tasks when a test releases them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from wbengine._calls import invocation


class HeldTasks(invocation.TaskExecutor):
    """Runs tasks at once, or on release if it is `held`. It records its calls in `log`."""

    in_process = True

    def __init__(self, log: list[Any] | None = None, held: bool = False) -> None:
        self.log: list[Any] = [] if log is None else log
        self.held = held
        self.waiting: list[tuple[invocation.Invocation, invocation.Done]] = []
        self.came = threading.Event()
        self.seen: list[invocation.Invocation] = []
        #: Number of calls in each batch.
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
        """Run the waiting task with this name, or else the oldest one."""
        call, done = self.waiting.pop(0 if name is None else self.names.index(name))
        done(call, invocation.invoke(call))

    def withdraw(self) -> list[invocation.Invocation]:
        taken, self.waiting = self.waiting, []
        return [call for call, _ in taken]

    def retire(self, calls: Iterable[invocation.Invocation]) -> None:
        self.log.append(("retire", sorted(call.task.name for call in calls)))
