"""The page of paused task types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import operations
from wbengine.dashboard import _http_errors, _operation_forms
from wbengine.dashboard._app_state import AppState
from wbengine.persistence._pauses import MAX_PATTERN_CHARACTERS, MAX_REASON_CHARACTERS, TaskPause

__all__ = ["PausePages", "length", "pauses"]

#: Lengths of a pause: value in the form, label and seconds.
LENGTHS: Final[Mapping[str, tuple[str, float | None]]] = {
    "": ("until resumed", None),
    "15m": ("for 15 minutes", 900.0),
    "1h": ("for 1 hour", 3600.0),
    "4h": ("for 4 hours", 4 * 3600.0),
    "24h": ("for 24 hours", 86400.0),
    "7d": ("for 7 days", 7 * 86400.0),
}


class PausePages:
    """Handlers of the page. They block: Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/pauses", self.pauses)]

    def pauses(self, request: Request) -> Response:
        with _http_errors.as_http_errors():
            context: dict[str, Any] = {
                "here": "/pauses",
                "pauses": pauses(request, self._state),
                "lengths": {value: label for value, (label, _) in LENGTHS.items()},
                "max_pattern": MAX_PATTERN_CHARACTERS,
                "max_reason": MAX_REASON_CHARACTERS,
                "notice": _operation_forms.notice(
                    _operation_forms.of_subject("tasks"), request.query_params.get("done", "")
                ),
            }
        part = request.query_params.get("part")
        return self._state.render(request, "_pauses.html" if part else "pauses.html", context)


def pauses(request: Request, app_state: AppState) -> list[TaskPause]:
    """Return the pauses in force, by pattern, with masked reasons."""
    mask = app_state.redactor.text
    return [
        pause._replace(reason=pause.reason and mask(pause.reason))
        for pause in operations.paused_tasks(app_state.store(request).backend)
    ]


def length(value: str) -> float | None:
    """Return the seconds of a pause; None for a pause without an end.

    :raises ValueError: if the form does not offer the value.
    """
    if value not in LENGTHS:
        raise ValueError(f"The length must be one of {', '.join(LENGTHS)[2:]}, got {value!r:.40}")
    return LENGTHS[value][1]
