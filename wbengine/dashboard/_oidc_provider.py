"""Requests to a provider of OpenID Connect."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from wbengine._concurrency import clocks
from wbengine._imports import installing
from wbengine.dashboard import _http_headers, _oidc_tokens
from wbengine.dashboard._oidc_attempts import Attempt
from wbengine.dashboard._oidc_failure import SignInFailed
from wbengine.dashboard._oidc_settings import OidcSettings
from wbengine.notifications import _http

try:
    import httpx2
except ImportError as error:
    raise ImportError(
        installing.needs("the sign-in with OpenID Connect", "httpx2", "oidc")
    ) from error

__all__ = ["Provider"]

LOG: Final = logging.getLogger(__name__)

#: Limit for one request.
_REQUEST_SECONDS: Final = 10.0
_MAX_RESPONSE_BYTES: Final = 1_000_000
#: Time for which the description of the provider and its keys are used again.
CACHE_SECONDS: Final = 600.0
#: Minimum time between two requests after a failure, and for keys that a token needs.
RETRY_SECONDS: Final = 5.0

_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_OPTIONAL_ENDPOINTS: Final = ("userinfo_endpoint", "end_session_endpoint")
#: Errors of the token endpoint whose cause is a setting.
_SETTING_ERRORS: Final = ("invalid_client", "unauthorized_client", "unsupported_grant_type")


class Provider:
    """A provider, whose description and keys are read when a sign-in needs them.

    For the event loop only.
    """

    def __init__(self, settings: OidcSettings, clock: clocks.Clock = clocks.SYSTEM) -> None:
        self._settings = settings
        self._clock = clock
        self._metadata = _Cached()
        self._keys = _Cached()

    async def authorization_url(self, attempt: Attempt) -> str:
        """Return the URL at which a person signs in.

        :raises SignInFailed: if the provider cannot be used.
        """
        metadata = await self._read_metadata()
        return _with_query(
            metadata["authorization_endpoint"],
            response_type="code",
            client_id=self._settings.client_id,
            redirect_uri=self._settings.redirect_uri,
            scope=" ".join(self._settings.scopes),
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=attempt.challenge,
            code_challenge_method="S256",
        )

    async def end_session_url(self) -> str | None:
        """Return the URL that ends the session at the provider; None if it offers none."""
        try:
            endpoint = (await self._read_metadata()).get("end_session_endpoint")
        except SignInFailed as error:
            LOG.warning("sign-out at the provider is not possible: %s", error)
            return None
        if endpoint is None:
            return None
        return _with_query(
            endpoint,
            client_id=self._settings.client_id,
            post_logout_redirect_uri=f"{self._settings.dashboard_url}/login",
        )

    async def redeem(self, code: str, attempt: Attempt) -> tuple[dict[str, Any], str | None]:
        """Exchange a code for the claims of the ID token, and the access token if there is one.

        :raises SignInFailed: if the provider refuses the code, or the ID token is not valid.
        """
        metadata = await self._read_metadata()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        headers = self._authenticate(metadata, fields)
        status, content = await self._json(
            "POST", metadata["token_endpoint"], data=fields, headers=headers
        )
        if status != 200:
            self._refused(content.get("error"), status)
        token, access_token = content.get("id_token"), content.get("access_token")
        if not isinstance(token, str):
            raise SignInFailed("The provider sent no ID token", status=503)
        claims = await self._check(token, metadata, attempt)
        return claims, access_token if isinstance(access_token, str) else None

    async def user_claims(self, access_token: str) -> Mapping[str, Any]:
        """Return the claims of the userinfo endpoint; none if the provider lacks it.

        :raises SignInFailed: if the endpoint fails.
        """
        endpoint = (await self._read_metadata()).get("userinfo_endpoint")
        if endpoint is None:
            return {}
        headers = {"authorization": f"Bearer {access_token}"}
        status, content = await self._json("GET", endpoint, headers=headers)
        if status != 200:
            raise SignInFailed("The provider refused to send your claims: status", status)
        return content

    def _authenticate(
        self, metadata: Mapping[str, Any], fields: dict[str, str]
    ) -> Mapping[str, str]:
        """Return the headers that authenticate the dashboard, or add it to the fields."""
        client_id, secret = self._settings.client_id, self._settings.client_secret
        methods = metadata.get("token_endpoint_auth_methods_supported")
        methods = methods if isinstance(methods, list) else ["client_secret_basic"]
        if "client_secret_basic" not in methods and "client_secret_post" in methods:
            fields.update(client_id=client_id, client_secret=secret)
            return {}
        # RFC 6749 requires that both are encoded as in forms.
        pair = f"{quote_plus(client_id)}:{quote_plus(secret)}".encode("ascii")
        return {"authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}

    def _refused(self, reason: object, status: int) -> None:
        if reason in _SETTING_ERRORS:
            raise SignInFailed(
                "The provider refused the dashboard: check client_id and the client secret", reason,
                status=503,
            )  # fmt: skip
        raise SignInFailed(
            "The provider refused the code of this sign-in. Sign in again", reason or status
        )

    async def _check(
        self, token: str, metadata: Mapping[str, Any], attempt: Attempt
    ) -> dict[str, Any]:
        """Check an ID token. If no known key fits, read the keys again, and check it once more."""
        keys = await self._read_keys(metadata, CACHE_SECONDS)
        try:
            return self._checked(token, keys, attempt)
        except _oidc_tokens.UnknownKey:
            keys = await self._read_keys(metadata, RETRY_SECONDS)
            return self._checked(token, keys, attempt)

    def _checked(self, token: str, keys: Any, attempt: Attempt) -> dict[str, Any]:
        return _oidc_tokens.check(
            token,
            keys,
            issuer=self._settings.issuer,
            client_id=self._settings.client_id,
            nonce=attempt.nonce,
            now=self._clock.time(),
        )

    async def _read_metadata(self) -> Mapping[str, Any]:
        async with self._metadata.lock:
            if self._metadata.is_older(CACHE_SECONDS, self._clock.monotonic()):
                await self._metadata.fill(self._fetch_metadata(), self._clock)
            metadata: Mapping[str, Any] = self._metadata.value()
            return metadata

    async def _read_keys(self, metadata: Mapping[str, Any], max_age: float) -> Any:
        async with self._keys.lock:
            if self._keys.is_older(max_age, self._clock.monotonic()):
                await self._keys.fill(self._fetch_keys(metadata["jwks_uri"]), self._clock)
            return self._keys.value()

    async def _fetch_metadata(self) -> Mapping[str, Any]:
        issuer = self._settings.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        status, metadata = await self._json("GET", url)
        if status != 200:
            raise SignInFailed(f"{url} must describe the provider, got status", status, status=503)
        if metadata.get("issuer") != issuer:
            raise SignInFailed(
                f"The issuer of the provider must be {issuer!r}, as in the settings (also a slash"
                " at the end counts), got",
                repr(metadata.get("issuer")),
                status=503,
            )
        for name in (*_ENDPOINTS, *_OPTIONAL_ENDPOINTS):
            if name in _ENDPOINTS or metadata.get(name) is not None:
                _check_endpoint(name, metadata.get(name), issuer)
        return metadata

    async def _fetch_keys(self, url: str) -> list[Any]:
        status, content = await self._json("GET", url)
        keys = content.get("keys")
        if status != 200 or not isinstance(keys, list):
            raise SignInFailed(f"{url} must contain the keys of the provider", status=503)
        return keys

    async def _json(self, method: str, url: str, **options: Any) -> tuple[int, dict[str, Any]]:
        """Send a request, and return the status and the JSON object of the response."""
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_REQUEST_SECONDS),
                httpx2.AsyncClient(verify=_http.tls_context(self._settings.ca_file)) as client,
                client.stream(method, url, **options) as response,
            ):
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > _MAX_RESPONSE_BYTES:
                        raise SignInFailed(f"The response of {url} is too long", status=503)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError) as error:
            LOG.warning("%s cannot be reached: %s", url, str(error) or type(error).__name__)
            raise SignInFailed(
                f"The sign-in service {urlsplit(url).netloc} cannot be reached. Try again later,"
                " or ask the operator of the dashboard.",
                status=503,
            ) from error
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise SignInFailed(
                f"{url} must answer with a JSON object, got status", response.status_code,
                status=503,
            )  # fmt: skip
        return response.status_code, content


class _Cached:
    """A value of the provider, or the failure to read it, and the time of the latest request."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._value: Any = None
        self._failure: SignInFailed | None = None
        self._read_at: float | None = None

    def is_older(self, seconds: float, now: float) -> bool:
        """Return whether to read the value, which is older than `seconds`."""
        max_age = min(seconds, RETRY_SECONDS) if self._failure else seconds
        return self._read_at is None or now - self._read_at >= max_age

    async def fill(self, reading: Any, clock: clocks.Clock) -> None:
        """Store the result of `reading`."""
        try:
            self._value, self._failure = await reading, None
        except SignInFailed as error:
            self._failure = error
        self._read_at = clock.monotonic()

    def value(self) -> Any:
        if (failure := self._failure) is not None:
            # A new exception, because each `raise` adds a traceback to its exception.
            raise SignInFailed(failure.message, failure.detail, status=failure.status)
        return self._value


def _check_endpoint(name: str, url: Any, issuer: str) -> None:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host = parts.hostname if parts.port != 0 else None
    except ValueError:  # for example, a port above 65535
        host = None
    is_local = urlsplit(issuer).scheme == "http" and host in _http_headers.LOOPBACK
    if not host or parts.scheme not in (("https", "http") if is_local else ("https",)):
        raise SignInFailed(f"{name} of the provider must be a URL of https, got", url, status=503)


def _with_query(url: str, **parameters: str) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(parameters)}"
