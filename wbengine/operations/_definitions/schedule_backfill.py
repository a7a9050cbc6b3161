"""The operation `schedule backfill`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine._text import timestamps
from wbengine.jobs import base as jobs
from wbengine.operations import _allowed_flows
from wbengine.operations import _operation as op
from wbengine.schedules import Schedules
from wbengine.views import _formatting

_FromTime = Annotated[
    str,
    op.Parameter(
        "First time, such as 2026-11-01T08:00 (UTC) or 7d (before now).",
        timestamps.SCHEMA,
        shown=op.Shown(option="--from", metavar="WHEN", is_time=True),
    ),
]
_ToTime = Annotated[
    str | None,
    op.Parameter(
        "Last time; by default, now.",
        timestamps.SCHEMA,
        shown=op.Shown(
            option="--to", metavar="WHEN", help="Last time.", default="now", is_time=True
        ),
    ),
]
_MaxFlows = Annotated[
    int,
    op.Parameter(
        "Maximum number of flows.",
        {"type": "integer", "minimum": 1, "maximum": 1000},
        shown=op.Shown(metavar="N", default="all"),
    ),
]
_Priority = Annotated[
    str,
    op.Parameter(
        "Priority of the flows: VERY_HIGH, HIGH, NORMAL, LOW or VERY_LOW.",
        {"enum": [each.value for each in jobs.JobPriority]},
        shown=op.Shown(metavar="PRIORITY"),
    ),
]
_DryRun = Annotated[
    bool,
    op.Parameter(
        "Submit nothing; only return the times.",
        {"type": "boolean"},
        shown=op.Shown(help="Change nothing; print the times without a flow."),
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={
        "schedule": {"type": "string"},
        "dry_run": {"type": "boolean"},
        "flows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "scheduled_at": {"type": "string"},
                    "uuid": {"type": ["string", "null"]},
                },
                "required": ["scheduled_at", "uuid"],
            },
            "description": "The flows, oldest time first; in a dry run without uuids.",
        },
        "next": {
            "type": ["string", "null"],
            "description": "The `from_time` with which to continue, if there are more times.",
        },
    },
    command=op.Command(
        ("nightly --from 2026-11-01 --to 2026-11-20 --limit 4 --dry-run",),
    ),
    button=None,
)
def backfill(
    scope: op.Scope,
    schedule: op.ScheduleName,
    from_time: _FromTime,
    to_time: _ToTime = None,
    max_flows: _MaxFlows = 100,
    priority: _Priority = jobs.JobPriority.VERY_LOW.value,
    dry_run: _DryRun = False,
) -> dict[str, Any]:
    """Submit flows for past times of a schedule that have no flow.

    Each flow has the inputs and tags of its time, and a priority below other flows. The policies
    and the pause of the schedule do not apply. If this is interrupted, repeat it: no time gets a
    second flow, unless the first one was deleted.
    """
    schedules = Schedules(scope.backend)
    start = _seconds("from_time", from_time)
    end = None if to_time is None else _seconds("to_time", to_time)
    missed, unread = schedules.missed_page(schedule, start, end, limit=max_flows)
    flows: dict[int, str | None] = dict.fromkeys(missed)
    if not dry_run and missed:
        with _allowed_flows.loading(schedules.get(schedule).schedule.factory):
            flows = dict(
                schedules.backfill(schedule, missed[0], missed[-1], limit=None, priority=priority)
            )
    return {
        "schedule": schedule,
        "dry_run": dry_run,
        "flows": [
            {"scheduled_at": _formatting.iso(tick), "uuid": uuid} for tick, uuid in flows.items()
        ],
        "next": None if unread is None else _formatting.iso(unread),
    }


def _seconds(name: str, text: str) -> float:
    try:
        return timestamps.unix_seconds(text)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
