"""Flows that make conditions of the alerts true. Files in `folder` control them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow


@task.task
def fail() -> None:
    raise ValueError("in vain")


@task.task
def stuck() -> str:
    return "done"


@stuck.revert
def keep_stuck() -> None:
    raise RuntimeError("cannot be undone")


@task.task
def hold(folder: str) -> None:
    """Wait until the file `go` exists."""
    while not Path(folder, "go").exists():
        time.sleep(0.02)
    time.sleep(0.02)


@task.task
def unknown() -> None:
    """Do nothing: no worker offers this task."""


def failing() -> Any:
    return linear_flow.Flow("failing").add(stuck("stuck"), fail("fail"))


def holding(folder: str, tasks: int = 40) -> Any:
    return unordered_flow.Flow("holding").add(
        *(hold(f"hold-{number}", inject={"folder": folder}) for number in range(tasks))
    )


def unserved() -> Any:
    return linear_flow.Flow("unserved").add(unknown("unknown"))
