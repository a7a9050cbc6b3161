"""Common steps of forms and of the API: read the body, perform the action and log it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from wbengine.dashboard import _http_errors
from wbengine.dashboard._app_state import AppState

__all__ = [
    "BODY_SECONDS",
    "content_type",
    "perform",
    "read_body",
    "read_form",
]

_T = TypeVar("_T")

BODY_SECONDS: Final = 10.0
_MAX_FORM_BYTES: Final = 16_384


def content_type(request: Request) -> str:
    """Return the media type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, name: str, max_bytes: int) -> bytes:
    """Return the body. `name` is its name in errors.

    :raises HTTPException: if it is too long, or arrives too late.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise HTTPException(413, f"The {name} must have at most {max_bytes} bytes.")
    except TimeoutError as error:
        raise HTTPException(408, f"The {name} was not received in time.") from error
    return bytes(body)


async def read_form(request: Request, max_bytes: int = _MAX_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form; of several with the same name, the last one.

    :raises HTTPException: if the body is not a form, is too long, or arrives too late.
    """
    if content_type(request) != "application/x-www-form-urlencoded":
        raise HTTPException(415, "The content type must be application/x-www-form-urlencoded.")
    body = await read_body(request, "form", max_bytes)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=1_000))
    except ValueError as error:
        raise HTTPException(400, "The form is malformed.") from error


async def perform(app_state: AppState, request: Request, action: str, act: Callable[[], _T]) -> _T:
    """Perform an action in a thread, and return its result.

    The thread also logs the action: if the request is cancelled, for example because the server
    ends, the thread continues without it.

    :raises HTTPException: if it fails for a known reason.
    """

    def perform_and_log() -> _T:
        try:
            with _http_errors.as_http_errors():
                result = act()
        except HTTPException as error:
            app_state.audit.failed(request, action, error.detail)
            raise
        except Exception as error:  # The guard logs the details.
            app_state.audit.failed(request, action, type(error).__name__)
            raise
        app_state.audit.done(request, action)
        return result

    return await run_in_threadpool(perform_and_log)
