"""Retry controllers in complete flows."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.seams.scheduling import load_at
from tests.support.reading import read_flow
from wbengine import engines, exceptions, retry, states, task
from wbengine._concurrency import clocks, manual_clock
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.persistence.models import RETRY_AT
from wbengine.types import failure as ft
from wbengine.views import flow_status as views

LINE = linear_flow.Flow
KINDS = ("serial", "parallel")


class Noted(task.Task):
    """Task that records its calls and the failures passed to `revert`, and fails `fails` times."""

    def __init__(
        self, name: str, log: list[str], fails: int = 0, error: Any = RuntimeError
    ) -> None:
        super().__init__(name, provides=f"{name}_made")
        self.log, self.left, self.error = log, fails, error

    def execute(self) -> str:
        self.log.append(f"+{self.name}")
        if self.left:
            self.left -= 1
            raise self.error(self.name)
        return self.name

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> None:
        self.log.append(f"-{self.name}({','.join(sorted(flow_failures))})")


def atom_states(engine: base.Engine, *names: str) -> list[str | None]:
    return [engine.storage.get_atom_state(name) for name in names]


R, A, AGAIN = retry.REVERT, retry.REVERT_ALL, retry.RETRY
DONE, GONE = states.SUCCESS, states.REVERTED


# -- failures of retry controllers


@pytest.mark.parametrize(
    "answer", [-1, "soon", None, float("nan")], ids=["negative", "text", "None", "nan"]
)
def test_invalid_wait_of_retry_is_reported(answer: Any) -> None:
    class Odd(retry.Times):
        def wait(self, history: retry.History) -> float:
            seconds: float = answer
            return seconds

    engine = engines.load(LINE("f", Odd(3, "odd")).add(Noted("bad", [], 1)))
    with pytest.raises(
        ValueError, match=r"wait\(\) of retry 'odd' must return 0 or more seconds, got"
    ):
        engine.run()
    assert atom_states(engine, "odd", "bad") == [GONE, states.PENDING]


# -- never_resolve -------------------------------------------------------------------------------


def test_reset_of_failed_atoms_is_refused_while_reversion_failed() -> None:
    class Stuck(Noted):
        def revert(self, result: Any, flow_failures: Any) -> None:
            raise OSError("stuck")

    engine = engines.load(LINE("f").add(Noted("a", []), Stuck("s", []), Noted("bad", [], 1)))
    with pytest.raises(OSError, match="stuck"):
        engine.run()
    before = atom_states(engine, "a", "s", "bad")
    with pytest.raises(exceptions.InvalidState, match=r"only if no atom .*, got atom 'a'"):
        engine.reset(failed_only=True)
    assert atom_states(engine, "a", "s", "bad") == before
    assert engine.storage.get_flow_state() == states.FAILURE
    engine.reset()
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_reset_of_failed_atoms_without_failure_has_no_effect() -> None:
    log: list[str] = []
    engine = engines.load(LINE("f").add(Noted("a", log), Noted("b", log)))
    engine.atom_notifier.register(states.SUCCESS, lambda state, details: engine.suspend())
    engine.run()
    engine.atom_notifier.reset()
    engine.reset(failed_only=True)
    engine.run()
    engine.reset(failed_only=True)
    engine.run()
    assert log == ["+a", "+b"]
    assert engine.storage.get_flow_state() == states.SUCCESS


# -- waiting -------------------------------------------------------------------------------------


def record_changes(engine: base.Engine, clock: clocks.Clock) -> list[tuple[float, str, str]]:
    changes: list[tuple[float, str, str]] = []
    engine.atom_notifier.register(
        "*",
        lambda state, details: changes.append(
            (clock.monotonic(), details.get("task_name") or details["retry_name"], state)
        ),
    )
    return changes


def test_thousand_retries_wait_concurrently_for_their_own_times() -> None:
    """The number of iterations is proportional to the number of waits."""
    clock = manual_clock.ManualClock()
    flow = unordered_flow.Flow("f")
    for n in range(1000):
        flow.add(LINE(f"f{n}", retry.Times(2, f"r{n}", backoff=n + 1)).add(Noted(f"t{n}", [], 1)))
    engine = load_at(clock, flow)
    changes = record_changes(engine, clock)
    turns = sum(state == states.WAITING for state in engine.run_iter())
    assert clock.monotonic() == 1000
    again = [(at, name) for at, name, state in changes if state == "RUNNING" and at]
    assert again[::2] == [(n + 1, f"r{n}") for n in range(1000)]
    assert turns < 5000


def test_numeric_backoff_is_constant_and_none_means_no_wait() -> None:
    for wanted, expected in ((7, 21), (0, 0), (None, 0)):
        clock = manual_clock.ManualClock()
        flow = LINE("f", retry.ForEach("abcd", "r", "x", backoff=wanted)).add(Noted("t", [], 3))
        load_at(clock, flow).run()
        assert clock.monotonic() == expected


def suspend_in_wait(engine: Any, name: str = "r") -> None:
    """Run until the retry waits, then suspend."""
    for state in engine.run_iter():
        if state == states.WAITING and engine.storage.get_atom_state(name) == states.RETRYING:
            engine.suspend()


def test_retry_resumed_by_another_engine_waits_for_remaining_time() -> None:
    clock = manual_clock.ManualClock(1000.0)
    log: list[str] = []

    def flow() -> Any:
        bad = Noted("bad", log, 1 if not log else 0)
        return LINE("f").add(
            Noted("top", log), LINE("in", retry.Times(2, "r", backoff=60)).add(bad)
        )

    with backends.backend("memory") as backend:
        before = load_at(clock, flow(), backend=backend)
        suspend_in_wait(before)
        assert before.storage.get_flow_state() == states.SUSPENDED
        assert atom_states(before, "r", "bad") == [states.RETRYING, GONE]
        assert before.storage.record("r").meta[RETRY_AT] == 1060
        assert clock.monotonic() == 1000
        clock.advance(45)
        detail = read_flow(backend, before.storage.flow_uuid)
        engine = load_at(clock, flow(), backend=backend, flow_detail=detail)
        changes = record_changes(engine, clock)
        engine.run()
        assert clock.monotonic() == 1060
        assert engine.storage.get_flow_state() == states.SUCCESS
        assert [(at, state) for at, name, state in changes if name == "r"] == [
            (1060, "RUNNING"), (1060, "SUCCESS"),
        ]  # fmt: skip
        assert log == ["+top", "+bad", "-bad(bad)", "+bad"]
        stored = read_flow(backend, engine.storage.flow_uuid)
        assert [atom.meta for atom in stored if atom.name == "r"] == [{}]


def test_retry_suspended_at_end_of_its_wait_does_not_wait_again() -> None:
    clock = manual_clock.ManualClock()
    engine = load_at(clock, LINE("f", retry.Times(2, "r", backoff=60)).add(Noted("bad", [], 1)))
    engine.atom_notifier.register(states.PENDING, lambda *_, **details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert atom_states(engine, "r", "bad") == [states.RETRYING, states.PENDING]
    engine.run()
    assert clock.monotonic() == 60
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_wall_clock_set_back_does_not_prolong_wait() -> None:
    """The wall clock matters only in another process; here the monotonic clock counts."""

    class Jumping(manual_clock.ManualClock):
        def time(self) -> float:
            return 10_000 - 100 * self.monotonic()

    clock = Jumping()
    load_at(clock, LINE("f", retry.Times(3, "r", backoff=7)).add(Noted("t", [], 2))).run()
    assert clock.monotonic() == 14


@pytest.mark.parametrize("kind", KINDS)
def test_suspend_from_another_thread_ends_wait_at_once(kind: str) -> None:
    engine = engines.load(
        LINE("f", retry.Times(2, "r", backoff=3600)).add(Noted("bad", [], 1)), engine=kind
    )
    sleeps = threading.Event()
    engine.atom_notifier.register(states.RETRYING, lambda state, details: sleeps.set())
    runner = threading.Thread(target=engine.run)
    runner.start()
    assert sleeps.wait(60)
    engine.suspend()
    runner.join(60)
    assert not runner.is_alive()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert atom_states(engine, "r") == [states.RETRYING]


def test_retry_waits_by_system_clock() -> None:
    engine = engines.load(LINE("f", retry.Times(3, "r", backoff=0.01)).add(Noted("t", [], 2)))
    engine.run()
    # Not the seconds in WAITING: a delay begins before the loop enters that state.
    assert engine.statistics["active_for"] >= 0.02


def test_statistics_count_seconds_of_retry_delays_as_waiting() -> None:
    clock = manual_clock.ManualClock()
    flow = LINE("f", retry.Times(3, "r", backoff=60)).add(Noted("t", [], 2))
    engine = load_at(clock, flow)
    engine.run()
    seconds = engine.statistics["seconds_per_state"]
    assert seconds.pop("waiting") == clock.monotonic() >= 120
    assert set(seconds.values()) == {0}


def test_run_iter_timeout_yields_while_retry_waits() -> None:
    """`timeout` limits each single wait, including this one."""
    clock = manual_clock.ManualClock()
    engine = load_at(clock, LINE("f", retry.Times(2, "r", backoff=60)).add(Noted("t", [], 1)))
    waits = sum(state == states.WAITING for state in engine.run_iter(timeout=10))
    assert clock.monotonic() == 60
    assert 6 <= waits < 15


# -- retries of one task -----------------------------------------------------------------------


def test_retried_function_task_does_not_call_its_revert() -> None:
    log: list[str] = []

    @task.task(retries=2, retry_on="LookupError")
    def flaky(self: task.Task) -> int:
        log.append("execute")
        if len(log) < 3:
            raise LookupError("not yet")
        return len(log)

    flaky.revert(lambda: log.append("revert"))
    engines.run(LINE("f").add(flaky("one")))
    assert log == ["execute"] * 3


@pytest.mark.parametrize("retries", [-1, "3", True, False, "", 0.0], ids=repr)
def test_invalid_number_of_retries_of_task_is_rejected_at_load(retries: Any) -> None:
    @task.task(retries=retries)
    def pay() -> None: ...

    words = f"retries of task 'pay' must be a whole number of at least 0, got {retries!r}"
    with pytest.raises(exceptions.CompilationFailure, match=words):
        engines.load(LINE("f").add(pay("pay")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backoff": 10**400}, "'pay': Backoff delay must be at most"),
        ({"backoff": "x"}, "'pay': backoff must be a Backoff or .* got 'x'"),
        ({"backoff": -1}, "'pay': Backoff delay must be 0 or more"),
        ({"retry_on": 3}, "'pay': retry_on must contain .* got 3"),
    ],
    ids=["huge backoff", "text backoff", "negative backoff", "retry_on"],
)
def test_invalid_retry_options_of_task_are_rejected_at_load(
    options: dict[str, Any], message: str
) -> None:
    @task.task(retries=1, **options)
    def pay() -> None: ...

    with pytest.raises(exceptions.CompilationFailure, match=message):
        engines.load(LINE("f").add(pay("pay")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backoff": -1}, "'pay': Backoff delay must be 0 or more"),
        ({"retry_on": 5}, "'pay': retry_on must contain .* got 5"),
    ],
    ids=["backoff", "retry_on"],
)
@pytest.mark.parametrize("inside", [False, True])
def test_invalid_retry_options_of_class_are_rejected_without_retries(
    options: dict[str, Any], message: str, inside: bool
) -> None:
    pay = type("Pay", (Noted,), options)("pay", [])
    with pytest.raises(exceptions.CompilationFailure, match=message):
        engines.load(LINE("f").add(pay) if inside else pay)


@pytest.mark.parametrize("option", ["eta", "expires"])
def test_huge_start_time_of_task_is_rejected(option: str) -> None:
    bad = Noted("bad", [])
    setattr(bad, option, 10**400)
    with pytest.raises(ValueError, match=f"{option} of task 'bad' must be at most"):
        engines.run(LINE("f").add(bad))


@pytest.mark.parametrize("retries", [(1, 1), (0, 1), (1, 0)], ids=["both", "second", "first"])
def test_duplicate_name_error_names_tasks_instead_of_generated_retries(
    retries: tuple[int, int],
) -> None:
    one, two = Noted("pay", []), Noted("pay", [])
    one.retries, two.retries = retries
    with pytest.raises(exceptions.Duplicate, match=r"name 'pay' .*Noted.*Noted"):
        engines.load(LINE("f").add(one, two))
    if one.retries:
        with pytest.raises(ValueError, match="'pay' occurs twice in the flow"):
            engines.load(LINE("f").add(one, LINE("g").add(one)))


def test_backoff_without_retries_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has backoff but no retries: .*retries=3"):
        task.task(backoff=3)


@pytest.mark.parametrize("engine", ["serial", "parallel:?max_workers=1"])
def test_task_with_retries_keeps_its_priority(engine: str) -> None:
    log: list[str] = []
    flow = unordered_flow.Flow("f")
    flow.add(*(Noted(f"low{n}", log) for n in range(4)))
    urgent, middle = Noted("urgent", log), Noted("middle", log)
    urgent.priority, urgent.retries, middle.priority = 10, 1, 5
    engines.run(flow.add(urgent, middle), engine=engine)
    assert log == ["+urgent", "+middle", *(f"+low{n}" for n in range(4))]


def test_expired_task_and_task_with_missing_argument_are_not_retried() -> None:
    """A task that raises the same exception itself is retried."""
    late, lacking = Noted("late", []), task.FunctorTask(lambda b: b, name="lacking")
    late.expires = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    pair = task.FunctorTask(lambda: (1,), name="pair", provides=("a", "b"))
    looking = Noted("looking", [], 9, exceptions.NotFound)
    for name, error, tries, flow in (
        ("late", exceptions.Expired, 1, LINE("f").add(late)),
        ("lacking", exceptions.NotFound, 1, LINE("f").add(pair, lacking)),
        ("looking", exceptions.NotFound, 4, LINE("f").add(looking)),
    ):
        for atom in flow:
            if atom.name == name:
                atom.retries, atom.backoff = 3, 0.01
        engine = engines.load(flow)
        with pytest.raises(error):
            engine.run()
        assert engine.storage.get_atom_state(name) == GONE
        assert engine.storage.record(name).executions == tries
        assert engine.storage.get_flow_state() == states.REVERTED


def test_links_of_task_with_retries_connect_its_generated_flow() -> None:
    first, second = Noted("a", []), Noted("b", [])
    first.retries = second.retries = 1
    flow = graph_flow.Flow("f").add(first, second).link(first, second)
    compiled = engines.load(flow).compilation
    assert compiled is not None
    edges = compiled.execution_graph.edges(data=True)
    manual = [(before.name, after.name) for before, after, meta in edges if meta.get("manual")]
    assert manual == [("a with retries[$]", "b with retries")]


# -- executions and reversions -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", ["memory", "dir://{}/flows", "sqlite:///{}/flows.db"])
def test_executions_and_reversions_are_counted_separately(
    store: str, kind: str, tmp_path: Path
) -> None:
    changes: list[tuple[str, int, int]] = []

    def hear(state: str, details: dict[str, Any]) -> None:
        if details.get("task_name") == "bad":
            changes.append((state, details["executions"], details["reversions"]))

    bad = Noted("bad", [], 2)
    bad.retries = 2
    with contextlib.closing(backends.fetch(store.format(tmp_path))) as backend:
        engine = engines.load(LINE("f").add(bad), engine=kind, backend=backend)
        engine.atom_notifier.register("*", hear)
        engine.run()
        with contextlib.closing(backend.get_connection()) as connection:
            detail = connection.get_flow_details(engine.storage.flow_uuid)
            view = views.read(connection, engine.storage.flow_uuid)
    [record] = [atom for atom in detail if atom.name == "bad"]
    [seen] = [atom for atom in view.atoms if atom.name == "bad"]
    tries = [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2)]
    assert (record.executions, record.reversions) == (3, 2)
    assert [(each.executions, each.reversions) for each in record.all_attempts] == tries
    assert (seen.executions, seen.reversions, seen.to_dict()["reversions"]) == (3, 2, 2)
    assert [(each.executions, each.reversions) for each in seen.attempts] == tries
    ends = [counts for state, *counts in changes if state in (DONE, GONE, states.FAILURE)]
    assert ends == [list(each) for each in tries]
    begins = [counts for state, *counts in changes if state in (states.RUNNING, states.REVERTING)]
    assert begins == ends
