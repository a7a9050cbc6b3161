"""The operation `jobs resume`."""

from __future__ import annotations

from typing import Any

from wbengine.jobs._queues import JobQueues
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
    JobQueues(scope.backend).resume(name)
    return {"name": name}
