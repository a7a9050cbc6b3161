"""Results of operations as JSON, with their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine.operations import _finding, _requesting, _suspend_and_cancel
from wbengine.persistence import base
from wbengine.views import _flow_list

__all__ = ["REQUESTED", "STATE_CHANGE", "requested", "state_change"]

_TEXT: Final = {"type": "string"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}

STATE_CHANGE: Final[Mapping[str, Mapping[str, Any]]] = {
    "uuid": _TEXT,
    "old": {"type": "string", "description": "The state of the flow before the operation."},
    "new": {"type": "string", "description": "The state of the flow after the operation."},
    "shown_state": {"type": "string", "description": "The displayed state."},
}

REQUESTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "uuid": _TEXT,
    "is_new": {
        "type": "boolean",
        "description": "False if the flow had the same request already.",
    },
    "by": _OPTIONAL_TEXT,
    "state": {"type": "string", "description": "The state of the flow when it was requested."},
}


def state_change(
    backend: base.Backend, uuid: str, change: _suspend_and_cancel.StateChange
) -> dict[str, Any]:
    shown_state = _flow_list.shown_state(_finding.find(backend, uuid))
    return {"uuid": uuid, "old": change.old, "new": change.new, "shown_state": shown_state}


def requested(uuid: str, request: _requesting.Requested) -> dict[str, Any]:
    return {"uuid": uuid, "is_new": request.is_new, "by": request.by, "state": request.state}
