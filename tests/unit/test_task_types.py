"""Types of function tasks, steps and workflows, as mypy and pyright infer them."""

import pytest

pytest.importorskip("mypy")
pytest.importorskip("basedpyright")

from tests.support import type_checkers

STEPS = """
import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, assert_type, overload

from wbengine import steps, task
from wbengine.patterns import linear_flow


@task.task
def charge(order: str, amount: int = 1) -> float:
    return 1.0 * amount


@task.task(provides="parcels", retries=2)
def ship(order: str, *, parts: Mapping[str, Any]) -> list[int]:
    return []


@task.task
async def fetch(order: str) -> bytes:
    return b""


@task.task(retries=2)
async def store(order: str, content: dict[str, Any]) -> None: ...


@task.task
def report(self: task.Task, order: str) -> int:
    self.update_progress(1.0)
    return 1


@task.task(retries=2)
async def report_later(self: task.Task, order: str) -> int:
    return 1


@task.task
def describe(value: object) -> str:
    return str(value)


@task.task
def untyped(order, amount=1):  # type: ignore[no-untyped-def]
    return order


class Pack(task.Task):
    def execute(self, order: str) -> int:
        return 1


@charge.revert
def refund(order: str, result: float) -> bool:
    return True


@ship.revert(failed=True)
async def recall(result: Any) -> None: ...


def classes() -> None:
    assert_type(refund("a", 1.0), bool)
    assert_type(charge.fn("a", amount=2), float)
    charge.fn("a", amount="2")  # error: arg-type
    function_task: task.FunctionTask[Callable[[str, int], float]] = charge()
    functions: list[type[task.Task]] = [charge, ship, fetch, Pack]
    linear_flow.Flow("orders").add(charge(), charge("again", rebind={"order": "other"}), ship())
    charge("again").revert(result=1.0)
    print(function_task.name, functions)


def calls(run: steps.Steps) -> None:
    assert_type(run.run(charge, "a"), float)
    assert_type(run.run(charge, order="a", amount=2), float)
    assert_type(run.run(ship, "a", parts={"b": 1}), list[int])
    assert_type(run.run(fetch, order="a"), bytes)
    run.run(store, "a", content={})
    assert_type(run.run(report, order="a"), int)
    assert_type(run.run(report_later, order="a"), int)
    assert_type(run.run(describe, value=1), str)
    assert_type(run.run(Pack, order="a"), Any)
    assert_type(run.run(untyped, order="a"), Any)
    assert_type(run.run(untyped, "a", amount=2), Any)


def options(run: steps.Steps) -> None:
    assert_type(run.run(charge.options(retries=5, timelimit=10), "a"), float)
    assert_type(run.run(fetch.options(retries=None, retry_for="2d"), order="a"), bytes)
    assert_type(run.run(Pack.options(priority=3), order="a"), Any)
    assert_type(run.map(ship.options(backoff=3), ["a"], parts={}), list[list[int]])
    linear_flow.Flow("orders").add(charge.options(retries=5)("charge"))
    run.run(charge.options(retries=5), ordr="a")  # error: call-overload
    charge.options(retries="5")  # error: arg-type
    charge.options(retry=5)  # error: call-arg


def lists(run: steps.Steps) -> None:
    assert_type(run.map(charge, ["a", "b"], max_in_flight=2, amount=2), list[float])
    assert_type(run.map(ship, {"a"}, parts={}), list[list[int]])
    assert_type(run.map(fetch, (order for order in "ab")), list[bytes])
    assert_type(run.map(report, ["a"]), list[int])
    assert_type(run.map(Pack, ["a"]), list[Any])
    run.map(charge, [1])  # error: arg-type
    run.map(charge, 1)  # error: call-overload
    numbers: list[int] = run.map(fetch, ["a"])  # error: arg-type
    print(numbers)


async def async_calls(run: steps.AsyncSteps) -> None:
    assert_type(await run.run(charge, "a"), float)
    assert_type(await run.run(fetch, order="a"), bytes)
    assert_type(await run.run(report_later, "a"), int)
    assert_type(await run.run(Pack, order="a"), Any)
    assert_type(await run.map(fetch, ["a"]), list[bytes])
    assert_type(
        await asyncio.gather(run.run(charge, "a"), run.run(fetch, "b")), tuple[float, bytes]
    )
    assert_type(await run.run(fetch.options(timelimit=(5, 10)), "a"), bytes)
    await run.run(charge.options(timelimit=3), ordr="a")  # error: call-overload
    await run.run(charge, ordr="a")  # error: call-overload
    await run.run(fetch)  # error: call-overload
    await run.run(fetch, 1)  # error: call-overload
    await run.map(fetch, [1])  # error: arg-type
    run.run(fetch, "a")  # error: unused-coroutine


def wrong_arguments(run: steps.Steps) -> None:
    run.run(charge, ordr="a")  # error: call-overload
    run.run(charge)  # error: call-overload
    run.run(charge, order=1)  # error: call-overload
    run.run(charge, "a", 2, 3)  # error: call-overload
    run.run(ship, "a", {})  # error: call-overload
    run.run(fetch, ordr="a")  # error: call-overload
    run.run(report, 1)  # error: call-overload


def wrong_tasks(run: steps.Steps) -> None:
    run.run(charge("a"), "a")  # error: call-overload
    run.run(len, "a")  # error: call-overload
    run.run("charge", "a")  # error: call-overload


def wrong_results(run: steps.Steps) -> None:
    text: str = run.run(charge, "a")  # error: assignment
    run.run(fetch, "a").encode()  # error: attr-defined
    print(text)


T = TypeVar("T")
K = TypeVar("K")
N = TypeVar("N", int, str)
B = TypeVar("B", bound=int)


@task.task
def same(x: T) -> T:
    return x


@task.task(retries=1)
async def same_later(x: T) -> T:
    return x


@task.task
def same_of(self: task.Task, x: T) -> T:
    return x


@task.task
async def listed_of(self: task.Task, x: T) -> list[T]:
    return [x]


@task.task
def first(xs: Sequence[T]) -> T:
    return xs[0]


@task.task
def sort(xs: list[T], *others: T, reverse: bool = False) -> list[T]:
    return xs


@task.task
def twice(x: N) -> N:
    return x


@task.task
def next_of(x: B) -> B:
    return x


@task.task(provides="value")
def find(values: dict[K, T], key: K) -> T | None:
    return values.get(key)


@task.task
def apply(function: Callable[[K], T], key: K) -> T:
    return function(key)


@task.task
def anything(x: T) -> Any:
    return x


@overload
def parse(x: int) -> str: ...
@overload
def parse(x: str, *, strict: bool = ...) -> bytes: ...
def parse(x: int | str, *, strict: bool = True) -> str | bytes:
    return str(x) if isinstance(x, int) else x.encode()


parsed = task.task(parse)


def generic_calls(run: steps.Steps) -> None:
    assert_type(run.run(same, 3), int)
    assert_type(run.run(same, x="a"), str)
    assert_type(run.run(same_later, 3), int)
    assert_type(run.run(same_of, 3), int)
    assert_type(run.run(same_of, x="a"), str)
    assert_type(run.run(listed_of, 3), list[int])
    assert_type(run.run(first, [3]), int)
    assert_type(run.run(first, xs="a"), str)
    assert_type(run.run(sort, [3]), list[int])
    assert_type(run.run(sort, [3], 4, 5, reverse=True), list[int])
    assert_type(run.run(twice, 3), int)
    assert_type(run.run(next_of, True), bool)
    assert_type(run.run(find, {1: "a"}, 1), str | None)
    assert_type(run.run(find, values={1: "a"}, key=2), str | None)
    assert_type(run.run(anything, 3), Any)


def generic_lists(run: steps.Steps) -> None:
    numbers: list[int] = run.map(same, [1])
    numbers = run.map(same_later, [1])
    numbers = run.map(same_of, [1])
    numbers = run.map(first, [[1]])
    print(numbers)


async def generic_async_calls(run: steps.AsyncSteps) -> None:
    assert_type(await run.run(same, 3), int)
    assert_type(await run.run(same_later, 3), int)
    assert_type(await run.run(find, {1: "a"}, 1), str | None)
    numbers: list[int] = await run.map(same, [1])
    print(numbers)


def overloaded_calls(run: steps.Steps) -> None:
    assert_type(run.run(parsed, 3), str)
    assert_type(run.run(parsed, "a"), bytes)
    assert_type(run.run(parsed, "a", strict=False), bytes)
    assert_type(run.map(parsed, [1]), list[str])
    assert_type(run.map(parsed, ["a"]), list[bytes])


async def overloaded_async_calls(run: steps.AsyncSteps) -> None:
    assert_type(await run.run(parsed, "a"), bytes)
    assert_type(await run.map(parsed, ["a"]), list[bytes])


def no_argument(run: steps.Steps) -> None:
    run.run(same)  # error: call-overload


def wrong_bound(run: steps.Steps) -> None:
    run.run(next_of, "a")  # error: call-overload


def wrong_name(run: steps.Steps) -> None:
    run.run(find, {1: "a"}, ky=1)  # error: arg-type


def wrong_overload(run: steps.Steps) -> None:
    run.run(parsed, b"a")  # error: call-overload
"""

