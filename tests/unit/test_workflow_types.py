"""Types of inputs, results and signals of workflows, as mypy and pyright infer them."""

from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytest.importorskip("basedpyright")

from tests.support import type_checkers

PROGRAM = """
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


@pytest.mark.slow
def test_mypy_finds_wrong_types_of_workflows(tmp_path: Path) -> None:
    type_checkers.check_with_mypy(PROGRAM, tmp_path)


@pytest.mark.slow
def test_pyright_finds_wrong_types_of_workflows(tmp_path: Path) -> None:
    type_checkers.check_with_pyright(PROGRAM, tmp_path)
