"""Flows of a shop for tests with browsers; workers run their tasks."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from wbengine import retry, task
from wbengine.patterns import linear_flow, unordered_flow

LOG = logging.getLogger(__name__)
LOG.setLevel(logging.INFO)

#: Duration of a step in seconds.
STEP = 0.06


class Step(task.Task):
    """A short task that reports progress."""

    def execute(self, **given: Any) -> str:
        for part in (0.3, 0.6, 0.9):
            time.sleep(STEP / 3)
            self.update_progress(part)
        return "done"

    def revert(self, **given: Any) -> None:
        time.sleep(STEP / 4)


class Reserve(Step):
    pass


class Charge(Step):
    pass


class Pack(Step):
    pass


class Ship(Step):
    pass


class Notify(Step):
    pass


class CardRefused(Exception):
    """The bank refused the card."""


class Refused(task.Task):
    """A task that always fails in a nested call."""

    def execute(self) -> None:
        time.sleep(STEP)
        self._ask_the_bank("4000 0000 0000 0002")

    def _ask_the_bank(self, card: str) -> None:
        raise CardRefused(f"the bank refused the card ending in {card[-4:]}")


def reached(gate: str) -> Path:
    return Path(f"{gate}-reached")


class Audit(task.Task):
    """A task that creates one file and runs until another exists."""

    def execute(self, gate: str) -> None:
        reached(gate).touch()
        while not Path(gate).exists():
            time.sleep(0.01)


class Confirm(task.Task):
    """A task that fails until a file exists."""

    def execute(self, gate: str) -> None:
        if not Path(gate).exists():
            raise CardRefused("nobody has confirmed it")


def order(number: int) -> linear_flow.Flow:
    """Return a flow with the ten steps of one order."""
    steps = (Reserve, Charge, Pack, Ship, Notify)
    flow = linear_flow.Flow(f"order {number}")
    flow.add(*(kind(f"{kind.__name__.lower()} {number}") for kind in steps))
    later = unordered_flow.Flow(f"papers {number}")
    later.add(*(Step(f"{name} {number}") for name in ("invoice", "label", "stock", "mail", "log")))
    return flow.add(later)


def evening() -> linear_flow.Flow:
    """Return a flow of 300 tasks and one in the middle that runs until a file exists."""
    orders = [order(number) for number in range(30)]
    return linear_flow.Flow("evening orders").add(
        unordered_flow.Flow("before the van").add(*orders[:15]),
        Audit("wait for the van"),
        unordered_flow.Flow("after the van").add(*orders[15:]),
    )


def month() -> linear_flow.Flow:
    """Return a flow of 501 tasks."""
    weeks = [unordered_flow.Flow(f"week {number}") for number in range(5)]
    for number, week in enumerate(weeks):
        week.add(*(order(10 * number + day) for day in range(10)))
    return linear_flow.Flow("orders of a month").add(*weeks, Step("close the books"))


def weekend() -> linear_flow.Flow:
    """Return a flow of 34 tasks, one of which fails twice."""
    orders = unordered_flow.Flow("orders").add(*(order(number) for number in range(3)))
    paying = linear_flow.Flow("pay", retry=retry.Times(2, name="two tries"))
    paying.add(Step("add it up"), Refused("charge the card"))
    return linear_flow.Flow("weekend orders").add(
        Step("open the shop"), orders, paying, Notify("tell the customer")
    )


class Weigh(task.Task):
    """A task that fails for empty parcels."""

    def execute(self, parcel: int) -> int:
        time.sleep(STEP)
        LOG.info("parcel %d is on the scales", parcel)
        if parcel % 7 == 5:
            raise CardRefused(f"parcel {parcel} is empty")
        return 100 * parcel


def approval() -> linear_flow.Flow:
    """Return a flow that waits for a signal."""
    return linear_flow.Flow("approval").add(task.WaitFor("approved"), Step("ship it"))


def parcels() -> linear_flow.Flow:
    """Return a flow with a Map over twelve parcels, two of which fail."""
    weighing = task.Map(
        Weigh("weigh"), over="parcels", item="parcel", provides="weights",
        on_item_failure="collect",
    )  # fmt: skip
    return linear_flow.Flow("parcels").add(weighing, Step("print the labels"))


def night() -> linear_flow.Flow:
    """Return a flow that runs until a file exists."""
    return linear_flow.Flow("night audit").add(
        Step("close the tills"), Audit("count the money"), Step("lock the doors")
    )


def delivery() -> linear_flow.Flow:
    """Return a flow that fails and is reverted until a file exists."""
    return linear_flow.Flow("delivery").add(
        Step("load the van"), Confirm("ring the bell"), Step("hand it over")
    )


def morning() -> linear_flow.Flow:
    """Return a flow of a dozen tasks, one of which fails twice."""
    flow = linear_flow.Flow("morning order")
    gathering = unordered_flow.Flow("gather")
    gathering.add(*(Reserve(f"reserve {what}") for what in ("chair", "table", "lamp")))
    paying = linear_flow.Flow("pay", retry=retry.Times(2, name="two attempts"))
    paying.add(Step("check the address"), Refused("charge the card"))
    sending = linear_flow.Flow("send").add(Pack("pack"), Ship("ship"), Notify("notify"))
    return flow.add(Step("open the order"), gathering, paying, sending)
