"""Task types that an operator paused in all flows of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._runtime import deadlines, inbox
from wbengine._runtime import plan as plans
from wbengine._runtime.gates import base, task_gate
from wbengine._tasks import functors
from wbengine.persistence import _pauses as stored_pauses

__all__ = ["PauseGate", "task_types"]


def task_types(plan: plans.Plan) -> dict[int, str]:
    """Return the dotted name of the class or function of each task, by node."""
    types = {}
    for node, (kind, item) in enumerate(zip(plan.kinds, plan.items, strict=True)):
        if kind == plans.TASK:
            task: Any = item.inner if item.fans_out else item  # type: ignore[union-attr]
            types[node] = functors.code_of(task)
    return types


class PauseGate(task_gate.TaskGate):
    """Delays tasks, items of Maps and steps of workflows whose type is paused."""

    def __init__(
        self,
        plan: plans.Plan,
        pauses: tuple[stored_pauses.TaskPause, ...],
        timers: deadlines.Timers,
        clock: clocks.Clock,
        is_running: Callable[[int], bool],
    ) -> None:
        super().__init__(plan, is_running)
        self._timers: Final = timers
        self._clock: Final = clock
        self._types: Mapping[int, str] = {}
        #: False until the store contains a pause: nothing has to pass the gate.
        self.is_active = False
        self._pauses: tuple[stored_pauses.TaskPause, ...] = ()
        # The pauses that are not over.
        self._open_pauses: list[stored_pauses.TaskPause] = []
        self._has_ended_pauses = False
        self._has_steps = False
        self._set(pauses)

    def on_event(self, event: inbox.Event) -> bool:
        if not isinstance(event, inbox.PausesChanged):
            return False
        closed, patterns = self.closed, {pause.pattern for pause in self._pauses}
        self._set(event.pauses)
        if not self.closed <= closed:
            return True
        # A new pattern may match steps, whose types are known only when they begin.
        return self._has_steps and not {pause.pattern for pause in event.pauses} <= patterns

    def _set(self, pauses: tuple[stored_pauses.TaskPause, ...]) -> None:
        self._pauses = pauses
        if pauses and not self.is_active:
            self.is_active, self._types = True, task_types(self._plan)
            self._has_steps = self._plan.has_workflows()
        self._close_paused()

    def _close_paused(self) -> None:
        wall, now = self._clock.time(), self._clock.monotonic()
        pauses = [pause for pause in self._pauses if not pause.is_over(wall)]
        types = {
            name
            for name in set(self._types.values())
            if any(pause.matches(name) for pause in pauses)
        }
        closed = frozenset(node for node, name in self._types.items() if name in types)
        has_ended = not self.closed <= closed or len(pauses) < len(self._open_pauses)
        self._has_ended_pauses = self._has_ended_pauses or has_ended
        self.closed, self._open_pauses = closed, pauses
        for pause in pauses:
            if pause.until is not None:
                self._timers.set((self, pause.pattern), now + (pause.until - wall))

    def release(self, due: Iterable[Hashable]) -> base.Work:
        if due:
            self._close_paused()
        if not self._has_ended_pauses:
            return base.NOTHING
        self._has_ended_pauses = False
        return self.release_open()

    def _closes(self, call: calls.Invocation) -> bool:
        if call.step is None:
            return call.node in self.closed
        name = functors.code_of(call.task)
        return any(pause.matches(name) for pause in self._open_pauses)

    @property
    def parkable(self) -> int:
        return len(self._nodes) + len(self._calls)

    @property
    def delaying_pauses(self) -> tuple[stored_pauses.TaskPause, ...]:
        types = self.paused_counts()
        return tuple(pause for pause in self._open_pauses if any(map(pause.matches, types)))

    def paused_counts(self) -> Counter[str]:
        # Copies of dicts are atomic.
        nodes, waiting = self._nodes.copy(), self._calls.copy()
        counts = Counter(self._types[node] for node in nodes)
        counts.update(
            self._types[call.node] if call.step is None else functors.code_of(call.task)
            for call in waiting
        )
        return counts
