"""Start and end of one atom: its record and its events."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import exceptions, states, storage, task
from wbengine._calls import invocation
from wbengine._runtime import atom_lifecycle, compiler
from wbengine._runtime.executors import composite
from wbengine.patterns import linear_flow
from wbengine.persistence import _leases, models
from wbengine.types import failure as ft
from wbengine.types import notifier

FAILURE = ft.Failure.from_exception(ValueError("no"))


class Plain(task.Task):
    def execute(self) -> None:
        pass


class Needs(task.Task):
    default_provides = ("left", "right")

    def execute(self, x: int, y: int = 0) -> None:
        pass


class Elephant(invocation.TaskExecutor):
    """Executor that remembers requests of earlier runs, with or without a ledger."""

    survives_engine = True

    def __init__(self, has_ledger: bool = True) -> None:
        self.has_ledger = has_ledger

    def submit(self, invocation: Any, done: Any) -> None:
        raise AssertionError("the lifecycle submits nothing")


class Bench:
    """Lifecycle with its storage, and a list of received events."""

    def __init__(
        self, *added: Any, retry: Any = None, in_process: bool = True, executor: Any = None
    ) -> None:
        flow = linear_flow.Flow("f", retry=retry).add(*added)
        self.plan = compiler.compile(flow)
        self.storage = storage.Storage(models.FlowDetail("f"))
        found: list[Any] = [self.plan.items[node] for node in self.plan.atoms()]
        self.storage.ensure_atoms(found)
        self.storage.bind(self.plan, len(self.plan))
        self.notifier = notifier.Notifier()
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.touches = 0
        self.life = atom_lifecycle.AtomLifecycle(
            self.plan,
            self.storage,
            self.notifier,
            in_process=in_process,
            on_progress=lambda: None,
            executor=executor,
            local_tasks=composite.LocalTasks(),
        )

    def leave(self, name: str, state: str, **fields: Any) -> models.AtomDetail:
        """Simulate a run that crashed with the atom in this state, in its fourth attempt."""
        record = self.storage.record(name)
        record.state, record.attempt, record.epoch = state, 4, 1
        for field, value in fields.items():
            setattr(record, field, value)
        return record

    def listen(self) -> None:
        self.notifier.register("*", lambda state, details: self.heard.append((state, details)))

    def begin(self, name: str, action: Any = invocation.EXECUTE) -> Any:
        return self.life.begin(self.plan.by_name[name], action)

    def end(self, call: Any, value: Any) -> str:
        return self.life.finish(call, invocation.Outcome(value, "w", 1.0, 2.0))


def test_begin_and_finish_write_the_record() -> None:
    bench = Bench(Plain("a"))
    record = bench.storage.record("a")
    bench.life.now = 7.0
    call = bench.begin("a")
    assert (record.state, record.attempt, record.worker) == (states.RUNNING, 1, None)
    assert (call.uuid, call.attempt, call.node) == (record.uuid, 1, bench.plan.by_name["a"])
    assert bench.end(call, 5) == states.SUCCESS
    assert (record.results, record.last_attempt) == (
        5,
        (1, "execute", "w", 1.0, 2.0, 7.0, states.SUCCESS, None, 0),
    )
    bench.life.now = 8.0
    call = bench.begin("a", invocation.REVERT)
    assert (record.state, record.attempt, call.result) == (states.REVERTING, 2, 5)
    assert record.last_attempt == (
        2,
        "revert",
        None,
        None,
        None,
        8.0,
        None,
        None,
        1,
    )  # no worker has started it yet
    assert bench.end(call, "undone") == states.REVERTED
    assert bench.storage.get_revert_result("a") == "undone"
    assert record.past == ((1, "execute", "w", 1.0, 2.0, 7.0, states.SUCCESS, None, 0),)


def test_incidents_are_recorded_and_delivered_to_their_listeners() -> None:
    """A resent request has no worker until one starts it; `*` covers only states."""
    bench = Bench(Plain("a"), in_process=False)
    record = bench.storage.record("a")
    call = bench.begin("a")
    record.worker, record.started = "w1", 1.0
    bench.listen()
    heard: list[Any] = []
    tell = lambda event, details: heard.append((event, details["worker"], details["lost_worker"]))  # noqa: E731
    for event in states.INCIDENTS:
        bench.notifier.register(event, tell)
    call.events.incident(states.WORKER_LOST, "w1")
    assert (record.worker, record.started) == ("w1", 1.0)
    call.events.incident(states.RESENT, "w1")
    assert (record.worker, record.started) == (None, None)
    assert [each[0:1] + each[2:] for each in record.incidents] == [
        (states.WORKER_LOST, 1, "w1", None, -1),
        (states.RESENT, 1, None, "w1", -1),
    ]
    bench.end(call, 5)
    assert [each.worker for each in record.incidents] == ["w1", "w"]
    call.events.incident(states.WORKER_LOST, "w")  # the task has ended
    assert len(record.incidents) == 2 and not bench.heard
    assert heard == []  # the incidents are not stored yet
    bench.life.take_incidents()
    bench.life.deliver()
    assert heard == [("WORKER_LOST", "w1", None), ("RESENT", None, "w1")]


def test_claiming_worker_is_recorded_before_task_starts() -> None:
    bench = Bench(Plain("a"), in_process=False)
    record = bench.storage.record("a")
    call = bench.begin("a")
    events = atom_lifecycle._StoredTaskEvents(bench.life, record, call.task, True)
    events.taken("w1")
    assert (record.worker, record.started) == ("w1", None)
    events.began("w1")
    assert record.worker == "w1" and record.started is not None
    events.taken("w2")  # a late report
    assert record.worker == "w1"


def test_undo_begin_clears_worker_of_claimed_atom() -> None:
    bench = Bench(Plain("a"), in_process=False)
    record = bench.storage.record("a")
    call = bench.begin("a")
    atom_lifecycle._StoredTaskEvents(bench.life, record, call.task, True).taken("w1")
    bench.life.undo_begin(call.node)
    assert (record.state, record.worker) == (states.PENDING, None)


def test_lost_atom_keeps_worker_and_start_time() -> None:
    """If the outcome names another worker, the start time is unknown."""
    lost = ft.Failure.from_exception(exceptions.WorkerLost("gone"))
    for worker, kept in (("w", ("w", 1.5)), (None, ("w", 1.5)), ("v", ("v", None))):
        bench = Bench(Plain("a"))
        record, call = bench.storage.record("a"), bench.begin("a")
        record.worker, record.started = "w", 1.5
        bench.life.finish(call, invocation.Outcome(lost, worker))
        assert (record.worker, record.started, record.ended) == (*kept, None)


def test_events_are_collected_only_with_listeners_and_delivered_in_order() -> None:
    bench = Bench(Plain("a"))
    bench.end(bench.begin("a"), 1)
    assert not bench.life.events
    bench.listen()
    bench.life.reset([bench.plan.by_name["a"]])
    bench.end(bench.begin("a"), 1)
    assert bench.heard == []
    bench.life.deliver()
    assert [state for state, _ in bench.heard] == ["PENDING", "RUNNING", "SUCCESS"]
    assert bench.heard[1][1] == {
        "task_name": "a",
        "task_uuid": bench.storage.get_atom_uuid("a"),
        "old_state": "PENDING",
        "attempt": 2,
        "executions": 2,
        "reversions": 0,
    }
    bench.life.deliver()
    assert len(bench.heard) == 3


def test_result_shorter_than_provides_logs_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A task that requires the missing part fails later, so the log names the task at fault."""
    bench = Bench(Needs("n"))
    bench.storage.inject({"x": 1})
    bench.end(bench.begin("n"), ("only one",))
    assert "'n' must return 'right' (part 1" in caplog.text
    assert "'left'" not in caplog.text


