"""Flows that a command runs in this or another process: `tests.cli.shop:order`.

Files in the current folder control them: with `broken` the last task but one fails; each task of
`slow` waits for `go`. Tasks append their names to `done`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow

STEPS = ("reserve", "pay", "pack", "send")


class Step(task.Task):
    """A task that returns its name, or fails if `broken` exists."""

    def execute(self) -> str:
        if self.name == "pack" and Path("broken").exists():
            raise ValueError("out of paper, password=canary")
        with Path("done").open("a", encoding="utf-8") as file:
            file.write(f"{self.name}\n")
        return self.name

    def revert(self, **_: Any) -> None:
        with Path("done").open("a", encoding="utf-8") as file:
            file.write(f"-{self.name}\n")


class Slow(Step):
    """A task that waits until `go` exists."""

    def execute(self) -> str:
        Path(f"{self.name}.begun").touch()
        until = time.monotonic() + 100
        while not Path("go").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return super().execute()


def order() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(*(Step(name, provides=f"{name}d") for name in STEPS))


class Letter(task.Task):
    irreversible = True

    def execute(self) -> None: ...


def posted() -> linear_flow.Flow:
    """Return a flow with a task that cannot be undone."""
    return linear_flow.Flow("posted").add(Step("pay"), Letter("letter"))


def leaves() -> linear_flow.Flow:
    raise SystemExit("enough")


def slow() -> linear_flow.Flow:
    return linear_flow.Flow("slow").add(*(Slow(name) for name in STEPS))


def tried() -> linear_flow.Flow:
    """Return a flow in which one task has retries."""
    pay = Step("pay")
    pay.retries = 2
    return linear_flow.Flow("tried").add(Step("reserve"), pay)


class Half(task.Task):
    """A task that accepts only even numbers."""

    def execute(self, number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number // 2


halves = linear_flow.Flow("halved").add(
    task.Map(Half("half"), over="numbers", item="number", name="halves")
)


def single() -> Step:
    return Step("single")


class Priced(task.Task):
    """A task that requires inputs."""

    default_provides = "price"

    def execute(self, amount: int, api_key: str) -> float:
        return amount * 1.5


priced = linear_flow.Flow("priced").add(Priced())


class Login(task.Task):
    """A task with a secret in its exception."""

    def execute(self, api_key: str) -> None:
        raise ValueError(f"nobody may come in with {api_key}")


class Url(task.Task):
    """A task with secrets in its result."""

    def execute(self, api_key: str) -> dict[str, list[str]]:
        return {"at": [f"https://me:{api_key}@host", f"with {api_key}", "x" * 5000]}


login = linear_flow.Flow("login").add(Url("url", provides="url"), Login("log in"))
welcome = linear_flow.Flow("welcome").add(Url("url", provides="url"))


def keyed() -> linear_flow.Flow:
    """Return a flow whose key is an argument with a secret name."""
    flow = linear_flow.Flow("keyed").add(Url("url"))
    flow.fair_key = lambda api_key: api_key
    return flow
