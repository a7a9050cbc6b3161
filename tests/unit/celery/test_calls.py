"""Calls of tasks with what Celery messages say, in pools of each kind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fresh
from wbengine import exceptions, invocation, limits, pools, running
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.worker import builtins, calls, informing, jobs, mapping
from wbengine.types.failure import Failure

from . import errands

Call = Callable[..., Any]

TASKS = mapping.Tasks([errands])


def message_of(name: str, *args: Any, **kwargs: Any) -> TaskMessage:
    return TaskMessage(f"{errands.__name__}.{name}", "id-1", args, kwargs, retries=2)


def arguments(message: TaskMessage, expires: float | None = None) -> tuple[Any, ...]:
    found = TASKS.find(message.task) or builtins.find(message, TASKS)
    assert found is not None
    return found, message, running.Request(message.id, 3, 3, "root", "me"), None, expires


@pytest.fixture(scope="module", params=["threads", "processes", "solo"])
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind: str = request.param
    if kind == "solo":
        yield None
        return
    made = pools.ThreadPool(1) if kind == "threads" else pools.ProcessPool(1)
    with made:
        yield made


@pytest.fixture
def call(pool: Any) -> Call:
    """Calls a task of `errands` and waits for what came of it."""

    def run(
        message: TaskMessage,
        expires: float | None = None,
        limit: limits.TimeLimit = limits.UNLIMITED,
    ) -> Any:
        given: Any = arguments(message, expires)
        if pool is None:
            run_here: Any = calls.run
            return run_here(*given, lambda *_: None)
        return value_of(pool, calls.run, given, limit)

    return run


def value_of(
    pool: Any, fn: Call, given: tuple[Any, ...], limit: limits.TimeLimit = limits.UNLIMITED
) -> Any:
    """What a call in a pool comes to."""
    done = threading.Event()
    values: list[Any] = []

    def settle(value: Any) -> None:
        values.append(value)
        done.set()

    pool.submit(fn, given, settle, None, limit)
    assert done.wait(60)
    return values[0]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (message_of("add", 1, 2), 3),
        (message_of("add", 1), 11),
        (message_of("add", 1, y=5), 6),
        (message_of("add", x=1, y=5), 6),
        (message_of("positions", 1, 2), [1, 2, [], 1]),
        (message_of("positions", 1, 2, 3, 4, factor=9), [1, 2, [3, 4], 9]),
        (message_of("positions", 1, y=2, factor=9), [1, 2, [], 9]),
        (message_of("later", 4), [4, "id-1"]),
        (message_of("positions_later", 4, 5), [4, 5]),
        (message_of("Careful", 4), [4, True]),
        (message_of("Careful", x=4), [4, True]),
    ],
    ids=lambda value: None if isinstance(value, int | list) else str(value.task[-9:]),
)
def test_arguments_arrive_as_they_were_sent(
    call: Call, message: TaskMessage, expected: Any
) -> None:
    outcome = call(message)
    assert isinstance(outcome, invocation.Outcome)
    assert outcome.value == expected
    assert outcome.started is not None and outcome.ended is not None


def test_a_task_knows_its_message(call: Call, pool: Any) -> None:
    message = message_of("bound", 1)
    message.shadow = "other name"
    x, name, id, retries, request_id, pid = call(message).value
    assert (x, name, id, retries, request_id) == (1, "other name", "id-1", 2, "id-1")
    assert (pid == os.getpid()) is not isinstance(pool, pools.ProcessPool)
    assert retrying.current() is None


def test_wrong_arguments_are_a_type_error(call: Call) -> None:
    for message in (message_of("add"), message_of("add", 1, 2, 3), message_of("add", 1, z=2)):
        outcome = call(message)
        assert isinstance(outcome.value, Failure)
        assert outcome.value.check(TypeError)
        assert "add()" in outcome.value.exception_str


def test_a_task_that_cannot_be_made_fails(call: Call) -> None:
    outcome = call(message_of("Needy"))
    assert outcome.value.check(exceptions.ExecutionFailure)
    assert "Needy" in outcome.value.exception_str


def test_a_task_fails_with_what_it_raised(call: Call) -> None:
    outcome = call(message_of("fail"))
    assert outcome.value.check(ValueError)
    assert outcome.value.exception_args == ("no such value", 5)
    assert "raise ValueError" in outcome.value.traceback_str


def test_what_comes_too_late_is_not_run(call: Call) -> None:
    assert call(message_of("add", 1, 2), time.time() - 1).value.check(exceptions.Expired)
    assert call(message_of("add", 1, 2), time.time() + 60).value == 3


def test_a_soft_limit_rings_in_the_task(call: Call, pool: Any) -> None:
    if pool is None:
        pytest.skip("whoever calls it sets the limit")
    outcome = call(message_of("sleep", 30), None, limits.TimeLimit(0.2, 20))
    assert outcome.value.check(exceptions.SoftTimeLimitExceeded)


@pytest.mark.parametrize(
    "message",
    [
        message_of("add", 1, 2),
        message_of("later", 4),
        TaskMessage("celery.map", "id-1", kwargs={"task": {"task": "sum"}, "it": [1]}),
    ],
    ids=lambda message: str(message.task),
)
def test_a_fresh_child_has_all_that_a_call_needs(message: TaskMessage) -> None:
    """What is imported during a call takes its time from the limits of that."""
    pool = pools.ProcessPool(1)
    pool.preload(jobs.MODULES | TASKS.modules)
    with pool:
        known = value_of(pool, fresh.imported, ())
        assert not value_of(pool, calls.run, arguments(message)).failed
        assert value_of(pool, fresh.imported, ()) - known == set()


@pytest.mark.parametrize(
    ("how", "wait"), [("plain", 180), ("countdown", 5), ("forever", 1), ("handled", 2)]
)
def test_a_task_may_ask_to_run_again(call: Call, how: str, wait: float) -> None:
    before = time.time()
    outcome = call(message_of("again", how))
    assert isinstance(outcome.value, retrying.Again)
    assert before + wait <= outcome.value.eta <= time.time() + wait
    assert not outcome.failed
    why = outcome.value.why
    assert (why is not None) == (how == "handled")
    if why is not None:
        assert why.check(KeyError)
        assert 'raise KeyError("handled")' in why.traceback_str


def test_it_may_say_when_why_and_with_what(call: Call) -> None:
    assert call(message_of("again", "eta")).value.eta == 1e9
    why = call(message_of("again", "exc")).value.why
    assert why.check(errands.Broken)
    assert why.exception_args == ("for this", 1)
    value = call(message_of("again", "args")).value
    assert (list(value.args), value.kwargs) == (["exc"], {})


def test_it_runs_so_often_and_then_fails(call: Call) -> None:
    message = message_of("again", "countdown")
    message.retries = 3
    outcome = call(message)
    assert outcome.failed
    assert outcome.value.check(retrying.MaxRetriesExceeded)
    assert outcome.value.exception_str.startswith(f"Can't retry {message.task}[id-1] args:")
    message = message_of("again", "exc")
    message.retries = 3
    assert call(message).value.check(errands.Broken)
    message = message_of("again", "forever")
    message.retries = 1000
    assert isinstance(call(message).value, retrying.Again)


def test_a_class_says_how_often_and_when(call: Call) -> None:
    message = message_of("Stubborn")
    message.retries = 10_000
    before = time.time()
    value = call(message).value
    assert isinstance(value, retrying.Again)
    assert before + 7 <= value.eta <= time.time() + 7


def test_a_task_may_refuse_its_message(call: Call) -> None:
    value = call(message_of("again", "reject")).value
    assert isinstance(value, retrying.Refusal)
    assert (value.ignored, value.requeue) == (False, False)
    assert call(message_of("again", "requeue")).value.requeue
    assert call(message_of("again", "ignore")).value.ignored


def test_errbacks_are_given_the_failure(pool: Any, tmp_path: Path) -> None:
    place = f"{errands.__name__}.sorry"
    path = str(tmp_path / "path")
    run_here: Any = calls.run
    failed = run_here(*arguments(message_of("fail")), lambda *_: None)
    message = message_of("fail")
    message.errbacks = [
        {"task": place, "args": [path], "kwargs": {"word": "so"}},
        {"task": place, "args": [], "kwargs": {"path": "/no/such/place"}},
        {"task": place, "args": [path, "x", "Traceback\n2\n3"], "immutable": True},
        {"task": f"{errands.__name__}.Sorry", "args": []},
    ]
    errbacks, others = informing.split(message, TASKS)
    assert len(errbacks) == 4 and others == []
    given: Any = errbacks, message, failed.value, running.Request("id-1"), None
    inform: Any = calls.inform
    found = inform(*given, lambda *_: None) if pool is None else value_of(pool, inform, given)
    assert [one.exception_args[0] for one in found] == [2, 2]  # no such file, and one without name
    assert Path(path).read_text() == "id-1 ValueError no such value True so\n"


@pytest.mark.parametrize(
    ("signature", "here"),
    [
        ({"task": "sorry"}, True),
        ({"task": "sorry", "args": [1, 2]}, True),  # two more can be given
        ({"task": "sorry", "args": [1, 2, 3]}, False),
        ({"task": "sorry", "args": [1, 2, 3], "immutable": True}, True),
        ({"task": "sorry", "kwargs": {"error": 1}}, False),
        ({"task": "sorry_bound"}, False),  # Celery sends those that are bound
        ({"task": "Sorry"}, True),
        ({"task": "Careful"}, False),
        ({"task": "later"}, False),
        ({"task": "positions"}, True),
        ({"task": "nowhere"}, False),
        ({"task": "sorry", "subtask_type": "chain"}, False),
        ({"task": "sorry", "args": 5}, False),
        ({"task": 5}, False),
    ],
)
def test_which_errbacks_are_called_here(signature: dict[str, Any], here: bool) -> None:
    if isinstance(signature["task"], str):
        signature = {**signature, "task": f"{errands.__name__}.{signature['task']}"}
    message = message_of("fail")
    message.errbacks = [signature]
    errbacks, others = informing.split(message, TASKS)
    assert (len(errbacks), len(others)) == ((1, 0) if here else (0, 1))


def test_celerys_own_tasks(call: Call) -> None:
    def named(name: str, *args: Any, **kwargs: Any) -> TaskMessage:
        return TaskMessage(name, "id-1", args, kwargs)

    add = {"task": f"{errands.__name__}.add"}
    later = {"task": f"{errands.__name__}.later"}
    assert call(named("celery.accumulate", 1, 2)).value == (1, 2)
    assert call(named("celery.accumulate", 1, 2, index=1)).value == 2
    assert call(named("celery.map", task=add, it=[1, 2])).value == [11, 12]
    assert call(named("celery.starmap", task=add, it=[[1, 2], [3, 4]])).value == [3, 7]
    assert call(named("celery.map", task=later, it=[1, 2])).value == [[1, "id-1"], [2, "id-1"]]
    positions = {"task": f"{errands.__name__}.positions_later"}
    assert call(named("celery.map", task=positions, it=[1, 2])).value == [[1], [2]]
    assert builtins.find(named("celery.map", task={"task": "x"}, it=[]), TASKS) is None
    assert builtins.find(named("celery.map", task=5, it=[]), TASKS) is None
    assert builtins.find(named("celery.chord_unlock"), TASKS) is None


@pytest.mark.parametrize("preloaded", [True, False])
def test_what_a_module_costs_is_no_part_of_its_first_call(preloaded: bool) -> None:
    heavy = mapping.Tasks([f"{__package__}.heavy"])
    message = TaskMessage(f"{__package__}.heavy.nap", "id-1")
    given = heavy.find(message.task), message, running.Request("id-1"), None, None
    done = threading.Event()
    values: list[Any] = []

    def settle(value: Any) -> None:
        values.append(value)
        done.set()

    with pools.ProcessPool(1) as pool:
        if preloaded:
            pool.preload([*heavy.modules, "no.such.module", "__main__"])
        pool.submit(calls.run, given, settle, None, limits.TimeLimit(2.0, None))
        assert done.wait(60)
    if preloaded:
        assert values[0].value == "slept"
    else:
        assert values[0].check(exceptions.SoftTimeLimitExceeded)
