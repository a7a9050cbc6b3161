"""A provider of OpenID Connect whose answers a test changes. It checks PKCE and the client."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlsplit

import uvicorn
from joserfc import jwk, jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

CLIENT = "wbengine"
#: Characters that differ between forms, URLs and headers.
SECRET = "a+secret/with:odd%characters=&"
KEY_ID = "one"
KEY = jwk.generate_key("RSA", 2048, {"kid": KEY_ID})


class IdentityProvider:
    """A provider, and its requests.

    :ivar claims: claims of the next ID token, in addition to those of the protocol. None removes a
        claim.
    :ivar user_claims: claims of the userinfo endpoint.
    :ivar metadata: changes of the description.
    :ivar requests: the paths of all requests.
    """

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = KEY
        self.claims: dict[str, Any] = {}
        self.user_claims: dict[str, Any] | None = None
        self.metadata: dict[str, Any] = {}
        self.token_response: Callable[[], Response] | None = None
        self.requests: list[str] = []
        self._codes: dict[str, Mapping[str, str]] = {}
        self._subject = "user-1"

    def sign_in(self, url: str, **changes: str) -> str:
        """Sign a person in, and return the URL to which the browser is redirected."""
        parts = urlsplit(url)
        assert f"{parts.scheme}://{parts.netloc}" == self.issuer and parts.path == "/authorize"
        asked = dict(parse_qsl(parts.query)) | changes
        assert asked["response_type"] == "code" and asked["client_id"] == CLIENT
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?code={code}&state={asked['state']}"

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._describe),
                Route("/keys", self._list_keys),
                Route("/token", self._redeem, methods=["POST"]),
                Route("/userinfo", self._show_user),
            ]
        )

    def _describe(self, request: Request) -> Response:
        self.requests.append("description")
        description = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "end_session_endpoint": f"{self.issuer}/end?x=1",
            **self.metadata,
        }
        return JSONResponse({name: each for name, each in description.items() if each is not None})

    def _list_keys(self, request: Request) -> Response:
        self.requests.append("keys")
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def _redeem(self, request: Request) -> Response:
        self.requests.append("token")
        if self.token_response is not None:
            return self.token_response()
        form = dict(parse_qsl((await request.body()).decode()))
        if self._client(request, form) != (CLIENT, SECRET):
            return JSONResponse({"error": "invalid_client"}, 401)
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            asked is None
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT, "sub": self._subject, "iat": now, "exp": now + 60,
            "nonce": asked["nonce"], **self.claims,
        }  # fmt: skip
        sent = {name: value for name, value in claims.items() if value is not None}
        token = jwt.encode({"alg": "RS256", "kid": KEY_ID}, sent, self.key)
        return JSONResponse({"id_token": token, "access_token": "access", "token_type": "Bearer"})

    @staticmethod
    def _client(request: Request, form: Mapping[str, str]) -> tuple[str, str]:
        """Return id and secret of the client, from the header or the form (RFC 6749, 2.3.1)."""
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return form.get("client_id", ""), form.get("client_secret", "")
        name, _, secret = base64.b64decode(text).decode().partition(":")
        return unquote_plus(name), unquote_plus(secret)

    def _show_user(self, request: Request) -> Response:
        self.requests.append("userinfo")
        assert request.headers["authorization"] == "Bearer access"
        if self.user_claims is None:
            return JSONResponse({}, 403)
        return JSONResponse({"sub": self._subject, **self.user_claims})


@contextlib.contextmanager
def serving(provider: IdentityProvider, listener: socket.socket) -> Iterator[None]:
    """Serve a provider until the context exits."""
    server = uvicorn.Server(uvicorn.Config(provider.application(), log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Yield a provider that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider = IdentityProvider(listener.getsockname()[1])
        with serving(provider, listener):
            yield provider
