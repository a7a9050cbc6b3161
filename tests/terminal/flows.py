"""Flows that the commands run.  A task that waits ends when the file `go` appears."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from wbengine import retry, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

LOG = logging.getLogger(__name__)
MAP_ITEMS = 300


def wait_for_go(name: str) -> None:
    Path(f"{name}.begun").touch()
    deadline = time.monotonic() + 100
    while not Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


class Step(task.Task):
    """Returns its name; `revert` undoes it."""

    def execute(self) -> str:
        return self.name

    def revert(self, *args: Any, **kwargs: Any) -> None:
        pass


class Logs(Step):
    def execute(self) -> str:
        LOG.warning("done: 注文 %s", "word " * 30)
        return self.name


class Notes(Step):
    """Logs at two levels."""

    def execute(self) -> str:
        LOG.info("packed in a box")
        LOG.debug("box 7 of 9")
        return self.name


class Slow(Step):
    def execute(self) -> str:
        wait_for_go(self.name)
        return self.name


class Broken(Step):
    def execute(self) -> str:
        raise ValueError("out of paper")


def fail_twice(name: str) -> None:
    """Fail in the first two attempts, which a file counts; wait in the third."""
    count = Path(f"{name}.count")
    attempt = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (attempt + 1))
    if attempt < 2:
        raise ConnectionError(f"no answer, attempt {attempt + 1}")
    wait_for_go(name)


class FailsTwice(Step):
    def execute(self) -> str:
        fail_twice(self.name)
        return self.name


@task.task(name="ship", retries=3)
def ship() -> str:
    fail_twice("ship")
    return "shipped"


@task.task(name="call", retries=20)
def call() -> str:
    """Fail 15 times, then wait."""
    attempts = Path("call.count")
    with attempts.open("a") as file:
        file.write("x")
    if attempts.stat().st_size <= 15:
        raise ConnectionError("no answer")
    wait_for_go("call")
    return "called"


@task.task(name="print", retries=2)
def broken() -> None:
    raise ValueError("out of paper")


class Pause(Step):
    def execute(self) -> str:
        time.sleep(0.2)
        return self.name


class Send(task.Task):
    def execute(self, number: int) -> int:
        LOG.info("sent %d", number)
        return number


class Half(task.Task):
    """Fails for every 100th number; waits from 200 on."""

    def execute(self, number: int) -> int:
        if number >= 200:
            wait_for_go("half")
        if number % 100 == 99:
            raise ValueError(f"{number} is bad")
        return number


class Tells(Step):
    def execute(self) -> str:
        self.update_progress(0.4)
        wait_for_go(self.name)
        return self.name


def success() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(Step("reserve", provides="reserved"), Step("pay"))


def nested() -> linear_flow.Flow:
    packing = linear_flow.Flow("packing").add(Step("wrap"), Slow("label"))
    return linear_flow.Flow("order").add(Step("reserve"), packing, Step("send"))


def fails() -> linear_flow.Flow:
    """Return a flow that is reverted, because it has no retry controller."""
    return linear_flow.Flow("order").add(Step("reserve"), Step("pay"), Broken("print"))


def retried() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(Step("pack"), ship())


def unreachable() -> linear_flow.Flow:
    """Return a flow with more failures and retries than are displayed at a time."""
    return linear_flow.Flow("order").add(call())


def controlled() -> linear_flow.Flow:
    """A retry controller inside the flow of another one."""
    inner = linear_flow.Flow("inner", retry=retry.Times(2, "inner again"))
    outer = linear_flow.Flow("outer", retry=retry.Times(3, "outer again"))
    return linear_flow.Flow("order").add(outer.add(Step("reserve"), inner.add(FailsTwice("pay"))))


def numbers() -> linear_flow.Flow:
    half = task.Map(
        Half("half"), "numbers", "number", name="halves", provides="halved",
        on_item_failure="collect",
    )  # fmt: skip
    given = task.FunctorTask(lambda: list(range(MAP_ITEMS)), name="list", provides="numbers")
    return linear_flow.Flow("halving").add(given, half)


def waits() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(Step("quote"), task.WaitFor("approved", name="approval"))


def waits_an_hour() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(task.WaitFor("approved", 3600.0, name="approval"))


def progress() -> unordered_flow.Flow:
    return unordered_flow.Flow("order").add(Tells("upload"), Slow("scan"))


def limited() -> unordered_flow.Flow:
    tasks = [Step(f"call-{number}") for number in range(3)]
    for each in tasks:
        each.rate_limit = "1/m"
    return unordered_flow.Flow("order").add(*tasks)


def named() -> linear_flow.Flow:
    return linear_flow.Flow("注文の処理" * 8).add(
        Step("予約する" * 12), Slow("e\u0301cole " * 14), Step("🚚 send " * 10)
    )


def logged() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(Logs("pack"), Slow("label"))


def noted() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(Notes("pack"), Step("send"))


def exhausted() -> linear_flow.Flow:
    """Return a flow with a task that fails in each attempt."""
    return linear_flow.Flow("order").add(Step("pack"), broken())


def delayed() -> linear_flow.Flow:
    """Return a flow with a task that is retried after 15 minutes."""
    ship = broken(name="ship")
    ship.backoff = 900.0
    return linear_flow.Flow("order").add(Step("pack"), ship)


def starts_later() -> linear_flow.Flow:
    """Return a flow with a task that starts after 15 minutes."""
    later = Step("ship")
    later.eta = 900
    return linear_flow.Flow("order").add(later)


def crowded() -> unordered_flow.Flow:
    """More tasks than an engine has slots."""
    return unordered_flow.Flow("order").add(*(Slow(f"pack-{number}") for number in range(6)))


def decided() -> graph_flow.Flow:
    """Return a flow in which two tasks are ignored."""
    check, refund, tell = Step("check"), Step("refund"), Step("tell")
    flow = graph_flow.Flow("order").add(check, refund, tell, Step("send"))
    flow.link(check, refund, decider=lambda history: False)
    return flow.link(refund, tell)


def large() -> linear_flow.Flow:
    """More tasks than a screen has rows; one in the middle fails."""
    before, after = ([Step(f"{when}-{n}") for n in range(40)] for when in ("before", "after"))
    return linear_flow.Flow("order").add(*before, Broken("print"), *after)


def undone() -> linear_flow.Flow:
    """Return a flow whose inner flow is reverted because of a task after it."""
    packing = linear_flow.Flow("packing").add(Step("wrap"), Step("label"))
    return linear_flow.Flow("order").add(packing, Broken("print"))


def wide() -> linear_flow.Flow:
    """A name with fewer characters than columns."""
    return linear_flow.Flow("注文の処理" * 2).add(Pause("予約"))


def hostile() -> linear_flow.Flow:
    """Return a flow with terminal control sequences in its names."""
    return linear_flow.Flow("or\x1b[2Jder").add(Step("pay\x1b[31m\nnow"), Broken("pr\x1b[Aint"))


def letters() -> linear_flow.Flow:
    given = task.FunctorTask(lambda: [0, 1], name="list", provides="numbers")
    return linear_flow.Flow("mail").add(
        given, task.Map(Send("send"), "numbers", "number", name="letters")
    )


def strict() -> linear_flow.Flow:
    """A Map that fails with its first bad item."""
    half = task.Map(Half("half"), "numbers", "number", name="halves")
    return linear_flow.Flow("halving").add(half)


def broken_factory() -> linear_flow.Flow:
    raise RuntimeError("no flow today")
