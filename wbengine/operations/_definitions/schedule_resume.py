"""The operation `schedule resume`."""

from __future__ import annotations

from typing import Any

from wbengine.operations import _operation as op
from wbengine.schedules import Schedules
from wbengine.views import _formatting


@op.operation(
    role=op.OPERATOR,
    result={
        "schedule": {"type": "string"},
        "next": {"type": ["string", "null"], "description": "The time of the next firing."},
    },
    command=op.Command(("nightly",), note="{schedule} fires next at {next}"),
    button=op.Button(notice="The schedule is resumed."),
)
def resume(scope: op.Scope, schedule: op.ScheduleName) -> dict[str, Any]:
    """Resume a paused schedule from its next time on."""
    schedules = Schedules(scope.backend)
    schedules.resume(schedule)
    return {"schedule": schedule, "next": _formatting.iso(schedules.get(schedule).fires_at)}