class Inner(task.Task):
    def execute(self, item: int) -> int:
        return item

    def revert(self, item: int, result: Any) -> None:
        pass


def test_map_without_its_arguments_fails_before_submit() -> None:
    bench = Bench(task.Map(Inner("i"), name="m"))
    assert bench.begin("m") is None
    ((call, outcome),) = bench.life.take_failed_before_submit()
    assert "'m' cannot execute" in outcome.value.exception_str
    assert bench.life.finish(call, outcome) == states.FAILURE
    assert bench.begin("m", invocation.REVERT) is None
    ((_, undone),) = bench.life.take_failed_before_submit()
    assert undone.value is None


# Atoms of an earlier run --------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [None, _leases.Lease("flow", "me", 3)], ids=["no-lease", "lease"])
def test_running_atom_of_earlier_run_is_recovered_with_new_epoch(
    lease: _leases.Lease | None,
) -> None:
    """The attempt number stays, and the epoch is new."""
    bench = Bench(Plain("a"), executor=Elephant())
    bench.storage.writer.lease = lease
    record = bench.leave("a", states.RUNNING)
    call = bench.begin("a")
    assert (call.attempt, call.recovered) == (record.attempt, True) == (4, True)
    assert call.epoch == record.epoch == (1025 if lease is None else 3072)
    assert bench.end(call, 5) == states.SUCCESS
    again = bench.begin("a")
    assert (again.attempt, again.epoch, again.recovered) == (5, 1, False)


