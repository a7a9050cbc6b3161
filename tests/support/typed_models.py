"""A workflow whose inputs, signals and result are models of pydantic."""

import decimal

import pydantic

from wbengine import steps, task


class Line(pydantic.BaseModel):
    amount: decimal.Decimal
    count: int = pydantic.Field(default=1, ge=1)


class Order(pydantic.BaseModel):
    number: int
    lines: list[Line]


class Receipt(pydantic.BaseModel):
    order: Order
    by: str


class Approval(pydantic.BaseModel):
    by: str


@task.task
def sign(order: Order, approval: Approval) -> Receipt:
    return Receipt(order=order, by=approval.by)


@task.workflow
def checkout(steps: steps.Steps, order: Order) -> Receipt:
    return steps.run(sign, order, steps.wait_for("approved", type=Approval))
