"""Retries that are bounded by time (`retry_for`), on a manual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.steps import Steps
from wbengine.testing import ManualClock

HOUR = 3600.0
DAY = 24 * HOUR
BEGAN: list[float] = []
CLOCKS: list[ManualClock] = []

Load = Callable[..., Any]


@pytest.fixture(autouse=True)
def _clock(wbe_clock: ManualClock) -> None:
    BEGAN.clear()
    CLOCKS[:] = [wbe_clock]


@pytest.fixture
def store() -> Iterator[base.Backend]:
    with backends.backend("memory://") as made:
        yield made


def load(flow: Any, **options: Any) -> Any:
    return engines.load(flow, clock=CLOCKS[0], **options)


#: 25 attempts fit into a day.
WAIT = 0.97 * HOUR


@task.task(retries=None, retry_for="1d", backoff=WAIT)
def call_bank(succeeds: int = 1000) -> int:
    BEGAN.append(CLOCKS[0].time())
    if len(BEGAN) < succeeds:
        raise ConnectionError(f"attempt {len(BEGAN)}")
    return len(BEGAN)


@task.workflow
def pay(steps: Steps, succeeds: int = 1000) -> int:
    return steps.run(call_bank, succeeds=succeeds)


def graph(succeeds: int = 1000) -> Any:
    return linear_flow.Flow("f").add(call_bank(provides="result", inject={"succeeds": succeeds}))


def waits() -> list[float]:
    return [each - BEGAN[0] for each in BEGAN]


@pytest.mark.parametrize("flow", [graph(), pay], ids=["graph", "workflow"])
@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_retries_without_number_end_when_the_time_has_passed(flow: Any, engine: str) -> None:
    with pytest.raises(ConnectionError, match="attempt 25"):
        load(flow, engine=engine).run()
    assert waits() == pytest.approx([WAIT * number for number in range(25)])


@pytest.mark.parametrize("flow", [graph(22), pay.options], ids=["graph", "workflow"])
def test_retries_without_number_end_with_success(flow: Any) -> None:
    engine = load(flow) if flow != pay.options else load(pay, store={"succeeds": 22})
    engine.run()
    assert engine.storage.fetch("result") == 22


def test_backoff_that_would_end_after_the_time_is_not_waited_for() -> None:
    backoff = retry.Backoff(delay=HOUR, multiplier=10)
    flow = linear_flow.Flow("f").add(call_bank.options(backoff=backoff)("bank"))
    with pytest.raises(ConnectionError, match="attempt 3"):
        load(flow).run()
    assert waits() == [0.0, HOUR, 11 * HOUR]
    assert CLOCKS[0].time() - BEGAN[0] == 11 * HOUR


def test_number_of_retries_and_time_both_apply() -> None:
    with pytest.raises(ConnectionError, match="attempt 3"):
        load(linear_flow.Flow("f").add(call_bank.options(retries=2)("bank"))).run()
    BEGAN.clear()
    with pytest.raises(ConnectionError, match="attempt 6"):
        load(linear_flow.Flow("f").add(call_bank.options(retries=9, retry_for=5 * HOUR)("b"))).run()


def test_time_before_the_first_start_does_not_count() -> None:
    flow = linear_flow.Flow("f").add(call_bank.options(eta=3 * DAY)("bank"))
    with pytest.raises(ConnectionError):
        load(flow).run()
    assert len(BEGAN) > 1


@task.workflow
def pay_late(steps: Steps) -> int:
    return steps.run(call_bank.options(eta=3 * DAY, retry_for=DAY), succeeds=3)


@pytest.mark.parametrize("flow", [graph(), pay], ids=["graph", "workflow"])
@pytest.mark.parametrize("days", [0.5, 3])
def test_resumed_flow_keeps_the_end_of_retries(flow: Any, days: float, store: base.Backend) -> None:
    engine = load(flow, backend=store)

    def suspend(state: str, details: Any) -> None:
        if len(BEGAN) == 3:
            engine.suspend()

    engine.atom_notifier.register(states.FAILURE, suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    CLOCKS[0].advance(days * DAY)
    stored = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    engine = load(flow, backend=store, flow_detail=stored)
    with pytest.raises(ConnectionError, match="attempt 3" if days == 3 else "attempt 1[34]"):
        engine.run()
    assert waits()[-1] <= DAY


def test_history_of_endless_retries_is_bounded(store: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(call_bank.options(backoff=1)("bank", inject={"succeeds": 500}))
    engine = load(flow, backend=store)
    engine.run()
    history = engine.storage.get_retry_history("bank_retry")
    assert (len(history), history.attempts) == (20, 500)
    assert engine.storage.record("bank").attempt >= 500


def test_controller_of_a_flow_with_time_retries_until_it_has_passed() -> None:
    again = retry.Times(None, retry_for="5h", backoff=2 * HOUR)
    flow = linear_flow.Flow("f", retry=again).add(call_bank.options(retries=0)("bank"))
    with pytest.raises(ConnectionError, match="attempt 3"):
        load(flow).run()
    assert waits() == [0.0, 2 * HOUR, 4 * HOUR]


def test_times_without_number_requires_a_time() -> None:
    with pytest.raises(TypeError, match="set retry_for"):
        retry.Times(None)


def test_task_class_with_none_and_no_time_cannot_be_compiled() -> None:
    class Endless(task.Task):
        retries = None

        def execute(self) -> None:
            pass

    with pytest.raises(exceptions.CompilationFailure, match="got None, which requires retry_for"):
        load(Endless()).run()


def test_retry_for_of_a_map_applies_to_the_whole_list() -> None:
    inner = call_bank.options(backoff=10 * HOUR)("bank")
    flow = linear_flow.Flow("f").add(task.Map(inner, over="list", item="succeeds"))
    with pytest.raises(ConnectionError):
        load(flow, store={"list": [1000, 1000]}).run()
    assert sorted(set(waits())) == [0.0, 10 * HOUR, 20 * HOUR]
