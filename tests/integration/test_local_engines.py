"""Whole flows, run by every engine of this host."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import futurist
import pytest

from tests.support.snapshots import Snapshots
from tests.support.workers import until
from wbengine import engines, exceptions, retry, states, task
from wbengine.engines import base
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.types import failure as ft

KINDS = {
    "serial": "serial",
    "threads": "parallel://?executor=threads&max_workers=3",
    "processes": "parallel://?executor=processes&max_workers=2",
}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return KINDS[request.param]


@pytest.fixture(params=["serial", "threads"])
def near(request: pytest.FixtureRequest) -> str:
    """Kinds whose tasks share memory with the test."""
    return KINDS[request.param]


class Add(task.Task):
    default_provides = "sum"

    def execute(self, a: int, b: int = 10) -> int:
        return a + b


class Double(task.Task):
    default_provides = "double"

    def execute(self, sum: int) -> int:
        return 2 * sum


class Boom(task.Task):
    def execute(self) -> None:
        raise ValueError("boom")


class Exits(task.Task):
    def execute(self) -> None:
        sys.exit(3)


class Pair(task.Task):
    default_provides = ("left", "right")

    def execute(self) -> tuple[int, int]:
        return 1, 2


class Unpicklable(task.Task):
    def execute(self) -> Any:
        return {"lock": [threading.Lock()]}


class Dies(task.Task):
    def execute(self) -> None:
        os._exit(7)


class Forks(task.Task):
    """Has a child, which leaves `execute` as if it were the parent."""

    default_provides = "ended"

    def execute(self, raises: bool) -> bool | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, which the child does without
            child = os.fork()
        if child == 0:
            if raises:
                sys.exit(1)
            return None
        try:
            until(lambda: os.waitpid(child, os.WNOHANG)[0])
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            raise
        return True


class Counting(task.Task):
    """Tells custom events, and how far it is."""

    TASK_EVENTS = frozenset({task.EVENT_UPDATE_PROGRESS, "counted"})

    def execute(self) -> None:
        self.update_progress(0.25)
        self.notifier.notify("counted", {"number": 1})
        self.update_progress(0.5)


class Noted(task.Task):
    """Writes down what is done to it, in a list of its own process."""

    def __init__(self, name: str, log: list[str], fails: bool = False, **options: Any) -> None:
        super().__init__(name, **options)
        self.log = log
        self.fails = fails

    def execute(self) -> str:
        self.log.append(f"+{self.name}")
        if self.fails:
            raise RuntimeError(f"{self.name} fails")
        return self.name

    def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> str:
        self.log.append(f"-{self.name}")
        return f"undone {self.name}"


class FailsTimes(task.Task):
    """Fails as often as told, then succeeds."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__(name, provides=f"{name}_done")
        self.left = times

    def execute(self) -> str:
        if self.left:
            self.left -= 1
            raise RuntimeError(f"{self.left} left")
        return "done"


def load(flow: Any, kind: str = "serial", **options: Any) -> base.Engine:
    return engines.load(flow, engine=kind, **options)


def events(engine: base.Engine) -> list[tuple[str, str]]:
    """What the engine's listeners hear, as it goes on."""
    heard: list[tuple[str, str]] = []

    def on_atom(state: str, details: dict[str, Any]) -> None:
        heard.append((details.get("task_name") or details["retry_name"], state))

    engine.atom_notifier.register("*", on_atom)
    engine.notifier.register("*", lambda state, details: heard.append(("flow", state)))
    return heard


# -- success ---------------------------------------------------------------------------------


def test_results_flow_from_task_to_task(kind: str) -> None:
    """What one task returns is an argument of the next; `run` returns all values by name."""
    flow = linear_flow.Flow("f").add(Add(), Double())
    found = engines.run(flow, store={"a": 1, "b": 2}, engine=kind)
    assert found == {"a": 1, "b": 2, "sum": 3, "double": 6}


def test_parts_of_a_result_have_names(kind: str) -> None:
    """A tuple in `provides` names the items of the result."""
    flow = linear_flow.Flow("f").add(Pair(), Add(rebind={"a": "left", "b": "right"}))
    assert engines.run(flow, engine=kind)["sum"] == 3


def test_an_optional_argument_without_provider_keeps_its_default(kind: str) -> None:
    """A later provider of the name is not visible, and does not disturb."""
    flow = linear_flow.Flow("f").add(Add(), task.FunctorTask(os.getpid, "later", provides="b"))
    assert engines.run(flow, store={"a": 1}, engine=kind)["sum"] == 11


