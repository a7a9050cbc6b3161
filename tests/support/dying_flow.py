"""A flow with a factory, for processes that resume flows of other processes."""

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
    """Appends a line to a log, and ends the process unless a file `go` exists."""

    default_provides = "end"

    def execute(self, sum: int, folder: str) -> str:
        with (Path(folder) / "log").open("a") as log:
            log.write(f"{sum}\n")
        if not (Path(folder) / "go").exists():
            os._exit(9)
        return "done"


def make(numbers: list[int], *, label: str = "") -> Any:
    return linear_flow.Flow(f"sum {label}").add(Add(numbers), Dies("dies"))
