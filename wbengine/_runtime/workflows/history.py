"""The recorded steps of one attempt of a workflow, and the order of their completions.

This module reads no store and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from wbengine import exceptions
from wbengine._tasks.commands import Command
from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote

__all__ = ["History", "RecordedStep"]


class RecordedStep(NamedTuple):
    record: models.TaskDetail
    note: StepNote


class History:
    """The steps of an attempt, and the completions that its function has not received.

    A function that is called again must call the recorded steps in the same order. It receives
    their completions in the recorded order, one at a time, and then the new ones.

    :param name: the name of the workflow, for messages.
    :param recorded: the steps of the attempt.
    """

    def __init__(self, name: str, recorded: Iterable[RecordedStep]) -> None:
        self._name = name
        self.steps: dict[int, RecordedStep] = {step.note.position: step for step in recorded}
        complete = [step.note for step in self.steps.values() if step.note.completed is not None]
        complete.sort(key=lambda note: note.completed or 0)
        self._undelivered = deque(note.position for note in complete)
        # Number of recorded completions in `_undelivered`.
        self._left_to_replay = len(complete)
        #: Number of completions that the function has received.
        self.received = 0
        self._latest_number = complete[-1].completed or 0 if complete else 0
        self._recorded_end = max(self.steps, default=-1) + 1

    def is_replaying(self, position: int) -> bool:
        """Return whether an earlier call of the function has passed the current point.

        :param position: position of the step that the function calls next.
        """
        return self._left_to_replay > 0 or position < self._recorded_end

    def check(self, position: int, command: Command) -> None:
        """Check that the function repeats the recorded step.

        :raises NonDeterministicWorkflow: if another step is recorded at this position.
        """
        step = self.steps.get(position)
        if step is None:
            return
        note = step.note
        if (note.task, note.digest) != (command.path, command.digest):
            recorded = _call_text(note.task, note.text)
            actual = _call_text(command.path, command.text)
            other = " with other values" if recorded == actual else ""
            raise self._differs(position, recorded, f"is now {actual}{other}")

    def check_end(self, position: int) -> None:
        """Check that the function may end before it calls the step at `position`.

        :raises NonDeterministicWorkflow: if a step is recorded there, or later.
        """
        if position < self._recorded_end:
            missing = min(each for each in self.steps if each >= position)
            raise self._not_called(missing)

    def complete(self, position: int) -> int:
        """Add a new completion; return its number."""
        self._latest_number += 1
        self._undelivered.append(position)
        return self._latest_number

    @property
    def has_completions(self) -> bool:
        return bool(self._undelivered)

    def take_completion(self, called: int) -> int:
        """Remove and return the position of the next completion.

        :param called: number of steps that the function has called.
        :raises NonDeterministicWorkflow: if the function has not called this step.
        """
        position = self._undelivered.popleft()
        if position >= called:
            raise self._not_called(position)
        self._left_to_replay = max(0, self._left_to_replay - 1)
        self.received += 1
        return position

    def _not_called(self, position: int) -> exceptions.NonDeterministicWorkflow:
        note = self.steps[position].note
        return self._differs(position, _call_text(note.task, note.text), "is not called any more")

    def _differs(
        self, position: int, recorded: str, actual: str
    ) -> exceptions.NonDeterministicWorkflow:
        return exceptions.NonDeterministicWorkflow(
            f"Workflow {self._name!r} must call the same steps as before: step {position} is"
            f" recorded as {recorded} and {actual}. If the code has changed, restore it and resume"
            " the flow, or make the change depend on steps.version(). Otherwise the function uses"
            " something that a replay does not repeat, for example the time, random numbers or the"
            " order of a set",
            workflow=self._name,
            step=position,
            recorded=recorded,
            actual=actual,
        )


def _call_text(path: str, text: str) -> str:
    return f"{path}({text})"
