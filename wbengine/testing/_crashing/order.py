"""The order of the steps of a flow, as far as its author defined one."""

from __future__ import annotations

import re
from typing import Final

from wbengine._runtime.plan import Plan

__all__ = ["Order", "task_name", "without_item"]

#: The name of a step of a workflow: workflow, attempt, position and task.
_STEP: Final = re.compile(r"(?P<workflow>.*)/(?P<attempt>\d+)\.(?P<position>\d+)-(?P<task>.*)\Z")


class Order:
    """Compares steps: tasks by the graph of the flow, steps of a workflow by their positions."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._later: dict[int, set[int]] = {}

    def is_before(self, step: str, later: str) -> bool:
        """Return whether a step precedes another one, which may depend on it.

        Steps of the same task, such as those of `steps.map`, have no order.
        """
        step, later = without_item(step), without_item(later)
        first, second = _STEP.match(step), _STEP.match(later)
        if first is not None and second is not None and first["workflow"] == second["workflow"]:
            is_earlier = int(first["position"]) < int(second["position"])
            is_same_attempt = first["attempt"] == second["attempt"]
            return is_same_attempt and is_earlier and first["task"] != second["task"]
        names = (
            each["workflow"] if each else name for each, name in ((first, step), (second, later))
        )
        nodes = [self._plan.by_name.get(name) for name in names]
        if nodes[0] is None or nodes[1] is None:
            return False
        return nodes[1] in self._later_than(nodes[0])

    def _later_than(self, node: int) -> set[int]:
        found = self._later.get(node)
        if found is None:
            found, waiting = set(), [node]
            while waiting:
                for successor in self._plan.succ[waiting.pop()]:
                    if successor not in found:
                        found.add(successor)
                        waiting.append(successor)
            self._later[node] = found
        return found


def without_item(step: str) -> str:
    """Return the name of the task of a step or of an item of a Map, or of its reversion."""
    return re.sub(r"\[\d+\]\Z", "", step.removeprefix("revert of "))


def task_name(step: str) -> str:
    """Return the task of a step, such as 'charge' for 'checkout/1.3-charge' or 'shop.charge'."""
    match = _STEP.match(step)
    return match["task"] if match else step.rpartition(".")[2]
