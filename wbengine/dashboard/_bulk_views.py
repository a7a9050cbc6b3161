"""Operations on many flows as pages and the API show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from wbengine.dashboard import _visitors
from wbengine.dashboard._app_state import AppState
from wbengine.persistence._bulk import Bulk, Skipped

__all__ = ["BULK", "REASONS", "RESTRICTED", "BulkView", "latest", "one"]

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


@dataclass(frozen=True, slots=True)
class BulkView:
    """An operation, with the reasons of the flows that it skipped."""

    bulk: Bulk
    reasons: tuple[Skipped, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**self.bulk.to_dict(), "reasons": [each._asdict() for each in self.reasons]}


def latest(app_state: AppState, request: Request) -> list[Bulk]:
    """Return the latest operations.

    :raises HTTPException: if the visitor has access to some flows only.
    """
    _check(request)
    bulks = app_state.store(request).read(lambda connection: connection.bulks.latest())
    return [_masked(app_state, bulk) for bulk in bulks]


def one(app_state: AppState, request: Request) -> BulkView:
    """Return the operation in the path of a request.

    :raises NotFound: if it does not exist.
    :raises HTTPException: as `latest`.
    """
    _check(request)
    uuid = str(request.path_params["uuid"])
    bulk, skipped = app_state.store(request).read(
        lambda connection: (connection.bulks.get(uuid), connection.bulks.skipped(uuid))
    )
    mask = app_state.redactor.text
    reasons = tuple(each._replace(reason=mask(each.reason)) for each in skipped)
    return BulkView(_masked(app_state, bulk), reasons)


def _masked(app_state: AppState, bulk: Bulk) -> Bulk:
    return bulk._replace(reason=bulk.reason and app_state.redactor.text(bulk.reason))


def _check(request: Request) -> None:
    if _visitors.restriction_of(request):
        raise HTTPException(403, RESTRICTED)
