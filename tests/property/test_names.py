"""Providers that an atom sees and their order, compared with a recursive definition."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.seams.scheduling import Planned
from tests.support.amounts import amount
from wbengine import exceptions, flow, retry, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

FLOWS = amount(150, 1000, "WBENGINE_FLOWS")
NAMES = ["x", "y", "z"]


class Step(task.Task):
    def execute(self, **kwargs: Any) -> None: ...


class Controller(retry.AlwaysRevert):
    def execute(self, history: Any, **kwargs: Any) -> None: ...


class Forest:
    """A random flow with the parent of each of its members."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.place: dict[int, tuple[flow.Flow, Any]] = {}  # id(child) -> (surrounding flow, child)
        self.atoms: dict[str, Any] = {}
        self.controlled: dict[str, flow.Flow] = {}  # retry controller -> its flow
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
        if controller is not None:
            self.atoms[controller.name] = controller
            self.controlled[controller.name] = made
        self.atoms.update((c.name, c) for c in children if not isinstance(c, flow.Flow))
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


def inside(item: Any) -> set[str]:
    if not isinstance(item, flow.Flow):
        return {item.name}
    found = {item.retry.name} if item.retry else set()
    return found.union(*(inside(child) for child in item))


def seen(place: dict[str, int], forest: Forest, item: Any, name: str) -> Iterator[str]:
    """Yield the providers of `name` that `item` sees, nearest first, by definition."""

    def those(atoms: set[str]) -> list[str]:
        found = (atom for atom in atoms if name in forest.atoms[atom].save_as)
        return sorted(found, key=place.__getitem__, reverse=True)

    while id(item) in forest.place:
        around, item = forest.place[id(item)]
        if around.kind == "linear":
            children = list(around)
            for child in reversed(children[: children.index(item)]):
                yield from those(inside(child))
        elif around.kind == "graph":
            links = list(around.iter_links())
            named = [u for u, v, meta in links if v is item and name in meta.get("reasons", ())]
            direct = set[str]().union(*(inside(u) for u in named))
            yield from those(direct)
            before: list[Any] = []
            todo = [item]
            while todo:
                v = todo.pop()
                new = [u for u, w, _ in links if w is v and u not in before]
                before += new
                todo += new
            rest = set[str]().union(*(inside(u) for u in before)) - direct
            yield from those(rest)
        if around.retry:
            yield from those({around.retry.name})
        item = around


def ancestors(planned: Planned, name: str) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        new = planned.before(todo.pop()) - found
        found |= new
        todo += new
    return found


def test_providers_of_each_name_match_definition() -> None:
    looked_up = found = 0
    for seed in range(FLOWS):
        forest = Forest(seed)
        planned = Planned(forest.root)
        place = {name: n for n, name in enumerate(planned.names)}
        assert set(planned.atoms) == set(forest.atoms)
        for atom in planned.atoms:
            item = forest.atoms[atom]
            before = ancestors(planned, atom)
            for name in NAMES:
                # A retry controller sees the providers that its flow sees.
                expected = list(seen(place, forest, forest.controlled.get(atom, item), name))
                where = f"seed {seed}, {name} for {atom}"
                providers = planned.providers(atom, name)
                assert [p.atom for p in providers] == expected, where
                assert all(p.index == forest.atoms[p.atom].save_as[name] for p in providers)
                first = planned.first_provider(atom, name)
                assert first == (providers[0] if providers else None), where
                # Exactly the predecessors are visible.
                assert set(expected) == {
                    n for n in before & set(planned.atoms) if name in forest.atoms[n].save_as
                }, where
                looked_up += 1
                found += bool(expected)
    assert looked_up > 10 * FLOWS
    assert found > FLOWS
