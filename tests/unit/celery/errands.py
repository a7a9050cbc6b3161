"""Tasks that are called as Celery calls its own, in whatever pool."""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import Any

from wbengine.interop.celery import retrying
from wbengine.task import Task, task


class Broken(Exception):
    """Both ends can import it."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)


class Outer:
    class Inner(ValueError):
        """Of a place inside of another."""


@task(name="sum")
def add(x: int, y: int = 10) -> int:
    return x + y


@task
def positions(x: int, /, y: int, *rest: int, factor: int = 1) -> Any:
    return [x, y, list(rest), factor]


@task
def bound(self: Any, x: int) -> Any:
    message = retrying.current()
    assert message is not None
    return [x, self.name, message.id, message.retries, self.request.id, os.getpid()]


@task
async def later(x: int) -> Any:
    await asyncio.sleep(0)
    message = retrying.current()
    assert message is not None
    return [x, message.id]


@task
async def positions_later(x: int, /, *rest: int) -> Any:
    await asyncio.sleep(0)
    return [x, *rest]


class Careful(Task):
    """A class with hooks."""

    default_provides = "x"

    def pre_execute(self) -> None:
        self.opened = True

    def execute(self, x: int) -> Any:
        return [x, self.opened]

    def revert(self, x: int, result: Any, flow_failures: Any) -> None:
        raise AssertionError("nothing reverts for Celery")


class Needy(Task):
    def __init__(self, place: str, name: str | None = None) -> None:
        super().__init__(name)

    def execute(self) -> None: ...


@task
def fail(kind: str = "value") -> None:
    if kind == "value":
        raise ValueError("no such value", 5)
    if kind == "broken":
        raise Broken("it broke", 7)
    if kind == "inner":
        raise Outer.Inner("inside")
    if kind == "exit":
        raise SystemExit(3)
    if kind == "object":
        raise ValueError(object())
    if kind == "cause":
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    class Local(Exception):
        pass

    raise Local("nobody can import it")


@task
def sleep(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
    return "slept"


@task
def again(how: str = "plain") -> None:
    if how == "plain":
        raise retrying.Retry
    if how == "countdown":
        raise retrying.Retry(countdown=5)
    if how == "eta":
        raise retrying.Retry(eta=1e9)
    if how == "exc":
        raise retrying.Retry(countdown=1, exc=Broken("for this", 1))
    if how == "forever":
        raise retrying.Retry(countdown=1, max_retries=math.inf)
    if how == "args":
        raise retrying.Retry(countdown=0, args=["exc"], kwargs={})
    if how == "reject":
        raise retrying.Reject("not mine")
    if how == "requeue":
        raise retrying.Reject("later", requeue=True)
    if how == "ignore":
        raise retrying.Ignore
    try:
        raise KeyError("handled")
    except KeyError as error:
        raise retrying.Retry(countdown=2, exc=error) from error


class Stubborn(Task):
    max_retries = None
    default_retry_delay = 7

    def execute(self) -> None:
        raise retrying.Retry


@task(idempotent=True)
def safe(x: int = 0) -> int:
    return x


@task(timelimit=(5, 10))
def limited() -> None: ...


@task
def sorry(request: Any, error: Any, traceback: Any, path: str = "", *, word: str = "") -> None:
    with open(path, "a", encoding="utf-8") as file:
        lines = len(traceback.splitlines()) > 2 and traceback.startswith("Traceback")
        file.write(f"{request.id} {type(error).__name__} {error.args[0]} {lines} {word}\n")


@task
def sorry_bound(self: Any, request: Any, error: Any, traceback: Any) -> None: ...


class Sorry(Task):
    def execute(self, request: Any, error: Any, traceback: Any) -> None: ...
