"""Fixtures of the pytest plugin."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import fresh
from wbengine import engines, exceptions, task, testing
from wbengine.listeners import capturing
from wbengine.patterns import linear_flow, unordered_flow

pytest_plugins = ["pytester"]

Maker = Callable[..., Any]

#: Names of the executed tasks in this process, in order.
RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


class Greet(task.Task):
    default_provides = "greeting"

    def execute(self, name: str) -> str:
        RAN.append(self.name)
        return f"hello {name}"


class Charge(task.Task):
    """A task that must not run twice."""

    idempotent = False

    def execute(self) -> None:
        RAN.append(self.name)


class Refund(Charge):
    """A task that may run twice."""

    idempotent = True


class Failing(task.Task):
    def execute(self) -> None:
        raise ValueError("as ever")


def line(*atoms: Any) -> Any:
    return linear_flow.Flow("f").add(*atoms)


def test_worker_fixture_runs_tasks_of_engine_fixture(wbe_worker: Maker, wbe_engine: Maker) -> None:
    worker = wbe_worker(Greet)
    engine = wbe_engine(line(Greet("greet")), store={"name": "you"})
    engine.run()
    assert engine.storage.fetch("greeting") == "hello you"
    assert engine.storage.get_attempt("greet").worker == worker.identity
    testing.assert_flow_trace(engine, ["greet"])
    assert testing.Trace.of(engine).flow == ["RUNNING", "SUCCESS"]


@pytest.mark.parametrize(
    "options", [{"processes_count": 1}, {"threads_count": 2}, {"pool": "solo"}], ids=str
)
def test_worker_fixture_passes_pool_options(
    wbe_worker: Maker, wbe_engine: Maker, options: dict[str, Any]
) -> None:
    worker = wbe_worker(Greet, **options)
    engine = wbe_engine(line(Greet("greet")), store={"name": "you"})
    engine.run()
    assert engine.storage.get_attempt("greet").worker == worker.identity


def test_each_test_has_its_own_broker(wbe_broker: Any, wbe_worker: Maker) -> None:
    wbe_worker(Charge)
    other = testing.Broker()
    assert other.url != wbe_broker.url and other.exchange != wbe_broker.exchange
    other.close()


def test_engine_fixture_creates_engines_of_any_kind(wbe_engine: Maker) -> None:
    engine = wbe_engine(line(Charge("a"), Failing("b")), engine="serial")
    with pytest.raises(ValueError, match="as ever"):
        engine.run()
    testing.assert_flow_trace(
        engine,
        [
            "a",
            ("b RUNNING", "b FAILURE"),
            ("b REVERTING", "b REVERTED"),
            ("a REVERTING", "a REVERTED"),
        ],
    )


def test_trace_mismatch_is_shown(wbe_engine: Maker) -> None:
    engine = wbe_engine(unordered_flow.Flow("f").add(Charge("a"), Charge("b")), engine="serial")
    engine.run()
    testing.assert_flow_trace(engine, [{"a", "b"}])
    with pytest.raises(AssertionError) as caught:
        testing.assert_flow_trace(engine, ["b", "a"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "the trace differs:"
    assert lines[1].startswith("  a RUNNING") and lines[1].endswith("<-- expected: b RUNNING")
    assert len(lines) == 5
    with pytest.raises(AssertionError, match=r"\(the end\)   <-- expected: c RUNNING"):
        testing.assert_flow_trace(engine, [{"a", "b"}, "c"])


def test_trace_of_unobserved_engine_is_refused(wbe_engine: Maker) -> None:
    engine = engines.load(line(Charge("a")))
    for wrong in (engine, None, []):
        with pytest.raises(TypeError, match=r"call Trace.of\(engine\) before the run"):
            testing.assert_flow_trace(wrong, ["a"])
    with capturing.CaptureListener(engine) as captured, testing.Trace(engine) as trace:
        engine.run()
    for heard in (captured, trace):
        testing.assert_flow_trace(heard, ["a"])


# Faults. -----------------------------------------------------------------------------------------


def test_dropped_messages_are_resent_or_recovered(
    wbe_broker: Any, wbe_worker: Maker, wbe_engine: Maker
) -> None:
    wbe_worker(Charge)
    lost = [
        wbe_broker.drop("REQUEST", atom="a"),
        wbe_broker.drop("RESPONSE", atom="b", state="SUCCESS"),
    ]
    engine = wbe_engine(unordered_flow.Flow("f").add(*map(Charge, "abc")))
    engine.run()
    assert (sorted(RAN), [fault.count for fault in lost]) == (["a", "b", "c"], [1, 1])


def test_doubled_messages_run_each_task_once(
    wbe_broker: Any, wbe_worker: Maker, wbe_engine: Maker
) -> None:
    wbe_worker(Charge)
    faults = [wbe_broker.double(kind, times=None) for kind in ("REQUEST", "RESPONSE", "NOTIFY")]
    one = wbe_broker.double("REQUEST", atom="c3", times=None)
    failed = wbe_broker.double("RESPONSE", state="FAILURE", times=None)
    engine = wbe_engine(unordered_flow.Flow("f").add(*(Charge(f"c{n}") for n in range(10))))
    engine.run()
    assert (one.count, failed.count) == (1, 0)
    assert sorted(RAN) == sorted(f"c{n}" for n in range(10))
    assert all(fault.count for fault in faults)


@pytest.mark.parametrize(("atom", "count"), [("all", 3), ("all[1]", 1), ("all[", 0)])
def test_fault_matches_map_items_by_atom_or_item_name(
    wbe_broker: Any, wbe_worker: Maker, wbe_engine: Maker, atom: str, count: int
) -> None:
    twice = [wbe_broker.double(kind, atom=atom, times=None) for kind in ("REQUEST", "RESPONSE")]
    wbe_worker(Greet)
    greetings = task.Map(Greet("one"), "names", "name", name="all")
    engine = wbe_engine(line(greetings), store={"names": ["a", "b", "c"]})
    engine.run()
    assert [fault.count >= count for fault in twice] == [True, True]
    assert twice[0].count == count and sorted(RAN) == ["all[0]", "all[1]", "all[2]"]


def test_engine_waits_for_a_delayed_reply(
    wbe_broker: Any, wbe_worker: Maker, wbe_engine: Maker
) -> None:
    wbe_worker(Charge)
    fault = wbe_broker.delay("RESPONSE", 0.5, atom="a", state="SUCCESS")
    began = time.monotonic()
    wbe_engine(line(Charge("a"))).run()
    assert time.monotonic() - began >= 0.5 and fault.count == 1


def test_worker_killed_at_start_executes_nothing() -> None:
    """Its threads execute nothing even when the broker closes; idempotent tasks run on other
    workers.
    """
    broker = testing.Broker()
    killed = [broker.kill_worker_at(atom) for atom in ("charge", "refund")]
    flow = unordered_flow.Flow("f").add(Charge("charge"), Refund("refund"))
    with contextlib.ExitStack() as fleet:
        for _ in range(3):
            worker = testing.worker_in_thread(
                broker.url, Charge, Refund, exchange=broker.exchange, observers=[broker.saboteur]
            )
            fleet.enter_context(worker)
        engine = engines.load(flow, engine="worker-based", worker_expiry=4, **broker.options)
        with pytest.raises(exceptions.WorkerLost):
            engine.run()
        broker.close()
    assert (RAN, [fault.count for fault in killed]) == (["refund"], [1, 1])


def test_killed_worker_executes_nothing_when_a_test_ends_early() -> None:
    broker = testing.Broker()
    killed = broker.kill_worker_at("charge")
    engine = engines.load(line(Charge("charge")), engine="worker-based", **broker.options)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            engine.run()
        except Exception as error:
            failed.append(error)

    with testing.worker_in_thread(
        broker.url, Charge, exchange=broker.exchange, observers=[broker.saboteur]
    ):
        thread = threading.Thread(target=run)
        thread.start()
        killed.wait()
        broker.close()
        thread.join(60)
    assert not thread.is_alive()
    assert RAN == [] and "its worker was killed" in str(failed)


class Counts:
    """A user's observer that records the methods called on it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, moment: str) -> Any:
        return lambda *rest: self.told.append(moment)


