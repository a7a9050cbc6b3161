"""The head of the pages of a flow, which its stream tells anew when it has changed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from wbengine import states
from wbengine.dashboard import cache, flow_actions, rendering, urls
from wbengine.dashboard.app_state import AppState
from wbengine.dashboard.runner import Failed
from wbengine.views import flow as flows

__all__ = ["news", "words"]


def words(app_state: AppState, view: flows.FlowView) -> dict[str, Any]:
    """What the templates of a head are filled with."""
    actions = flow_actions.of_flow(view, app_state.runner is not None)
    return {
        "actions": actions,
        "failed": _failed(app_state, view),
        # What it takes a whole head for: its forms are those of one visitor.
        "mark": " ".join([view.shown_state, *(action.name for action in actions)]),
        "view": view,
        "where": f"/flows/{view.uuid}",
    }


def news(app_state: AppState, request: Request) -> tuple[Mapping[str, Any] | None, float | None]:
    """What is said of the flow now (None: it is being read), and after how many seconds there is
    more.  Blocks.

    :raises NotFound: it is not kept any more.
    """
    found = app_state.store.latest(str(request.path_params["uuid"]))
    if not isinstance(found, cache.Latest):
        return None, None
    context = words(app_state, found.view)
    text = rendering.render(
        "_facts.html", {**context, "href": functools.partial(urls.href, request)}
    )
    return {"mark": context["mark"], "facts": text}, found.again


def _failed(app_state: AppState, view: flows.FlowView) -> Failed | None:
    """The latest command that was started for the flow from a page, if it failed."""
    runner = app_state.runner
    failed = None if runner is None else runner.failed(view.uuid)
    if failed is not None and failed.was_suspended and view.state == states.SUSPENDED:
        return None  # as somebody wished
    return failed
