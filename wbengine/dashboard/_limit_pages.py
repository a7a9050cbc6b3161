"""The page of limits."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine._limits import account_stores, limit_changes, usage
from wbengine.dashboard import _http_errors, _operation_forms
from wbengine.dashboard._app_state import AppState
from wbengine.persistence._pauses import MAX_REASON_CHARACTERS
from wbengine.views.redaction import redacted

__all__ = ["LimitPages", "limits"]

#: Number of limits that the page shows. The API lists all of them.
_MAX_SHOWN: Final = 500


class LimitPages:
    """Handlers of the page. They block: Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/limits", self.limits)]

    def limits(self, request: Request) -> Response:
        with _http_errors.as_http_errors():
            found = limits(request, self._state)
            context: dict[str, Any] = {
                "here": "/limits",
                "limits": found[:_MAX_SHOWN],
                "hidden": max(0, len(found) - _MAX_SHOWN),
                "max_name": limit_changes.MAX_NAME_CHARACTERS,
                "max_reason": MAX_REASON_CHARACTERS,
                "notice": _operation_forms.notice(
                    _operation_forms.of_subject("limits"), request.query_params.get("done", "")
                ),
            }
        part = request.query_params.get("part")
        return self._state.render(request, "_limits.html" if part else "limits.html", context)


def limits(request: Request, app_state: AppState) -> list[usage.LimitUsage]:
    """Return the limits that are in use or changed, by name, with masked texts."""
    store = account_stores.store_of(app_state.store(request).backend)
    return redacted(usage.listed(store), app_state.redactor)