def test_injection_beats_everything(near: str) -> None:
    """First the atom's own, then the flow's, then what tasks provide."""
    flow = linear_flow.Flow("f").add(
        task.FunctorTask(lambda: 100, "maker", provides="a"),
        Add("own", provides="own", inject={"a": 1}),
        Add("flows", provides="flows"),
    )
    found = engines.run(flow, store={"b": 0}, engine=near)
    assert (found["own"], found["flows"]) == (1, 100)
    found = engines.run(flow, store={"a": 10, "b": 0}, engine=near)
    assert (found["own"], found["flows"]) == (1, 10)


def test_values_injected_after_prepare_are_seen() -> None:
    """Injected values are looked up when the atom begins."""
    engine = load(linear_flow.Flow("f").add(Add()))
    engine.compile()
    engine.prepare()
    with pytest.raises(exceptions.MissingDependencies):
        engine.validate()
    engine.storage.inject({"a": 5}, transient=True)
    engine.run()
    assert engine.storage.fetch("sum") == 15


def test_empty_flow_and_bare_task_run(kind: str) -> None:
    """An empty flow succeeds; a task alone is a flow."""
    assert engines.run(linear_flow.Flow("empty"), engine=kind) == {}
    assert engines.run(Add(), store={"a": 1}, engine=kind) == {"a": 1, "sum": 11}


def test_the_bigger_priority_goes_first() -> None:
    """Priority orders what is ready at the same time, then the order of add does."""
    log: list[str] = []
    flow = unordered_flow.Flow("f")
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 9)):
        noted = Noted(name, log)
        noted.priority = priority
        flow.add(noted)
    engines.run(flow)
    assert log == ["+d", "+b", "+a", "+c"]


def test_bigger_priority_goes_first_in_flow_of_many_turns() -> None:
    """Also among tasks that wait for a later turn, and of others that become ready meanwhile."""
    log: list[str] = []
    flow = unordered_flow.Flow("f")
    for number in range(700):
        chain = linear_flow.Flow(f"chain {number}")
        for step in ("first", "second"):
            noted = Noted(f"{step} {number:03}", log)
            noted.priority = number % 3 if step == "first" else -1
            chain.add(noted)
        flow.add(chain)
    engines.run(flow)
    firsts = sorted(range(700), key=lambda number: (-(number % 3), number))
    assert log[:700] == [f"+first {number:03}" for number in firsts]
    assert sorted(log[700:]) == [f"+second {number:03}" for number in range(700)]


def test_a_graph_runs_in_the_order_of_its_links(near: str) -> None:
    """Names link providers to consumers, whatever the order of add."""
    flow = graph_flow.Flow("g").add(Double(), Add())
    assert engines.run(flow, store={"a": 1, "b": 1}, engine=near)["double"] == 4


# -- notifications -----------------------------------------------------------------------------


def test_a_turn_begins_all_before_anything_ends() -> None:
    """The trace of a serial run: RUNNING for all that is ready, then their outcomes in order."""
    engine = load(unordered_flow.Flow("f").add(Pair("a"), Pair("b", provides=())))
    heard = events(engine)
    engine.run()
    assert heard == [
        ("flow", "RUNNING"),
        ("a", "RUNNING"),
        ("b", "RUNNING"),
        ("a", "SUCCESS"),
        ("b", "SUCCESS"),
        ("flow", "SUCCESS"),
    ]


def test_details_of_notifications(kind: str) -> None:
    """Who, from which state, with which result, and who ran it when."""
    engine = load(linear_flow.Flow("f").add(Add()), kind, store={"a": 1})
    told: dict[str, dict[str, Any]] = {}
    engine.atom_notifier.register("*", lambda state, details: told.update({state: details}))
    engine.run()
    assert told["RUNNING"]["old_state"] == "PENDING"
    assert "result" not in told["RUNNING"]
    done = told["SUCCESS"]
    assert (done["result"], done["old_state"], done["worker"]) == (11, "RUNNING", "local")
    assert done["task_uuid"] == engine.storage.get_atom_uuid(done["task_name"])
    assert done["started"] <= done["ended"]
    attempt = engine.storage.get_attempt(done["task_name"])
    assert attempt is not None
    assert (attempt.attempt, attempt.action, attempt.worker) == (1, "execute", "local")


def test_a_listener_that_raises_disturbs_nothing() -> None:
    """What listeners raise is logged and goes no further."""
    engine = load(linear_flow.Flow("f").add(Add()), store={"a": 1})
    engine.atom_notifier.register("*", lambda state, details: 1 / 0)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_progress_is_stored_and_told_once(kind: str) -> None:
    """Listeners of a task hear its events once, wherever it runs; the engine adds 0.0 and 1.0."""
    counting = Counting("c")
    heard: list[Any] = []
    counting.notifier.register(
        task.EVENT_UPDATE_PROGRESS, lambda _, details: heard.append(details["progress"])
    )
    counting.notifier.register("counted", lambda _, details: heard.append(details))
    engine = load(linear_flow.Flow("f").add(counting), kind)
    engine.run()
    assert heard == [0.0, 0.25, {"number": 1}, 0.5, 1.0]
    assert engine.storage.get_task_progress("c") == 1.0


