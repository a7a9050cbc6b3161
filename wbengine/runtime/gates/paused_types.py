"""Task types that an operator paused in all flows of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import _clock
from wbengine import invocation as calls
from wbengine._tasks import functors
from wbengine.persistence import pauses as stored_pauses
from wbengine.runtime import deadlines, inbox
from wbengine.runtime import plan as plans
from wbengine.runtime.gates import base

__all__ = ["PauseGate", "task_types"]


def task_types(plan: plans.Plan) -> dict[int, str]:
    """Return the dotted name of the class or function of each task, by node."""
    types = {}
    for node, (kind, item) in enumerate(zip(plan.kinds, plan.items, strict=True)):
        if kind == plans.TASK:
            task: Any = item.inner if item.fans_out else item  # type: ignore[union-attr]
            types[node] = functors.code_of(task)
    return types


class PauseGate(base.Gate):
    """Delays tasks and items of Maps whose type is paused. Reversions and retries do not wait.

    :param is_running: returns whether an earlier run began a node: its result must be looked up, so
        it does not wait.
    """

    controls_admission = True

    def __init__(
        self,
        plan: plans.Plan,
        pauses: tuple[stored_pauses.TaskPause, ...],
        timers: deadlines.Timers,
        clock: _clock.Clock,
        is_running: Callable[[int], bool],
    ) -> None:
        self._plan: Final = plan
        self._timers: Final = timers
        self._clock: Final = clock
        self._is_running: Final = is_running
        self._types: Mapping[int, str] = {}
        #: False until the store contains a pause: nothing has to pass the gate.
        self.is_active = False
        self._pauses: tuple[stored_pauses.TaskPause, ...] = ()
        self._paused: frozenset[int] = frozenset()
        self._has_ended_pauses = False
        self._nodes: dict[int, None] = {}
        self._calls: dict[calls.Invocation, None] = {}
        self._items: Counter[int] = Counter()
        self._set(pauses)

    def on_event(self, event: inbox.Event) -> None:
        if isinstance(event, inbox.PausesChanged):
            self._set(event.pauses)

    def _set(self, pauses: tuple[stored_pauses.TaskPause, ...]) -> None:
        self._pauses = pauses
        if pauses and not self.is_active:
            self.is_active, self._types = True, task_types(self._plan)
        self._read_paused()

    def _read_paused(self) -> None:
        wall, now = self._clock.time(), self._clock.monotonic()
        pauses = [pause for pause in self._pauses if not pause.is_over(wall)]
        types = {
            name
            for name in set(self._types.values())
            if any(pause.matches(name) for pause in pauses)
        }
        paused = frozenset(node for node, name in self._types.items() if name in types)
        self._has_ended_pauses = self._has_ended_pauses or not self._paused <= paused
        self._paused = paused
        for pause in pauses:
            if pause.until is not None:
                self._timers.set((self, pause.pattern), now + (pause.until - wall))

    def admit_nodes(self, nodes: Sequence[int]) -> Sequence[int]:
        if not self._paused:
            return nodes
        paused = [node for node in nodes if node in self._paused and not self._begins(node)]
        self._nodes.update(dict.fromkeys(paused))
        return [node for node in nodes if node not in self._nodes]

    def _begins(self, node: int) -> bool:
        item: Any = self._plan.items[node]
        return item.fans_out or self._is_running(node)

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        if not self._paused:
            return tasks
        admitted = []
        for call in tasks:
            if call.node in self._paused and call.action == calls.EXECUTE and not call.recovered:
                self._calls[call] = None
                self._items[call.node] += call.index >= 0
            else:
                admitted.append(call)
        return admitted

    def release(self, due: Iterable[Hashable]) -> base.Work:
        if due:
            self._read_paused()
        if not self._has_ended_pauses:
            return base.NOTHING
        self._has_ended_pauses = False
        return self.withdraw(lambda node, call: node not in self._paused)

    def withdraw(self, selects: base.Selection) -> base.Work:
        nodes = [node for node in self._nodes if selects(node, None)]
        for node in nodes:
            del self._nodes[node]
        withdrawn = base.remove_selected(self._calls, selects)
        for call in withdrawn:
            self._items[call.node] -= call.index >= 0
        return base.Work(nodes, withdrawn)

    def paused(self) -> Counter[str]:
        # Copies of dicts are atomic.
        nodes = [*self._nodes.copy(), *(call.node for call in self._calls.copy())]
        return Counter(self._types[node] for node in nodes)

    def is_full(self, node: int) -> bool:
        return self._items[node] >= base.MAX_WAITING_ITEMS

    def concerns(self, node: int) -> bool:
        return node in self._paused
