"""Faults that come together rarely, and are therefore let happen on purpose."""

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

#: Seconds after which a request is at an end, or with another worker, whose holder was never heard
#: of; and some more for the one that gets it.
ENDED = 40.0


def begun(world: World, workers: int = 1) -> tuple[Engine, list[Worker]]:
    return world.begun(workers, (One, Two))


# A worker that is stopped (SIGSTOP) right after its claim.


@pytest.mark.parametrize("kind", [One, Two])
@pytest.mark.parametrize("steps", [2, 3, 4], ids=["claimed", "answered", "about-to-run"])
@pytest.mark.parametrize("claiming", [False, True], ids=["claims", "takes-and-claims"])
@pytest.mark.parametrize("broker", ["amqp", "folder", "kombu"])
def test_worker_stopped_after_its_claim_is_lost_and_begins_nothing_when_it_goes_on(
    broker: str, claiming: bool, steps: int, kind: Any
) -> None:
    """It is stopped after so many steps with the request."""
    world = World(broker=broker, claiming=claiming)
    engine, (stopped, other) = begun(world, 2)
    atom = world.new_atom(kind, 1.0)
    world.new_flow(engine, [atom])
    world.settle()
    (request,) = [each for each in world.broker.in_flight() if each.kind == "REQUEST"]
    world.broker.pull(request)
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


# A broker that is short of memory: publishing waits, consuming goes on.


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
def test_blocked_publishers_lose_no_worker_and_no_answer(ledger: bool) -> None:
    run_blocked(ledger)


def test_silence_of_blocked_workers_would_be_noticed() -> None:
    with defects.planted("silence-counts-always"), pytest.raises(AssertionError):
        run_blocked(True)


# A server that was set back to an older snapshot of what it holds.


@pytest.mark.parametrize("claiming", [False, True], ids=["claims", "takes-and-claims"])
def test_server_set_back_to_a_snapshot_lets_nothing_run_twice(claiming: bool) -> None:
    world = World(broker="folder", claiming=claiming)
    engine, (worker,) = begun(world)
    world.strike(worker, "freeze")
    atom = world.new_atom(One, 0.1)
    world.new_flow(engine, [atom])
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
def test_request_that_waits_in_a_server_set_back_is_lost_or_sent_again(
    claiming: bool, kind: Any
) -> None:
    """Nobody can tell whether it ran since: it is as if a worker was lost with it."""
    world = World(broker="folder", claiming=claiming)
    engine, (worker,) = begun(world)
    world.strike(worker, "freeze")
    atom = world.new_atom(kind, 0.1)
    world.new_flow(engine, [atom])
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
def test_request_of_a_dead_engine_in_a_server_set_back_is_lost_or_sent_again(kind: Any) -> None:
    """The engine that goes on with the flow finds the row as another engine left it."""
    world = World(broker="folder", claiming=True)
    engine, (worker,) = begun(world)
    world.strike(worker, "freeze")
    atom = world.new_atom(kind, 0.1)
    flow = world.new_flow(engine, [atom])
    world.pass_time(0.1)
    set_back = world.kept()
    world.thaw(worker)
    world.settle()
    world.end(engine)
    world.pass_time(5.0)
    assert len(world.judge.runs[atom.request_id]) == 1
    set_back()
    heir, _ = begun(world, 0)
    heir.own_flow(flow)
    world.pass_time(ENDED)
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost)
        assert len(world.judge.runs[atom.request_id]) == 1
    else:
        assert atom.outcome == world.judge.runs[atom.request_id][-1][0] > 1
    world.heal()


@pytest.mark.parametrize("kind", [One, Two])
def test_request_that_a_server_set_back_never_heard_of_is_lost_or_sent_again(kind: Any) -> None:
    """Its engine died, and who goes on with the flow finds no row."""
    world = World(broker="folder", claiming=True)
    engine, _ = begun(world)
    set_back = world.kept()
    atom = world.new_atom(kind, 0.1)
    flow = world.new_flow(engine, [atom])
    world.settle()
    world.end(engine)
    world.pass_time(5.0)
    assert len(world.judge.runs[atom.request_id]) == 1
    set_back()
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


# A take whose answer was lost, beside the reconciliation of what its worker holds.


@pytest.mark.parametrize("kind", [One, Two])
@pytest.mark.parametrize("others", [0, 1])
def test_claim_that_its_worker_never_heard_of_ends(others: int, kind: Any) -> None:
    """The server made the claim; the worker's connection broke before it was told."""
    world = World(broker="folder", claiming=True)
    engine, workers = begun(world, 1 + others)
    for worker in workers:
        world.strike(worker, "freeze")
    atom = world.new_atom(kind, 1.0)
    world.new_flow(engine, [atom])
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


# A store that was set back to an older copy of what it holds.


def test_request_left_under_its_own_number_by_forgotten_run_is_sent() -> None:
    """The store does not know of the run that made the row, and died before it published."""
    world = World(broker="folder")
    engine, _ = begun(world)
    atom = world.new_atom(One, 0.1)
    flow = world.new_flow(engine, [atom])
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
    """It made the row of its one request; nothing of it is on its way."""
    world.settle()
    (request,) = [each for each in world.broker.in_flight() if each.kind == "REQUEST"]
    world.broker.pull(request)
    world.end(engine)


# Flows that are kept nowhere: rows are made in one step with publishing their requests.


@pytest.mark.parametrize("what", ["kept", "lost"])
def test_request_cancelled_while_it_is_published_with_its_row_never_begins(what: str) -> None:
    """Nobody looks for the row before it is known to be there, or not."""
    world = World(broker="folder", one_step=True)
    engine, _ = begun(world)
    engine.doubtful = what
    atom = world.new_atom(One)
    world.new_flow(engine, [atom])
    world.settle()  # it is on its way
    (request,) = engine.tracker.requests()
    engine.cancel(request.invocation)
    world.settle()
    world.heal()
    assert atom.outcome.check(exc.Cancelled)
    assert not world.judge.runs[request.id]


def test_world_finds_a_request_that_is_looked_for_while_its_row_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "is_opening", lambda self, request: False)
    with pytest.raises(Violation, match="begins, and its end was saved before"):
        test_request_cancelled_while_it_is_published_with_its_row_never_begins("kept")


def test_request_whose_answer_was_lost_with_its_connection_runs_once() -> None:
    """It runs, and the second attempt finds its row."""
    world = World(broker="folder", one_step=True)
    engine, _ = begun(world)
    engine.doubtful = "kept"
    atom = world.new_atom(One)
    world.new_flow(engine, [atom])
    world.heal()
    assert atom.outcome == 1
    assert [epoch for epoch, _ in world.judge.runs[atom.request_id]] == [1]
