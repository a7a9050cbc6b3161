"""Tasks that take several units of a limit and report what they used, in all kinds of engines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from tests.support import engine_threads, weighted_tasks
from tests.support.waiting import until
from tests.support.weighted_tasks import BUDGET, STARTED, small, spends
from wbengine import engines, states, task
from wbengine._limits import account_stores
from wbengine._limits.limit_changes import LimitChange
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    STARTED.clear()
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield backend


@pytest.fixture(params=["serial", "threads", "processes", "memory"])
def options(
    request: pytest.FixtureRequest, tmp_path: Path, store: base.Backend
) -> Iterator[dict[str, Any]]:
    with engine_options(request.param, tmp_path, weighted_tasks) as found:
        yield {**found, "backend": store, "deadline": 60}


def charged(store: base.Backend, name: str = BUDGET) -> float:
    """Return the units of the current period."""
    account, _ = account_stores.store_of(store).all()[name]
    return sum(units for _, units in account.log or ())


def tasks_of(made: Any, *numbers: int) -> unordered_flow.Flow:
    return unordered_flow.Flow("f").add(*(made(f"{n}", inject={"n": n}) for n in numbers))


ITEMS = {"items": [3, 4, 5]}


@pytest.mark.parametrize(
    ("flow", "inputs", "expected"),
    [
        (tasks_of(spends, 3, 4, 5), {}, 2 + 3 + 4),
        (linear_flow.Flow("f").add(task.Map(spends(), over="items", item="n")), ITEMS, 2 + 3 + 4),
        (weighted_tasks.spending, {}, 4 + 6),
    ],
    ids=["tasks", "items", "steps"],
)
def test_reported_units_replace_costs(
    flow: Any, inputs: dict[str, Any], expected: int, store: base.Backend, options: Any
) -> None:
    engines.run(flow, inputs, **options)
    assert charged(store) == pytest.approx(expected)


def test_failed_task_without_report_keeps_its_cost(store: base.Backend) -> None:
    @task.task(rate_limit="3600000/h", limit=BUDGET, cost=40)
    def fails() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError):
        engines.run(fails("t"), backend=store)
    assert charged(store) == pytest.approx(40)


def test_additional_units_delay_next_tasks(store: base.Backend) -> None:
    @task.task(rate_limit="3600/h", limit=BUDGET, cost=0)
    def uses(self: task.Task, n: int) -> None:
        assert self.request is not None
        self.request.spend(n)

    engines.run(uses("t", inject={"n": 1800}), backend=store)
    account, now = account_stores.store_of(store).all()[BUDGET]
    assert charged(store) == pytest.approx(1800)
    assert 1700 < account.next - now <= 1800


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "3", True, None], ids=repr)
def test_invalid_report_raises_in_the_task(value: Any) -> None:
    @task.task
    def uses(self: task.Task) -> None:
        assert self.request is not None
        self.request.spend(value)

    with pytest.raises((TypeError, ValueError), match="spent units must be"):
        engines.run(uses("t"))


def test_report_without_limit_has_no_effect() -> None:
    @task.task
    def uses(self: task.Task) -> int:
        assert self.request is not None
        self.request.spend(5)
        return 5

    assert engines.run(uses("t", provides="x"))["x"] == 5


def test_cost_above_the_limit_fails_the_task_before_it_begins(
    store: base.Backend, options: Any
) -> None:
    words = r"cost of limit 'small' must be at most the limit of 100/h, got 101"
    with pytest.raises(ValueError, match=words):
        engines.run(tasks_of(small, 101), **options)
    flow = linear_flow.Flow("f").add(task.Map(small(), over="items", item="n"))
    with pytest.raises(ValueError, match=words):
        engines.run(flow, {"items": [101]}, **options)
    with pytest.raises(ValueError, match=words):
        engines.run(weighted_tasks.too_large, **options)
    assert STARTED == [] and "small" not in account_stores.store_of(store).all()


def test_cost_of_flow_above_its_limit_fails_the_run(store: base.Backend) -> None:
    flow = tasks_of(task.task(lambda n: n), 1)
    flow.rate_limit, flow.cost = "5/s", lambda size: size
    assert engines.run(flow, {"size": 5}, backend=store)["size"] == 5
    with pytest.raises(ValueError, match="at most the limit of 5/s, got 6"):
        engines.run(flow, {"size": 6}, backend=store)


def test_function_of_cost_that_raises_fails_the_task(store: base.Backend) -> None:
    def cost(n: int) -> float:
        raise LookupError(f"no price for {n}")

    failing = task.task(rate_limit="5/s", cost=cost)(small.fn)
    with pytest.raises(LookupError, match="no price for 3"):
        engines.run(tasks_of(failing, 3), backend=store)
    assert STARTED == []


def test_waiting_task_fails_when_its_limit_becomes_lower_than_its_cost(
    store: base.Backend,
) -> None:
    engine = engines.load(tasks_of(small, 100, 99), backend=store, engine="parallel")
    run = engine_threads.Running(engine)
    run.start()
    until(lambda: STARTED)
    until(lambda: states.SUCCESS in {engine.storage.get_atom_state(name) for name in ("99", "100")})
    account_stores.store_of(store).change(LimitChange("small", "50/h"))
    with pytest.raises(ValueError, match="at most the limit of 50/h, got"):
        run.end()
    assert len(STARTED) == 1


def test_large_task_starts_before_smaller_tasks_behind_it(store: base.Backend) -> None:
    """Both wait until the limit is raised; the priority decides before the arrival."""
    first, second, large = (
        small(name, inject={"n": n})
        for name, n in (
            ("first", 60),
            ("second", 1),
            ("large", 90),
        )
    )
    first.priority, large.priority = 9, 5
    flow = unordered_flow.Flow("f").add(second, large, first)
    run = engine_threads.Running(
        engines.load(flow, backend=store, engine="parallel", max_workers=1)
    )
    run.start()
    until(lambda: STARTED)
    limits = account_stores.store_of(store)
    until(lambda: sum(row.wanted for row in limits.all()["small"][0].flows.values()) == 2)
    limits.change(LimitChange("small", "100000/h"))
    assert run.end() == states.SUCCESS
    assert STARTED == [60, 90, 1]
