"""Workflows with child flows, which other processes find by name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from wbengine import steps as of_workflow
from wbengine import task
from wbengine.patterns import linear_flow


def note(folder: str, text: str) -> None:
    """Append a line to the effects in a folder."""
    with Path(folder, "effects").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def effects(folder: Path) -> list[str]:
    path = folder / "effects"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


class OutOfStockError(Exception):
    pass


@task.task
def reserve(folder: str, item: str) -> str:
    if item == "none":
        raise OutOfStockError("nothing left")
    note(folder, f"reserve-{item}")
    return f"reserved {item}"


@reserve.revert
def release(folder: str, item: str) -> None:
    if item == "stuck":
        raise RuntimeError("it cannot be released")
    note(folder, f"release-{item}")


@task.workflow
def ship(steps: of_workflow.Steps, folder: str, item: str) -> str:
    return steps.run(reserve, folder, item)


@task.workflow
async def ship_async(steps: of_workflow.AsyncSteps, folder: str, item: str) -> str:
    return await steps.run(reserve, folder, item)


@task.workflow
def wait(steps: of_workflow.Steps, folder: str, item: str) -> str:
    steps.run(reserve, folder, item)
    steps.wait_for("go")
    return item


@task.workflow
def order(steps: of_workflow.Steps, folder: str, items: list[str]) -> list[str]:
    return [steps.child(ship, ship.inputs(folder, item)) for item in items]


@task.workflow
async def order_async(steps: of_workflow.AsyncSteps, folder: str, items: list[str]) -> list[str]:
    shipping = (steps.child(ship_async, {"folder": folder, "item": item}) for item in items)
    return await asyncio.gather(*shipping)


@task.workflow
def order_and_fail(steps: of_workflow.Steps, folder: str, items: list[str]) -> None:
    for item in items:
        steps.child(ship, {"folder": folder, "item": item})
    raise ValueError("order refused")


@task.workflow
def order_and_refuse(steps: of_workflow.Steps, folder: str, items: list[str]) -> None:
    for item in items:
        shipped = steps.child(ship, {"folder": folder, "item": item})
        steps.run(fail_if, item, shipped, item == items[-1])


@task.workflow
async def order_and_wait(
    steps: of_workflow.AsyncSteps, folder: str, items: list[str], detached: bool = False
) -> list[str]:
    waiting = (
        steps.child(wait, {"folder": folder, "item": item}, detached=detached) for item in items
    )
    return await asyncio.gather(*waiting)


@task.workflow
def order_of_orders(steps: of_workflow.Steps, folder: str, items: list[str]) -> list[list[str]]:
    inputs = {"folder": folder, "items": items}
    return [steps.child(order, inputs), steps.child(order_async, inputs)]


@task.workflow
def ship_item(steps: of_workflow.Steps, item: str, folder: str) -> str:
    return steps.run(reserve, folder, item)


@task.workflow
def order_by_map(steps: of_workflow.Steps, folder: str, items: list[str]) -> list[str]:
    return steps.map(ship_item, items, folder=folder, max_in_flight=2)


@task.workflow
async def order_by_async_map(
    steps: of_workflow.AsyncSteps, folder: str, items: list[str]
) -> list[str]:
    return await steps.map(ship_item, items, folder=folder)


@task.task(provides="item")
def choose() -> str:
    return "tea"


@task.task
def fail_if(item: str, shipped: str, fails: bool) -> None:
    if fails:
        raise ValueError(f"{shipped} was refused")


def shipping() -> linear_flow.Flow:
    """Return a graph with a workflow as its second task."""
    flow = linear_flow.Flow("shipping")
    return flow.add(choose(), task.SubFlow(ship, provides="shipped"), fail_if())


class Double(task.Task):
    def execute(self, number: int) -> int:
        return 2 * number


def doubling() -> linear_flow.Flow:
    return linear_flow.Flow("doubling").add(Double(provides="doubled"))


@task.workflow
def order_of_graph(steps: of_workflow.Steps, number: int) -> Any:
    return steps.child(doubling, {"number": number}, name="twice")


@task.task(provides="used")
def use(folder: str, tenant: str) -> str:
    note(folder, f"use-{tenant}")
    return tenant


def _limited(name: str, *tasks: task.Task) -> linear_flow.Flow:
    """Return a flow of which one runs at a time for each tenant."""
    flow = linear_flow.Flow(name).add(*tasks)
    flow.concurrency, flow.limit = 1, "tenant"
    flow.concurrency_key = lambda tenant: tenant
    return flow


def limited() -> linear_flow.Flow:
    return _limited("limited", use())


def limited_parent() -> linear_flow.Flow:
    return _limited("limited_parent", task.SubFlow(limited, provides="child"))


def limited_grandparent() -> linear_flow.Flow:
    return _limited("limited_grandparent", task.SubFlow(limited_parent, provides="child"))


@task.workflow
def order_and_pack(steps: of_workflow.Steps, folder: str, items: list[str]) -> None:
    for item in items:
        steps.child(ship, {"folder": folder, "item": item})
    steps.run(reserve, folder, "box")


@task.workflow
async def order_in_two_rounds(steps: of_workflow.AsyncSteps, folder: str, items: list[str]) -> str:
    await steps.map(ship_item, items, folder=folder)
    return await steps.child(ship_item, ship_item.inputs("last", folder))
