"""The operation `flow tag`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from wbengine.operations import _changing
from wbengine.operations import _operation as op
from wbengine.types import _tags, _written_tags

_Tags = Annotated[
    Mapping[str, Any] | None,
    op.Parameter(
        'Tags to add or replace: texts, numbers, booleans, and times as `{"time": "2026-12-01"}`.',
        {**_written_tags.SCHEMA, "minProperties": 1},
        shown=op.Shown(
            metavar="KEY=VALUE",
            help="Add or replace this tag (repeatable); with := a number, boolean or time.",
        ),
    ),
]
_Removed = Annotated[
    Sequence[str] | None,
    op.Parameter(
        "Keys of tags to remove.",
        {**_written_tags.KEYS_SCHEMA, "minItems": 1},
        shown=op.Shown(metavar="KEY", help="Remove the tag with this key (repeatable)."),
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
        ("3f2a9c --set ticket=4711", "--set incident=17 --remove owner --error 'card declined'"),
        line=_line,
    ),
    button=None,
    choice=op.Choice(("set", "remove"), is_any=True),
)
def tag(
    scope: op.Scope, flow: op.FlowId, set: _Tags = None, remove: _Removed = None
) -> dict[str, Any]:
    """Change the tags of a flow, by which lists are filtered.

    Tags of its submission cannot be changed. An engine must not run the flow. A tag that is absent
    can be removed without an error. A text does not replace a number, a boolean or a time.
    """
    new = _written_tags.from_json(set)
    with _changing.changing(scope.backend, flow) as detail:
        _tags.check_settable(detail.own_meta, remove or ())
        _tags.check_types(
            detail.own_meta, {key: new[key] for key in new if key not in (remove or ())}
        )
        changed = _tags.merged(detail.own_meta, new)
        for key in remove or ():
            if key not in new:
                changed.pop(key, None)
        detail.meta[_tags.CHANGED] = changed
        texts = _tags.texts_of(detail.tags)
    return {"uuid": flow, "tags": texts}
