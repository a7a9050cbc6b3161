"""What all pages of one dashboard share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from wbengine.dashboard import rendering, urls, visitors
from wbengine.dashboard.audit import Audit
from wbengine.dashboard.reading import Store
from wbengine.dashboard.runner import Runner
from wbengine.dashboard.sessions import Sessions
from wbengine.dashboard.visitors import Visitor
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
        """A page, or a part of one; who needs no cookie to come in gets one for the forms."""
        cookie = request.cookies.get(self.sessions.cookie)
        fresh, visitor = None, visitors.of_request(request)
        if self.sessions.knows(cookie) is None:
            # Forms need one also where nobody logs in, and where a proxy says who asks.
            token = getattr(request.state, "proxy_token", None)
            needed = visitor is not None and (self.sessions.open_to_all or token is not None)
            cookie = fresh = self.sessions.begin(token) if needed else None
        context = {
            "allow_actions": self.allows(visitor, visitors.OPERATOR),
            "allow_drain": self.allows(visitor, visitors.ADMIN),
            "asset": functools.partial(_asset, request),
            "form_token": self.sessions.form_token(cookie) if cookie else "",
            "href": functools.partial(urls.href, request),
            "nonce": request.scope.get("state", {}).get("nonce", ""),
            "shows_values": self.redactor.show_values,
            "notice": None,
            "visitor": visitor,
            **words,
        }
        answer = HTMLResponse(rendering.render(name, context), status, headers)
        if fresh:
            self.remember(request, answer, fresh)
        return answer

    def allows(self, visitor: Visitor | None, role: str) -> bool:
        """Whether the visitor may do what takes a role."""
        return self.allow_actions and visitor is not None and visitor.may(role)

    def admit(self, request: Request, token: str, where: str) -> Response:
        """Send a browser on, with a cookie of who has this token."""
        answer = RedirectResponse(where, 303)
        token_or_all = None if self.sessions.open_to_all else token
        self.remember(request, answer, self.sessions.begin(token_or_all))
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
