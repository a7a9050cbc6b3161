"""Complete flows on every engine of this host."""

from __future__ import annotations

import contextlib
from concurrent import futures
from typing import Any

import futurist
import pytest

from wbengine import engines, exceptions, states, task
from wbengine.engines import base
from wbengine.patterns import linear_flow, unordered_flow
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


class Noted(task.Task):
    """Task that appends its calls to a list of its own process."""

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


def load(flow: Any, kind: str = "serial", **options: Any) -> base.Engine:
    return engines.load(flow, engine=kind, **options)


def events(engine: base.Engine) -> list[tuple[str, str]]:
    """Return the list to which listeners of the engine append events."""
    heard: list[tuple[str, str]] = []

    def on_atom(state: str, details: dict[str, Any]) -> None:
        heard.append((details.get("task_name") or details["retry_name"], state))

    engine.atom_notifier.register("*", on_atom)
    engine.notifier.register("*", lambda state, details: heard.append(("flow", state)))
    return heard


# -- success ---------------------------------------------------------------------------------


def test_higher_priority_runs_first_across_many_iterations() -> None:
    """This includes tasks of later iterations and tasks that become ready in the meantime."""
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


# -- notifications ---------------------------------------------------------------------------


def test_notifications_contain_state_result_and_attempt(kind: str) -> None:
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


# -- failure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True])
def test_task_that_cannot_be_sent_to_a_process_needs_no_revert(given: bool) -> None:
    """Neither the task nor its arguments were sent, so the revert is not a second failure."""
    flow = linear_flow.Flow("f").add(task.FunctorTask(lambda a: a, "home", revert=lambda a: a))
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(futures.ProcessPoolExecutor(1)) if given else "processes"
        engine = engines.load(flow, store={"a": 1}, engine="parallel", executor=pool)
        with pytest.raises(exceptions.NotEncodable, match="'home'"):
            engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


# -- suspend, resume, reset ------------------------------------------------------------------


def test_suspend_withdraws_tasks_that_have_not_started(near: str) -> None:
    """A task that suspends its engine is the last one to run."""
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


# -- executors of the user -------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: futures.ThreadPoolExecutor(2),
        lambda: futures.ProcessPoolExecutor(1),
        futurist.SynchronousExecutor,
    ],
    ids=["threads", "processes", "futurist"],
)
def test_user_executor_is_used_and_not_shut_down(make: Any) -> None:
    with make() as pool:
        flow = linear_flow.Flow("f").add(Add(), Double())
        found = engines.run(flow, store={"a": 1}, engine="parallel", executor=pool)
        assert found["double"] == 22
        assert pool.submit(len, "abc").result() == 3
