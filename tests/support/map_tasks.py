"""Inner tasks of Maps. Like tasks of workers, the module imports no flow."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from wbengine import task
from wbengine.types import failure as ft


class Square(task.Task):
    def execute(self, item: int) -> int:
        return item * item


class Scale(task.Task):
    """Has a required and an optional argument in addition to the item."""

    def execute(self, item: int, factor: int, offset: int = 0) -> int:
        return item * factor + offset


class AsyncSquare(task.Task):
    async def execute(self, item: int) -> int:
        await asyncio.sleep(0)
        return item * item


class Odd(task.Task):
    """Fails for even items."""

    def execute(self, item: int) -> int:
        if item % 2 == 0:
            raise ValueError(f"{item} is even")
        return item


class Touch(task.Task):
    """Appends a line to a file for each execution and reversion; the lines do not depend on the
    place.
    """

    def execute(self, item: int, folder: str, bad: int = -1) -> int:
        note(folder, f"+{item}")
        if item == bad:
            raise ValueError(f"item {item} is bad")
        return -item

    def revert(self, result: Any, item: int, folder: str, stuck: int = -1) -> str:
        text = result if isinstance(result, int) else type(result).__name__
        note(folder, f"-{item}:{text}")
        if item == stuck:
            raise OSError(f"item {item} is stuck")
        return f"undone {item}"


class Gate(task.Task):
    """Waits until the test creates a file."""

    def execute(self, item: int, folder: str) -> int:
        note(folder, f"+{item}")
        while not Path(folder, "open").exists():
            time.sleep(0.002)
        return item


class Count(task.Task):
    """Returns how many instances ran at the same time in this process."""

    running = 0
    lock = threading.Lock()

    def execute(self, item: int) -> int:
        with Count.lock:
            Count.running += 1
            max_running = Count.running
        time.sleep(0.002)
        with Count.lock:
            max_running = max(max_running, Count.running)
            Count.running -= 1
        return max_running


class Tell(task.Task):
    def execute(self, item: int) -> int:
        self.update_progress(0.5)
        return item


class Grow(task.Task):
    """Returns a list with one more item in each attempt."""

    def execute(self, turn: int) -> list[int]:
        return list(range(2 + turn))


class Broken(task.Task):
    def execute(self) -> None:
        raise ValueError("this went wrong")


class CountFailures(task.Task):
    def execute(self, results: list[Any]) -> int:
        return sum(isinstance(value, ft.Failure) for value in results)


class Flaky(task.Task):
    """Item 2 fails in the first attempt."""

    def execute(self, item: int, turn: int) -> tuple[int, int]:
        if item == 2 and turn == 1:
            raise ValueError("not yet")
        return item, turn


def note(folder: str, line: str) -> None:
    with open(Path(folder, "log"), "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def notes(folder: Any) -> list[str]:
    path = Path(folder, "log")
    return path.read_text(encoding="utf-8").split() if path.exists() else []