def test_progress_of_a_failed_task_stays_where_it_was() -> None:
    """Progress is what the task last told."""

    class Half(task.Task):
        def execute(self) -> None:
            self.update_progress(0.5)
            raise ValueError

    engine = load(linear_flow.Flow("f").add(Half("h")), never_resolve=True)
    with pytest.raises(ValueError):
        engine.run()
    assert engine.storage.get_task_progress("h") == 0.5


class Stays(Counting):
    """Must not leave the process of its engine."""

    local = True
    default_provides = "pid"

    def execute(self) -> int:  # type: ignore[override]
        super().execute()
        return os.getpid()


def test_local_tasks_stay_in_the_process_of_the_engine(kind: str) -> None:
    """Whatever runs the others; what they tell is heard once."""
    stays = Stays("stays")
    heard: list[Any] = []
    stays.notifier.register(
        task.EVENT_UPDATE_PROGRESS, lambda _, details: heard.append(details["progress"])
    )
    flow = unordered_flow.Flow("f").add(stays, task.FunctorTask(os.getpid, "goes", provides="else"))
    found = engines.run(flow, engine=kind)
    assert found["pid"] == os.getpid()
    assert (found["else"] == os.getpid()) == ("processes" not in kind)
    assert heard == [0.0, 0.25, 0.5, 1.0]


# -- failure -----------------------------------------------------------------------------------


def test_a_failure_is_raised_as_itself_after_everything_is_reverted(near: str) -> None:
    """Reversion runs backward, the failed task included."""
    log: list[str] = []
    engine = load(
        linear_flow.Flow("f").add(Noted("a", log), Noted("b", log), Noted("c", log, fails=True)),
        near,
    )
    with pytest.raises(RuntimeError, match="c fails"):
        engine.run()
    assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]
    storage = engine.storage
    assert storage.get_flow_state() == states.REVERTED
    assert storage.get_revert_result("a") == "undone a"
    with pytest.raises(exceptions.NotFound):
        storage.get("a")
    assert storage.get("c").check(RuntimeError)
    assert [storage.get_attempt(name).attempt for name in "abc"] == [2, 2, 2]  # type: ignore[union-attr]


def test_failures_of_processes_are_raised(kind: str) -> None:
    """The failure keeps its type name, wherever it happened."""
    with pytest.raises((ValueError, exceptions.WrappedFailure)) as caught:
        engines.run(linear_flow.Flow("f").add(Boom()), engine=kind)
    if isinstance(caught.value, exceptions.WrappedFailure):
        assert caught.value.check("ValueError")


def test_several_failures_are_raised_together() -> None:
    """Tasks that fail in the same turn are all told about."""
    flow = unordered_flow.Flow("f").add(Boom("a"), Boom("b"), Pair("c"))
    with pytest.raises(exceptions.WrappedFailure) as caught:
        engines.run(flow)
    assert len(list(caught.value)) == 2


def test_revert_is_told_result_and_failures() -> None:
    """`result` is what execute returned, `flow_failures` says who failed."""
    told: list[Any] = []

    class Told(task.Task):
        def execute(self) -> str:
            return "made"

        def revert(self, result: Any, flow_failures: dict[str, ft.Failure]) -> None:
            told.append((result, sorted(flow_failures)))

    with pytest.raises(ValueError):
        engines.run(linear_flow.Flow("f").add(Told("t"), Boom("b")))
    assert told == [("made", ["b"])]


def test_never_resolve_keeps_the_failure_and_stays_failed(near: str) -> None:
    """Nothing is reverted, what depends on it never starts; running again changes nothing."""
    log: list[str] = []
    engine = load(
        linear_flow.Flow("f").add(Noted("a", log), Noted("b", log, fails=True), Noted("c", log)),
        near,
        never_resolve="true",
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match="b fails"):
            engine.run()
        assert engine.storage.get_flow_state() == states.FAILURE
        assert engine.storage.get_atom_state("a") == states.SUCCESS
        assert engine.storage.get_atom_state("b") == states.FAILURE
        assert engine.storage.get_atom_state("c") == states.PENDING
    assert log == ["+a", "+b"]


