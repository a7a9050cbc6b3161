"""What all pages of one dashboard share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from wbengine.dashboard import rendering, urls
from wbengine.dashboard.audit import Audit
from wbengine.dashboard.reading import Store
from wbengine.dashboard.runner import Runner
from wbengine.dashboard.sessions import Sessions
from wbengine.dashboard.worker_monitor import WorkerMonitor
from wbengine.views import redaction

__all__ = ["AppState"]


@dataclass(frozen=True)
class AppState:
    """Where pages find what they show, and what they may do.

    `runner` is None where no flow can be started from here.  Streams end when `closing` is set.
    """

    store: Store
    monitor: WorkerMonitor
    sessions: Sessions
    redactor: redaction.Redactor
    audit: Audit
    runner: Runner | None = None
    allow_actions: bool = False
    closing: threading.Event = field(default_factory=threading.Event)

    def render(
        self,
        request: Request,
        name: str,
        words: Mapping[str, Any],
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """A page, or a part of one; whoever has no cookie yet, and needs none, gets one."""
        cookie = request.cookies.get(self.sessions.cookie)
        fresh = None
        if not self.sessions.knows(cookie):
            cookie = fresh = self.sessions.begin() if self.sessions.open_to_all else None
        context = {
            "allow_actions": self.allow_actions,
            "asset": functools.partial(_asset, request),
            "form_token": self.sessions.form_token(cookie) if cookie else "",
            "href": functools.partial(urls.href, request),
            "nonce": request.scope.get("state", {}).get("nonce", ""),
            "shows_values": self.redactor.show_values,
            "told": None,
            **words,
        }
        answer = HTMLResponse(rendering.render(name, context), status, headers)
        if fresh:
            self.remember(request, answer, fresh)
        return answer

    def admit(self, request: Request, where: str) -> Response:
        """Send a browser on, with a cookie."""
        answer = RedirectResponse(where, 303)
        self.remember(request, answer, self.sessions.begin())
        return answer

    def remember(self, request: Request, answer: Response, cookie: str) -> None:
        """Have the browser keep a cookie, out of the reach of scripts and of other sites."""
        answer.set_cookie(
            self.sessions.cookie,
            cookie,
            path=urls.href(request, "/"),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def _asset(request: Request, name: str) -> str:
    return urls.href(request, f"/static/{name}", v=rendering.asset_version(name))
