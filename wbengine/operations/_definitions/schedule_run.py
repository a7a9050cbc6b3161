"""The operation `schedule run`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(
    role=op.OPERATOR,
    result={"schedule": {"type": "string"}, "uuid": {"type": "string"}},
    command=op.Command(("nightly",), line="{uuid}"),
    button=op.Button("Run now", "A `wbengine serve` process will fire the schedule once."),
)
def run(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Fire a schedule once, now.

    The result is the uuid of the flow, which `wbengine serve` then submits; until then, a second
    request has the same result. The planned times do not change. The schedule may be paused.
    """
    return {"schedule": schedule, "uuid": Schedules(scope.backend).run(schedule)}
