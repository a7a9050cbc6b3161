"""The outline of a plan: what its flows look like, to those who do not have their code."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, Final

from wbengine import deciders, task
from wbengine.runtime import plan as plan_module
from wbengine.types import outline
from wbengine.types.outline import Outline, OutlineNode

__all__ = ["outline_of"]

_LONGEST: Final = 60
_BEGINNINGS: Final = frozenset({plan_module.FLOW, plan_module.RETRY})


def outline_of(plan: plan_module.Plan) -> Outline:
    """Everything that is in a plan.

    Links between flows are between the flows themselves, and not between where one ends and the
    other begins.
    """
    notes = _notes(plan)
    places: list[int] = []
    found: list[tuple[str, str, int | None, str | None, str | None]] = []
    known: dict[type, tuple[str, str | None]] = {}
    columns = zip(plan.kinds, plan.items, plan.names, plan.parent, strict=True)
    end = plan_module.FLOW_END
    for node, (kind, item, name, parent) in enumerate(columns):
        if kind == end:
            places.append(places[plan._begin[node]])
            continue
        told = known.get(type(item))
        if told is None:
            told = _told(kind, item)
            if not isinstance(item, task.FunctorTask):
                known[type(item)] = told
        places.append(len(found))
        within = places[parent] if parent >= 0 else None
        found.append((name, told[0], within, told[1], notes.get(node)))
    edges = [(places[before], places[after]) for before, after in _links(plan)]
    return Outline(tuple(map(OutlineNode._make, found)), tuple(edges))


def _links(plan: plan_module.Plan) -> list[tuple[int, int]]:
    """What comes after what; not what every flow has: from where it begins to what is inside."""
    kinds, end = plan.kinds, plan_module.FLOW_END
    return [
        (node, after)
        for node, (kind, afters) in enumerate(zip(kinds, plan.succ, strict=True))
        if kind not in _BEGINNINGS
        for after in afters
        if kinds[after] != end
    ]


def _told(kind: int, item: Any) -> tuple[str, str | None]:
    """The kind of a node, and the function or class that an atom is made of."""
    if kind == plan_module.FLOW:
        return outline.FLOW, None
    made: Any = type(item)
    if isinstance(item, task.FunctorTask) and hasattr(item._execute, "__qualname__"):
        made = item._execute
    name = f"{made.__module__}.{made.__qualname__}"
    if kind == plan_module.RETRY:
        return outline.RETRY, name
    return outline.MAP if item.fans_out else outline.TASK, name


def _notes(plan: plan_module.Plan) -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for node, rule in plan.joins.items():
        if rule is not deciders.Join.ALL:
            found.setdefault(node, []).append(f"join {rule}")
    for node, edges in plan.deciders.items():
        for edge in edges:
            end = plan.names[edge.end].removesuffix(plan_module.END_SUFFIX)
            depth = "" if edge.depth is deciders.Depth.ALL else f", depth {edge.depth}"
            found.setdefault(node, []).append(f"after {end!r} if {_called(edge.decider)}{depth}")
    return {node: "; ".join(told) for node, told in found.items()}


def _called(decider: Callable[..., Any]) -> str:
    name = getattr(decider, "__qualname__", None)
    return name.rpartition(".")[2] if isinstance(name, str) else reprlib.repr(decider)[:_LONGEST]
