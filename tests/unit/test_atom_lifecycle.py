"""One atom begins or ends: what the record says afterwards, and what listeners are told."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import composite_executor, exceptions, invocation, states, storage, task
from wbengine.patterns import linear_flow
from wbengine.persistence import leases, models
from wbengine.runtime import atoms, compiler
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
    """Remembers what earlier runs submitted, without or with what they did not."""

    survives_engine = True

    def __init__(self, has_ledger: bool = True) -> None:
        self.has_ledger = has_ledger

    def submit(self, invocation: Any, done: Any) -> None:
        raise AssertionError("the lifecycle submits nothing")


class Bench:
    """A lifecycle with everything below it, and a list of what listeners heard."""

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
        self.life = atoms.AtomLifecycle(
            self.plan,
            self.storage,
            self.notifier,
            in_process=in_process,
            on_progress=lambda: None,
            executor=executor,
            local_tasks=composite_executor.LocalTasks(),
        )

    def leave(self, name: str, state: str, **fields: Any) -> models.AtomDetail:
        """What a run leaves that dies while an atom is in this state, in its fourth attempt."""
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
    """State and attempt number with the beginning, result and worker with the end."""
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
    )  # nobody is at it yet
    assert bench.end(call, "undone") == states.REVERTED
    assert bench.storage.get_revert_result("a") == "undone"
    assert record.past == ((1, "execute", "w", 1.0, 2.0, 7.0, states.SUCCESS, None, 0),)


def test_lost_workers_are_kept_and_told_to_those_who_ask_for_that() -> None:
    """Nobody has begun what is sent again, until a worker says so; `*` hears of states only."""
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
    call.events.incident(states.WORKER_LOST, "w")  # it has ended
    assert len(record.incidents) == 2 and not bench.heard
    assert heard == []  # it is not written yet
    bench.life.take_incidents()
    bench.life.deliver()
    assert heard == [("WORKER_LOST", "w1", None), ("RESENT", None, "w1")]


def test_who_has_taken_an_atom_is_known_before_it_begins() -> None:
    bench = Bench(Plain("a"), in_process=False)
    record = bench.storage.record("a")
    call = bench.begin("a")
    events = atoms._StoredTaskEvents(bench.life, call.node, True, 1)
    events.taken("w1")
    assert (record.worker, record.started) == ("w1", None)
    events.began("w1")
    assert record.worker == "w1" and record.started is not None
    events.taken("w2")  # it is told late
    assert record.worker == "w1"


def test_what_nobody_began_is_given_back_by_who_took_it() -> None:
    bench = Bench(Plain("a"), in_process=False)
    record = bench.storage.record("a")
    call = bench.begin("a")
    atoms._StoredTaskEvents(bench.life, call.node, True, 1).taken("w1")
    bench.life.give_back(call.node)
    assert (record.state, record.worker) == (states.PENDING, None)


def test_what_was_given_up_keeps_who_began_it_and_when() -> None:
    """Unless somebody else was at it last, of whom no more is known."""
    lost = ft.Failure.from_exception(exceptions.WorkerLost("gone"))
    for worker, kept in (("w", ("w", 1.5)), (None, ("w", 1.5)), ("v", ("v", None))):
        bench = Bench(Plain("a"))
        record, call = bench.storage.record("a"), bench.begin("a")
        record.worker, record.started = "w", 1.5
        bench.life.finish(call, invocation.Outcome(lost, worker))
        assert (record.worker, record.started, record.ended) == (*kept, None)


def test_nothing_is_told_when_nobody_listens() -> None:
    """No events are collected; with a listener they come when delivered, in order."""
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


def test_a_short_result_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asks for the missing part fails later; the log says whose fault it is."""
    bench = Bench(Needs("n"))
    bench.storage.inject({"x": 1})
    bench.end(bench.begin("n"), ("only one",))
    assert "'n' promised 'right' (part 1" in caplog.text
    assert "'left'" not in caplog.text


class Inner(task.Task):
    def execute(self, item: int) -> int:
        return item

    def revert(self, item: int, result: Any) -> None:
        pass


