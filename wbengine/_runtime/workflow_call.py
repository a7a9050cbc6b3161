"""Calls of workflows, and the numbers of their attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from wbengine import states, task
from wbengine._calls import invocation as calls
from wbengine.persistence import models

__all__ = [
    "WorkflowCall",
    "is_step",
    "latest_execution",
    "number_attempt",
    "number_continued_attempt",
]

#: Key of `meta["workflow"]`: the number of the latest execution of the workflow.
_ATTEMPT: Final = "attempt"

_EXECUTING: Final = frozenset({states.RUNNING, states.PENDING})
_REVERTING: Final = frozenset({states.REVERTING, states.SUCCESS, states.FAILURE})


class WorkflowCall(NamedTuple):
    """A workflow that is about to be executed or reverted."""

    node: int
    task: task.Workflow
    action: calls.Action
    record: models.AtomDetail
    arguments: Mapping[str, Any] = calls.NO_ARGUMENTS


def is_step(call: object) -> TypeGuard[calls.Invocation]:
    """Return whether a call executes or reverts a step of a workflow."""
    return isinstance(call, calls.Invocation) and call.step is not None


def number_attempt(record: models.AtomDetail, action: calls.Action) -> None:
    """Set the attempt number of a workflow, unless an unfinished attempt continues.

    As for tasks, each execution and each reversion is an attempt.
    """
    is_execution = record.meta_value(models.WORKFLOW) is not None and (
        latest_execution(record) == record.attempt
    )
    if action == calls.EXECUTE:
        continues = record.state in _EXECUTING and is_execution
    else:
        continues = record.state in _REVERTING and not is_execution
    # A reversion that failed, and is to run again, has ended.
    if continues and record.action == action and record.attempt and record.ended is None:
        return
    record.archive_attempt()
    record.attempt += 1
    record.epoch = 1
    if action == calls.EXECUTE:
        record.meta[models.WORKFLOW] = {_ATTEMPT: record.attempt}
    else:
        record.reversions += 1


def number_continued_attempt(record: models.AtomDetail, now: float) -> None:
    """Begin the next attempt of an execution that continues as new. Published values stay."""
    published = (record.meta_value(models.WORKFLOW) or {}).get(models.PUBLISHED)
    record.ended = now
    record.archive_attempt()
    record.attempt += 1
    record.epoch = 1
    record.submitted = record.started = now
    record.ended = None
    record.meta[models.WORKFLOW] = {_ATTEMPT: record.attempt}
    if published:
        record.meta[models.WORKFLOW][models.PUBLISHED] = published


def latest_execution(record: models.AtomDetail) -> int:
    """Return the attempt number of the latest execution. A reversion reverts its steps."""
    content = record.meta_value(models.WORKFLOW)
    number = content.get(_ATTEMPT) if isinstance(content, Mapping) else None
    return number if isinstance(number, int) else record.attempt
