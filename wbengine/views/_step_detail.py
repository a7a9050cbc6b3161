"""The view of one step of a workflow with all its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from wbengine import exceptions
from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote
from wbengine.types import codec
from wbengine.views._atoms import AtomView
from wbengine.views._record_views import RecordViews
from wbengine.views._steps import view_of
from wbengine.views.flow_status import FlowView
from wbengine.views.redaction import Redactor

__all__ = ["StepDetail", "arguments_of", "detail_of"]


class StepDetail(NamedTuple):
    """A step of a workflow.

    :ivar atom: its state, attempts, failures and result.
    :ivar workflow: the workflow, or None if it was removed from the flow.
    :ivar attempt: attempt of the workflow.
    :ivar position: number of the step in this attempt, from 0.
    :ivar inputs: redacted arguments by name.
    :ivar has_more_inputs: whether the record does not contain all arguments.
    """

    atom: AtomView
    workflow: AtomView | None
    attempt: int
    position: int
    inputs: Mapping[str, Any]
    has_more_inputs: bool


def detail_of(record: models.AtomDetail, view: FlowView, redactor: Redactor) -> StepDetail | None:
    """Return the view of a step; None if the record is not that of a step.

    :param view: a view of the flow.
    :param redactor: a redactor with the secrets of the flow.
    """
    note = StepNote.of(record)
    if note is None:
        return None
    assert view.situation is not None
    step, reason = view_of(record, note, redactor, view.situation)
    parts, workflow = RecordViews(redactor), view.atom(note.workflow)
    path = () if workflow is None else (*workflow.path, workflow.name)
    has_result = record.failure is None and record.results is not None
    atom = AtomView(
        -1 if workflow is None else workflow.node,
        record.uuid,
        step.name,
        "step",
        path,
        redactor.text(note.task.replace(":", ".")),
        step.state,
        record.intention,
        record.attempt,
        record.action,
        step.worker,
        record.submitted,
        record.started,
        record.ended,
        attempts=parts.attempts(record),
        attempts_dropped=record.attempts_dropped,
        executions=record.executions,
        reversions=record.reversions,
        failure=parts.failure(record, step.name),
        revert_failure=parts.revert_failure(record, step.name),
        # A reverted step keeps its result.
        result=redactor.result(record.results, record.name) if has_result else None,
        waiting=None if reason is None else redactor.text(reason.text),
        queued=step.queued,
        incidents=parts.incidents(record),
        gate=None if reason is None else reason.gate,
        inherited=record.inherited_from,
    )
    arguments, is_complete = arguments_of(note)
    inputs = {
        redactor.text(str(name)): redactor.value(value, name) for name, value in arguments.items()
    }
    return StepDetail(atom, workflow, note.attempt, note.position, inputs, not is_complete)


def arguments_of(note: StepNote) -> tuple[Mapping[str, Any], bool]:
    """Return the arguments in the note of a step, and whether these are all.

    A note contains all arguments if the task has a `revert`, otherwise the start of their JSON. The
    last, incomplete one is omitted, because the start of a secret would not be masked.
    """
    if note.arguments is not None:
        return note.arguments, True
    decoder, text, position = json.JSONDecoder(), note.text, 0
    arguments: dict[str, Any] = {}
    try:
        while position < len(text) and text[position] in "{,":
            name, end = decoder.raw_decode(text, position + 1)
            value, position = decoder.raw_decode(text, end + 1)
            if text[position : position + 1] in (",", "}"):
                arguments[name] = value
        decoded = codec.loads(json.dumps(arguments).encode())
    except (ValueError, TypeError, exceptions.WbengineException):
        return arguments, False
    return decoded, text[position:] in ("", "}")
