"""The head of a flow's pages. The event stream sends it when it changes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from wbengine import states
from wbengine.dashboard import _cache, _flow_actions, _rendering, _urls
from wbengine.dashboard._app_state import AppState
from wbengine.dashboard._runner import FailedCommand
from wbengine.views import flow_status as flows

__all__ = ["read_head", "context_of"]


def context_of(app_state: AppState, view: flows.FlowView) -> dict[str, Any]:
    """Return the variables of the templates of a head."""
    actions = _flow_actions.of_flow(view, app_state.runner is not None)
    return {
        "actions": actions,
        "failed": _failed(app_state, view),
        # If the mark changes, the browser reloads the head, because forms differ between visitors.
        "mark": " ".join([view.shown_state, *(action.verb for action in actions)]),
        "view": view,
        "where": f"/flows/{view.uuid}",
    }


def read_head(
    app_state: AppState, request: Request
) -> tuple[Mapping[str, Any] | None, float | None]:
    """Return the current head (None: still loading), and the seconds until it may change.

    Blocks.

    :raises NotFound: if the flow was deleted.
    """
    latest = app_state.store(request).latest(str(request.path_params["uuid"]))
    if not isinstance(latest, _cache.Latest):
        return None, None
    context = context_of(app_state, latest.view)
    text = _rendering.render(
        "_facts.html", {**context, "href": functools.partial(_urls.href, request)}
    )
    return {"mark": context["mark"], "facts": text}, latest.refresh_seconds


def _failed(app_state: AppState, view: flows.FlowView) -> FailedCommand | None:
    """Return the latest command for the flow that a page started, if it failed."""
    runner = app_state.runner
    failed = None if runner is None else runner.failed(view.uuid)
    if failed is not None and failed.was_suspended and view.state == states.SUSPENDED:
        return None  # The suspension was requested.
    return failed
