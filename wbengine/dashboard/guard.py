"""The door: nobody gets to a page, and no page gets out, without passing here."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Collection
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wbengine.dashboard import http_errors, policy, urls, visitors
from wbengine.dashboard.app_state import AppState
from wbengine.dashboard.visitors import Visitor

__all__ = ["Guard"]

LOG: Final = logging.getLogger(__name__)

#: What anybody may see: probes come without a cookie, and who has none yet wants to log in.
_OPEN: Final = frozenset({"/livez", "/readyz", "/login"})
_STATIC: Final = "/static/"


class Guard:
    """An ASGI application around the dashboard's pages.

    Refuses names of the host that it does not know, who shows neither the token nor a cookie, and
    forms that no page of ours sent.  Each answer says what a browser may do with it.  An error that
    nobody expected becomes a page without details; the log has them, with what is secret masked.
    """

    def __init__(self, app: ASGIApp, app_state: AppState, hosts: Collection[str] | None) -> None:
        self._app = app
        self._state = app_state
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        visit = _Visit(scope, send)
        request = Request(scope, receive)
        try:
            refusal = await self._refusal(request, visit)
            await (refusal or self._app)(scope, receive, visit.send)
        except Exception as error:
            self._log(error)
            if visit.status is None:
                await http_errors.page(request, self._state, 500)(scope, receive, visit.send)
            elif visit.status != 500:
                raise ConnectionError("the answer broke off") from None

    async def _refusal(self, request: Request, visit: _Visit) -> ASGIApp | None:
        path, audit = urls.path_of(request), self._state.audit
        if not policy.host_is_known(request.headers, self._hosts):
            audit.turned_away(
                request, "the dashboard is not known as", request.headers.get("host", "")
            )
            return http_errors.page(request, self._state, 421)
        if path in _OPEN or path.startswith(_STATIC):
            visit.static = path.startswith(_STATIC)
            known = True
        else:
            try:
                visitor = self._visitor(request)
            except ValueError as error:
                audit.turned_away(request, "the proxy says nobody who can come in")
                return http_errors.page(request, self._state, 401, str(error))
            request.state.visitor = visitor
            known = visitor is not None
        shown = request.query_params.get("token")
        if shown is not None and request.method == "GET" and not visit.static:
            return self._exchanged(request, shown)
        if not known:
            if "authorization" in request.headers or request.method == "POST":
                audit.turned_away(request, "it does not show the token")
            return http_errors.page(request, self._state, 401)
        if request.method not in ("GET", "HEAD", "POST"):
            return http_errors.page(request, self._state, 405)
        if request.method == "POST" and not policy.is_of_our_pages(request.headers):
            origin = request.headers.get("origin", "")
            audit.turned_away(request, "it is of no page of ours, but of", origin)
            return http_errors.page(
                request, self._state, 403, "This did not come from our own pages."
            )
        return None

    def _visitor(self, request: Request) -> Visitor | None:
        """Who asks; a proxy says for whom.

        :raises ValueError: it does not.
        """
        sessions, token = self._state.sessions, _bearer(request.headers)
        found = sessions.accepts(token)
        if found is not None and found.role == visitors.PROXY:
            request.state.proxy_token = token
            role = _only(request.headers, "x-wbengine-role", visitors.VIEWER)
            name = visitors.check_name(_only(request.headers, "x-wbengine-user", ""))
            return Visitor(name, visitors.check_role(role))
        if found is None:
            found = sessions.knows(request.cookies.get(sessions.cookie))
        # A cookie that a proxy's visitor was given is for forms.
        return None if found is not None and found.role == visitors.PROXY else found

    def _exchanged(self, request: Request, token: str) -> ASGIApp:
        """A token in an address becomes a cookie, and leaves the address."""
        visitor = self._state.sessions.accepts(token)
        if visitor is None or visitor.role == visitors.PROXY:
            self._state.audit.turned_away(request, "this is not the token")
            return http_errors.page(request, self._state, 401, "This is not the token.")
        left = [each for each in request.query_params.multi_items() if each[0] != "token"]
        # Two slashes at the beginning would be the name of another host.
        where = urls.href(request, "/" + urls.path_of(request).lstrip("/"))
        where = f"{where}?{urlencode(left)}" if left else where
        return self._state.admit(request, token, where)

    def _log(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        LOG.error("A page broke: %s", self._state.redactor.text(text))


class _Visit:
    """One request, as far as its answer goes."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status: int | None = None
        self.static = False
        self._nonce = secrets.token_urlsafe(16)
        self._send = send
        scope.setdefault("state", {})["nonce"] = self._nonce

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            found = MutableHeaders(scope=message)
            for name, value in policy.headers(self._nonce, static=self.static).items():
                found.setdefault(name, value)
        await self._send(message)


def _only(headers: Headers, name: str, default: str) -> str:
    """A header that must not be there twice: the other one may be of the proxy's visitor.

    :raises ValueError: it is.
    """
    found = headers.getlist(name) or [default]
    if len(found) > 1:
        raise ValueError(f"{name} is there {len(found)} times")
    return found[0]


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None
