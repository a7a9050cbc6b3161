"""The operation `schedule resume`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(role=op.OPERATOR, result={"schedule": {"type": "string"}})
def resume(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Resume a paused schedule. Ticks that were due before the pause are still due."""
    Schedules(scope.backend).resume(schedule)
    return {"schedule": schedule}
