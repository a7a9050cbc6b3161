"""Workflows whose steps kill their worker or wait at gates. They record their runs in a file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.resuming_tasks import note, wait_at
from wbengine import exceptions, task
from wbengine.steps import AsyncSteps, Steps


def note_and_die(folder: str, what: str, mortal: bool) -> None:
    """Record a run. If the task is mortal, kill its first worker."""
    note(folder, what)
    killed = Path(folder, f"killed-{what}")
    if mortal and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@task.task(idempotent=True)
def repeatable(folder: str, mortal: bool = False) -> str:
    note_and_die(folder, "repeatable", mortal)
    return "repeated"


@task.task(idempotent=False)
def once(folder: str, mortal: bool = False) -> str:
    note_and_die(folder, "once", mortal)
    return "done once"


@once.revert(failed=True)
def undo_once(folder: str) -> None:
    note(folder, "undo-once")


@task.task(idempotent=True)
def mortal_undo(folder: str) -> None:
    note(folder, "mortal")


@mortal_undo.revert
def undo_mortal(folder: str) -> None:
    note_and_die(folder, "undo-mortal", True)


@task.task(idempotent=False)
def mortal_undo_once(folder: str) -> None:
    note(folder, "mortal")


@mortal_undo_once.revert
def undo_mortal_once(folder: str) -> None:
    note_and_die(folder, "undo-mortal", True)


@task.task
def gated(number: int, folder: str) -> int:
    note(folder, f"step-{number}")
    wait_at(folder, f"gate-{number}")
    return number


@gated.revert
def undo_gated(number: int, folder: str) -> None:
    note(folder, f"undo-{number}")


@task.task
def fail() -> None:
    raise ValueError("no")


@task.workflow
def resent(steps: Steps, folder: str) -> list[str]:
    return [steps.run(repeatable, folder, mortal=True), steps.run(once, folder)]


@task.workflow
async def lost(steps: AsyncSteps, folder: str) -> list[str]:
    try:
        await steps.run(once, folder, mortal=True)
    except exceptions.WorkerLost:
        return ["lost", await steps.run(repeatable, folder)]
    return []


@task.workflow
def given_up(steps: Steps, folder: str) -> None:
    steps.run(repeatable, folder)
    steps.run(once, folder, mortal=True)


@task.workflow
def undone(steps: Steps, folder: str, repeats: bool) -> None:
    steps.run(once, folder)
    steps.run(mortal_undo if repeats else mortal_undo_once, folder)
    steps.run(fail)


@task.workflow
async def gates(steps: AsyncSteps, folder: str) -> list[int]:
    first = await steps.run(gated, 0, folder)
    return [first, *await steps.map(gated, [1, 2], folder=folder)]


@task.workflow
def waits(steps: Steps, folder: str) -> int:
    steps.run(gated, 0, folder)
    steps.sleep(1)
    return steps.run(gated, steps.wait_for("approved"), folder)


@task.task
def limit_of(self: task.Task, folder: str) -> bool:
    """Return whether the worker knows a deadline of this execution."""
    assert self.request is not None
    return self.request.deadline is not None


@task.workflow
def compare_limits(steps: Steps, folder: str) -> list[bool]:
    limited = steps.run(limit_of.options(timelimit=60), folder)
    return [limited, steps.run(limit_of, folder)]


@task.workflow
def continued_on_workers(steps: Steps, folder: str, number: int = 0) -> int:
    steps.run(repeatable, folder, mortal=number == 1)
    if number < 3:
        steps.continue_as_new(number=number + 1)
    return number
