"""The operation `limits set`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine._limits.limit_changes import LimitChange
from wbengine._text import rates
from wbengine.operations import _limiting
from wbengine.operations import _operation as op

_Rate = Annotated[
    str | None,
    op.Parameter(
        "The maximum number of starts per second, minute, hour or day, such as 100/m.",
        {"type": "string", "pattern": rates.PATTERN, "description": rates.DESCRIPTION},
        shown=op.Shown(is_argument=True, metavar="[RATE]"),
    ),
]
_Concurrency = Annotated[
    int | None,
    op.Parameter(
        "The maximum number of tasks or flows that run at a time.",
        {"type": "integer", "minimum": 1, "maximum": 1_000_000_000},
        shown=op.Shown(metavar="N"),
    ),
]
_Reason = Annotated[
    str | None,
    op.Parameter("Reason, stored with the change.", {"type": "string", "maxLength": 500}),
]

_TEXT = {"type": ["string", "null"]}


def _line(values: Any) -> str:
    concurrency = values["concurrency"]
    at_once = None if concurrency is None else f"{concurrency:,} at once"
    return f"{values['name']}: {', '.join(filter(None, (values['rate'], at_once)))}"


@op.operation(
    role=op.OPERATOR,
    result={
        "name": {"type": "string"},
        "rate": {**_TEXT, "description": "The changed rate (none: that of the code)."},
        "concurrency": {
            "type": ["integer", "null"],
            "description": "The changed concurrency (none: that of the code).",
        },
        "reason": _TEXT,
        "by": _TEXT,
        "at": {"type": "number", "description": "Unix time in seconds."},
        "warning": {**_TEXT, "description": "Set if no running flow uses the limit."},
    },
    choice=op.Choice(("rate", "concurrency"), is_any=True),
    command=op.Command(
        (
            "shop.call_shop 50/s --reason 'their new contract'",
            "shop.call_shop --concurrency 5",
            "'shop.call_shop[eve]' 10/s --concurrency 1",
        ),
        line=_line,
        note=lambda values: values["warning"] or "",
        guide="to use the values of the code: wbengine limits unset '{name}'",
        creates_store=True,
    ),
    button=op.Button(notice="The limit is changed."),
)
def set_limit(
    scope: op.Scope,
    name: _limiting.LimitName,
    rate: _Rate = None,
    concurrency: _Concurrency = None,
    reason: _Reason = None,
) -> dict[str, Any]:
    """Change a limit while work runs.

    The given values replace those in the code until `wbengine limits unset`, in all engines that
    share the limit, within two seconds. A value that is not given stays as it is. Running tasks
    continue.

    The name is that in `wbengine limits list`. If a limit has keys, its name without a key changes
    all of them; a change of one key precedes it.
    """
    change, warning = _limiting.change_limit(scope, LimitChange(name, rate, concurrency, reason))
    return {**change.to_dict(), "warning": warning}
