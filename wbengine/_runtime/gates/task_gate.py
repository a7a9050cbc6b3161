"""Base of gates that delay chosen tasks before they start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from wbengine._calls import invocation as calls
from wbengine._runtime import plan as plans
from wbengine._runtime.gates import base

__all__ = ["TaskGate"]


class TaskGate(base.Gate):
    """Delays executions of the tasks in `closed`, of the items of the Maps in it, and of steps.

    Reversions and retry controllers do not wait, and neither does a call that an earlier run may
    have begun, because its result must be looked up. A subclass sets `closed`; after that, its
    `release` returns `release_open()`.

    :param is_running: returns whether an earlier run began a node.
    """

    controls_admission = True

    def __init__(self, plan: plans.Plan, is_running: Callable[[int], bool]) -> None:
        self._plan: Final = plan
        self._is_running: Final = is_running
        #: Nodes whose tasks have to wait now.
        self.closed: frozenset[int] = frozenset()
        self._nodes: dict[int, None] = {}
        self._calls: dict[calls.Invocation, None] = {}
        self._items: Counter[int] = Counter()

    def admit_nodes(self, nodes: Sequence[int]) -> Sequence[int]:
        if not self.closed:
            return nodes
        delayed = [node for node in nodes if node in self.closed and not self._begins(node)]
        self._nodes.update(dict.fromkeys(delayed))
        return [node for node in nodes if node not in self._nodes]

    def _begins(self, node: int) -> bool:
        item: Any = self._plan.items[node]
        return item.fans_out or self._is_running(node)

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        admitted = []
        for call in tasks:
            if self._closes(call) and call.action == calls.EXECUTE and not call.recovered:
                self._calls[call] = None
                self._items[call.node] += call.index >= 0
            else:
                admitted.append(call)
        return admitted

    def _closes(self, call: calls.Invocation) -> bool:
        """Return whether a call has to wait now."""
        return call.node in self.closed

    def release_open(self) -> base.Work:
        """Remove and return the waiting work whose nodes are no longer closed."""
        return self.withdraw(
            lambda node, call: node not in self.closed if call is None else not self._closes(call)
        )

    def withdraw(self, selects: base.Selection) -> base.Work:
        nodes = [node for node in self._nodes if selects(node, None)]
        for node in nodes:
            del self._nodes[node]
        withdrawn = base.remove_selected(self._calls, selects)
        for call in withdrawn:
            self._items[call.node] -= call.index >= 0
        return base.Work(nodes, withdrawn)

    def is_full(self, node: int) -> bool:
        return self._items[node] >= base.MAX_WAITING_ITEMS

    def may_delay_items(self, node: int) -> bool:
        return node in self.closed
