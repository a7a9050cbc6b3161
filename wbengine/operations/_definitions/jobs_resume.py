"""The operation `jobs resume`."""

from __future__ import annotations

from typing import Any

from wbengine.jobs import _queue_access
from wbengine.operations import _operation as op
from wbengine.operations._job_queues import JobQueueName


@op.operation(
    role=op.OPERATOR,
    result={"name": {"type": "string"}},
    command=op.Command(("reports", "'*'"), line="{name}: resumed"),
    button=op.Button(notice="The queue is resumed."),
)
def resume(scope: op.Scope, name: JobQueueName) -> dict[str, Any]:
    """Resume a paused queue of flows: conductors take its flows again.

    The name is that of the pause: a pause of `*` ends with `*`.
    """
    with _queue_access.opened(scope.backend, scope.board) as queues:
        queues.resume(name)
    return {"name": name}
