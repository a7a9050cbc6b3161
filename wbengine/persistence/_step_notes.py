"""Data that the record of a workflow's step contains in addition to that of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from wbengine._security import keys
from wbengine.persistence import _macs, models

__all__ = ["StepNote"]


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
    :ivar limit: text that describes the limit of the task.
    :ivar signal: stored name of the signal that the step received.
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

    def store(
        self, record: models.AtomDetail, flow_uuid: str, keyring: keys.Keyring | None
    ) -> None:
        """Set the note in a record of a flow, signed if there are keys."""
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
        if keyring is not None:
            content = _macs.signed_step(flow_uuid, record, content, keyring)
        record.set_meta_value(models.STEP, content)

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
}
_REQUIRED: Final = frozenset(("workflow", "attempt", "position", "task", "digest"))
