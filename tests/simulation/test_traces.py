"""Histories that once revealed defects.  `tools/simulate wire` prints new ones in this form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.kinds import One, Two
from tests.simulation.world import Setting, World
from wbengine import exceptions as exc

#: Invariant that was violated -> options of the world and steps.
TRACES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "lost reply does not make a live worker lost": (
        {"broker": "amqp"},
        ["worker 0", "pass 0", "submit 30", "pass 7", "finish 0", "bounce 2490", "pass 28"],
    ),
    "lost reply does not make a live worker lost without ledger": (
        {"broker": "amqp", "ledger": False},
        ["worker 7", "submit 3793", "pass 4", "finish 0", "lose 0", "pass 60"],
    ),
    "request that ran on a lost worker does not fail as never started": (
        {"broker": "amqp"},
        ["worker 0", "submit 248", "pass 5", "freeze_worker 0", "pass 56", "pass 30"],
    ),
    "one idle report is evidence only once": (
        {"broker": "amqp", "ledger": False},
        [
            "worker 0", "submit 3466", "pass 7", "pass 0", "doubt 0", "pass 0", "kill_worker 0",
            "pass 0", "pass 2",
        ],
    ),
    "backlog of a queue is published after its requests leave it": (
        {"broker": "kombu", "ledger": False, "capacity": 2},
        [
            "worker 3", "submit 39", "doubt 1", "pass 0", "worker 1602", "doubt 5", "submit 3663",
            "pass 40",
        ],
    ),
    "task that kills its workers is resent a limited number of times": (
        {"broker": "amqp", "ledger": False, "timeout": None},
        ["worker 58", "submit 3070"],
    ),
    "lost worker is remembered after another replaces it on the queue": (
        {"broker": "kombu", "ledger": False, "timeout": None, "capacity": 2},
        ["worker 6", "submit 1501", "pass 12", "worker 2"],
    ),
    "worker frozen after its claim does not run a request of another": (
        {"broker": "kombu", "capacity": 2},
        ["worker 2086", "trip 35", "submit 0", "worker 0", "submit 712", "pass 44"],
    ),
    "request that expires while it is searched for is tracked": (
        {"broker": "kombu", "ledger": False},
        [
            "worker 0", "submit 3203", "pass 0", "deliver 0", "deliver 0", "submit 0", "trip 1236",
            "stop_worker 0", "pass 24", "thaw 0",
        ],
    ),
    "rerouted request is not published twice at once": (
        {"broker": "amqp"},
        [
            "worker 5", "submit 0", "worker 0", "freeze_engine 0", "worker 62", "trip 1284",
            "pass 46", "worker 2", "resume 0", "slow 7", "submit 2061", "submit 2441", "pass 46",
        ],
    ),
    "request is resent after the queue has advanced": (
        {"broker": "kombu"},
        [
            "worker 2", "worker 0", "worker 6", "freeze_worker 4", "order 0", "submit 2345",
            "submit 910", "pass 60", "pass 0",
        ],
    ),
    "backlog advances after requests of a closed flow are dropped": (
        {"broker": "kombu", "timeout": 20.0, "capacity": 2},
        ["submit 3586", "trip 28", "pass 30", "worker 0", "pass 0", "thaw 0", "submit 789"],
    ),
    "request that ran in an earlier run does not fail as never started": (
        {"broker": "amqp", "timeout": 20.0, "capacity": 2},
        [
            "worker 6", "deliver 0", "submit 2222", "pass 0", "submit 3887", "submit 0", "pass 4",
            "worker 362", "pass 0", "pass 8", "worker 0", "kill_engine 0", "resume 0", "pass 14",
        ],
    ),
    "worker frozen after its claim does not run an abandoned request": (
        {"broker": "amqp", "timeout": None},
        [
            "worker 0", "pass 0", "submit 0", "pass 0", "hold 0", "kill_worker 0", "cancel 0",
            "pass 0", "submit 2228", "submit 3990", "resume 0", "kill_engine 3", "pass 0",
            "worker 6", "cancel 2008", "pass 0", "trip 25", "ail_store 7", "resume 0", "hold 2132",
            "trip 575", "pass 60", "submit 0", "pass 12", "ail_store 0", "double 0", "thaw 0",
            "pass 0", "resume 0",
        ],
    ),
    "slot of a dead worker is not counted as free": (
        {"broker": "kombu", "ledger": False, "timeout": 20.0},
        [
            "worker 18", "worker 0", "submit 2274", "pass 11", "submit 3526", "pass 4",
            "submit 3180", "worker 2", "pass 0", "submit 2695", "worker 2", "pass 24", "pass 8",
        ],
    ),
    "delayed copy does not run after another copy has run": (
        {"broker": "kombu", "ledger": False},
        [
            "worker 0", "submit 0", "pass 5", "submit 1922", "hold 1408", "worker 0", "pass 62",
            "pass 0",
        ],
    ),
    "evidence about a message of an earlier run is ignored": (
        {"broker": "amqp", "ledger": False, "timeout": None, "on_worker_lost": "resend"},
        [
            "worker 6", "submit 2679", "pass 0", "pass 7", "pass 13", "trip 37", "pass 61",
            "worker 0", "pass 56", "resume 0", "deliver 0", "freeze_worker 0", "pass 4", "pass 0",
            "pass 4", "worker 2", "pass 27",
        ],
    ),
    "unconfirmed message is not published again at once": (
        {"broker": "amqp", "ledger": False, "timeout": 20.0},
        [
            "worker 7", "pass 0", "submit 0", "pass 0", "submit 3402", "bounce 58", "doubt 0",
            "worker 7", "kill_engine 5", "submit 0", "pass 44", "worker 0", "pass 24", "lose 0",
            "resume 0", "pass 8", "pass 56",
        ],
    ),
    "engine that lost its flow publishes no request that the next engine reopened": (
        {"broker": "kombu", "timeout": 20.0},
        [
            "worker 6", "submit 3911", "pass 4", "pass 0", "trip 3731", "submit 1068", "worker 12",
            "pass 62", "resume 0",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_recorded_trace_violates_no_invariant(name: str) -> None:
    options, steps = TRACES[name]
    World(**options).play(steps)


def assert_lost(atom: Any, worker: str) -> None:
    assert atom.outcome.check(exc.WorkerLost)
    assert worker in atom.outcome.exception_str


def test_lost_worker_is_named_in_failure() -> None:
    """The worker dies between its claim and its first reply."""
    world = World()
    dead, _ = world.new_worker([One], 1), world.new_worker([One], 1)
    engine = world.new_engine()
    engine.begin()
    world.pass_time(1.0)
    atom, _ = world.submit(engine, One, 10.0)
    world.settle()
    request = world.broker.pull_only("REQUEST")
    dead.take(request)
    dead.slow_until = world.now + 100
    world.settle()
    assert world.judge.runs[atom.request_id] == [(1, dead.name)]
    world.end(dead)
    world.pass_time(60.0)
    assert_lost(atom, dead.name)
    world.heal()


def test_unannounced_worker_that_dies_is_lost() -> None:
    """The worker replied and died; none of its announcements arrived."""
    world = World()
    engine, _ = world.begun()
    unknown = world.new_worker([One], 1)
    world.settle()
    for message in world.broker.in_flight():
        world.broker.pull(message)
    atom, _ = world.submit(engine, One, 100.0)
    world.settle()
    request = world.broker.pull_only("REQUEST")
    unknown.take(request)
    world.settle()
    world.pass_time(0.01)
    world.end(unknown)
    world.pass_time(60.0)
    assert_lost(atom, unknown.name)
    world.heal()


def test_result_of_stopped_worker_is_read_from_ledger_if_reply_is_late() -> None:
    """The reply is delayed, the worker stops, and the row contains the result."""
    world = World()
    engine, (worker,) = world.begun()
    atom, _ = world.submit(engine, One, 5.0)
    world.pass_time(1.0)
    worker.end(next(iter(worker.running)))
    world.settle()
    late = world.broker.pull_only("RESPONSE")
    worker.stop()
    world.pass_time(10.0)
    assert atom.outcome == 1
    late.due = world.now + 1
    world.broker.send(late)
    world.pass_time(2.0)
    assert engine.tracker.ignored["unknown"] == 1
    world.heal()


@pytest.mark.parametrize("kind", [One, Two])
def test_reply_with_old_epoch_is_dropped(kind: Any) -> None:
    """Without a ledger: a worker is considered lost while it runs a request, and replies later."""
    world = World(broker="kombu", ledger=False)
    engine, (old,) = world.begun(offer=[One, Two])
    atom, _ = world.submit(engine, kind, 40.0)
    world.pass_time(1.0)
    world.strike(old, "freeze")
    world.pass_time(30.0)
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost)
    else:
        world.new_worker([One, Two], 1)
        world.pass_time(5.0)
        assert [epoch for epoch, _ in world.judge.runs[atom.request_id]] == [1, 2]
    world.thaw(old)
    world.pass_time(100.0)
    assert engine.tracker.ignored["unknown" if kind is One else "old_epoch"] >= 1
    assert atom.outcome == 2 if kind is Two else atom.outcome.check(exc.WorkerLost)
    world.heal()


@pytest.mark.parametrize("kind", [One, Two])
def test_request_with_deleted_row_ends_when_its_worker_is_lost(kind: Any) -> None:
    """No engine can take over the request, and its result is unknown."""
    world = World()
    engine, (worker,) = world.begun(offer=[One, Two])
    atom, _ = world.submit(engine, kind, 40.0)
    world.pass_time(1.0)
    assert worker.running and world.ledger is not None
    world.ledger.drop(atom.request_id)
    world.end(worker)
    world.pass_time(100.0)
    if kind is One:
        assert atom.outcome.check(exc.WorkerLost)
    world.judge.reopened[atom.request_id] += 1  # a deleted row cannot be reopened
    world.heal()
    assert atom.state == "ENDED"


def test_unstarted_requests_run_once_after_broker_restart() -> None:
    """The broker marks them as redelivered, but no worker had started them.  They are not
    idempotent.
    """
    world = World(ledger=False)
    engine, _ = world.begun()
    atoms = [world.new_atom(One, 1.0) for _ in range(3)]
    world.new_flow(engine, atoms)
    world.settle()
    world.pass_time(0.5)
    world.go_down(1.0, "transient")
    world.pass_time(60.0)
    assert [len(world.judge.runs[atom.request_id]) for atom in atoms] == [1, 1, 1]
    assert [atom.outcome for atom in atoms] == [1, 2, 2]
    world.heal()


def test_unconfirmed_lost_request_is_resent_while_workers_are_busy() -> None:
    world = World(ledger=False)
    engine, other = world.new_engine(), world.new_engine()
    engine.begin()
    other.begin()
    world.new_worker([One], 1)
    world.pass_time(1.0)
    world.new_flow(other, [world.new_atom(One, 3.0) for _ in range(3)])
    world.settle()
    world.pass_time(1.0)
    engine.doubtful = "lost"
    atom, _ = world.submit(engine, One, 1.0)
    for _ in range(20):
        world.submit(other, One, 3.0)
        world.settle()
        world.pass_time(2.9)
    assert atom.outcome == 2
    world.heal()


def test_delayed_old_copy_is_not_run_by_another_worker() -> None:
    """Without a ledger: the copy was in a place that no query reached."""
    world = World(broker="amqp", ledger=False)
    engine, workers = world.begun(2)
    atom, _ = world.submit(engine, One, 1.0)
    world.settle()
    late = world.broker.pull_only("REQUEST")
    world.pass_time(60.0)
    assert atom.outcome == 2
    ((epoch, name),) = world.judge.runs[atom.request_id]
    assert epoch == 2
    (other,) = [worker for worker in workers if worker.name != name]
    other.take(late)
    world.pass_time(10.0)
    assert len(world.judge.runs[atom.request_id]) == 1
    assert other.core.counts["cancelled"] == 1
    world.heal()


def test_worker_that_cannot_store_result_is_not_lost() -> None:
    """While a broker that is also the ledger is down, the worker cannot store the result.  The
    resuming engine has only the ledger to read.
    """
    world = World(Setting("folder"))
    engine, (worker,) = world.begun()
    atom, flow = world.submit(engine, One, 5.0)
    world.pass_time(1.0)
    world.go_down(100.0, "nothing")
    world.end(engine)
    world.resume(flow)
    world.pass_time(90.0)
    assert not worker.running
    assert atom.state == "RUNNING"
    world.pass_time(30.0)
    assert atom.outcome == 1
    world.heal()


def test_resuming_engine_reads_result_from_ledger_while_broker_is_down() -> None:
    world = World()
    engine, (worker,) = world.begun()
    atom, flow = world.submit(engine, One, 5.0)
    world.pass_time(1.0)
    world.go_down(100.0, "nothing")
    world.end(engine)
    world.resume(flow)
    world.pass_time(60.0)
    assert not worker.running and atom.outcome == 1
    world.heal()


def test_tasks_that_kill_their_workers_end() -> None:
    """There are many tasks, and the broker contains few at a time."""
    world = World(broker="kombu", timeout=None, capacity=2)
    world.play(["submit 1262", "submit 2046", "submit 3230", "submit 527", "submit 2085"])


def test_engine_does_not_count_worker_that_died_before_its_discovery() -> None:
    """Another engine discovered and lost the worker."""
    world = World(ledger=False, timeout=None, capacity=2)
    world.play([
        "submit 1", "submit 2990", "worker 38", "deliver 0", "freeze_worker 0", "pass 0",
        "worker 6", "deliver 0", "bounce 6",
    ])  # fmt: skip


def test_worker_that_claims_after_long_idle_time_is_alive() -> None:
    """A claim at the receipt of a request also renews the heartbeat of its owner."""
    world = World(claiming=True)
    engine, (worker,) = world.begun()
    world.submit(engine, One, 0.1)
    world.pass_time(1.0)
    world.pass_time(100.0)  # the worker has no request and writes no heartbeat
    atom, flow = world.submit(engine, One, 10.0)
    world.pass_time(0.01)
    assert worker.running
    world.end(engine)
    world.resume(flow)
    world.pass_time(60.0)
    assert atom.outcome == 1
    world.heal()


def test_repeated_running_reply_is_counted_as_duplicate() -> None:
    world = World(broker="amqp")
    engine, _ = world.begun()
    world.submit(engine, One, 5.0)
    reply = None
    while reply is None:
        world.pass_time(0.0005)
        reply = next((m for m in world.broker.in_flight() if m.kind == "RESPONSE"), None)
    world.broker.again(reply, world.now + 1.0)
    world.pass_time(2.0)
    assert engine.tracker.ignored == {"duplicate": 1}
    world.heal()


def test_row_of_request_named_in_heartbeats_is_not_read() -> None:
    world = World(broker="amqp")
    engine, _ = world.begun()
    atom, _ = world.submit(engine, One, 100.0)
    world.pass_time(5.0)
    calls: list[str] = []
    assert engine.line is not None
    engine.line.listener = lambda name, arguments, result: calls.append(name)
    world.pass_time(90.0)
    assert atom.outcome is None
    assert not {"state", "states"} & set(calls)
    world.heal()


def test_engine_that_lost_its_flow_may_look_up_a_deleted_row() -> None:
    """The engine is frozen and finds no row: this must not end the request by time alone."""
    world = World(
        broker="amqp", ledger=True, timeout=None, capacity=2,
        on_worker_lost="resend", claiming=True, lossy=True,
    )  # fmt: skip
    world.play([
        "worker 0", "submit 2000", "pass 5", "stop_worker 0", "finish 3", "trip 0", "submit 4069",
        "lose 0", "worker 2", "pass 0", "slow 118", "trip 2521", "order 0", "pass 62", "resume 0",
    ])  # fmt: skip
