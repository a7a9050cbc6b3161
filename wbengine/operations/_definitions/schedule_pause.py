"""The operation `schedule pause`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules


@op.operation(role=op.OPERATOR, result={"schedule": {"type": "string"}})
def pause(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Pause a schedule. Ticks during the pause are not caught up."""
    Schedules(scope.backend).pause(schedule)
    return {"schedule": schedule}
