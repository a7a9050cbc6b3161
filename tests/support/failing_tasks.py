"""Tasks that fail in all ways, and tasks with values of custom types, also for workers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import sys
from typing import Any

from wbengine import exceptions, task
from wbengine.types import codec


class Refused(Exception):
    """An exception that cannot be rebuilt from its message."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"refused with {self.code}: {self.reason}"


@codec.allow
class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@codec.allow
@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    due: dt.date
    colours: tuple[Colour, ...] = ()
    notes: dict[int, set[str]] = dataclasses.field(default_factory=dict)


class Fails(task.Task):
    """Raises the exception that `how` selects."""

    def execute(self, how: str) -> None:
        if how == "builtin":
            raise ValueError("this went wrong", 3)
        if how == "caused":
            try:
                open("/nowhere/at/all")  # noqa: SIM115
            except FileNotFoundError as error:
                raise KeyError("missing") from error
        if how == "own":
            raise Refused(7, reason="no credit")
        if how == "ours":
            raise exceptions.NotFound("nothing there")
        if how == "foreign":
            json.loads("{")
        if how == "exit":
            sys.exit(3)


class ReportsFailures(task.Task):
    """Its revert returns how it could handle the failures it received."""

    def execute(self) -> int:
        return 1

    def revert(self, result: Any, flow_failures: Any) -> list[str]:
        noticed = []
        for name, failure in sorted(flow_failures.items()):
            try:
                failure.reraise()
            except Refused as error:
                noticed.append(f"{name} was refused: {error.args}")
            except ValueError as error:
                noticed.append(f"{name} had a bad value: {error.args}")
            except Exception as error:
                noticed.append(f"{name}: {type(error).__name__}")
        return noticed


class PostponesOrder(task.Task):
    """Receives an order and returns another one; both have their exact types."""

    default_provides = ("order", "colour")

    def execute(self, old: Order, paint: Colour) -> tuple[Order, Colour]:
        assert type(old) is Order and type(paint) is Colour, (old, paint)
        later = old.due + dt.timedelta(days=1)
        return dataclasses.replace(old, due=later, colours=(*old.colours, paint)), Colour.GREEN
