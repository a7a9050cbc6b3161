"""Flows that the tests of clients submit."""

from __future__ import annotations

import datetime as dt
from typing import Any

from tests.support import typed_orders
from wbengine import task
from wbengine.patterns import linear_flow


class Price(task.Task):
    default_provides = "price"

    def execute(self, amount: int) -> int:
        return 3 * amount


class Password(task.Task):
    default_provides = "password"

    def execute(self) -> str:
        return "correct horse battery"


class Day(task.Task):
    default_provides = "day"

    def execute(self) -> dt.date:
        return dt.date(2026, 11, 28)


class Ratio(task.Task):
    default_provides = "ratio"

    def execute(self) -> list[float]:
        return [float("nan"), float("inf"), 0.5]


class Fail(task.Task):
    def execute(self) -> None:
        raise KeyError("no price of password=hunter2222")


class Ask(task.WaitFor):
    default_provides = "answer"


def priced() -> Any:
    return linear_flow.Flow("priced").add(Price(), Password(), Day())


def ratios() -> Any:
    return linear_flow.Flow("ratios").add(Ratio())


def failing() -> Any:
    return linear_flow.Flow("failing").add(Fail())


def approval() -> Any:
    return linear_flow.Flow("approval").add(Ask("approved"))


@task.workflow(name="publishing", provides="answer")
def publishing(steps: Any) -> str:
    steps.publish("progress", 7)
    return str(steps.wait_for("go"))


def typed() -> linear_flow.Flow:
    return typed_orders.totals()
