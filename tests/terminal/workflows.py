"""Workflows that the commands run. A step that waits ends when the file `go` appears."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.terminal.flows import Step, wait_for_go
from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow


@task.task
def poll(number: int) -> int:
    return number


@task.task
def hold(name: str = "hold") -> str:
    wait_for_go(name)
    return name


@task.task
def book(what: str) -> str:
    return what


@book.revert
def cancel(what: str) -> None:
    if what == "slow":
        wait_for_go("cancel")


@task.task(retries=2)
def ship(order: str) -> str:
    """Fail in the first two attempts, which a file counts."""
    count = Path("ship.count")
    attempt = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (attempt + 1))
    if attempt < 2:
        raise ConnectionError("no answer")
    return order


@task.task
def broken() -> None:
    raise ValueError("out of paper")


@task.task(rate_limit="1/h")
def call(number: int) -> int:
    return number


@task.workflow(name="loop")
def loop(steps: Any) -> None:
    for number in range(60):
        steps.run(poll, number)
        steps.sleep(0)
    steps.run(hold)


@task.workflow(name="mapping")
def mapping(steps: Any) -> None:
    steps.map(hold, [f"hold-{number}" for number in range(300)])


@task.workflow(name="checkout")
def checkout(steps: Any) -> None:
    """Retry a step, revert a scope, and wait for a signal."""
    steps.run(ship, "lamp")
    with contextlib.suppress(ValueError), steps.scope():
        steps.run(book, "car")
        steps.run(broken)
    steps.wait_for("approved", 3600, default=None)


@task.workflow(name="undone")
def undone(steps: Any) -> None:
    """Revert two steps, of which one waits."""
    steps.run(book, "slow")
    steps.run(book, "car")
    steps.run(broken)


@task.workflow(name="various")
def various(steps: Any) -> None:
    """More steps than a screen has rows, none of which can be folded."""
    for number in range(150):
        steps.run(poll if number * number % 11 > 4 else book, f"{number}")
    steps.run(hold)


@task.workflow(name="limited")
def limited(steps: Any) -> None:
    steps.map(call, range(3))


def nested() -> linear_flow.Flow:
    inner = linear_flow.Flow("inner").add(loop(name="loop"), Step("send"))
    return linear_flow.Flow("outer").add(Step("reserve"), inner)


def several() -> unordered_flow.Flow:
    """More running workflows than a screen has rows."""
    return unordered_flow.Flow("several").add(*(loop(name=f"loop-{n}") for n in range(60)))


@task.workflow(name="hostile")
def hostile(steps: Any) -> None:
    steps.publish("na\x1b[2Jme", "va\x1b[31mlue\n")
    steps.wait_for("sig\x1b[2Jnal", 3600)
