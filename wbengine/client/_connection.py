"""HTTP of the clients: settings, requests, responses, and when a call is repeated."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import tenacity

from wbengine._imports import installing
from wbengine.client._calls import LONG_POLL_SECONDS, Call, CallFailed, error_of

try:
    import httpx2
except ImportError as error:
    raise ImportError(installing.needs("wbengine.client", "httpx2", "client")) from error

__all__ = ["content_of", "failed", "flow_id", "options", "repeated", "request"]

#: Time in seconds for a response that is not delayed.
RESPONSE_SECONDS: Final = 30.0
_MAX_PAUSE_SECONDS: Final = 5.0
_MAX_ERROR_CHARACTERS: Final = 200


def options(url: str, key: str | None, http_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a client of httpx2.

    :raises ValueError: if the URL is not an HTTP URL, or contains a user or a query, or if the key
        cannot be sent.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ValueError("url must be an HTTP URL such as https://flows.example.com") from None
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("url must not contain a user, a query or a fragment; pass key=")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"url must be an HTTP URL such as https://flows.example.com, got {url!r}")
    # Errors of httpx2 about a header contain it.
    if key is not None and (not key or not key.isascii() or not key.isprintable() or " " in key):
        raise ValueError("key must consist of printable ASCII characters without spaces")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return {
        "base_url": f"{url.rstrip('/')}/api/v1/",
        "timeout": httpx2.Timeout(RESPONSE_SECONDS, read=LONG_POLL_SECONDS + RESPONSE_SECONDS),
        **http_options,
        "headers": {**http_options.get("headers", {}), **headers, "accept": "application/json"},
    }


def request(call: Call) -> dict[str, Any]:
    """Return the arguments of the `request` method of a client of httpx2."""
    content = {} if call.body is None else {"json": call.body}
    return {
        "method": call.method,
        "url": call.path,
        "params": call.query,
        "headers": call.headers,
        **content,
    }


def content_of(response: httpx2.Response, call: Call) -> Mapping[str, Any]:
    """Return the content of a response.

    :raises Exception: see `error_of`.
    """
    try:
        content = response.json()
    except (ValueError, RecursionError):
        content = response.text[:_MAX_ERROR_CHARACTERS]
    if response.is_success and isinstance(content, Mapping):
        return content
    raise error_of(response.status_code, content, call)


def failed(error: httpx2.RequestError, call: Call) -> CallFailed:
    """Return the exception for a call without a response that can be read."""
    was_never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    text = f"{call.method} {call.path}: {type(error).__name__}: {error}"
    return CallFailed(text, was_never_sent or call.is_repeatable)


def repeated(retry_seconds: float) -> dict[str, Any]:
    """Return the arguments of `tenacity.Retrying` for a client that repeats calls for this time."""
    return {
        "retry": tenacity.retry_if_exception(
            lambda error: isinstance(error, CallFailed) and error.is_repeated
        ),
        "wait": tenacity.wait_random_exponential(multiplier=0.1, max=_MAX_PAUSE_SECONDS),
        "stop": tenacity.stop_after_delay(retry_seconds),
        "reraise": True,
    }


def flow_id(text: str) -> str:
    """Return the uuid of a flow in its usual form.

    :raises ValueError: if it is not a uuid.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise ValueError(f"The id of a flow must be a uuid, got {text!r:.80}") from error