def test_a_kept_failure_is_resolved_by_an_engine_that_resolves() -> None:
    """The next engine goes on where the failure was left: it reverts, or tries again."""
    log: list[str] = []
    engine = load(linear_flow.Flow("f").add(Pair("p"), Boom("b")), never_resolve=True)
    with pytest.raises(ValueError):
        engine.run()
    detail = engine.storage.flow_detail
    engine = load(linear_flow.Flow("f").add(Noted("p", log), Boom("b")), flow_detail=detail)
    with pytest.raises((ValueError, exceptions.WrappedFailure)):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert log == ["-p"]

    flow = linear_flow.Flow("f", retry=retry.Times(2, "r")).add(FailsTimes("t", 1))
    engine = load(flow, never_resolve=True)
    with pytest.raises(RuntimeError):
        engine.run()
    engine = load(flow, flow_detail=engine.storage.flow_detail)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_a_failing_revert_ends_the_flow_in_failure() -> None:
    """What comes before it is not reverted: nobody knows in which state it would be.

    What is raised is why it could not be reverted, with what failed before as its context.
    """
    log: list[str] = []

    class Stuck(task.Task):
        def execute(self) -> None:
            pass

        def revert(self, result: Any, flow_failures: Any) -> None:
            raise KeyError("stuck")

    engine = load(linear_flow.Flow("f").add(Noted("a", log), Stuck("s"), Boom("b")))
    for _ in range(2):
        with pytest.raises(KeyError, match="stuck") as caught:
            engine.run()
        assert isinstance(caught.value.__context__, ValueError)
        assert engine.storage.get_flow_state() == states.FAILURE
    assert engine.storage.get_atom_state("s") == states.REVERT_FAILURE
    assert log == ["+a"]


