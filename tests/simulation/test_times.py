"""Requests that wait for longer than they may."""

from __future__ import annotations

from typing import Any

from tests.simulation.broker import Message
from tests.simulation.kinds import One
from tests.simulation.world import World
from wbengine import exceptions as exc


def begun(**options: Any) -> tuple[World, Any, Any]:
    """A world with an engine and a worker that has one slot."""
    world = World(broker="amqp", **options)
    engine = world.new_engine()
    engine.begin()
    worker = world.new_worker([One], 1)
    world.pass_time(1.0)
    return world, engine, worker


def waiting(world: World) -> list[Message]:
    return [each for each in world.broker.queues["t.One"] if each.kind == "REQUEST"]


def test_request_that_is_lost_behind_a_busy_worker_times_out() -> None:
    """It had waited for longer than its timeout already: the busy worker stopped its clock."""
    world, engine, _ = begun(ledger=False, timeout=20.0)
    first, second = world.new_atom(One, 50.0), world.new_atom(One, 1.0)
    world.new_flow(engine, [first, second])
    world.pass_time(40.0)
    (lost,) = waiting(world)
    world.broker.queues["t.One"].remove(lost)
    assert (first.outcome, second.outcome) == (None, None)
    world.pass_time(60.0)
    assert first.outcome == 1
    assert second.outcome.check(exc.RequestTimeout), world.whereabouts(second)
    world.heal()


def test_request_that_expired_in_its_queue_is_not_run() -> None:
    """Its engine is gone, and there is no ledger: its worker has to see that it is too late."""
    world, engine, _ = begun(ledger=False)
    first, second = world.new_atom(One, 50.0), world.new_atom(One, 1.0)
    second.task.expires = 10.0
    world.new_flow(engine, [first, second])
    world.pass_time(5.0)
    assert len(waiting(world)) == 1
    world.end(engine)
    world.pass_time(60.0)
    assert waiting(world) == [] and not world.judge.runs[second.request_id]
    world.heal()
