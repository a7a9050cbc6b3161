"""The operation `flow annotate`."""

from __future__ import annotations

import time
from typing import Annotated, Any

from wbengine.operations import _changing
from wbengine.operations import _operation as op

_Text = Annotated[
    str,
    op.Parameter(
        "The text of the note.",
        {"type": "string", "minLength": 1, "maxLength": 2000},
        shown=op.Shown(is_argument=True),
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={"uuid": {"type": "string"}, "at": {"type": "number", "description": "Unix time."}},
    many=op.Many(
        _changing.STATES,
        "annotated",
        "that no engine runs",
    ),
    command=op.Command(
        ("3f2a9c 'called the bank: ticket 4711'", "'known error' --error 'card declined'"),
        line="{name} {uuid}: note added",
    ),
    button=op.Button("Add note", "The note is among the events."),
)
def annotate(scope: op.Scope, flow: op.FlowId, text: _Text) -> dict[str, Any]:
    """Add a note to the events of a flow.

    `wbengine flow events` and the dashboard show the latest 50 notes with their times and authors.
    An engine must not run the flow.
    """
    at = time.time()
    with _changing.changing(scope.backend, flow) as detail:
        detail.add_note(at, text, scope.by)
    return {"uuid": flow, "at": at}
