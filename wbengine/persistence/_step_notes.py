"""Data that the record of a workflow's step contains in addition to that of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine.persistence import models
from wbengine.types import failure as ft

__all__ = [
    "ORIGIN",
    "VERSIONS",
    "VERSION_POSITIONS",
    "StepNote",
    "failed_steps",
    "identity_of",
    "seed_of",
]

#: Keys of `meta["workflow"]`: versions by change (`steps.version`), and the positions of decisions.
VERSIONS: Final = "versions"
VERSION_POSITIONS: Final = "version_positions"
#: Key of `meta["workflow"]` of a fork that inherited steps: a dict with the `start` of the attempt
#: in which they ran (Unix seconds) and the `seeds` of its random values, as pairs of a number of
#: called steps, until which the seed is used, and the seed.
ORIGIN: Final = "origin"


def seed_of(workflow: str, attempt: int) -> str:
    """Return the seed of the random values of a workflow (uuid of its record) in an attempt."""
    return f"{workflow} {attempt}"


@dataclasses.dataclass(slots=True)
class StepNote:
    """The place of a step in its workflow. It is stored in the `meta` of the step's record.

    :ivar workflow: uuid of the workflow's record.
    :ivar attempt: attempt of the workflow.
    :ivar position: number of the step in this attempt, from 0, in the order of the calls.
    :ivar task: the task as `module:name`, or "revert-scope" for the reversion of a scope.
    :ivar digest: digest of the arguments; "" without arguments.
    :ivar text: start of the arguments as JSON, with masked secrets, for messages.
    :ivar arguments: arguments of `revert`; None: the task has no `revert`.
    :ivar completed: number of the completion, from 1. None: the step is not complete.
    :ivar at: time of the completion in Unix seconds, on the clock of the engine.
    :ivar failures: number of failed executions, if the task has `retries`.
    :ivar first_start: start of the first execution that failed, as `at`, if the task has
        `retry_for`.
    :ivar after: of a child flow, the number of completions received when the function called it.
    :ivar limit: text that describes the limit of the task.
    :ivar signal: stored name of the signal that the step received.
    :ivar discarded: stored names of the signals that the step discarded.
    :ivar reverted: time of the reversion of a step without a call of `revert`, as `at`.
    """

    workflow: str
    attempt: int
    position: int
    task: str
    digest: str
    text: str = ""
    arguments: Mapping[str, Any] | None = None
    completed: int | None = None
    at: float | None = None
    failures: int = 0
    limit: str | None = None
    signal: str | None = None
    discarded: Sequence[str] = ()
    reverted: float | None = None
    first_start: float | None = None
    after: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the note in a record, without values that are not set."""
        content: dict[str, Any] = {
            "workflow": self.workflow,
            "attempt": self.attempt,
            "position": self.position,
            "task": self.task,
            "digest": self.digest,
        }
        if self.text:
            content["text"] = self.text
        if self.arguments is not None:
            content["arguments"] = self.arguments
        if self.completed is not None:
            content["completed"], content["at"] = self.completed, self.at
        if self.failures:
            content["failures"] = self.failures
        if self.limit is not None:
            content["limit"] = self.limit
        if self.signal is not None:
            content["signal"] = self.signal
        if self.discarded:
            content["discarded"] = list(self.discarded)
        if self.reverted is not None:
            content["reverted"] = self.reverted
        if self.first_start is not None:
            content["first_start"] = self.first_start
        if self.after is not None:
            content["after"] = self.after
        return content

    def short_name(self, name: str) -> str:
        """Return the name of a step without those of the workflow, its attempt and the position.

        :param name: the name of the record.
        """
        _, found, short_name = name.partition(f"/{self.attempt}.{self.position}-")
        # Long names are stored without their end.
        return short_name if found and short_name else self.task.rpartition(":")[2]

    @classmethod
    def of(cls, record: models.AtomDetail) -> StepNote | None:
        """Return the note of a record, or None if it is missing or damaged."""
        content = record.meta_value(models.STEP)
        if not isinstance(content, Mapping):
            return None
        values = {name: content[name] for name in _TYPES if name in content}
        if not all(isinstance(value, _TYPES[name]) for name, value in values.items()):
            return None
        return cls(**values) if values.keys() >= _REQUIRED else None


_TYPES: Final[Mapping[str, Any]] = {
    "workflow": str,
    "attempt": int,
    "position": int,
    "task": str,
    "digest": str,
    "text": str,
    "arguments": Mapping,
    "completed": int,
    "at": float,
    "failures": int,
    "limit": str,
    "signal": str,
    "discarded": list,
    "reverted": float,
    "first_start": float,
    "after": int,
}
_REQUIRED: Final = frozenset(("workflow", "attempt", "position", "task", "digest"))


def failed_steps(
    steps: Iterable[models.AtomDetail], flow: models.FlowDetail
) -> dict[str, models.AtomDetail]:
    """Return the steps that raised the exceptions of failed workflows, by uuid of the workflow.

    A step raised the exception if its failure is that of the workflow or a cause of it. Of several,
    the latest one is returned.
    """
    latest: dict[str, tuple[tuple[int, int], models.AtomDetail]] = {}
    for record in steps:
        note = None if record.failure is None else StepNote.of(record)
        workflow = None if note is None else flow.find(note.workflow)
        if note is None or workflow is None or workflow.failure is None:
            continue
        place = note.attempt, note.completed or 0
        raised = (workflow.failure, *workflow.failure.causes)
        if identity_of(record.failure) in map(identity_of, raised) and (
            note.workflow not in latest or place > latest[note.workflow][0]
        ):
            latest[note.workflow] = place, record
    return {workflow: record for workflow, (_, record) in latest.items()}


def identity_of(failure: ft.Failure | None) -> object:
    """Return what a failure has in common with the copy of it in another record.

    The base classes are not compared: an exception that is raised again without its object has
    another one.
    """
    return None if failure is None else (next(iter(failure), None), failure.exception_str)
