"""The operation `flow tag`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from wbengine import _tags
from wbengine.operations import _changing
from wbengine.operations import _operation as op

_Tags = Annotated[
    Mapping[str, str],
    op.Parameter(
        "Tags to add or replace.",
        {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        shown=op.Shown(metavar="KEY=VALUE", help="Add or replace this tag (repeatable)."),
    ),
]


def _line(values: Mapping[str, Any]) -> str:
    tags = ", ".join(f"{key}={value}" for key, value in sorted(values["tags"].items()))
    return f"{values['name']} {values['uuid']}: {tags or 'no tags'}"


@op.operation(
    role=op.OPERATOR,
    result={
        "uuid": {"type": "string"},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    many=op.Many(_changing.STATES, "tagged", "that no engine runs"),
    command=op.Command(
        ("3f2a9c --set ticket=4711", "--set incident=17 --error 'card declined'"),
        line=_line,
    ),
    button=None,
)
def tag(scope: op.Scope, flow: op.FlowId, set: _Tags) -> dict[str, Any]:
    """Set tags of a flow, by which lists are filtered.

    An engine must not run the flow. Tags of the submission cannot be changed.
    """
    given = _tags.check(set)
    with _changing.changing(scope.backend, flow) as detail:
        detail.set_meta_value(_tags.CHANGED, _tags.merged(detail.own_meta, given))
        return {"uuid": flow, "tags": _tags.texts_of(detail.tags)}
