"""The operation `tasks pause`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.operations import _operation as op
from wbengine.operations import _pausing
from wbengine.persistence import _pauses
from wbengine.views import _formatting

_Pattern = Annotated[
    str,
    op.Parameter(
        "The dotted name of a class or function, with the wildcards * and ?.",
        _pauses.PATTERN_SCHEMA,
        shown=op.Shown(is_argument=True, metavar="NAME"),
    ),
]
_Seconds = Annotated[
    float | None,
    op.Parameter(
        "The length of the pause in seconds. Without it, the pause has no end.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": _pausing.MAX_PAUSE_SECONDS},
        shown=op.Shown(
            option="--for",
            metavar="DURATION",
            help="Length of the pause, such as 90, 5m, 2h.",
            default="until `tasks resume`",
            is_duration=True,
        ),
    ),
]

_Reason = Annotated[
    str | None, op.Parameter("Reason, stored with the pause.", {"type": "string", "maxLength": 500})
]

_TIME = {"type": ["number", "null"], "description": "Unix time in seconds."}
_TEXT = {"type": ["string", "null"]}


def _until(at: float | None) -> str:
    return "" if at is None else f" until {_formatting.iso(at)}"


@op.operation(
    role=op.OPERATOR,
    result={
        "pattern": {"type": "string"},
        "reason": _TEXT,
        "by": _TEXT,
        "since": _TIME,
        "until": _TIME,
        "warning": {
            "type": ["string", "null"],
            "description": "Set if no unfinished or recent flow has a task of such a type.",
        },
    },
    command=op.Command(
        (
            "shop.billing.charge --reason 'the bank is down'",
            "'shop.billing.*' --for 2h",
        ),
        line=lambda values: f"{values['pattern']}: paused{_until(values['until'])}",
        note=lambda values: values["warning"] or "",
        guide="to resume it: wbengine tasks resume '{pattern}'",
        creates_store=True,
    ),
    button=op.Button(notice="The task type is paused."),
)
def pause(
    scope: op.Scope, pattern: _Pattern, seconds: _Seconds = None, reason: _Reason = None
) -> dict[str, Any]:
    """Pause a task type.

    The pattern is the dotted name of a class or function, with the wildcards * and ?. Tasks of this
    type do not start in any flow of the store until `wbengine tasks resume`. Running engines follow
    within a second. Running tasks and reversions continue.

    A warning names a similar type if no unfinished or recent flow has a task of this type.
    """
    paused = _pausing.pause_tasks(
        scope.backend, pattern, reason=reason, by=scope.by, seconds=seconds
    )
    warning = _pausing.unmatched_warning(scope.backend, pattern)
    return {**paused.to_dict(), "warning": warning}
