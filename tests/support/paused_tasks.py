"""Tasks whose starts are recorded, for tests of pauses."""

from __future__ import annotations

import threading
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow

#: Names of the tasks that started, in this order.
STARTED: list[str] = []
#: When this event is set, tasks named `wait...` end, and `Slow` tasks take no time.
RELEASED = threading.Event()


def clear() -> None:
    STARTED.clear()
    RELEASED.clear()


def _record(name: str) -> None:
    STARTED.append(name)
    if name.startswith("wait"):
        assert RELEASED.wait(60)


class Charge(task.Task):
    def execute(self, **values: Any) -> str:
        _record(self.name)
        return self.name


class Ship(Charge):
    """Another task type."""


class Slow(Charge):
    def execute(self, **values: Any) -> str:
        RELEASED.wait(0.1)
        return super().execute(**values)


class Item(task.Task):
    def execute(self, item: int) -> int:
        _record(f"item {item}")
        return item


class Numbers(task.Task):
    default_provides = "numbers"

    def execute(self, count: int) -> list[int]:
        return list(range(count))


class HeldItem(Item):
    def execute(self, item: int) -> int:
        _record(f"wait {item}")
        return item


def charging() -> linear_flow.Flow:
    return linear_flow.Flow("charging").add(Charge("charge"))


def shipping() -> linear_flow.Flow:
    return linear_flow.Flow("shipping").add(Ship("ship"))


def both() -> unordered_flow.Flow:
    return unordered_flow.Flow("both").add(Charge("charge"), Ship("wait"))


def charging_and_signal() -> unordered_flow.Flow:
    signal = task.WaitFor("approved", provides="found")
    return unordered_flow.Flow("both").add(Charge("charge"), signal)


@task.workflow
def charging_then_shipping(steps: Any) -> None:
    steps.run(Charge)
    steps.run(Ship)


def items(count: int) -> linear_flow.Flow:
    return linear_flow.Flow("items").add(
        Numbers(inject={"count": count}),
        task.Map(HeldItem(), over="numbers", item="item", name="items", max_in_flight=2),
    )
