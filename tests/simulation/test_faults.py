"""Rare combinations of faults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import defects
from tests.simulation.engines import Engine
from tests.simulation.fleet import Worker
from tests.simulation.judge import Violation
from tests.simulation.kinds import One, Two
from tests.simulation.world import World
from wbengine import exceptions as exc

#: Seconds until a request whose owner never replied has ended or runs on another worker, with a
#: reserve for that worker.
ENDED = 40.0


def begun(world: World, workers: int = 1) -> tuple[Engine, list[Worker]]:
    return world.begun(workers, (One, Two))


# A worker that is stopped (SIGSTOP) right after its claim.


@pytest.mark.parametrize("kind", [One, Two])
@pytest.mark.parametrize("steps", [2, 3, 4], ids=["claimed", "answered", "about-to-run"])
@pytest.mark.parametrize("claiming", [False, True], ids=["claims", "takes-and-claims"])
@pytest.mark.parametrize("broker", ["amqp", "folder", "kombu"])
def test_worker_stopped_after_claim_is_lost_and_does_not_run_later(
    broker: str, claiming: bool, steps: int, kind: Any
) -> None:
    """The worker stops after this number of steps with the request."""
    world = World(broker=broker, claiming=claiming)
    engine, (stopped, other) = begun(world, 2)
    atom, _ = world.submit(engine, kind, 1.0)
    world.settle()
    request = world.broker.pull_only("REQUEST")
    stopped.take(request)
    stopped.fuse, stopped.fate = steps - 1, "freeze"
    world.settle()
    assert world.ledger is not None and stopped.frozen
    assert world.ledger.state(atom.request_id).holder == stopped.name
    world.pass_time(ENDED)
    runs = world.judge.runs[atom.request_id]
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost) and runs == []
    else:
        assert atom.outcome == 2 and runs == [(2, other.name)]
    world.thaw(stopped)
    world.pass_time(60.0)
    assert len(world.judge.runs[atom.request_id]) == len(runs)
    world.heal()


# A broker that is short of memory: it blocks publishing, but not consuming.


def run_blocked(ledger: bool) -> None:
    world = World(broker="amqp", ledger=ledger)
    engine, _ = begun(world, 2)
    atoms = [world.new_atom(One, seconds) for seconds in (0.5, 3.0, 50.0)]
    world.new_flow(engine, atoms)
    world.pass_time(0.1)
    world.block(100.0)
    world.pass_time(90.0)
    assert [atom.outcome for atom in atoms] == [None, None, None]
    world.pass_time(80.0)
    assert [atom.outcome for atom in atoms] == [1, 1, 1]
    assert not world.judge.seen["lost, and alive"]
    world.heal()


@pytest.mark.parametrize("ledger", [True, False])
def test_blocked_publishing_loses_no_worker_and_no_reply(ledger: bool) -> None:
    run_blocked(ledger)


def test_planted_defect_with_blocked_workers_is_found() -> None:
    with defects.planted("silence-counts-always"), pytest.raises(AssertionError):
        run_blocked(True)


# A broker that is restored from an older snapshot.


@pytest.mark.parametrize("claiming", [False, True], ids=["claims", "takes-and-claims"])
def test_request_runs_once_after_broker_is_restored_from_snapshot(claiming: bool) -> None:
    world = World(broker="folder", claiming=claiming)
    engine, (worker,) = begun(world)
    world.strike(worker, "freeze")
    atom, _ = world.submit(engine, One, 0.1)
    world.pass_time(0.1)
    set_back = world.kept()
    world.thaw(worker)
    world.pass_time(1.0)
    assert atom.outcome == 1
    set_back()
    world.pass_time(1.0)
    world.heal()


@pytest.mark.parametrize("kind", [One, Two])
@pytest.mark.parametrize("claiming", [False, True], ids=["claims", "takes-and-claims"])
def test_waiting_request_is_lost_or_resent_after_broker_is_restored(
    claiming: bool, kind: Any
) -> None:
    """The engine cannot tell whether the request ran later, as if its worker was lost."""
    world = World(broker="folder", claiming=claiming)
    engine, (worker,) = begun(world)
    world.strike(worker, "freeze")
    atom, _ = world.submit(engine, kind, 0.1)
    world.pass_time(0.1)
    world.kept()()
    world.thaw(worker)
    world.pass_time(ENDED)
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost) and not world.judge.runs[atom.request_id]
    else:
        assert (atom.outcome, world.judge.runs[atom.request_id]) == (2, [(2, worker.name)])
    world.heal()


@pytest.mark.parametrize("kind", [One, Two])
@pytest.mark.parametrize("snapshot", ["with its row", "without its row"])
def test_request_of_dead_engine_is_lost_or_resent_after_broker_is_restored(
    snapshot: str, kind: Any
) -> None:
    """The resuming engine reads the row that the dead engine wrote, or finds no row."""
    world = World(broker="folder", claiming=True)
    engine, (worker,) = begun(world)
    set_back = world.kept()
    world.strike(worker, "freeze")
    atom, flow = world.submit(engine, kind, 0.1)
    world.pass_time(0.1)
    if snapshot == "with its row":
        set_back = world.kept()
    world.thaw(worker)
    world.settle()
    world.end(engine)
    world.pass_time(5.0)
    assert len(world.judge.runs[atom.request_id]) == 1
    set_back()
    if snapshot == "without its row":
        world.judge.seen["set back"] += 1
    heir, _ = begun(world, 0)
    heir.own_flow(flow)
    world.pass_time(ENDED)
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost)
        assert len(world.judge.runs[atom.request_id]) == 1
    else:
        assert atom.outcome == world.judge.runs[atom.request_id][-1][0] > 1
    world.heal()


# A request that was delivered but whose delivery was lost, while claims are reconciled.


@pytest.mark.parametrize("kind", [One, Two])
@pytest.mark.parametrize("others", [0, 1])
def test_claim_with_lost_confirmation_ends(others: int, kind: Any) -> None:
    """The server makes the claim, and the connection of the worker breaks before the reply."""
    world = World(broker="folder", claiming=True)
    engine, workers = begun(world, 1 + others)
    for worker in workers:
        world.strike(worker, "freeze")
    atom, _ = world.submit(engine, kind, 1.0)
    world.pass_time(0.1)
    assert world.ledger is not None
    world.ledger.renew(workers[0].name)
    assert world.ledger.claim(atom.request_id, 1, workers[0].name).holder == workers[0].name
    world.disconnect(workers[0])
    workers[0].declare()
    for worker in reversed(workers):
        world.thaw(worker)
    world.pass_time(ENDED)
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost)
    else:
        assert atom.outcome == 2
        assert len(world.judge.runs[atom.request_id]) == 1
    world.heal()


# A store that is restored from an older copy.


def test_restored_store_publishes_request_whose_row_already_exists() -> None:
    """The restored store lacks the run that created the row and died before publishing."""
    world = World(broker="folder")
    engine, _ = begun(world)
    atom, flow = world.submit(engine, One, 0.1)
    die_before_publishing(world, engine)
    saved = flow.epoch, atom.epoch
    engine, _ = begun(world, 0)
    engine.own_flow(flow)
    die_before_publishing(world, engine)
    assert world.ledger is not None
    left = world.ledger.state(atom.request_id)
    flow.epoch, atom.epoch = saved
    engine, _ = begun(world, 0)
    engine.own_flow(flow)
    assert (left.state, left.epoch) == ("open", atom.epoch)
    world.pass_time(5.0)
    assert atom.outcome == left.epoch
    world.heal()


def die_before_publishing(world: World, engine: Engine) -> None:
    """End the engine after it created the row of its only request, but before publishing it."""
    world.settle()
    world.broker.pull_only("REQUEST")
    world.end(engine)


# Brokers with rows: the row and the message of a request are written in one step.


@pytest.mark.parametrize("what", ["kept", "lost"])
def test_request_cancelled_while_published_with_its_row_never_starts(what: str) -> None:
    """The engine must not look up the row before the result of publishing is known."""
    world = World(broker="folder", one_step=True)
    engine, _ = begun(world)
    engine.doubtful = what
    atom, _ = world.submit(engine, One)
    world.settle()  # the request is in flight
    (request,) = engine.tracker.requests()
    engine.cancel(request.invocation)
    world.settle()
    world.heal()
    assert atom.outcome.check(exc.Cancelled)
    assert not world.judge.runs[request.id]


def test_lookup_during_creation_of_row_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "is_opening", lambda self, request: False)
    with pytest.raises(Violation, match="begins, and its end was saved before"):
        test_request_cancelled_while_published_with_its_row_never_starts("kept")


def test_request_runs_once_if_publish_confirmation_is_lost() -> None:
    """The second attempt to publish finds the row of the first one."""
    world = World(broker="folder", one_step=True)
    engine, _ = begun(world)
    engine.doubtful = "kept"
    atom, _ = world.submit(engine, One)
    world.heal()
    assert atom.outcome == 1
    assert [epoch for epoch, _ in world.judge.runs[atom.request_id]] == [1]
