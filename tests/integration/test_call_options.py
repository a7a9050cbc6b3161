"""Options for one use of a task (`Task.options`), in workflows and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import engines, exceptions, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.steps import AsyncSteps, Steps

CALLS: list[Any] = []
#: Options that the code of `pay` uses.
OPTIONS: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()
    OPTIONS.clear()


@pytest.fixture
def store() -> Iterator[base.Backend]:
    with backends.backend("memory://") as made:
        yield made


@task.task(timelimit=(None, 60.0))
def charge(self: task.Task, order: int, failures: int = 0) -> int:
    CALLS.append((order, self.timelimit, self.priority))
    if sum(each[0] == order for each in CALLS) <= failures:
        raise ConnectionError(f"order {order}")
    return order


class Pack(task.Task):
    def execute(self, order: int) -> Any:
        CALLS.append((order, self.timelimit, self.priority))
        return self.timelimit


@task.workflow
def pay(steps: Steps) -> list[int]:
    first = steps.run(charge.options(retries=2, **OPTIONS), 1, failures=2)
    return [first, *steps.map(charge.options(retries=1), [2, 3], failures=1)]


@task.workflow
async def pay_later(steps: AsyncSteps) -> list[int]:
    first = await steps.run(charge.options(retries=2, timelimit=7), 1, failures=2)
    return [first, *await steps.map(charge.options(retries=1), [2, 3], failures=1)]


@pytest.mark.parametrize("workflow", [pay, pay_later])
@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_options_of_calls_apply_to_run_and_map(workflow: Any, engine: str) -> None:
    assert engines.run(workflow, engine=engine)["result"] == [1, 2, 3]
    assert sorted(order for order, *_ in CALLS) == [1, 1, 1, 2, 2, 3, 3]


@task.task(retries=3, backoff=0.01, retry_on=ConnectionError)
def fail() -> None:
    CALLS.append("fail")
    raise ConnectionError("no")


@task.workflow
def never_retry(steps: Steps) -> None:
    steps.run(fail.options(retries=0))


def test_retries_of_the_decorator_can_be_switched_off() -> None:
    for flow in (never_retry, linear_flow.Flow("f").add(fail.options(retries=0)())):
        CALLS.clear()
        with pytest.raises(ConnectionError):
            engines.run(flow)
        assert CALLS == ["fail"]


@task.workflow
def compare(steps: Steps) -> list[Any]:
    limits = [steps.run(Pack, 1), steps.run(Pack.options(timelimit=5), 2), steps.run(Pack, 3)]
    return [*limits, steps.run(charge.options(timelimit=9).options(priority=4), 4)]


def test_options_of_a_call_do_not_change_other_calls() -> None:
    assert engines.run(compare)["result"] == [None, 5, None, 4]
    assert CALLS[-1] == (4, 9, 4)


def test_step_with_options_keeps_path_digest_and_name(store: base.Backend) -> None:
    engine = engines.load(pay, backend=store)
    engine.run()
    step = next(each for each in engine.storage.flow_detail if each.is_step)
    assert step.name.endswith("1.0-charge")
    assert step.meta["step"]["task"] == f"{__name__}:charge"


def test_resumed_run_with_other_options_uses_those_of_the_code(store: base.Backend) -> None:
    engine = engines.load(pay, backend=store)

    def suspend(state: str, details: Any) -> None:
        engine.suspend()

    engine.atom_notifier.register(states.FAILURE, suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert CALLS == [(1, (None, 60.0), 0)]
    OPTIONS.update(timelimit=8, priority=3)
    engine = engines.load(pay, backend=store, flow_detail=engine.storage.flow_detail)
    engine.run()
    assert engine.storage.fetch("result") == [1, 2, 3]
    assert CALLS[1:3] == [(1, 8, 3), (1, 8, 3)]


def test_options_apply_to_an_instance_in_a_graph() -> None:
    flow = linear_flow.Flow("f").add(
        charge.options(retries=2, timelimit=5)("first", inject={"order": 1, "failures": 2}),
        charge("second", inject={"order": 2}),
    )
    engines.run(flow)
    assert CALLS == [(1, 5, 0)] * 3 + [(2, (None, 60.0), 0)]


def test_options_of_a_workflow_apply_in_a_graph() -> None:
    @task.workflow
    def fails_once(steps: Steps) -> int:
        CALLS.append("called")
        if len(CALLS) == 1:
            raise ValueError("no")
        return 3

    flow = linear_flow.Flow("f").add(fails_once.options(retries=1)("w"))
    assert engines.run(flow)["result"] == 3
    with pytest.raises(TypeError, match="has no option 'timelimit'; its options are retries"):
        fails_once.options(timelimit=3)


def test_time_limit_of_a_call_reaches_a_child_process() -> None:
    with pytest.raises((exceptions.TimeLimitExceeded, exceptions.SoftTimeLimitExceeded)):
        engines.run(sleepy, engine="parallel", executor="processes")


@task.task
def sleep_long() -> None:
    import time

    time.sleep(60)


@task.workflow
def sleepy(steps: Steps) -> None:
    steps.run(sleep_long.options(timelimit=0.2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, r"charge.options\(\) has no option 'retry' \(did you mean 'retry_on'"),
        ({"local": True}, r"has no option 'local'"),
        ({"retries": "3"}, "whole number of at least 0, or None, got '3'"),
        ({"retries": -1}, "whole number of at least 0"),
        ({"retries": None}, "requires retry_for"),
        ({"backoff": 3}, "backoff but no retries"),
        ({"retries": 3, "backoff": "x"}, "backoff must be a Backoff"),
        ({"retries": None, "retry_for": "2 parsecs"}, "retry_for must be a duration above 0"),
        ({"retries": 1, "retry_for": float("inf")}, "retry_for must be a duration above 0"),
        ({"timelimit": -1}, "timelimit of charge.options.* must be more than 0"),
        ({"priority": "high"}, "priority of charge.options.* must be a number"),
        ({"concurrency": 3}, "has concurrency, so it requires limit"),
        ({"limit": "bank"}, "limit of charge.options.* requires rate_limit or concurrency"),
        ({"limit": "bank", "rate_limit": "x"}, "rate_limit of charge.options.* must be"),
    ],
)
def test_unknown_or_invalid_option_of_a_call_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        charge.options(**options)


def test_options_with_another_limit_are_accepted() -> None:
    chosen = charge.options(limit="bank", concurrency=2, rate_limit="10/s", cost=2)
    assert engines.run(linear_flow.Flow("f").add(chosen("a", inject={"order": 1}))) is not None
