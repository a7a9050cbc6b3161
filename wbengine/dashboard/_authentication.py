"""Authentication: the guard, through which every request and every response passes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import traceback
from collections.abc import Awaitable, Collection, Iterator, Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wbengine import exceptions
from wbengine.dashboard import _audit as audit
from wbengine.dashboard import (
    _connection_limits,
    _http_errors,
    _http_headers,
    _roles,
    _urls,
    _visitors,
)
from wbengine.dashboard._app_state import AppState
from wbengine.dashboard._quotas import Exceeded
from wbengine.dashboard._visitors import Visitor
from wbengine.persistence import _access_keys

__all__ = ["Guard"]

LOG: Final = logging.getLogger(__name__)

#: Paths without authentication: probes have no cookie, and visitors have none before the login.
_PUBLIC_PATHS: Final = frozenset(
    {"/livez", "/readyz", "/login", _urls.SIGN_IN, _urls.SIGN_IN_CALLBACK}
)
_STATIC_PREFIX: Final = "/static/"

#: Maximum size of a piece of a response, which must arrive within `connections.STALL_SECONDS`.
_MAX_PIECE_BYTES: Final = 65_536

_FLOWS_ONLY: Final = "You have access only to flows with your tags and queues, not to this page."
_KEY_IN_ADDRESS: Final = (
    "The address must not contain an access key, because logs store addresses. Send keys only as"
    " Bearer tokens in a header, and replace this one now: wbengine access rotate --keep 0."
)

#: Interval between two checks of the visitor of an event stream.
RECHECK_SECONDS: Final = 5.0


class Guard:
    """The outermost ASGI application of the dashboard.

    It refuses unknown host names, clients without a valid token or cookie, and forms from other
    origins. It adds security headers to each response. It shows an unexpected error as a page
    without details, and logs the details with masked secrets.
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
        response = _ResponseState(scope, send)
        request = Request(scope, receive)
        try:
            refusal = await self._refusal(request, response)
            visitor = None if refusal else _visitors.of_request(request)
            with self._answering(request, visitor):
                answer = (refusal or self._app)(scope, receive, response.send)
                if visitor is not None and _urls.is_stream(request):
                    answer = self._while_admitted(request, visitor, answer, response)
                await answer
        except Exceeded as error:
            error_page = _http_errors.page(request, self._state, error.status_code, error.detail)
            error_page.headers.update(error.headers or {})
            with self._answering(request, None):
                await error_page(scope, receive, response.send)
        except Exception as error:
            self._log(error)
            if response.status is None:
                await _http_errors.page(request, self._state, 500)(scope, receive, response.send)
            elif response.status != 500:
                raise ConnectionError("the response was interrupted") from None

    async def _while_admitted(
        self,
        request: Request,
        visitor: Visitor,
        answer: Awaitable[None],
        response: _ResponseState,
    ) -> None:
        """Answer with a stream, and end it if the visitor loses a right."""
        answering = asyncio.ensure_future(answer)
        try:
            while not (await asyncio.wait({answering}, timeout=RECHECK_SECONDS))[0]:
                if not await self._is_still(request, visitor):
                    break
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait({answering})
        if not answering.cancelled():
            answering.result()
        elif response.status is None:
            await _http_errors.page(request, self._state, 401)(
                request.scope, request.receive, response.send
            )
        else:
            await response.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _is_still(self, request: Request, visitor: Visitor) -> bool:
        try:
            return await self._visitor(request) == visitor
        except exceptions.StorageFailure:  # The stream reads nothing either.
            return True
        except (Exceeded, ValueError):
            return False

    @contextlib.contextmanager
    def _answering(self, request: Request, visitor: Visitor | None) -> Iterator[None]:
        """Register a response during a `with` block. `visitor` is None without a session.

        :raises Exceeded: if the visitor or its address has too many requests.
        """
        with contextlib.ExitStack() as end:
            if visitor is not None:
                quotas = self._state.quotas
                quota = quotas.streams if _urls.is_stream(request) else quotas.requests
                end.enter_context(
                    quota.acquire(self._client(request, visitor), audit.address(request))
                )
            connection = _connection_limits.of_scope(request.scope)
            if connection is not None:
                end.enter_context(connection.answering(signed_in=visitor is not None))
            yield

    def _client(self, request: Request, visitor: Visitor) -> str:
        """Return the key of the quota: the user, else the browser's session, else the address."""
        if visitor.name:
            return f"user {visitor.name}"
        sessions = self._state.sessions
        cookie = request.cookies.get(sessions.cookie)
        if sessions.visitor_of_cookie(cookie) is not None:
            return f"session {cookie}"
        return audit.address(request)

    async def _refusal(self, request: Request, response: _ResponseState) -> ASGIApp | None:
        path, audit = _urls.path_of(request), self._state.audit
        if not _http_headers.is_host_allowed(request.headers, self._hosts):
            audit.rejected(request, "unknown host name", request.headers.get("host", ""))
            return _http_errors.page(request, self._state, 421)
        if path in _PUBLIC_PATHS or path.startswith(_STATIC_PREFIX):
            response.static = path.startswith(_STATIC_PREFIX)
            is_known = True
        else:
            try:
                visitor = await self._visitor(request)
            except ValueError as error:
                audit.rejected(request, "a header of the visitor is not valid")
                return _http_errors.page(request, self._state, 401, str(error))
            except exceptions.StorageFailure as error:
                return _http_errors.page(request, self._state, 503, str(error))
            request.state.visitor = visitor
            is_known = visitor is not None
        query_token = request.query_params.get("token")
        if query_token is not None and request.method == "GET" and not response.static:
            return self._exchange_token(request, query_token)
        if not is_known:
            if "authorization" in request.headers or request.method == "POST":
                audit.rejected(request, "no valid token")
            return _http_errors.page(request, self._state, 401)
        if not _visitors.may_visit(request):
            return _http_errors.page(request, self._state, 403, _FLOWS_ONLY)
        if request.method == "POST" and not self._is_own(request):
            origin = request.headers.get("origin", "")
            audit.rejected(request, "request from another origin", origin)
            return _http_errors.page(
                request, self._state, 403, "The request must come from a page of this dashboard."
            )
        return None

    def _is_own(self, request: Request) -> bool:
        """Return whether a page of this dashboard, or a program that uses the API, sent it."""
        if _urls.is_api(request) and not _http_headers.is_from_browser(request.headers):
            return True
        return _http_headers.is_same_origin(request.headers)

    async def _visitor(self, request: Request) -> Visitor | None:
        """Return the visitor of a request, who may be named by a proxy.

        :raises Exceeded, StorageFailure: see `Credentials.visitor_of_request`.
        :raises ValueError: if the headers of the visitor are not valid.
        """
        token = _bearer(request.headers)
        visitor, has_token = await self._state.credentials.visitor_of_request(request, token)
        request.state.has_token = has_token
        if has_token and visitor is not None and visitor.role == _roles.PROXY:
            request.state.proxy_token = token
            role = _single_header(request.headers, "x-wbengine-role", _roles.VIEWER)
            name = _visitors.check_name(_single_header(request.headers, "x-wbengine-user", ""))
            tags = _tags_from_proxy(request.headers, visitor.tags)
            return Visitor(name, _roles.check_role(role), tags, visitor.queues)
        # Behind a proxy, the cookie is used only for forms.
        return None if visitor is not None and visitor.role == _roles.PROXY else visitor

    def _exchange_token(self, request: Request, token: str) -> ASGIApp:
        """Exchange a token in the URL for a cookie, and redirect to the URL without it."""
        visitor = self._state.credentials.sign_in(request, token)
        if visitor is None or visitor.role == _roles.PROXY:
            self._state.audit.rejected(request, "no valid token")
            hint = _KEY_IN_ADDRESS if _access_keys.is_key(token) else "The token is not valid."
            return _http_errors.page(request, self._state, 401, hint)
        parameters = [
            parameter for parameter in request.query_params.multi_items() if parameter[0] != "token"
        ]
        # A path that begins with two slashes would be another host.
        url = _urls.href(request, "/" + _urls.path_of(request).lstrip("/"))
        url = f"{url}?{urlencode(parameters)}" if parameters else url
        return self._state.admit(request, token, url)

    def _log(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        LOG.error("request failed: %s", self._state.redactor.text(text))


class _ResponseState:
    """Status and headers of the response to one request."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status: int | None = None
        self.static = False
        self._nonce = secrets.token_urlsafe(16)
        self._send = send
        self._lock = asyncio.Lock()
        scope.setdefault("state", {})["nonce"] = self._nonce

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            response_headers = MutableHeaders(scope=message)
            for name, value in _http_headers.headers(self._nonce, static=self.static).items():
                response_headers.setdefault(name, value)
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, has_more = message.get("body", b""), message.get("more_body", False)
        # The lock prevents a ping of another task inside an event of a stream.
        async with self._lock:
            for start in range(0, len(body), _MAX_PIECE_BYTES):
                piece = body[start : start + _MAX_PIECE_BYTES]
                await self._send({**message, "body": piece, "more_body": True})
            if not has_more:  # The server returns when it has sent all pieces.
                await self._send({**message, "body": b"", "more_body": False})


def _single_header(headers: Headers, name: str, default: str) -> str:
    """Return a header that must be unique: a second one may come from the client of a proxy.

    :raises ValueError: if the header occurs twice.
    """
    values = headers.getlist(name) or [default]
    if len(values) > 1:
        raise ValueError(f"{name} must occur once, got {len(values)} values")
    return values[0]


def _tags_from_proxy(headers: Headers, tags: Mapping[str, str]) -> Mapping[str, str]:
    """Return the tags of the proxy and those that it names.

    :raises ValueError: if they are invalid or contradict each other. An empty header is invalid: a
        proxy whose user lacks tags must not open the store.
    """
    if "x-wbengine-tags" not in headers:
        return tags
    words = _single_header(headers, "x-wbengine-tags", "").split(",")
    named = _visitors.parse_tags(word.strip() for word in words)
    for key, value in tags.items():
        if named.get(key, value) != value:
            raise ValueError(f"x-wbengine-tags must not change tag {key} of the proxy")
    return {**named, **tags}


def _bearer(headers: Headers) -> str | None:
    kind, _, token = _single_header(headers, "authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None
