"""A step of a workflow, in one run."""

from __future__ import annotations

from collections.abc import Mapping

from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote
from wbengine.task import Task

__all__ = ["Step"]


class Step:
    """A step with its record.

    :ivar task: None for the reversion of a scope, and if no imported module contains the task.
    :ivar arguments: arguments of the task; None if the step is complete, or the function has not
        called it in this run. In the latter case the step cannot be executed, but the executor may
        find an earlier result.
    :ivar may_have_run: whether an execution of an earlier run, which has no result, was
        interrupted. The executor cannot find a result of it.
    """

    __slots__ = ("arguments", "may_have_run", "note", "record", "task")

    def __init__(
        self,
        record: models.TaskDetail,
        note: StepNote,
        task: Task | None,
        arguments: Mapping[str, object] | None,
    ) -> None:
        self.record = record
        self.note = note
        self.task = task
        self.arguments = arguments
        self.may_have_run = False
        if task is not None:
            task.name = record.name

    @property
    def position(self) -> int:
        return self.note.position

    @property
    def is_complete(self) -> bool:
        return self.note.completed is not None