def test_worker_killed_at_end_executes_task_but_sends_no_reply(
    wbe_broker: Any, wbe_worker: Maker, wbe_engine: Maker
) -> None:
    """The workers also have observers of the user."""
    killed, own = wbe_broker.kill_worker_at("charge", when="end"), Counts()
    for _ in range(2):
        wbe_worker(Charge, observers=[own])
    with pytest.raises(exceptions.WorkerLost):
        wbe_engine(line(Charge("charge"))).run()
    killed.wait()
    assert (RAN, killed.count) == (["charge"], 1)
    assert own.told == ["received", "started"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda broker: broker.drop("REQEST"), "did you mean 'REQUEST'"),
        (lambda broker: broker.drop("NOTIFY", atom="a"), "must be None for NOTIFY"),
        (lambda broker: broker.double("REQUEST", times=0), "times must be .* got 0"),
        (lambda broker: broker.drop("REQUEST", state="SUCCESS"), "got kind REQUEST"),
        (lambda broker: broker.drop("RESPONSE", state="SUCESS"), "did you mean 'SUCCESS'"),
        (lambda broker: broker.delay("REQUEST", "soon"), "must be a number from 0, got 'soon'"),
        (lambda broker: broker.delay("REQUEST", -1), "seconds must be a number from 0, got -1"),
        (lambda broker: broker.kill_worker_at("a", when="middle"), "when must be 'start' or 'end'"),
    ],
)
def test_invalid_fault_is_refused(wbe_broker: Any, call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(wbe_broker)


def test_wait_for_a_fault_that_does_not_happen_fails(wbe_broker: Any) -> None:
    fault = wbe_broker.drop("REQUEST")
    with pytest.raises(AssertionError, match="<Fault drop REQUEST, 0 times> did not happen"):
        fault.wait(0.01)


# A suite of a user. -------------------------------------------------------------------------------

SUITE = """
from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import assert_flow_trace

class Greet(task.Task):
    default_provides = "greeting"
    def execute(self, name):
        return f"hello {name}"

def test_greet_runs_on_a_worker(wbe_worker, wbe_engine):
    wbe_worker(Greet)
    engine = wbe_engine(linear_flow.Flow("f").add(Greet("greet")), store={"name": "you"})
    engine.run()
    assert engine.storage.fetch("greeting") == "hello you"
    assert_flow_trace(engine, ["greet"])

def test_trace_with_missing_atom_fails(wbe_engine):
    engine = wbe_engine(
        linear_flow.Flow("f").add(Greet("greet")), store={"name": "you"}, engine="serial"
    )
    engine.run()
    assert_flow_trace(engine, ["greet", "part"])
"""


@pytest.mark.slow
def test_fixtures_work_in_a_suite_of_a_user(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-q", "-W", "error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*expected: part RUNNING*"])
    # The traceback hides frames of the comparison.
    assert "traces.py" not in result.stdout.str()


@pytest.mark.slow
def test_unused_plugin_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_no_package_is_imported():
            loaded = [name for name in sys.modules if name.partition(".")[0] in LATE]
            ours = sorted(name for name in sys.modules if name.startswith("wbengine"))
            assert not loaded
            assert set(ours) == OURS

        OURS = {
            "wbengine", "wbengine._imports", "wbengine._imports.lazily", "wbengine.testing",
            "wbengine.testing._plugin",
        }
        LATE = {"kombu", "networkx", "jsonschema", "rich", "futurist"}
        """
    )
    pytester.runpytest_subprocess("-q", "-W", "error").assert_outcomes(passed=1)


def test_public_names_are_imported_lazily() -> None:
    script = "import sys, wbengine.testing as t; assert 'kombu' not in sys.modules; print(dir(t))"
    assert "assert_flow_trace" in fresh.run(script).stdout
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testing.nothing  # noqa: B018
