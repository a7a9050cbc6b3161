"""Flows that a command runs, here or in a process of its own: `tests.cli.shop:order`.

Files in the current folder say what happens: with `broken` the last but one task fails; every task
of `slow` waits until there is `go`, and adds its name to `done`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow

STEPS = ("reserve", "pay", "pack", "send")


class Step(task.Task):
    """Returns its name; fails as it is told."""

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
    """Waits until it may go on."""

    def execute(self) -> str:
        Path(f"{self.name}.begun").touch()
        until = time.monotonic() + 100
        while not Path("go").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return super().execute()


def order() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(*(Step(name, provides=f"{name}d") for name in STEPS))


def leaves() -> linear_flow.Flow:
    raise SystemExit("enough")


def slow() -> linear_flow.Flow:
    return linear_flow.Flow("slow").add(*(Slow(name) for name in STEPS))


def tried() -> linear_flow.Flow:
    """One of its tasks may be tried again."""
    pay = Step("pay")
    pay.retries = 2
    return linear_flow.Flow("tried").add(Step("reserve"), pay)


class Half(task.Task):
    """Takes even numbers only."""

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
    """Needs what it is given."""

    default_provides = "price"

    def execute(self, amount: int, api_key: str) -> float:
        return amount * 1.5


priced = linear_flow.Flow("priced").add(Priced())


class Login(task.Task):
    """Tells its secret to whoever looks."""

    def execute(self, api_key: str) -> None:
        raise ValueError(f"nobody may come in with {api_key}")


class Url(task.Task):
    """Returns what holds a secret."""

    def execute(self, api_key: str) -> dict[str, list[str]]:
        return {"at": [f"https://me:{api_key}@host", f"with {api_key}", "x" * 5000]}


login = linear_flow.Flow("login").add(Url("url", provides="url"), Login("log in"))
welcome = linear_flow.Flow("welcome").add(Url("url", provides="url"))
