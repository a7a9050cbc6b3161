"""Workers that die right after they received a request, before any reply arrived."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.kinds import One, Two
from tests.simulation.world import World
from wbengine import exceptions as exc
from wbengine import task

#: All common values of `transition_timeout` in seconds.
TIMEOUTS = range(5, 61)

#: Seconds until a request whose owner never replied has ended or was resent; without a ledger, in
#: addition to the `transition_timeout`.
ENDED = 20.0
ENDED_UNTOLD = 30.0

WIRES = [("amqp", True), ("kombu", True), ("folder", True), ("amqp", False), ("kombu", False)]


def die_after_claim(world: World, kind: type[task.Task], spare: int) -> Any:
    """Kill one of `1 + spare` workers after it received a request; return the atom."""
    engine, workers = world.begun(1 + spare, (One, Two))
    atom, _ = world.submit(engine, kind, 10.0)
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
        # Without a ledger the engine cannot tell whether a worker received the request.
        kinds = (exc.WorkerLost,) if ledger else (exc.WorkerLost, exc.RequestTimeout)
        assert atom.outcome.check(*kinds), f"{timeout} s: {atom.outcome}"
        world.heal()


@pytest.mark.parametrize(("broker", "ledger"), WIRES)
def test_idempotent_request_of_dead_worker_is_resent_to_another(broker: str, ledger: bool) -> None:
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


# The engine dies, too, and there is no ledger: the resuming engine has to query the workers.

#: Seconds until the resuming engine fails the request.  An executor polls each second while it
#: searches and fails the request after 16 to 20 s; the simulated engine polls every 5 s.
INHERITED = 25.0


def inherit_lost(world: World, own: bool) -> Any:
    """Kill the worker and the engine of a running request, and resume its flow; return the atom."""
    for _ in range(2):
        world.new_worker([One, Two], 1)
    engine = world.new_engine(own=own)
    atom, flow = world.submit(engine, One, 10.0)
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
def test_resuming_engine_loses_request_of_dead_worker_within_promised_time(
    broker: str, own: bool
) -> None:
    """The queue delivers a query that was sent after all requests of the dead engine."""
    world = World(broker=broker, ledger=False, timeout=60.0)
    atom = inherit_lost(world, own)
    world.pass_time(INHERITED)
    assert atom.outcome is not None, world.whereabouts(atom)
    assert atom.outcome.check(exc.WorkerLost)
    world.heal()


@pytest.mark.parametrize("broker", ["amqp", "kombu"])
def test_resuming_engine_waits_for_queued_request(broker: str) -> None:
    world = World(broker=broker, ledger=False, timeout=60.0)
    world.new_worker([One, Two], 1)
    engine = world.new_engine()
    engine.begin()
    world.pass_time(1.0)
    world.submit(engine, Two, 40.0)
    world.pass_time(1.0)
    behind, flow = world.submit(engine, One, 1.0)
    world.pass_time(1.0)
    world.end(engine)
    world.resume(flow)
    world.pass_time(60.0)
    assert behind.outcome == 1, world.whereabouts(behind)
    world.heal()
