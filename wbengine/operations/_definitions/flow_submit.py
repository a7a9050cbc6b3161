"""The operation `flow submit`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

from wbengine import engines, exceptions
from wbengine._text import terminal_text
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.jobs import base as jobs
from wbengine.operations import _allowed_flows
from wbengine.operations import _operation as op
from wbengine.operations._job_queues import QueueOfFlows
from wbengine.persistence import _debounce_keys, _restricted, _unique_keys
from wbengine.types import _written_tags

_Factory = Annotated[
    str,
    op.Parameter(
        "The flow, the workflow, or the function that builds a flow: `MODULE:NAME`.",
        {"type": "string", "minLength": 1},
    ),
]
_Inputs = Annotated[
    Mapping[str, Any] | None, op.Parameter("The inputs of the flow, by name.", {"type": "object"})
]
_Arguments = Annotated[
    Mapping[str, Any] | None,
    op.Parameter("The arguments of the factory, by name.", {"type": "object"}),
]
_Name = Annotated[str | None, op.Parameter("The name of the flow.", {"type": "string"})]
_Priority = Annotated[
    str,
    op.Parameter("The priority of the job.", {"enum": [each.value for each in jobs.JobPriority]}),
]
_FairKey = Annotated[
    str | None,
    op.Parameter(
        "A key, for example of a tenant: conductors take flows of different keys in turn.",
        {"type": "string", "pattern": terminal_text.TRIMMED},
    ),
]
_FairWeight = Annotated[
    float | None,
    op.Parameter(
        "The share of the key, relative to that of others; by default, 1.",
        {"type": "number", "minimum": 0.001, "maximum": 1000},
    ),
]
_Eta = Annotated[
    float | str | None,
    op.Parameter(
        "The earliest start: seconds from now, or a time with a time zone in ISO 8601.",
        {"type": ["number", "string"]},
    ),
]
_Unique = Annotated[
    str | None,
    op.Parameter(
        "A key. If a flow with this key has not ended, nothing is submitted, and the result is that"
        " flow.",
        _unique_keys.SCHEMA,
    ),
]
_UniqueFor = Annotated[
    float | str | None,
    op.Parameter(
        "The time for which the key outlives the flow: seconds, a duration such as `24h`, or"
        " `forever`. The factory and the inputs must be the same then.",
        {"type": ["number", "string"]},
    ),
]
_Debounce = Annotated[
    str | None,
    op.Parameter(
        "A key. Until the flow starts, further submissions with this key replace it and postpone"
        " its start. Not with `unique` or `eta`.",
        {"type": "string", "pattern": terminal_text.TRIMMED},
    ),
]
_DebounceFor = Annotated[
    float | None,
    op.Parameter(
        "The seconds from the latest submission with the key `debounce` to the start.",
        {"type": "number", "minimum": 0},
    ),
]
_DebounceMax = Annotated[
    float | None,
    op.Parameter(
        "The maximum number of seconds from the first submission with the key to the start.",
        {"type": "number", "minimum": 0},
    ),
]
_Tags = Annotated[
    Mapping[str, Any] | None,
    op.Parameter(
        'The tags of the flow: texts, numbers, booleans, and times as `{"time": "2026-12-01"}`.',
        _written_tags.SCHEMA,
    ),
]

UndoUntil = Annotated[
    float | str | None,
    op.Parameter(
        "The time from the end of the flow in which it can be undone: seconds, or a duration such"
        " as `30d`. Until then, it is not deleted.",
        {"type": ["number", "string"]},
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={"uuid": {"type": "string"}, "state": {"type": "string"}},
    creates=True,
    button=None,
)
def submit(
    scope: op.Scope,
    factory: _Factory,
    inputs: _Inputs = None,
    arguments: _Arguments = None,
    name: _Name = None,
    priority: _Priority = jobs.JobPriority.NORMAL.value,
    queue: QueueOfFlows = None,
    fair_key: _FairKey = None,
    fair_weight: _FairWeight = None,
    eta: _Eta = None,
    unique: _Unique = None,
    unique_for: _UniqueFor = None,
    debounce: _Debounce = None,
    debounce_for: _DebounceFor = None,
    debounce_max: _DebounceMax = None,
    tags: _Tags = None,
    undo_until: UndoUntil = None,
) -> dict[str, Any]:
    """Submit a new flow to the conductors (`wbengine serve`).

    The factory must be among the allowed flows of the server (`--flows`, `WBENGINE_FLOWS`), and the
    server must be able to import it.
    """
    typed = _written_tags.from_json(tags)
    backend, given, queue = _restricted.submission(scope.backend, typed, queue)
    stored_key, debounce_key = (
        _restricted.key_of(scope.backend, key) for key in (unique, debounce)
    )
    with _naming(unique, stored_key), _allowed_flows.loading(factory):
        handle = engines.submit(
            factory,
            factory_kwargs=None if arguments is None else JsonInputs(arguments),
            backend=backend,
            inputs=JsonInputs(inputs or {}),
            name=name,
            priority=priority,
            queue=queue,
            fair_key=fair_key,
            fair_weight=fair_weight,
            eta=datetime.fromisoformat(eta) if isinstance(eta, str) else eta,
            unique=stored_key,
            unique_for=unique_for,
            debounce=_debounce_keys.pair(debounce_key, debounce_for),
            debounce_max=debounce_max,
            tags=given,
            undo_until=undo_until,
        )
    return {"uuid": handle.id, "state": handle.state}


@contextlib.contextmanager
def _naming(key: str | None, stored_key: str | None) -> Iterator[None]:
    """Name the key of the request in errors, not the key that the store contains."""
    try:
        yield
    except exceptions.UniqueKeyConflict as error:
        text = str(error).replace(repr(stored_key), repr(key))
        raise exceptions.UniqueKeyConflict(text) from None
