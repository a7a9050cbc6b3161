"""Which providers an atom sees, and in which order, against a definition that follows the tree."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

from wbengine import exceptions, flow, retry, task
from wbengine._core.compiler import compile
from wbengine._core.plan import RETRY, Plan
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

FLOWS = int(os.environ.get("WBENGINE_FLOWS", "300"))
NAMES = ["x", "y", "z"]


class Step(task.Task):
    def execute(self, **kwargs: Any) -> None: ...


class Controller(retry.AlwaysRevert):
    def execute(self, history: Any, **kwargs: Any) -> None: ...


class Forest:
    """A random flow and, for each of its flows, where it stands."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.place: dict[int, tuple[flow.Flow, Any]] = {}  # id(child) -> (flow around, child)
        self.root = self.flow(0)

    def arguments(self) -> dict[str, Any]:
        self.count += 1
        few = [0, 0, 0, 1, 1, 2]
        return {
            "name": f"n{self.count}",
            "provides": self.rng.sample(NAMES, self.rng.choice(few)),
            "requires": self.rng.sample(NAMES, self.rng.choice(few)),
        }

    def flow(self, depth: int) -> flow.Flow:
        rng = self.rng
        self.count += 1
        kind = rng.choice([linear_flow.Flow, unordered_flow.Flow, graph_flow.Flow])
        controller = Controller(**self.arguments()) if rng.random() < 0.3 else None
        made: flow.Flow = kind(f"f{self.count}", controller)
        children: list[Any] = [
            self.flow(depth + 1) if depth < 4 and rng.random() < 0.4 else Step(**self.arguments())
            for _ in range(rng.choice([0, 1, 2, 3, 4, 5]))
        ]
        if isinstance(made, graph_flow.Flow):
            for child in children:
                try:
                    made.add(child, resolve_requires=rng.random() < 0.6)
                except exceptions.DependencyFailure:
                    made.add(child, resolve_requires=False, resolve_existing=False)
            for _ in range(rng.choice([0, 2, 5])):
                if len(children) > 1:
                    try:
                        made.link(*rng.sample(children, 2))
                    except exceptions.DependencyFailure:
                        pass
        else:
            made.add(*children)
        for child in children:
            self.place[id(child)] = (made, child)
        return made


def inside(plan: Plan, item: Any) -> set[int]:
    if not isinstance(item, flow.Flow):
        return {plan.by_name[item.name]}
    found = {plan.by_name[item.retry.name]} if item.retry else set()
    return found.union(*(inside(plan, child) for child in item))


def seen(plan: Plan, forest: Forest, item: Any, name: str) -> Iterator[int]:
    """The providers of `name` that `item` sees, nearest first, as the rules say."""

    def those(nodes: set[int]) -> list[int]:
        return sorted((n for n in nodes if name in plan.items[n].save_as), reverse=True)

    while id(item) in forest.place:
        around, item = forest.place[id(item)]
        if around.kind == "linear":
            children = list(around)
            for child in reversed(children[: children.index(item)]):
                yield from those(inside(plan, child))
        elif around.kind == "graph":
            links = list(around.iter_links())
            named = [u for u, v, meta in links if v is item and name in meta.get("reasons", ())]
            direct = set[int]().union(*(inside(plan, u) for u in named))
            yield from those(direct)
            before: list[Any] = []
            todo = [item]
            while todo:
                v = todo.pop()
                new = [u for u, w, _ in links if w is v and u not in before]
                before += new
                todo += new
            rest = set[int]().union(*(inside(plan, u) for u in before)) - direct
            yield from those(rest)
        if around.retry:
            yield from those({plan.by_name[around.retry.name]})
        item = around


def ancestors(plan: Plan, node: int) -> set[int]:
    found: set[int] = set()
    todo = [node]
    while todo:
        new = set(plan.pred[todo.pop()]) - found
        found |= new
        todo += new
    return found


def test_every_name_of_every_atom() -> None:
    looked_up = found = 0
    for seed in range(FLOWS):
        forest = Forest(seed)
        plan = compile(forest.root)
        for node in plan.atoms():
            around = plan.items[plan.parent[node]]
            assert isinstance(around, flow.Flow)
            item = around if plan.kinds[node] == RETRY else plan.items[node]
            before = ancestors(plan, node)
            for name in NAMES:
                expected = list(seen(plan, forest, item, name))
                where = f"seed {seed}, {name} for {plan.names[node]}"
                candidates = list(plan.candidates(node, name))
                assert [c.node for c in candidates] == expected, where
                assert all(c.index == plan.items[c.node].save_as[name] for c in candidates)
                first = plan.first(node, name)
                assert first == (candidates[0] if candidates else None), where
                # Visible is what is a predecessor, no more and no less.
                assert set(expected) == {
                    n for n in before if plan.is_atom(n) and name in plan.items[n].save_as
                }, where
                looked_up += 1
                found += bool(expected)
    assert looked_up > 10 * FLOWS
    assert found > FLOWS
