"""Flows that tests of the API submit."""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow


def approval() -> Any:
    return linear_flow.Flow("approval").add(task.WaitFor("approved"))


class Charge(task.Task):
    def execute(self, amount: int) -> None:
        return None


def charged() -> Any:
    return linear_flow.Flow("charged").add(Charge())


def failing() -> Any:
    raise KeyError("price")
