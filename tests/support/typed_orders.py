"""Flows with annotated inputs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
from typing import TYPE_CHECKING, Any, TypedDict

from wbengine import steps, task
from wbengine.patterns import linear_flow
from wbengine.types import codec

if TYPE_CHECKING:
    from decimal import Context as Unknown


@codec.allow
class Speed(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


@codec.allow
@dataclasses.dataclass(frozen=True)
class Line:
    amount: decimal.Decimal
    count: int = 1


@codec.allow
@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    lines: list[Line]


JSON_ORDER = {"number": 7, "lines": [{"amount": "1.50", "count": 2}, {"amount": 1}]}
ORDER = Order(7, [Line(decimal.Decimal("1.50"), 2), Line(decimal.Decimal(1))])


@codec.allow
@dataclasses.dataclass(frozen=True)
class Receipt:
    order: int
    total: decimal.Decimal


class Options(TypedDict, total=False):
    limit: decimal.Decimal
    speed: Speed


@task.task
def charge(order: Order) -> decimal.Decimal:
    return sum((line.amount * line.count for line in order.lines), decimal.Decimal(0))


@task.workflow
def checkout(
    steps: steps.Steps, order: Order, options: Options | None = None, retries: int = 0
) -> Receipt:
    return Receipt(order.number, steps.run(charge, order))


@task.workflow(validate=True)
def validated(steps: steps.Steps, order: Order, count: int, scheduled_at: str = "") -> int:
    return order.number * count


@task.workflow(validate=True)
def dated(steps: steps.Steps, order: Order, count: int, scheduled_at: dt.datetime) -> dt.datetime:
    return scheduled_at


@task.workflow
def unknown(steps: steps.Steps, order: Unknown) -> Any:
    return order


@task.task(provides="total")
def add_up(order: Order) -> decimal.Decimal:
    return sum((line.amount for line in order.lines), decimal.Decimal(0))


@task.task(provides="number")
def read_number(order, speed: Speed = Speed.SLOW):  # type: ignore[no-untyped-def]
    return order.number


@task.task
def use_dict(order: dict[str, int]) -> None: ...


def totals() -> linear_flow.Flow:
    return linear_flow.Flow("totals").add(add_up(), linear_flow.Flow("inner").add(read_number()))


def contradicting() -> linear_flow.Flow:
    flow = totals().add(use_dict())
    flow.validate = True
    return flow


@task.task(provides="bill")
def write_bill(number: int, speed: Speed, text: str = "bill") -> str:
    return f"{text} {number} {speed.value}"


def billing(order: Order, speed: Speed = Speed.SLOW) -> linear_flow.Flow:
    """Return a flow of a factory with annotated parameters."""
    values = {"number": order.number, "speed": speed}
    return linear_flow.Flow("billing").add(write_bill(inject=values))


def reporting(speed: Speed = Speed.SLOW) -> linear_flow.Flow:
    """Return a flow of a factory whose parameters have defaults."""
    return linear_flow.Flow("reporting").add(write_bill(inject={"speed": speed}))


@task.workflow(validate=True)
def shipping(  # type: ignore[no-untyped-def]
    steps: steps.Steps,
    order: Order,
    customer: str,
    boxes: int,
    weight: decimal.Decimal = decimal.Decimal("1.50"),
    insured: bool = True,
    speed: Speed = Speed.SLOW,
    day: dt.date | None = None,
    note: str | None = None,
    api_token: str = "",
    extra=None,
) -> list[Any]:
    return [order, customer, boxes, weight, insured, speed, day, note, api_token, extra]


@task.task
def fail_for_lines(order: Order) -> int:
    if order.lines:
        raise ValueError("no lines are allowed")
    return order.number


def failing() -> linear_flow.Flow:
    return linear_flow.Flow("failing").add(fail_for_lines())


@codec.allow
@dataclasses.dataclass(frozen=True)
class Approval:
    by: str
    limit: decimal.Decimal = decimal.Decimal(0)


@task.workflow
def approved(steps: steps.Steps) -> list[Any]:
    first = steps.wait_for("approved", type=Approval)
    return [first, steps.wait_for("approved")]


@task.workflow
async def approved_later(steps: steps.AsyncSteps) -> list[Any]:
    first = await steps.wait_for("approved", type=Approval)
    return [first, await steps.wait_for("approved")]


@task.workflow
def impatient(steps: steps.Steps) -> Approval | None:
    return steps.wait_for("approved", timeout=0.05, default=None, type=Approval)


@task.workflow
def approved_by_many(steps: steps.Steps) -> list[Any]:
    name, value = steps.wait_any("approved", "confirmed", type=Approval)
    return [name, value, *steps.signals("approved", timeout=0, type=list[Approval])]


def approved_flow() -> linear_flow.Flow:
    return linear_flow.Flow("approved").add(
        task.WaitFor("approved", provides="approval", type=Approval)
    )
