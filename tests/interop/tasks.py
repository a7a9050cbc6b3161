"""Tasks with the same class names for both libraries, because a request contains only the name.

They are TaskFlow tasks in a process with `WBENGINE_TEST_SIDE=taskflow`, otherwise wbengine tasks.
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

#: Variable that selects the library of the tasks in this process.
SIDE = "WBENGINE_TEST_SIDE"

if TYPE_CHECKING or os.environ.get(SIDE) != "taskflow":
    from wbengine import task
else:
    from taskflow import task

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOON = dt.datetime(2026, 1, 2, 12, 30, tzinfo=dt.UTC)

#: Values that must be equal on both sides of the connection.
VALUES: dict[str, Any] = {
    "text": "é\u2028\U0001f600",
    "numbers": [0, -1, 2**70, 1.5, True, None],
    "nested": {"a": [{"b": []}]},
    "when": [NOON, NOON.date(), NOON.time()],
    "price": decimal.Decimal("1.10"),
    "id": ID,
    "bytes": [b"ab", b"\xff\x00"],
}


class Add(task.Task):
    default_provides = "sum"

    def execute(self, x: int, y: int) -> int:
        return x + y


class Swap(task.Task):
    """Return the arguments after checking their JSON form: lists for tuples, text keys."""

    default_provides = "swapped"

    def execute(self, values: dict[str, Any], pair: Any, odd: Any) -> Any:
        assert values == VALUES, values
        assert pair == [1, [2, 3]] and odd == {"1": "one", "null": "none"}, (pair, odd)
        return {"values": values, "pair": (4, (5, 6)), "odd": {2: "two", True: "yes"}}


class Steps(task.Task):
    default_provides = "steps"

    def execute(self) -> str:
        for step in range(1, 5):
            self.update_progress(step / 4)
        return "done"


class Note(task.Task):
    """Write a line when it executes and when it is reverted."""

    default_provides = "noted"

    def execute(self, path: str) -> dict[str, Any]:
        note(path, f"{self.name} ran")
        return {"of": self.name, "n": [1, 2]}

    def revert(self, path: str, result: Any, flow_failures: dict[str, Any]) -> None:
        failures = ", ".join(
            f"{name}: {failure.exception_str} {next(iter(failure))}"
            f" {'raise ValueError' in failure.traceback_str}"
            for name, failure in sorted(flow_failures.items())
        )
        shown = result if isinstance(result, dict) else f"a failure: {result.exception_str}"
        note(path, f"{self.name} undone of {shown} because of {failures}")


class Fails(Note):
    default_provides = None

    def execute(self, path: str) -> None:
        try:
            {}["absent"]
        except KeyError as error:
            raise ValueError("no such luck", 7) from error


class Rests(task.Task):
    default_provides = "rested"

    def execute(self, seconds: float, path: str | None = None) -> str:
        if path is not None:
            note(path, f"{self.name} runs in {os.getpid()}")
        time.sleep(seconds)
        return self.name


class Holds(task.Task):
    """Write a line, then wait for a file."""

    default_provides = "held"

    def execute(self, path: str, go: str) -> str:
        note(path, f"{self.name} runs")
        while not os.path.exists(go):
            time.sleep(0.01)
        return self.name


class Where(task.Task):
    default_provides = "where"

    def execute(self, seconds: float = 0.0) -> list[Any]:
        time.sleep(seconds)
        return [os.getpid(), task.__name__.partition(".")[0]]


class Exits(task.Task):
    def execute(self) -> None:
        raise SystemExit(3)


class Odd(task.Task):
    def execute(self) -> Any:
        return {"things": [1, print]}


class Flaky(task.Task):
    """Fail in the first two attempts."""

    default_provides = "flaky"

    def execute(self, path: str) -> int:
        note(path, f"{self.name} ran")
        times = Path(path).read_text(encoding="utf-8").count(f"{self.name} ran")
        if times < 3:
            raise RuntimeError(f"time {times}")
        return times

    def revert(self, path: str, result: Any, flow_failures: Any) -> None:
        note(path, f"{self.name} undone")


def note(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


class Limited(task.Task):
    """Exceed a time limit, which only wbengine workers support."""

    timelimit = 0.3, None

    def execute(self) -> None:
        for _ in range(500):
            time.sleep(0.01)
