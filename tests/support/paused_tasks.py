"""Tasks whose starts are recorded, for tests of pauses."""

from __future__ import annotations

import threading
from typing import Any

from wbengine import task

#: Names of the tasks that started, in this order.
STARTED: list[str] = []
#: When this event is set, tasks named `wait...` end, and `Slow` tasks take no time.
RELEASED = threading.Event()


def clear() -> None:
    STARTED.clear()
    RELEASED.clear()


def _record(name: str) -> None:
    STARTED.append(name)
    if name.startswith("wait"):
        assert RELEASED.wait(60)


class Charge(task.Task):
    def execute(self, **values: Any) -> str:
        _record(self.name)
        return self.name


class Ship(Charge):
    """Another task type."""


class Slow(Charge):
    def execute(self, **values: Any) -> str:
        RELEASED.wait(0.1)
        return super().execute(**values)


class Item(task.Task):
    def execute(self, item: int) -> int:
        _record(f"item {item}")
        return item
