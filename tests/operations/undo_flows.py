"""Complete flows to undo, with tasks that can and cannot be undone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import base, models
from wbengine.steps import AsyncSteps, Steps

UNDONE: list[str] = []
FAILING: list[str] = []


@task.task
def charge() -> str:
    return "charged"


@charge.revert
def refund() -> None:
    if FAILING:
        raise OSError("the bank does not answer")
    UNDONE.append("charge")


@task.task
def note() -> None: ...


@task.task(irreversible=True)
def send() -> None: ...


@task.task
def fail() -> None:
    raise ZeroDivisionError


class SendItem(task.Task):
    irreversible = True

    def execute(self, number: int) -> None: ...


def order() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(charge(), note(), send())


def reserve() -> None: ...


def release() -> None:
    UNDONE.append("reserve")


class Book(task.Task):
    def execute(self) -> None: ...

    def revert(self, *args: Any, **kwargs: Any) -> None:
        UNDONE.append("book")


class BookWithoutRevert(task.Task):
    def execute(self) -> None: ...


#: The code of `booking` that tests change.
CODE: dict[str, Any] = {"book": Book, "release": release, "wait": ""}


def booking() -> linear_flow.Flow:
    flow = linear_flow.Flow("booking").add(note())
    wait = task.WaitFor("go", name="wait")
    if CODE["wait"] == "first":
        flow.add(wait)
    if CODE["book"] is not None:
        flow.add(CODE["book"]("book"))
    flow.add(task.FunctorTask(reserve, "reserve", revert=CODE["release"]))
    return flow.add(wait) if CODE["wait"] == "last" else flow


def parcels() -> linear_flow.Flow:
    many = task.Map(SendItem("one"), over="numbers", item="number", name="all")
    return linear_flow.Flow("parcels").add(charge(), many)


@task.workflow
def program(steps: Steps) -> None:
    steps.run(charge)
    steps.run(note)
    steps.run(send)


@task.workflow
def plain(steps: Steps) -> None:
    steps.run(charge)


@task.workflow
def parent(steps: Steps) -> None:
    steps.run(charge)
    steps.child(plain)


@task.workflow
def grandparent(steps: Steps) -> None:
    steps.child(parent)


@task.workflow
def parent_of_irreversible(steps: Steps) -> None:
    steps.child(program)


@task.workflow
def failing_parent(steps: Steps) -> None:
    steps.child(program)
    steps.run(fail)


@task.workflow
def waiting(steps: Steps) -> None:
    steps.run(charge)
    steps.wait_for("go")


@task.workflow
async def parent_of_detached(steps: AsyncSteps) -> None:
    child = asyncio.ensure_future(steps.child(waiting, detached=True))
    await steps.run(charge)
    child.cancel()


@task.workflow
def waiting_parent(steps: Steps) -> None:
    steps.child(plain)
    steps.wait_for("go")


def record(store: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.get_flow_details(uuid)


def complete(backend: base.Backend, factory: Callable[..., Any], **inputs: Any) -> str:
    engine = engines.load_from_factory(factory, store=inputs, backend=backend)
    engine.run()
    return str(engine.storage.flow_uuid)
