"""Complete flows to undo, with tasks that can and cannot be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import base
from wbengine.steps import Steps

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


def complete(backend: base.Backend, factory: Callable[..., Any], **inputs: Any) -> str:
    engine = engines.load_from_factory(factory, store=inputs, backend=backend)
    engine.run()
    return str(engine.storage.flow_uuid)
