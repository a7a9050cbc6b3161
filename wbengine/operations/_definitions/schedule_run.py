"""The operation `schedule run`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(role=op.OPERATOR, result={"schedule": {"type": "string"}, "uuid": {"type": "string"}})
def run(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Fire a schedule once now, in addition to its ticks.

    A conductor (`wbengine serve`) starts the flow with this uuid, also if the schedule is paused.
    Until then, a second request returns the same uuid.
    """
    return {"schedule": schedule, "uuid": Schedules(scope.backend).run(schedule)}
