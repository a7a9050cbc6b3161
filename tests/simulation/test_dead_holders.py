"""A worker that dies right after it took a request, and before a word of it was heard."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.kinds import One, Two
from tests.simulation.world import World
from wbengine import exceptions as exc
from wbengine import task

#: Every whole second of `transition_timeout` that people use.
TIMEOUTS = range(5, 61)

#: Seconds after which a request is at an end (or sent again) whose holder was never heard of; and
#: without a ledger, besides the `transition_timeout`.
ENDED = 20.0
ENDED_UNTOLD = 30.0

WIRES = [("amqp", True), ("kombu", True), ("folder", True), ("amqp", False), ("kombu", False)]


def die_after_claim(world: World, kind: type[task.Task], spare: int) -> Any:
    """One of `1 + spare` workers takes a request and is gone; returns what the store says of it."""
    engine, workers = world.begun(1 + spare, (One, Two))
    atom = world.new_atom(kind, 10.0)
    world.new_flow(engine, [atom])
    while not world.judge.runs[atom.request_id]:
        world.pass_time(0.001)
    ((_, holder),) = world.judge.runs[atom.request_id]
    world.end(next(worker for worker in workers if worker.name == holder))
    return atom


@pytest.mark.parametrize("spare", [0, 1], ids=["alone", "beside-an-idle-one"])
@pytest.mark.parametrize(("broker", "ledger"), WIRES)
def test_request_of_dead_worker_ends_within_promised_time(
    broker: str, ledger: bool, spare: int
) -> None:
    for timeout in TIMEOUTS:
        world = World(broker=broker, ledger=ledger, timeout=float(timeout))
        atom = die_after_claim(world, One, spare)
        world.pass_time(ENDED if ledger else ENDED_UNTOLD + timeout)
        assert atom.outcome is not None, f"{timeout} s: {world.whereabouts(atom)}"
        # Without a ledger nobody can tell whether it was ever taken.
        kinds = (exc.WorkerLost,) if ledger else (exc.WorkerLost, exc.RequestTimeout)
        assert atom.outcome.check(*kinds), f"{timeout} s: {atom.outcome}"
        world.heal()


@pytest.mark.parametrize(("broker", "ledger"), WIRES)
def test_idempotent_request_of_dead_worker_is_sent_to_another(broker: str, ledger: bool) -> None:
    for timeout in TIMEOUTS:
        world = World(broker=broker, ledger=ledger, timeout=float(timeout))
        atom = die_after_claim(world, Two, 1)
        world.pass_time(ENDED if ledger else ENDED_UNTOLD + timeout)
        epochs = [epoch for epoch, _ in world.judge.runs[atom.request_id]]
        if ledger or epochs != [1]:
            assert epochs == [1, 2], f"{timeout} s: {world.whereabouts(atom)}"
        else:
            assert atom.outcome.check(exc.RequestTimeout), f"{timeout} s: {atom.outcome}"
        world.heal()


# Its engine dies, too, and there is no ledger: all that the heir knows is what it asks for.

#: Seconds after which the heir lets it fail: an executor, which looks around each second while it
#: searches, does so 16 to 20 s after it came; the world's engine looks around each 5 s.
INHERITED = 25.0


def inherit_lost(world: World, own: bool) -> Any:
    """A worker and the engine whose request it runs are gone; returns what the store says of it."""
    for _ in range(2):
        world.new_worker([One, Two], 1)
    engine = world.new_engine(own=own)
    atom = world.new_atom(One, 10.0)
    flow = world.new_flow(engine, [atom])
    while not world.judge.runs[atom.request_id]:
        world.pass_time(0.001)
    ((_, holder),) = world.judge.runs[atom.request_id]
    world.end(engine)
    world.end(world.workers[holder])
    world.pass_time(2.0)
    world.resume(flow)
    return atom


@pytest.mark.parametrize("own", [True, False], ids=["same-name", "another-name"])
@pytest.mark.parametrize("broker", ["amqp", "kombu"])
def test_heir_loses_request_of_dead_worker_within_promised_time(broker: str, own: bool) -> None:
    """The queue passes a question that stands behind all that the dead engine sent."""
    world = World(broker=broker, ledger=False, timeout=60.0)
    atom = inherit_lost(world, own)
    world.pass_time(INHERITED)
    assert atom.outcome is not None, world.whereabouts(atom)
    assert atom.outcome.check(exc.WorkerLost)
    world.heal()


@pytest.mark.parametrize("broker", ["amqp", "kombu"])
def test_heir_waits_for_request_that_stands_in_line(broker: str) -> None:
    world = World(broker=broker, ledger=False, timeout=60.0)
    world.new_worker([One, Two], 1)
    engine = world.new_engine()
    engine.begin()
    world.pass_time(1.0)
    world.new_flow(engine, [world.new_atom(Two, 40.0)])
    world.pass_time(1.0)
    behind = world.new_atom(One, 1.0)
    flow = world.new_flow(engine, [behind])
    world.pass_time(1.0)
    world.end(engine)
    world.resume(flow)
    world.pass_time(60.0)
    assert behind.outcome == 1, world.whereabouts(behind)
    world.heal()