def test_a_map_without_its_arguments_is_born_dead() -> None:
    """As any task."""
    bench = Bench(task.Map(Inner("i"), name="m"))
    assert bench.begin("m") is None
    ((call, outcome),) = bench.life.take_failed_before_submit()
    assert "'m' cannot execute" in outcome.value.exception_str
    assert bench.life.finish(call, outcome) == states.FAILURE
    assert bench.begin("m", invocation.REVERT) is None
    ((_, undone),) = bench.life.take_failed_before_submit()
    assert undone.value is None


# What an earlier run left -----------------------------------------------------------------------


@pytest.mark.parametrize("lease", [None, leases.Lease("flow", "me", 3)])
def test_what_may_still_run_elsewhere_goes_on(lease: leases.Lease | None) -> None:
    """Under its number, and an epoch that no run has used."""
    bench = Bench(Plain("a"), executor=Elephant())
    bench.storage.writer.lease = lease
    record = bench.leave("a", states.RUNNING)
    call = bench.begin("a")
    assert (call.attempt, call.recovered) == (record.attempt, True) == (4, True)
    assert call.epoch == record.epoch == (1025 if lease is None else 3072)
    assert bench.end(call, 5) == states.SUCCESS
    again = bench.begin("a")
    assert (again.attempt, again.epoch, again.recovered) == (5, 1, False)


def test_a_reversion_goes_on_too() -> None:
    bench = Bench(Plain("a"), executor=Elephant())
    bench.leave("a", states.REVERTING, action="revert", results=7)
    call = bench.begin("a", invocation.REVERT)
    assert (call.attempt, call.recovered, call.result) == (4, True, 7)


@pytest.mark.parametrize(
    ("executor", "fields", "local"),
    [
        (None, {}, False),
        (Elephant(), {}, True),
        (Elephant(), {"action": "revert"}, False),  # nothing of the sort was under way
        (Elephant(), {"state": states.PENDING}, False),
    ],
)
def test_what_ended_with_its_engine_begins_again(
    executor: Any, fields: dict[str, Any], local: bool
) -> None:
    """As the next attempt, of which nothing can be known."""
    atom = Plain("a")
    atom.local = local
    bench = Bench(atom, executor=executor)
    bench.leave("a", fields.pop("state", states.RUNNING), **fields)
    call = bench.begin("a")
    assert (call.attempt, call.epoch, call.recovered) == (5, 1, False)


def test_what_goes_on_and_is_given_back_still_has_to_come_to_its_end() -> None:
    """It may run somewhere.  Unless it was found out that it does not."""
    bench = Bench(Plain("a"), executor=Elephant())
    record = bench.leave("a", states.RUNNING)
    call = bench.begin("a")
    assert bench.life.give_back(call.node)
    assert record.state == states.RUNNING
    call = bench.begin("a")
    assert call.recovered and call.epoch == 2049
    call.recovered = False
    assert not bench.life.give_back(call.node)
    assert record.state == states.PENDING


def test_once_it_ended_the_next_attempt_is_like_any_other() -> None:
    bench = Bench(Plain("a"), executor=Elephant())
    record = bench.leave("a", states.RUNNING)
    bench.end(bench.begin("a"), FAILURE)
    call = bench.begin("a")
    assert not bench.life.give_back(call.node)
    assert record.state == states.PENDING


def test_items_of_a_map_are_looked_up_one_by_one() -> None:
    """Under their own ids, if it can be told of each whether it was started."""
    found = {}
    for has_ledger in (True, False):
        bench = Bench(task.Map(Inner("i"), name="m"), executor=Elephant(has_ledger))
        bench.storage.inject({"items": ["a", "b", "c"]})
        bench.begin("m")
        first, *_ = bench.life.maps.refill(9, bench.life.item_events)
        bench.life.maps.finish(first, invocation.Outcome("A"))
        bench.life.maps.running.clear()  # the engine died
        bench.begin("m")
        calls = bench.life.maps.refill(9, bench.life.item_events)
        found[has_ledger] = [(c.index, c.attempt, c.resumed, c.recovered, c.epoch) for c in calls]
    assert found[True] == [(1, 1, 0, True, 1025), (2, 1, 0, True, 1025)]
    assert found[False] == [(1, 1, 1, False, 1), (2, 1, 1, False, 1)]
