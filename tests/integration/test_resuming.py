"""Random flows end the same, whatever runs them and wherever the engine dies on the way.

`WBENGINE_FLOWS=N` tries N flows instead of the usual few; a failure names its seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.amounts import amount
from tests.support.snapshots import Snapshots
from wbengine import engines, exceptions, retry, states, task
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

FLOWS = amount(20, 200, "WBENGINE_FLOWS")
EXPECTED = (RuntimeError, exceptions.WrappedFailure)
SETTLED = {states.PENDING, states.SUCCESS, states.FAILURE, states.REVERTED, states.IGNORE}


class Fails(task.Task):
    """Fails until the innermost retry around it says that it is time: always at the same turns."""

    def __init__(self, name: str, until: int, turn: str | None) -> None:
        super().__init__(name, requires=[turn] if turn else (), auto_extract=False)
        self.until = until

    def execute(self, **turn: int) -> None:
        if max(turn.values(), default=1) <= self.until:
            raise RuntimeError(self.name)


def random_flow(chance: random.Random) -> Any:
    numbers = itertools.count()

    def make(depth: int, turn: str | None) -> Any:
        name = f"f{next(numbers)}"
        controller = None
        if chance.random() < 0.5:
            turn = f"turn_{name}"
            controller = retry.Times(
                chance.randint(1, 3), f"r{name}", turn, revert_all=chance.random() < 0.3
            )
        children = []
        for _ in range(chance.randint(0, 4)):
            if depth and chance.random() < 0.4:
                children.append(make(depth - 1, turn))
            else:
                until = chance.choice([0, 0, 0, 0, 0, 0, 1, 2, 9])
                children.append(Fails(f"t{next(numbers)}", until, turn))
        pattern = chance.choice([linear_flow, unordered_flow, graph_flow])
        flow: Any = pattern.Flow(name, retry=controller)
        flow.add(*children)
        if pattern is graph_flow:
            link(flow, children)
        return flow

    def link(flow: graph_flow.Flow, children: list[Any]) -> None:
        for before, after in itertools.combinations(children, 2):
            if chance.random() < 0.4:
                decider = chance.choice([None, None, yes, no])
                depth = chance.choice(["all", "flow", "neighbors", "atom"]) if decider else None
                flow.link(before, after, decider=decider, decider_depth=depth)

    return make(3, None)


def yes(history: Any) -> bool:
    return True


def no(history: Any) -> bool:
    return False


def finish(engine: base.Engine) -> tuple[str, dict[str, str | None]]:
    """Run to the end; return the state of the flow and those of its atoms."""
    failed = False
    try:
        engine.run()
    except EXPECTED:
        failed = True
    end = engine.storage.get_flow_state()
    found = {atom.name: atom.state for atom in engine.storage.flow_detail}
    assert set(found.values()) <= SETTLED
    assert failed == (end != states.SUCCESS)
    return end, found


def steps(engine: base.Engine) -> Iterator[str]:
    try:
        yield from engine.run_iter()
    except EXPECTED:
        pass


@pytest.mark.parametrize("seed", range(FLOWS))
def test_every_way_leads_to_the_same_end(seed: int) -> None:
    """In one go, in threads, with pauses, and after dying after any write."""

    def flow() -> Any:
        return random_flow(random.Random(seed))

    backend = Snapshots()
    expected = finish(engines.load(flow(), backend=backend))
    assert finish(engines.load(flow(), engine="parallel", max_workers=3))[0] == expected[0]

    chance = random.Random(seed)
    paused = engines.load(flow())
    while paused.storage.get_flow_state() in (states.PENDING, states.SUSPENDED):
        for _ in steps(paused):
            if chance.random() < 0.15:
                paused.suspend()
    found = {atom.name: atom.state for atom in paused.storage.flow_detail}
    assert (paused.storage.get_flow_state(), found) == expected

    for number, left in enumerate(backend.taken):
        if left.state not in (states.SUCCESS, states.REVERTED):
            numbers = {atom.name: atom.attempt for atom in left}
            engine = engines.load(flow(), flow_detail=left)
            assert finish(engine) == expected, f"died after write {number}"
            for atom in left:
                assert atom.attempt >= numbers.get(atom.name, 0)


@pytest.mark.parametrize("give_up", ["deadline", "cancel"])
def test_interrupted_task_is_reverted_although_it_was_suspended_before_it_ran_again(
    give_up: str,
) -> None:
    """What it did before its engine died is undone, too."""
    done: list[str] = []

    class Charges(task.Task):
        def execute(self) -> None:
            done.append("charged")

        def revert(self, *args: Any, **kwargs: Any) -> None:
            done.append("refunded")

    def flow() -> Any:
        return linear_flow.Flow("f").add(Charges("a"), Charges("b"))

    backend = Snapshots()
    engines.run(flow(), backend=backend)
    [left, *_] = [f for f in backend.taken if any(a.state == states.RUNNING for a in f)]
    engine = engines.load(flow(), flow_detail=left)
    engine.atom_notifier.register(states.RUNNING, lambda _, details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.get_atom_state("a") == states.RUNNING
    del done[:]
    other = engines.load(flow(), flow_detail=left)
    other.atom_notifier.register(states.RUNNING, lambda _, details: other.cancel())
    with pytest.raises((exceptions.DeadlineExceeded, exceptions.Cancelled)):
        other.run(deadline=0 if give_up == "deadline" else None)
    assert other.storage.get_flow_state() == states.REVERTED
    assert done[-1] == "refunded"
    assert other.storage.get_atom_state("b") == states.PENDING
