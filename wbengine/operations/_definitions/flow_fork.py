"""The operation `flow fork`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from wbengine import states
from wbengine.operations import _forking
from wbengine.operations import _operation as op
from wbengine.persistence._edits import Edits

_Start = Annotated[
    str,
    op.Parameter(
        "The task or step from which the fork runs: its name, the position of a step, both"
        " (`7-charge`), or `failed` for the first one that failed.",
        {"type": "string", "minLength": 1},
        shown=op.Shown(option="--from", metavar="TASK|STEP"),
    ),
]
_Inputs = Annotated[
    Mapping[str, Any] | None,
    op.Parameter(
        "Inputs to replace, by name.",
        {"type": "object"},
        shown=op.Shown(option="--set", metavar="NAME=JSON|@FILE", is_assignment=True),
        role=op.EDITOR,
    ),
]
_Results = Annotated[
    Mapping[str, Any] | None,
    op.Parameter(
        "Inherited results to replace, by the name of the task or step.",
        {"type": "object"},
        shown=op.Shown(option="--set-result", metavar="STEP=JSON|@FILE", is_assignment=True),
        role=op.EDITOR,
    ),
]
_Own = Annotated[
    bool,
    op.Parameter(
        "The fork reverts the inherited results, and the original flow does not any more.",
        {"type": "boolean"},
    ),
]
_Undo = Annotated[
    bool,
    op.Parameter(
        "The original flow first reverts what it did after this point; then the fork starts. It"
        " owns the inherited results.",
        {"type": "boolean"},
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={
        "uuid": {"type": "string", "description": "The uuid of the original flow."},
        "fork": {"type": "string", "description": "The uuid of the new flow."},
        "start": {"type": "string"},
        "inherited": {"type": "integer", "description": "Number of inherited results."},
    },
    many=op.Many(
        (states.FAILURE, states.REVERTED, states.SUCCESS),
        "forked",
        "that have ended",
        omits_children=True,
        omits_forked=True,
        omits_forks=True,
    ),
    command=op.Command(
        (
            "3f2a9c --from ship",
            "3f2a9c --from failed --set 'card=\"4111\"'",
            "--from failed --state FAILURE --since 2h --tag release=42",
        ),
        line="{uuid}: forked from {start} as {fork}",
    ),
    button=op.Button("Run again from", "The flow was forked."),
)
def fork(
    scope: op.Scope,
    flow: op.FlowId,
    start: _Start,
    inputs: _Inputs = None,
    results: _Results = None,
    own: _Own = False,
    undo: _Undo = False,
    reason: op.Reason = None,
) -> dict[str, Any]:
    """Run a submitted flow again from a task or step, in a new flow.

    The new flow inherits the results before this point, and does not revert them, unless it owns
    them. The original flow stays as it is.
    """
    edits = Edits(dict(inputs or {}), dict(results or {}))
    forked = _forking.fork(
        scope.backend,
        flow,
        start,
        edits=edits or None,
        own=own,
        undo=undo,
        reason=reason,
        by=scope.by,
    )
    return {
        "uuid": flow,
        "fork": forked.uuid,
        "start": forked.start,
        "inherited": forked.inherited,
    }