def test_post_execute_errors_count(near: str) -> None:
    """An error of a hook is the atom's."""

    class Post(task.Task):
        def execute(self) -> None:
            pass

        def post_execute(self) -> None:
            raise ValueError("post")

    engine = load(linear_flow.Flow("f").add(Post("p")), near)
    with pytest.raises(ValueError, match="post"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


def test_what_cannot_be_pickled_fails_its_task_alone() -> None:
    """The failure names task and culprit; the pool goes on."""
    engine = load(
        unordered_flow.Flow("f").add(Unpicklable("u"), Add("add")),
        KINDS["processes"],
        store={"a": 1},
        never_resolve=True,
    )
    with pytest.raises(exceptions.NotEncodable, match=r"'u'.*lock"):
        engine.run()
    assert engine.storage.get_execute_failures().keys() == {"u"}


def test_arguments_that_cannot_be_pickled_are_named() -> None:
    """The refusal names the task."""
    flow = linear_flow.Flow("f").add(Double("d"))
    with pytest.raises(exceptions.NotEncodable, match="'d'"):
        engines.run(flow, store={"sum": threading.Lock()}, engine=KINDS["processes"])


@pytest.mark.parametrize("given", [False, True])
def test_what_could_not_be_sent_to_a_process_has_nothing_to_undo(given: bool) -> None:
    """Neither task nor arguments ever left: reverting them is no failure of its own."""
    flow = linear_flow.Flow("f").add(task.FunctorTask(lambda a: a, "home", revert=lambda a: a))
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(futures.ProcessPoolExecutor(1)) if given else "processes"
        engine = engines.load(flow, store={"a": 1}, engine="parallel", executor=pool)
        with pytest.raises(exceptions.NotEncodable, match="'home'"):
            engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


def test_a_process_that_dies_fails_its_task() -> None:
    """WorkerLost tells the exit code."""
    with pytest.raises(exceptions.WorkerLost, match="exit code 7"):
        engines.run(Dies("d"), engine=KINDS["processes"])


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("raises", [False, True])
def test_a_fork_that_comes_out_of_a_task_ends(kind: str, raises: bool) -> None:
    """It would wait for ever for work that its parent does."""
    values = engines.run(Forks("f"), store={"raises": raises}, engine=KINDS[kind])
    assert values["ended"] is True


# -- retries -----------------------------------------------------------------------------------


def test_times_tries_again_and_forgets_what_failed(near: str) -> None:
    """After a success nothing is left of the failed attempts but the history."""
    flow = linear_flow.Flow("f", retry=retry.Times(3, "r", provides="try")).add(FailsTimes("t", 2))
    engine = load(flow, near)
    heard = events(engine)
    engine.run()
    storage = engine.storage
    assert storage.fetch("try") == 3
    assert not storage.has_failures()
    history = storage.get_retry_history("r")
    assert [provided for provided, _ in history] == [1, 2, 3]
    assert [sorted(failed) for _, failed in history] == [["t"], ["t"], []]
    assert storage.get_attempt("t").attempt == 5  # type: ignore[union-attr]
    assert [state for name, state in heard if name == "r"] == [
        "RUNNING", "SUCCESS", "RETRYING", "RUNNING", "SUCCESS", "RETRYING", "RUNNING", "SUCCESS",
    ]  # fmt: skip
    assert [state for name, state in heard if name == "t"][:5] == [
        "RUNNING", "FAILURE", "REVERTING", "REVERTED", "PENDING",
    ]  # fmt: skip


def test_times_gives_up(near: str) -> None:
    """Then its flow is reverted, and the last failure raised as itself."""
    flow = linear_flow.Flow("f", retry=retry.Times(2, "r")).add(FailsTimes("t", 5))
    engine = load(flow, near)
    with pytest.raises(RuntimeError, match="3 left"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.get_atom_state("r") == states.REVERTED


def test_for_each_provides_one_value_after_the_other() -> None:
    """Values that failed are not tried again."""
    tried: list[str] = []

    def attempt(city: str) -> str:
        tried.append(city)
        if city != "Rome":
            raise LookupError(city)
        return city

    flow = linear_flow.Flow(
        "f", retry=retry.ForEach(["Oslo", "Bonn", "Rome"], "r", provides="city")
    )
    flow.add(task.FunctorTask(attempt, "t", provides="found"))
    assert engines.run(flow)["found"] == "Rome"
    assert tried == ["Oslo", "Bonn", "Rome"]


def test_parameterized_for_each_takes_its_values_from_the_store() -> None:
    """A retry's arguments are looked up like any atom's."""
    flow = linear_flow.Flow("f", retry=retry.ParameterizedForEach("r", provides="n"))
    flow.add(task.FunctorTask(lambda n: 10 // n, "t", provides="q"))
    assert engines.run(flow, store={"values": [0, 5]})["q"] == 2


def test_nested_retries_ask_from_the_inside_out() -> None:
    """The inner one gives up, the outer one tries all again."""
    inner = linear_flow.Flow("in", retry=retry.Times(2, "inner")).add(FailsTimes("t", 3))
    log: list[str] = []
    flow = linear_flow.Flow("out", retry=retry.Times(2, "outer")).add(Noted("a", log), inner)
    engine = load(flow)
    engine.run()
    assert log == ["+a", "-a", "+a"]
    assert len(engine.storage.get_retry_history("outer")) == 2
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_revert_of_one_subflow_leaves_what_is_outside() -> None:
    """Without `defer_reverts`; the flow is in FAILURE then, for not all of it is reverted."""
    for deferred, outside, end in (
        (False, states.SUCCESS, states.FAILURE),
        (True, states.REVERTED, states.REVERTED),
    ):
        inner = linear_flow.Flow("in", retry=retry.AlwaysRevert("r")).add(Boom("b"))
        engine = load(linear_flow.Flow("f").add(Pair("a"), inner), defer_reverts=deferred)
        with pytest.raises(ValueError):
            engine.run()
        assert engine.storage.get_flow_state() == end
        assert engine.storage.get_atom_state("a") == outside


def test_a_retry_that_answers_nonsense_reverts_everything() -> None:
    """The error names the retry and what it said."""

    class Odd(retry.AlwaysRevert):
        def on_failure(self, *args: Any, **kwargs: Any) -> Any:
            return "MAYBE"

    engine = load(linear_flow.Flow("f", retry=Odd("odd")).add(Pair("p"), Boom("b")))
    with pytest.raises(exceptions.WrappedFailure, match=r"odd.*MAYBE"):
        engine.run()
    assert engine.storage.get_atom_state("p") == states.REVERTED


def test_a_retry_that_fails_is_resolved_by_the_one_around_it() -> None:
    """Its own controller is outside of its flow."""

    class Fails(retry.AlwaysRevert):
        left = 1

        def execute(self, *args: Any, **kwargs: Any) -> None:
            if self.left:
                self.left -= 1
                raise OSError("not yet")

    inner = linear_flow.Flow("in", retry=Fails("fails")).add(Pair("p"))
    engine = load(linear_flow.Flow("out", retry=retry.Times(2, "outer")).add(inner))
    engine.run()
    assert engine.storage.get_retry_history("outer").caused_by(OSError)


# -- deciders ----------------------------------------------------------------------------------


def diamond(decider: Any, depth: str | None = None) -> graph_flow.Flow:
    a, b, c, d = (
        Pair("a", provides="a"),
        Add("b", provides="b", inject={"a": 1, "b": 1}),
        Pair("c", provides="c"),
        Pair("d", provides="d"),
    )
    flow = graph_flow.Flow("g").add(a, b, c, d)
    flow.link(a, b, decider=decider, decider_depth=depth)
    flow.link(b, c)
    flow.link(a, d)
    return flow


def test_a_decider_sees_the_results_of_its_sources(near: str) -> None:
    """A yes runs the target."""
    asked: list[Any] = []

    def decide(history: dict[str, Any]) -> bool:
        asked.append(history)
        return True

    engines.run(diamond(decide), engine=near)
    assert asked == [{"a": (1, 2)}]


def test_a_no_ignores_what_depends_on_it(near: str) -> None:
    """Depth ALL ignores all that follows; other branches run."""
    engine = load(diamond(lambda history: False), near)
    engine.run()
    found = engine.storage.get_atoms_states("abcd")
    assert [state for state, _ in found.values()] == ["SUCCESS", "IGNORE", "IGNORE", "SUCCESS"]
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_depth_atom_ignores_the_target_alone() -> None:
    """What follows runs without it."""
    engine = load(diamond(lambda history: False, "atom"))
    engine.run()
    assert engine.storage.get_atom_state("b") == states.IGNORE
    assert engine.storage.get_atom_state("c") == states.SUCCESS


def test_a_decider_that_raises_fails_its_target() -> None:
    """Everything is reverted, and the decider's error raised."""
    engine = load(diamond(lambda history: history["nobody"]))
    with pytest.raises(KeyError, match="nobody"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.get_atom_state("a") == states.REVERTED
    assert engine.storage.get_execute_failures().keys() == {"b"}


def test_a_decider_of_a_flow_that_raises_fails_the_flow() -> None:
    """The atoms inside fail as they begin; nothing of them ran."""
    log: list[str] = []
    first = Pair("a")
    inner = linear_flow.Flow("in").add(Noted("x", log), Noted("y", log))
    flow = graph_flow.Flow("g").add(first, inner)
    flow.link(first, inner, decider=lambda history: 1 // 0)
    engine = load(flow)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert "+x" not in log
    assert engine.storage.get_atom_state("a") == states.REVERTED


# -- suspend, resume, reset --------------------------------------------------------------------


def test_suspend_from_a_listener_and_go_on(kind: str) -> None:
    """What runs finishes, nothing new starts; `run` continues and repeats nothing."""
    engine = load(linear_flow.Flow("f").add(Add("a"), Double(rebind=["sum"])), kind, store={"a": 1})
    heard = events(engine)

    def suspend(state: str, details: dict[str, Any]) -> None:
        if details["task_name"] == "a":
            engine.suspend()

    engine.atom_notifier.register(states.SUCCESS, suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.get_atoms_states(["a"])["a"][0] == states.SUCCESS
    assert [state for name, state in heard if name == "flow"] == [
        "RUNNING", "SUSPENDING", "SUSPENDED",
    ]  # fmt: skip
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert heard.count(("a", "RUNNING")) == 1


def test_suspend_takes_back_what_has_not_started(near: str) -> None:
    """A task that suspends its engine is the last one to run; the others are as they were."""
    log: list[str] = []
    found: list[base.Engine] = []

    class Suspends(task.Task):
        def execute(self) -> None:
            found[0].suspend()

    flow = unordered_flow.Flow("f").add(Suspends("s"), *[Noted(f"t{n}", log) for n in range(20)])
    engine = load(flow, near.replace("=3", "=1"))
    found.append(engine)
    engine.run()
    storage = engine.storage
    assert storage.get_flow_state() == states.SUSPENDED
    assert log == []
    assert {storage.get_atom_state(f"t{n}") for n in range(20)} == {states.PENDING}
    assert engine.statistics["withdrawn"] == 20
    engine.run()
    assert sorted(log) == sorted(f"+t{n}" for n in range(20))
    assert storage.get_attempt("t0").attempt == 2  # type: ignore[union-attr]


def test_suspend_while_waiting_wakes_the_engine() -> None:
    """Another thread suspends while a task runs: it finishes, the rest waits."""
    entered, leave = threading.Event(), threading.Event()

    class Waits(task.Task):
        def execute(self) -> None:
            entered.set()
            leave.wait()

    engine = load(linear_flow.Flow("f").add(Waits("w"), Pair("p")), KINDS["threads"])
    runner = threading.Thread(target=engine.run)
    runner.start()
    entered.wait()
    engine.suspend()
    leave.set()
    runner.join()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.get_atom_state("w") == states.SUCCESS
    assert engine.storage.get_atom_state("p") == states.PENDING


def test_suspend_in_the_middle_of_reverting() -> None:
    """The next run goes on reverting, and raises the failure."""
    log: list[str] = []
    flow = linear_flow.Flow("f").add(Noted("a", log), Noted("b", log), Noted("c", log, fails=True))
    engine = load(flow)
    engine.atom_notifier.register(states.REVERTED, lambda state, details: engine.suspend())
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert log == ["+a", "+b", "+c", "-c"]
    engine.atom_notifier.reset()
    with pytest.raises(RuntimeError):
        engine.run()
    assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_suspend_before_compile_and_before_run() -> None:
    """Before `compile` an error (load compiles); before `run` nothing happens."""
    engine = load(Pair("p"))
    engine.suspend()
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_run_iter_yields_states_and_can_be_suspended() -> None:
    """`send(True)` suspends, `close` suspends and drains."""
    flow = linear_flow.Flow("f").add(Pair("a"), Pair("b", provides=()), Pair("c", provides=()))
    engine = load(flow)
    steps = engine.run_iter()
    seen = [next(steps), next(steps), next(steps)]
    assert seen == ["RESUMING", "SCHEDULING", "WAITING"]
    steps.send(True)  # type: ignore[attr-defined]
    assert list(steps)[-1] == states.SUSPENDED
    steps = engine.run_iter()
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert list(engine.run_iter())[-1] == states.SUCCESS


def test_an_exception_thrown_into_run_iter_fails_the_run() -> None:
    """The flow is in FAILURE, no atom is left RUNNING, and the next run goes on."""
    engine = load(linear_flow.Flow("f").add(Pair("a"), Pair("b", provides=())))
    steps: Iterator[str] = engine.run_iter()
    while next(steps) != states.WAITING:
        pass
    with pytest.raises(LookupError):
        steps.throw(LookupError("mine"))  # type: ignore[attr-defined]
    assert engine.storage.get_flow_state() == states.FAILURE
    assert engine.storage.get_atom_state("a") == states.SUCCESS
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_engine_is_suspended(error: type[BaseException], near: str) -> None:
    """Ctrl-C in the engine's own thread leaves states a later run can go on from."""
    engine = load(linear_flow.Flow("f").add(Pair("a"), Pair("b", provides=())), near)

    def interrupt(state: str, details: dict[str, Any]) -> None:
        raise error

    engine.atom_notifier.register(states.RUNNING, interrupt)
    with pytest.raises(error):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert engine.storage.get_atom_state("a") == states.PENDING
    engine.atom_notifier.reset()
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_a_successful_flow_runs_again_only_after_reset() -> None:
    """Attempt numbers go on."""
    log: list[str] = []
    engine = load(linear_flow.Flow("f").add(Noted("a", log)))
    engine.run()
    engine.run()
    assert log == ["+a"]
    engine.reset()
    assert engine.storage.get_atom_state("a") == states.PENDING
    engine.run()
    assert log == ["+a", "+a"]
    assert engine.storage.get_attempt("a").attempt == 2  # type: ignore[union-attr]


def test_a_reverted_flow_starts_anew() -> None:
    """Without `reset`; earlier failures are forgotten."""
    engine = load(linear_flow.Flow("f").add(FailsTimes("t", 1)))
    with pytest.raises(RuntimeError):
        engine.run()
    engine.run()
    assert engine.storage.fetch("t_done") == "done"
    assert not engine.storage.has_failures()


def test_reset_from_failure_and_from_suspension() -> None:
    """What was done is forgotten, not reverted."""
    engine = load(linear_flow.Flow("f").add(Pair("p"), FailsTimes("t", 1)), never_resolve=True)
    with pytest.raises(RuntimeError):
        engine.run()
    engine.reset()
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS

    engine = load(linear_flow.Flow("f").add(Pair("p"), Boom("b")))
    engine.atom_notifier.register(states.SUCCESS, lambda state, details: engine.suspend())
    engine.run()
    assert engine.storage.get_atom_state("p") == states.SUCCESS
    engine.reset()
    assert engine.storage.get_flow_state() == states.PENDING
    assert engine.storage.get_atom_state("p") == states.PENDING


def test_another_engine_resumes_from_what_is_kept(near: str) -> None:
    """The store says what is done; only the rest runs."""
    with backends.backend("memory") as backend:
        log: list[str] = []
        names = ("a", "b", "c")
        first = load(
            linear_flow.Flow("f").add(*[Noted(name, log) for name in names]), backend=backend
        )
        first.atom_notifier.register(
            states.SUCCESS,
            lambda state, details: details["task_name"] == "b" and first.suspend(),
        )
        first.run()
        with backend.get_connection() as connection:
            detail = connection.get_flow_details(first.storage.flow_uuid)
        assert detail.state == states.SUSPENDED
        second = load(
            linear_flow.Flow("f").add(*[Noted(name, log) for name in names]),
            near,
            backend=backend,
            flow_detail=detail,
        )
        second.run()
        assert log == ["+a", "+b", "+c"]
        with backend.get_connection() as connection:
            kept = connection.get_flow_details(first.storage.flow_uuid)
        assert kept.state == states.SUCCESS
        assert {atom.state for atom in kept} == {states.SUCCESS}


def test_what_a_dead_engine_left_running_runs_again() -> None:
    """RUNNING is in the store before the task starts, under the attempt's number."""
    with backends.backend("memory") as backend:
        seen: list[Any] = []

        def look() -> None:
            with backend.get_connection() as connection:
                detail = connection.get_flow_details(engine.storage.flow_uuid)
            seen.append(detail)

        engine = load(task.FunctorTask(look, "look"), backend=backend)
        engine.run()
        (left,) = seen
        (atom,) = left
        assert (left.state, atom.state, atom.attempt) == (states.RUNNING, states.RUNNING, 1)
        again = load(task.FunctorTask(look, "look"), flow_detail=left)
        again.run()
        assert len(seen) == 2
        assert again.storage.get_attempt("look").attempt == 2  # type: ignore[union-attr]


def test_a_turn_is_one_write() -> None:
    """Writes do not grow with the number of tasks of a turn."""
    counts = []
    for size in (2, 50):
        with backends.backend("memory") as backend:
            flow = unordered_flow.Flow("f").add(*[Pair(f"t{n}", provides=()) for n in range(size)])
            engines.run(flow, backend=backend)
            counts.append(backend.writes)  # type: ignore[attr-defined]
    assert counts[0] == counts[1]


# -- pools given by the user -------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: futures.ThreadPoolExecutor(2),
        lambda: futures.ProcessPoolExecutor(1),
        futurist.SynchronousExecutor,
    ],
)
def test_a_given_executor_is_used_and_not_shut_down(make: Any) -> None:
    """The pool is the user's."""
    with make() as pool:
        flow = linear_flow.Flow("f").add(Add(), Double())
        found = engines.run(flow, store={"a": 1}, engine="parallel", executor=pool)
        assert found["double"] == 22
        assert pool.submit(len, "abc").result() == 3


def test_a_busy_engine_refuses_a_second_run() -> None:
    """One run at a time."""
    inside: list[Any] = []

    def again() -> None:
        with pytest.raises(exceptions.ExecutionFailure, match="running already"):
            engine.run()
        inside.append(True)

    engine = load(task.FunctorTask(again, "again"))
    engine.run()
    assert inside == [True]


# -- dying anywhere ------------------------------------------------------------------------------


class Early(task.Task):
    """Fails until the retry says that it is time."""

    def __init__(self, name: str, until: int) -> None:
        super().__init__(name, requires=["turn"], auto_extract=False)
        self.until = until

    def execute(self, turn: int) -> None:
        if turn < self.until:
            raise RuntimeError(f"too early: {turn}")


def retried(until: int) -> linear_flow.Flow:
    inner = unordered_flow.Flow("in", retry=retry.Times(2, "inner", provides="turn"))
    inner.add(Early("e1", until), Early("e2", 1), Pair("p1", provides=()))
    outer = linear_flow.Flow("out", retry=retry.Times(2, "outer", provides="round"))
    outer.add(Pair("p2", provides=()), inner, Pair("p3", provides=()))
    return linear_flow.Flow("f").add(Pair("p0", provides=()), outer)


def decided() -> graph_flow.Flow:
    flow = diamond(lambda history: False, "atom")
    return flow.add(task.FunctorTask(lambda d: int("x"), "boom"))


@pytest.mark.parametrize(
    ("make", "ends"),
    [
        (lambda: retried(2), states.SUCCESS),
        (lambda: retried(3), states.REVERTED),
        (decided, states.REVERTED),
        (lambda: diamond(lambda history: False), states.SUCCESS),
    ],
)
def test_a_run_can_die_after_any_write_and_is_resumed(make: Any, ends: str) -> None:
    """Whatever was written last, the next engine takes the flow to the same end."""

    def finish(engine: base.Engine) -> dict[str, str | None]:
        try:
            engine.run()
        except Exception as error:
            assert isinstance(error, ValueError | RuntimeError | exceptions.WrappedFailure)
        assert engine.storage.get_flow_state() == ends
        return {atom.name: atom.state for atom in engine.storage.flow_detail}

    backend = Snapshots()
    expected = finish(load(make(), backend=backend))
    most: dict[str, int] = {}
    assert len(backend.taken) > 3
    for detail in backend.taken:
        for atom in detail:
            assert atom.attempt >= most.get(atom.name, 0)
            most[atom.name] = atom.attempt
    for detail in backend.taken:
        left = {atom.name: atom.attempt for atom in detail}
        if detail.state in (states.SUCCESS, states.REVERTED):
            continue
        engine = load(make(), flow_detail=detail.copy())
        assert finish(engine) == expected, detail.pformat()
        for name, attempt in left.items():
            assert engine.storage.record(name).attempt >= attempt
