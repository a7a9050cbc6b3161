"""Inner tasks of Maps. Like tasks of workers, the module imports no flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wbengine import task


class Square(task.Task):
    def execute(self, item: int) -> int:
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


class Interrupted(Touch):
    """Is interrupted after its effect for the item `stuck`, and can be reverted."""

    def execute(self, item: int, folder: str, stuck: int) -> int:  # type: ignore[override]
        note(folder, f"+{item}")
        if item == stuck:
            raise KeyboardInterrupt
        return -item

    def revert(self, result: Any, item: int, folder: str) -> str:  # type: ignore[override]
        return super().revert(result, item, folder)


class Broken(task.Task):
    def execute(self) -> None:
        raise ValueError("this went wrong")


def note(folder: str, line: str) -> None:
    with open(Path(folder, "log"), "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def notes(folder: Any) -> list[str]:
    path = Path(folder, "log")
    return path.read_text(encoding="utf-8").split() if path.exists() else []
