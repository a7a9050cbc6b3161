"""Operations on many flows as pages and the API show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from wbengine.dashboard import _visitors
from wbengine.dashboard._app_state import AppState
from wbengine.operations import _bulk
from wbengine.persistence import base
from wbengine.persistence._bulk_records import RUNNING, Bulk, Skipped

__all__ = ["BULK", "REASONS", "REFUSED", "RESTRICTED", "BulkView", "latest", "one"]

#: Error for visitors with tags.
RESTRICTED: Final = "Operations on many flows need a key without tags."

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
#: JSON schemas of the values of an operation.
BULK: Final[Mapping[str, Mapping[str, Any]]] = {
    "uuid": _TEXT,
    "operation": _TEXT,
    "arguments": {"type": "array", "items": _TEXT, "description": "Names of the arguments."},
    "filter": {"type": "object"},
    "reason": _OPTIONAL_TEXT,
    "by": _OPTIONAL_TEXT,
    "rate": {"type": ["number", "null"]},
    "created": {"type": "number"},
    "ended": {"type": ["number", "null"]},
    "state": {"enum": ["RUNNING", "COMPLETE", "CANCELLED"]},
    "total": _NUMBER,
    "done": _NUMBER,
    "skipped": _NUMBER,
    "open": _NUMBER,
    "owner": _OPTIONAL_TEXT,
}
#: JSON schema of the reasons of skipped flows.
REASONS: Final[Mapping[str, Any]] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"reason": _TEXT, "flows": _NUMBER, "example": _TEXT},
    },
}


#: JSON schema of the flows whose conductor refused the request.
REFUSED: Final[Mapping[str, Any]] = {
    "type": "array",
    "items": {"type": "object", "properties": {"uuid": _TEXT, "reason": _TEXT}},
    "description": "Flows whose conductor refused the request; empty while the operation runs.",
}


@dataclass(frozen=True, slots=True)
class BulkView:
    """An operation, with the reasons of skipped flows, and of those that conductors refused."""

    bulk: Bulk
    reasons: tuple[Skipped, ...]
    refused: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.bulk.to_dict(),
            "reasons": [each._asdict() for each in self.reasons],
            "refused": [{"uuid": uuid, "reason": reason} for uuid, reason in self.refused],
        }


def latest(app_state: AppState, request: Request) -> list[Bulk]:
    """Return the latest operations.

    :raises HTTPException: if the visitor has access to some flows only.
    """
    _check(request)
    bulks = app_state.store(request).read(_bulk.latest)
    return [_masked(app_state, bulk) for bulk in bulks]


def one(app_state: AppState, request: Request) -> BulkView:
    """Return the operation in the path of a request.

    :raises NotFound: if it does not exist.
    :raises HTTPException: as `latest`.
    """
    _check(request)
    uuid = str(request.path_params["uuid"])

    def read(connection: base.Connection) -> BulkView:
        bulk = connection.bulks.get(uuid)
        # The page is read each second while the operation runs.
        refused = () if bulk.state == RUNNING else tuple(_bulk.refused(connection, bulk))
        return BulkView(bulk, tuple(connection.bulks.skipped(uuid)), refused)

    view = app_state.store(request).read(read)
    mask = app_state.redactor.text
    return BulkView(
        _masked(app_state, view.bulk),
        tuple(each._replace(reason=mask(each.reason)) for each in view.reasons),
        tuple((flow, mask(reason)) for flow, reason in view.refused),
    )


def _masked(app_state: AppState, bulk: Bulk) -> Bulk:
    return bulk._replace(reason=bulk.reason and app_state.redactor.text(bulk.reason))


def _check(request: Request) -> None:
    if _visitors.restriction_of(request):
        raise HTTPException(403, RESTRICTED)
