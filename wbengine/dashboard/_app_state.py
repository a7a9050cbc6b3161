"""Objects that all pages of a dashboard share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from wbengine.dashboard import _audit, _rendering, _roles, _urls, _visitors
from wbengine.dashboard._audit import Audit
from wbengine.dashboard._credentials import Credentials
from wbengine.dashboard._flow_cache import Store
from wbengine.dashboard._quotas import Quotas
from wbengine.dashboard._runner import Runner
from wbengine.dashboard._sessions import Sessions
from wbengine.dashboard._visitors import Visitor
from wbengine.dashboard._worker_monitor import WorkerMonitor
from wbengine.operations import _operation
from wbengine.views import redaction

if TYPE_CHECKING:
    from wbengine.dashboard._oidc_sign_in import OidcSignIn

__all__ = ["AppState"]


@dataclass(frozen=True)
class AppState:
    """Shared objects and settings of the pages.

    `all_flows` is the store without a restriction; handlers use `store`. `runner` is None if the
    dashboard cannot start flows, `sign_in` if there is no provider of OpenID Connect. Event streams
    end when `closing` is set.
    """

    all_flows: Store
    monitor: WorkerMonitor
    sessions: Sessions
    credentials: Credentials
    redactor: redaction.Redactor
    audit: Audit
    runner: Runner | None = None
    sign_in: OidcSignIn | None = None
    allow_actions: bool = False
    quotas: Quotas = field(default_factory=Quotas)
    closing: threading.Event = field(default_factory=threading.Event)

    def store(self, request: Request) -> Store:
        """Return the store with the flows to which the visitor of a request has access.

        :raises HTTPException: if the request has no visitor.
        """
        visitor = _visitors.of_request(request)
        if visitor is None:
            raise HTTPException(401)
        return self.all_flows.restricted(visitor.tags, visitor.queues)

    def render(
        self,
        request: Request,
        name: str,
        variables: Mapping[str, Any],
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Render a page or a part of one.

        The forms need a cookie. A browser that may read without a cookie gets one for the forms.
        """
        cookie = request.cookies.get(self.sessions.cookie)
        fresh, visitor = None, _visitors.of_request(request)
        if self.sessions.visitor_of_cookie(cookie) is None:
            # This applies without authentication, and behind a proxy that names the visitor.
            token = getattr(request.state, "proxy_token", None)
            needed = visitor is not None and (self.sessions.open_to_all or token is not None)
            cookie = fresh = self.sessions.new_cookie(token) if needed else None
        role = _visitors.role_of(request)
        context = {
            "allow_actions": self.allow_actions and _roles.includes(role, _roles.OPERATOR),
            "allow_edits": self.allow_actions and _roles.includes(role, _roles.EDITOR),
            "may": lambda operation: self.allow_actions and _roles.includes(role, operation.role),
            "asset": functools.partial(_asset, request),
            "form_token": self.sessions.form_token(cookie) if cookie else "",
            "href": functools.partial(_urls.href, request),
            "nonce": request.scope.get("state", {}).get("nonce", ""),
            "shows_values": self.redactor.show_values,
            "notice": None,
            "visitor": visitor,
            "can_sign_out": visitor is not None and self.sessions.is_from_provider(cookie),
            **variables,
        }
        response = HTMLResponse(_rendering.render(name, context), status, headers)
        if fresh:
            self.set_cookie(request, response, fresh)
        return response

    def scope(self, request: Request) -> _operation.Scope:
        """Return the scope of operations that the visitor requests."""
        fleet = self.monitor.open_fleet if self.monitor.has_broker else None
        return _operation.Scope(
            self.store(request).backend, _audit.sender_of(request), fleet, self.monitor.ledger
        )

    def admit(self, request: Request, token: str, url: str) -> Response:
        """Redirect a browser to `url`, with a cookie of the user who has this token."""
        response = RedirectResponse(url, 303)
        token_or_all = None if self.sessions.open_to_all else token
        self.set_cookie(request, response, self.sessions.new_cookie(token_or_all))
        return response

    def admit_visitor(self, request: Request, visitor: Visitor, url: str) -> Response:
        """Redirect a browser to `url`, with a cookie of a visitor whom the provider signed in."""
        assert self.sign_in is not None
        response = RedirectResponse(url, 303)
        seconds = self.sign_in.settings.session_seconds
        cookie = self.sessions.new_provider_cookie(visitor, seconds)
        self.set_cookie(request, response, cookie, samesite="lax")
        return response

    @property
    def browser_cookie(self) -> str:
        """Name of the cookie of browsers that sign in at the provider."""
        return f"{self.sessions.cookie}_sign_in"

    def set_cookie(
        self,
        request: Request,
        response: Response,
        cookie: str,
        *,
        name: str | None = None,
        path: str = "/",
        max_age: int | None = None,
        samesite: Literal["lax", "strict"] = "strict",
    ) -> None:
        """Set a cookie that scripts and other sites cannot read.

        :param name: by default, that of the session.
        :param samesite: browsers send a strict cookie neither to the page to which a provider
            redirects, nor to the next one.
        """
        is_secure = self.sign_in is not None and self.sign_in.settings.is_secure
        response.set_cookie(
            name or self.sessions.cookie,
            cookie,
            path=_urls.href(request, path),
            max_age=max_age,
            secure=is_secure or request.url.scheme == "https",
            httponly=True,
            samesite=samesite,
        )

    def delete_cookie(self, request: Request, response: Response) -> None:
        """Delete the cookie of the session."""
        response.delete_cookie(self.sessions.cookie, path=_urls.href(request, "/"))


def _asset(request: Request, name: str) -> str:
    return _urls.href(request, f"/static/{name}", v=_rendering.asset_version(name))
