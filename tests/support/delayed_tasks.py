"""Flows with tasks that wait for their `eta`: `tests.support.delayed_tasks:graph`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support import conducted
from wbengine import task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.steps import Steps


class Notes(task.Task):
    """Records its name and time in a file."""

    def execute(self, folder: str) -> None:
        conducted.note(folder, f"{self.name} {time.time()!r}")


class NotesItem(Notes):
    def execute(self, item: int, folder: str) -> None:
        super().execute(folder)


@task.task
def note_step(folder: str, name: str) -> None:
    conducted.note(folder, f"{name} {time.time()!r}")


@task.task
def note_late(folder: str) -> None:
    conducted.note(folder, f"late {time.time()!r}")


@task.task
def fail_once(folder: str) -> None:
    """Record the second execution as 'late'."""
    if not conducted.notes(Path(folder), "failures"):
        conducted.note(folder, "failed", "failures")
        raise ValueError("fails once")
    conducted.note(folder, f"late {time.time()!r}")


def _late(seconds: float | None, item: Any) -> Any:
    item.eta = seconds
    return item


def graph(seconds: float) -> linear_flow.Flow:
    late = _late(seconds, Notes("late"))
    return linear_flow.Flow("graph").add(Notes("first"), late, Notes("last"))


def signalled(seconds: float) -> unordered_flow.Flow:
    late = _late(seconds, Notes("late"))
    waits = [task.WaitFor(name, timeout=3600) for name in ("one", "two")]
    return unordered_flow.Flow("signalled").add(late, *waits)


def limited(name: str, seconds: float | None) -> linear_flow.Flow:
    """Return a flow of a task that needs the only permit of a limit."""
    only = _late(seconds, Notes(name))
    only.concurrency, only.limit = 1, "only"
    return linear_flow.Flow(name).add(only)


def items(seconds: float) -> linear_flow.Flow:
    late = task.Map(_late(seconds, NotesItem("late")), over="numbers")
    return linear_flow.Flow("items").add(late)


@task.workflow
def workflow(steps: Steps, folder: str, seconds: float) -> None:
    steps.run(note_step, folder, "first")
    steps.run(note_late.options(eta=seconds), folder)
    steps.run(note_step, folder, "last")


@task.workflow
def backoff(steps: Steps, folder: str, seconds: float) -> None:
    steps.run(note_step, folder, "first")
    steps.run(fail_once.options(retries=1, backoff=seconds), folder)
    steps.run(note_step, folder, "last")