WORKFLOWS = """
from dataclasses import dataclass
from typing import Any, assert_type

from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.steps import AsyncSteps, Steps


@dataclass
class Order:
    number: int


@dataclass
class Receipt:
    total: int


@dataclass
class Approval:
    by: str


@task.workflow
def checkout(steps: Steps, order: Order, retries: int = 3) -> Receipt:
    return Receipt(order.number)


@task.workflow(validate=True)
async def later(steps: AsyncSteps, order: Order) -> Receipt:
    return Receipt(order.number)


@task.workflow
def untyped(steps, order):  # type: ignore[no-untyped-def]
    return order


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("flow").add(checkout(), later())


def results(handle: engines.FlowHandle) -> None:
    submitted = engines.submit(checkout, backend="sqlite://", inputs={"order": Order(1)})
    assert_type(submitted, engines.FlowHandle[Receipt])
    assert_type(submitted.value(), Receipt)
    assert_type(engines.submit(later, backend="sqlite://", priority="LOW").value(3), Receipt)
    assert_type(engines.submit(flow, [], {}, backend="sqlite://"), engines.FlowHandle[Any])
    assert_type(engines.submit("shop:flow", backend="sqlite://").value(), Any)
    assert_type(engines.submit(untyped, backend="sqlite://").value(), Any)
    assert_type(engines.submit_many(checkout, [], backend="x"), list[engines.FlowHandle[Receipt]])
    assert_type(handle.result(), dict[str, Any])
    number: int = submitted.value()  # error: assignment
    print(number, submitted.value().totl)  # error: attr-defined
    engines.submit(checkout, backend="sqlite://", queue=3)  # error: call-overload


def signals(steps: Steps) -> None:
    assert_type(steps.wait_for("approved", type=Approval), Approval)
    assert_type(steps.wait_for("approved", 3, default=None, type=Approval), Approval | None)
    assert_type(steps.wait_for("approved"), Any)
    assert_type(steps.wait_for("approved", type=list[Approval]), list[Approval])
    assert_type([each for each in steps.signals("approved", type=Approval)], list[Approval])
    either: Approval | Order = steps.wait_for("approved", type=Approval | Order)
    order: Order = steps.wait_for("approved", type=Approval)  # error: assignment
    steps.wait_for("approved", type=Approval).bye  # error: attr-defined
    print(order, either)


async def async_signals(steps: AsyncSteps) -> None:
    assert_type(await steps.wait_for("approved", type=Approval), Approval)
    assert_type([each async for each in steps.signals("a", type=Approval)], list[Approval])
    order: Order = await steps.wait_for("approved", type=Approval)  # error: arg-type
    print(order)


async def async_results() -> None:
    assert_type(await engines.asubmit(later, backend="x"), engines.FlowHandle[Receipt])


def inputs() -> None:
    assert_type(checkout.inputs(Order(1)), dict[str, Any])
    engines.submit(checkout, inputs=later.inputs(order=Order(1)), backend="sqlite://")
    untyped.inputs(order=3)
    checkout.inputs(order=1)  # error: arg-type
    checkout.inputs(ordr=Order(1))  # error: call-arg
    checkout.inputs(Order(1), retries="3")  # error: arg-type
    later.inputs()  # error: call-arg
"""


PROGRAMS = pytest.mark.parametrize("program", [STEPS, WORKFLOWS], ids=["steps", "workflows"])


@pytest.mark.slow
@PROGRAMS
def test_mypy_reports_exactly_the_marked_errors(program, tmp_path):
    type_checkers.check_with_mypy(program, tmp_path)


@pytest.mark.slow
@PROGRAMS
def test_pyright_reports_errors_in_exactly_the_marked_lines(program, tmp_path):
    type_checkers.check_with_pyright(program, tmp_path)
