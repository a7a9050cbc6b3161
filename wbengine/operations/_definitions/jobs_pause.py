"""The operation `jobs pause`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine._introspection import object_names
from wbengine.jobs import _queue_access
from wbengine.jobs._places import ALL_QUEUES
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
    result={
        "name": {"type": "string"},
        "warning": {
            "type": ["string", "null"],
            "description": "Set if the queue has no flows, and no conductor serves it.",
        },
    },
    command=op.Command(
        ("reports --reason 'the bank is down'", "'*'"),
        line="{name}: paused",
        note=lambda values: values["warning"] or "",
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
        known_names = [ALL_QUEUES, *(queue.name for queue in queues.all())]
        queues.pause(name, reason=reason, by=scope.by)
    warning = None
    if name not in known_names:
        hint = object_names.hint(name, known_names)
        warning = f"no flow is in queue {name!r}, and no conductor serves it{hint}"
    return {"name": name, "warning": warning}
