"""Fleets with a long backlog of requests."""

from __future__ import annotations

import pytest

from tests.simulation.kinds import One
from tests.simulation.world import World


@pytest.mark.slow
@pytest.mark.parametrize(("ledger", "count"), [(True, 2000), (False, 600)])
def test_long_backlog_causes_no_resend_and_no_lost_worker(ledger: bool, count: int) -> None:
    world = World(broker="amqp", ledger=ledger)
    world.new_worker([One], 4)
    engine = world.new_engine()
    engine.begin()
    world.pass_time(1.0)
    world.new_flow(engine, [world.new_atom(One, 10.0) for _ in range(count)])
    began = world.now
    while not world.over():
        world.pass_time(50.0)
        assert world.now < began + 2.5 * count + 200
    seen = world.judge.seen
    assert seen["runs"] == seen["results"] == count
    assert not [what for what in seen if what.startswith(("sent again", "lost"))], seen
    assert set(seen) <= {"runs", "results", "published"}
    assert world.broker.most["t.One"] <= 1000
    assert world.now - began < 2.5 * count + 60
    world.heal()


def test_engines_with_long_backlogs_share_slow_workers() -> None:
    """Each engine has more tasks than the fleet can run within the timeout."""
    world = World(broker="amqp", ledger=True, timeout=20.0)
    for _ in range(3):
        world.new_worker([One], 1)
    engines = [world.new_engine() for _ in range(4)]
    for engine in engines:
        engine.begin()
    world.pass_time(1.0)
    for engine in engines:
        world.new_flow(engine, [world.new_atom(One, 10.0) for _ in range(10)])
    while not world.over():
        world.pass_time(5.0)
        assert world.now < 1300
    assert world.judge.seen["results"] == 40
    assert not [what for what in world.judge.seen if what.startswith(("sent again", "lost"))]
