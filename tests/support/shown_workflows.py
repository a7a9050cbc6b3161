"""Workflows for pages and reports: loops, retries, reverted scopes, waits and published values."""

from __future__ import annotations

import contextlib
from typing import Any

from wbengine import task

#: Texts that must not become elements of a page.
HOSTILE = "<img src=x onerror=alert(1)>"


@task.task
def poll(number: int) -> int:
    return number


@task.task
def book(what: str) -> str:
    return what


@book.revert
def cancel(what: str) -> None:
    pass


@task.task(retries=2)
def ship(what: str) -> None:
    raise ConnectionError(f"no answer {HOSTILE}")


@task.workflow(name="checkout")
def checkout(steps: Any) -> None:
    """Fold a loop, retry a step, revert a scope, publish values, and wait for a signal."""
    for number in range(20):
        steps.run(poll, number)
        steps.sleep(0)
    with contextlib.suppress(ConnectionError), steps.scope():
        steps.run(book, "car")
        steps.run(ship, "lamp")
    steps.publish("progress", "waits")
    steps.publish(HOSTILE, [HOSTILE, {"password": "correct horse"}])
    steps.wait_for(f"approved {HOSTILE}", timeout=3600)
    steps.publish("progress", "done")


@task.workflow(name="undone")
def undone(steps: Any) -> None:
    steps.run(book, "car")
    steps.run(ship, "lamp")


@task.workflow(name="various")
def various(steps: Any) -> None:
    """Call 300 steps that cannot be folded."""
    for number in range(300):
        steps.run(poll if number * number % 11 > 4 else book, number)


@task.workflow(name="looped")
def looped(steps: Any) -> None:
    for number in range(10):
        steps.run(poll, number)
