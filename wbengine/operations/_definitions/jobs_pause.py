"""The operation `jobs pause`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.jobs import _queue_access
from wbengine.operations import _operation as op
from wbengine.operations._job_queues import JobQueueName
from wbengine.persistence._pauses import MAX_REASON_CHARACTERS

_Reason = Annotated[
    str | None,
    op.Parameter(
        "Reason, stored with the pause.", {"type": "string", "maxLength": MAX_REASON_CHARACTERS}
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={"name": {"type": "string"}},
    command=op.Command(
        ("reports --reason 'the bank is down'", "'*'"),
        line="{name}: paused",
        guide="to resume it: wbengine jobs resume '{name}'",
        creates_store=True,
    ),
    button=op.Button(notice="The queue is paused."),
)
def pause(scope: op.Scope, name: JobQueueName, reason: _Reason = None) -> dict[str, Any]:
    """Pause a queue of flows: conductors take no more flows of it.

    Flows that run continue, and submissions are accepted. `*` pauses all queues, for example after
    an incident.
    """
    with _queue_access.opened(scope.backend, scope.board) as queues:
        queues.pause(name, reason=reason, by=scope.by)
    return {"name": name}
