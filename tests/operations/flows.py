"""Flows for tests of operations, named by paths such as `tests.operations.flows:steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wbengine import retry, task
from wbengine.patterns import linear_flow
from wbengine.types import failure

#: Log of executed and reverted steps, in order; names of the steps that fail.
DONE: list[str] = []
FAILING: set[str] = set()


class Step(task.Task):
    """A step that records its execution and reversion."""

    def execute(self) -> str:
        DONE.append(self.name)
        if self.name in FAILING:
            raise ValueError(f"{self.name} fails")
        return self.name

    def revert(self, result: Any, **_: Any) -> None:
        told = "" if result == self.name or isinstance(result, failure.Failure) else f":{result}"
        DONE.append(f"-{self.name}{told}")
        if f"-{self.name}" in FAILING:
            raise OSError(f"{self.name} cannot be undone")


def steps() -> linear_flow.Flow:
    return linear_flow.Flow("steps").add(*(Step(name, provides=f"of_{name}") for name in "abcd"))


def nested() -> linear_flow.Flow:
    """Return a flow whose second half has a retry controller that reverts at once."""
    half = linear_flow.Flow("half", retry.AlwaysRevert("again")).add(Step("c"), Step("d"))
    return linear_flow.Flow("nested").add(Step("a"), Step("b"), half)


def tried() -> linear_flow.Flow:
    """Return a flow whose second step has retries."""
    flow = linear_flow.Flow("tried").add(Step("a"), Step("b"), Step("c"))
    for step in flow:
        if step.name == "b":
            step.retries = 2
    return flow


def deep() -> linear_flow.Flow:
    """Return nested flows with retry controllers, and one step with retries."""
    inner = linear_flow.Flow("i", retry.Times(1, "inner")).add(*tried(), Step("d"))
    return linear_flow.Flow("deep", retry.Times(1, "outer")).add(inner)


#: Calls that the factory `raced` makes, as if another process acted while a flow is loaded.
MEANWHILE: list[Callable[[], object]] = []


def raced() -> linear_flow.Flow:
    while MEANWHILE:
        MEANWHILE.pop()()
    return steps()


flow = steps()
number = 3


def approval() -> linear_flow.Flow:
    """Waits for a signal."""
    return linear_flow.Flow("approval").add(task.WaitFor("approved"))


def nothing() -> int:
    return 3


def broken() -> linear_flow.Flow:
    raise RuntimeError("no flow today")


class Counted(linear_flow.Flow):
    """A flow that counts iterations over its members."""

    looks = 0

    def iter_nodes(self) -> Any:
        Counted.looks += 1
        return super().iter_nodes()


def counted() -> Counted:
    Counted.looks = 0
    return Counted("counted").add(Step("a"))


def undoable() -> linear_flow.Flow:
    """Return a flow with a retry, a Map, a nested flow and a task without `revert`."""
    half = linear_flow.Flow("half").add(Step("c"), Step("d"))
    return linear_flow.Flow("undoable").add(
        Step("a"),
        Flaky("b"),
        numbers("list"),
        task.Map(item(), over="numbers", item="number", name="items"),
        half,
    )


def empty() -> linear_flow.Flow:
    return linear_flow.Flow("empty")


class Flaky(Step):
    """A step whose first execution fails."""

    retries = 1

    def execute(self) -> str:
        is_first = self.name not in DONE
        DONE.append(self.name)
        if is_first:
            raise ValueError("the first time")
        return self.name

    def revert(self, result: Any, **_: Any) -> None:
        if result == self.name:
            super().revert(result)


@task.task
def item(number: int) -> int:
    DONE.append(f"item {number}")
    return number


@item.revert
def undo_item(number: int) -> None:
    DONE.append(f"-item {number}")


@task.task(provides="numbers")
def numbers() -> list[int]:
    return [0, 1]
