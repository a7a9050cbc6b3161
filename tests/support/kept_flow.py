"""A flow that is made by a factory, for processes that go on with what others left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow


class Add(task.Task):
    default_provides = "sum"

    def __init__(self, numbers: list[int]) -> None:
        super().__init__("add")
        self.numbers = numbers

    def execute(self) -> int:
        return sum(self.numbers)


class Dies(task.Task):
    """Leaves a line, and ends the process unless there is a file `go`."""

    default_provides = "end"

    def execute(self, sum: int, folder: str) -> str:
        with (Path(folder) / "log").open("a") as log:
            log.write(f"{sum}\n")
        if not (Path(folder) / "go").exists():
            os._exit(9)
        return "done"


def make(numbers: list[int], *, label: str = "") -> Any:
    return linear_flow.Flow(f"sum {label}").add(Add(numbers), Dies("dies"))
