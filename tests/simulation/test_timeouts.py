"""Requests that wait longer than their time limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.seams import tracker
from tests.simulation.broker import Message
from tests.simulation.kinds import One
from tests.simulation.world import World
from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._concurrency import manual_clock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env


def begun(**options: Any) -> tuple[World, Any, Any]:
    """Return a world with an engine and a worker with one slot."""
    world = World(broker="amqp", **options)
    engine, (worker,) = world.begun()
    return world, engine, worker


def waiting(world: World) -> list[Message]:
    return [each for each in world.broker.queues["t.One"] if each.kind == "REQUEST"]


def test_request_lost_behind_busy_worker_times_out() -> None:
    """The busy worker paused the timeout, which had already passed."""
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


def test_request_expired_in_queue_is_not_run() -> None:
    """The engine is dead and there is no ledger: the worker has to check the expiry."""
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


def test_busy_taskflow_worker_pauses_timeout_of_queued_request() -> None:
    """TaskFlow's worker only reports the start of the first task.  After its end the timeout
    counts.
    """
    clock, ended = manual_clock.ManualClock(), []
    tracked = tracker.Tracker(
        "e", clock, do=lambda _: None, say=lambda _: None, lost=lambda _: None, timeout=20.0,
        expiry=1000.0, plain=True,
    )  # fmt: skip
    kind = f"{One.__module__}.{One.__name__}"
    tracked.hear_worker({"topic": "t", "tasks": [kind]}, SimpleNamespace(headers={}))
    ids = []
    for name in ("first", "second"):
        call = invocation.Invocation(One(name), "execute", name, 1, arguments={"seconds": 1.0})
        for effect in tracked.submit(call, lambda call, outcome: ended.append((call, outcome))):
            assert isinstance(effect, tracker.Publish) and tracked.publishing(effect)
            ids.append(effect.request.id)

    def answer(id: str, state: str, data: dict[str, Any]) -> None:
        reply = env.Envelope(pr.RESPONSE, {"state": state, "data": data}, correlation_id=id)
        settle(tracked.hear_answer(reply, None))

    def settle(effects: list[tracker.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, tracker.Settle):
                effect.deliver()
            elif isinstance(effect, tracker.Withdraw):
                settle(tracked.revoked(effect.request, tracked.revoke(effect.request, ours=True)))

    answer(ids[0], pr.RUNNING, {})
    for _ in range(100):
        clock.advance(1.0)
        settle(tracked.tick())
    assert ended == []
    answer(ids[0], pr.SUCCESS, {"result": 1})
    for _ in range(45):
        clock.advance(1.0)
        settle(tracked.tick())
    assert [call.uuid for call, _ in ended] == ["first", "second"]
    assert ended[1][1].value.check(exc.RequestTimeout)