def test_reverting_atom_of_earlier_run_is_recovered() -> None:
    bench = Bench(Plain("a"), executor=Elephant())
    bench.leave("a", states.REVERTING, action="revert", results=7)
    call = bench.begin("a", invocation.REVERT)
    assert (call.attempt, call.recovered, call.result) == (4, True, 7)


@pytest.mark.parametrize(
    ("executor", "fields", "local"),
    [
        (None, {}, False),
        (Elephant(), {}, True),
        (Elephant(), {"action": "revert"}, False),  # another action was interrupted
        (Elephant(), {"state": states.PENDING}, False),
    ],
    ids=["no-executor", "local-task", "other-action", "pending"],
)
def test_unrecoverable_atom_of_earlier_run_starts_next_attempt(
    executor: Any, fields: dict[str, Any], local: bool
) -> None:
    atom = Plain("a")
    atom.local = local
    bench = Bench(atom, executor=executor)
    bench.leave("a", fields.pop("state", states.RUNNING), **fields)
    call = bench.begin("a")
    assert (call.attempt, call.epoch, call.recovered) == (5, 1, False)


@pytest.mark.parametrize(
    ("action", "state", "meta", "resent"),
    [
        ("execute", states.RUNNING, {}, True),
        ("execute", states.RUNNING, {models.STARTS_AT: 1e12}, False),  # it waited for its `eta`
        ("execute", states.PENDING, {}, False),
        ("revert", states.REVERTING, {}, True),
        ("revert", states.RUNNING, {}, False),  # its execution ended with the engine
    ],
)
def test_attempt_that_begins_again_is_an_incident(
    action: Any, state: str, meta: dict[str, Any], resent: bool
) -> None:
    bench = Bench(Plain("a"))
    heard: list[Any] = []
    bench.notifier.register(states.RESENT, lambda _, details: heard.append(details["lost_worker"]))
    begun = "revert" if state == states.REVERTING else "execute"
    record = bench.leave("a", state, action=begun, worker="local", meta=meta)
    bench.begin("a", action)
    bench.life.take_incidents()
    bench.life.deliver()
    assert [each[0:1] + each[2:] for each in record.incidents] == (
        [(states.RESENT, 5, None, "local", -1)] if resent else []
    )
    assert heard == ["local"] * resent
    assert (bench.storage.flow_detail.resent_at is not None) == resent


def test_undo_begin_keeps_recovered_atom_running() -> None:
    """A recovered task may still run on a worker, unless `recovered` was reset."""
    bench = Bench(Plain("a"), executor=Elephant())
    record = bench.leave("a", states.RUNNING)
    call = bench.begin("a")
    assert bench.life.undo_begin(call.node)
    assert record.state == states.RUNNING
    call = bench.begin("a")
    assert call.recovered and call.epoch == 2049
    call.recovered = False
    assert not bench.life.undo_begin(call.node)
    assert record.state == states.PENDING


def test_attempt_after_recovered_one_can_be_undone() -> None:
    bench = Bench(Plain("a"), executor=Elephant())
    record = bench.leave("a", states.RUNNING)
    bench.end(bench.begin("a"), FAILURE)
    call = bench.begin("a")
    assert not bench.life.undo_begin(call.node)
    assert record.state == states.PENDING


def test_map_items_are_recovered_one_by_one_if_executor_has_ledger() -> None:
    """Without a ledger, the executor cannot report whether an item was started."""
    found = {}
    for has_ledger in (True, False):
        bench = Bench(task.Map(Inner("i"), name="m"), executor=Elephant(has_ledger))
        bench.storage.inject({"items": ["a", "b", "c"]})
        bench.begin("m")
        first, *_ = bench.life.maps.refill(9, bench.life.item_events)
        bench.life.maps.finish(first, invocation.Outcome("A"))
        bench.life.maps.running.clear()  # simulates the death of the engine
        bench.begin("m")
        calls = bench.life.maps.refill(9, bench.life.item_events)
        found[has_ledger] = [(c.index, c.attempt, c.resumed, c.recovered, c.epoch) for c in calls]
    assert found[True] == [(1, 1, 0, True, 1025), (2, 1, 0, True, 1025)]
    assert found[False] == [(1, 1, 1, False, 1), (2, 1, 1, False, 1)]
