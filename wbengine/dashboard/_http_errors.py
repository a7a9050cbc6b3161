"""Error pages, and the HTTP status of each exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from wbengine import exceptions
from wbengine.dashboard import _rendering, _urls
from wbengine.dashboard._app_state import AppState

__all__ = [
    "ERROR_TYPE",
    "PROBLEM",
    "as_http_errors",
    "int_parameter",
    "int_parameters",
    "limit",
    "login_page",
    "page",
    "signed_out_page",
]

#: Media type of errors for programs (RFC 9457).
PROBLEM: Final = "application/problem+json"

#: Beginning of the type of an error that an exception of wbengine caused. Its name follows.
ERROR_TYPE: Final = "urn:wbengine:error:"

#: Messages may contain invalid values or errors of user code.
_MAX_TEXT_CHARS: Final = 4000

_TEXTS: Final[Mapping[int, str]] = {
    401: "Enter the token that the dashboard printed when it started.",
    403: "This is not allowed.",
    404: "This page does not exist, or its flow was deleted.",
    405: "This request method is not allowed for this page.",
    421: "The dashboard does not accept this host name; add it with --allow-host.",
    500: "An error occurred. For details, see the log of the dashboard.",
}
#: One text for all keys and tokens, so that it does not help to guess a valid one.
_INVALID_KEY: Final = "The access key or token is unknown, revoked or expired."


def page(
    request: Request,
    app_state: AppState,
    status: int,
    detail: str | None = None,
    kind: str | None = None,
) -> Response:
    """Return an error as JSON for programs, else as a page.

    :param detail: a text, which is masked here.
    :param kind: name of the exception of wbengine, which becomes the type of the error.
    """
    if detail:
        text = app_state.redactor.text(detail)
    elif status == 401 and "authorization" in request.headers:
        text = _INVALID_KEY
    else:
        text = _TEXTS.get(status, HTTPStatus(status).phrase)
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    if len(text) > _MAX_TEXT_CHARS:
        text = f"{text[:_MAX_TEXT_CHARS]}..."
    if _urls.wants_json(request):
        content = {
            "schema": "wbengine/error/1",
            "type": f"{ERROR_TYPE}{kind}" if kind else "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": text,
            "error": text,
        }
        return _rendering.SafeJSONResponse(content, status, headers, PROBLEM)
    first, _, rest = text.partition(" ")
    # A text that begins with the name of a parameter is not capitalized.
    if first.isalpha() and not rest.startswith("must "):
        text = text[0].upper() + text[1:]
    context: dict[str, object] = {
        "status": status,
        "title": HTTPStatus(status).phrase,
        "said": text,
    }
    if status not in (401, 421):  # Clients without access get no navigation.
        context["here"] = ""
    if status == 401:
        said = None if text == _TEXTS[401] else text
        return login_page(request, app_state, said, status, headers=headers)
    return app_state.render(request, "error.html", context, status=status, headers=headers)


def login_page(
    request: Request,
    app_state: AppState,
    said: str | None = None,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the page that asks for the token, and leads to the provider of OpenID Connect.

    :param said: a text instead of the usual one, which is masked here.
    """
    sign_in = app_state.sign_in
    context: dict[str, object] = {
        "title": "Sign in",
        "said": _TEXTS[401] if said is None else app_state.redactor.text(said),
        "has_tokens": sign_in is None or app_state.sessions.has_tokens,
        "provider_url": None,
    }
    if sign_in is not None:
        context["provider"] = sign_in.settings.label
        context["provider_url"] = _provider_url(request, sign_in.settings.dashboard_url)
        if said is None:
            context["said"] = "Sign in to use the dashboard."
    return app_state.render(request, "login.html", context, status=status, headers=headers)


def signed_out_page(request: Request, app_state: AppState, url: str | None) -> Response:
    """Return the page after the end of a session.

    :param url: URL that ends the session at the provider. The page continues there: browsers refuse
        to redirect a form to another origin.
    """
    context = {"title": "Signed out", "continue_url": url}
    return app_state.render(request, "signed_out.html", context)


def _provider_url(request: Request, dashboard_url: str) -> str:
    """Return the URL that starts a sign-in, at the address that the provider redirects to.

    Cookies belong to an address, and the dashboard may have several.
    """
    path = _urls.path_of(request)
    if (
        request.method != "GET"
        or path.startswith(("/login", "/logout"))
        or _urls.is_stream(request)
    ):
        return f"{dashboard_url}{_urls.SIGN_IN}"
    target = f"{path}?{request.url.query}" if request.url.query else path
    return f"{dashboard_url}{_urls.SIGN_IN}?{urlencode({'next': target})}"


@contextlib.contextmanager
def as_http_errors() -> Iterator[None]:
    """Convert exceptions of wbengine into HTTP errors with the same message."""
    try:
        yield
    except exceptions.NotFound as error:
        raise HTTPException(404, str(error)) from error
    except (exceptions.NotTrusted, exceptions.DisallowedAccess) as error:
        raise HTTPException(403, str(error)) from error
    except (
        ValueError,
        exceptions.CompilationFailure,
        exceptions.DependencyFailure,
        exceptions.NotEncodable,
        exceptions.TooLarge,
    ) as error:
        raise HTTPException(400, str(error)) from error
    except (
        exceptions.InvalidState,
        exceptions.FlowBusy,
        exceptions.Duplicate,
        exceptions.InvalidFormat,
    ) as error:
        raise HTTPException(409, str(error)) from error
    except exceptions.ExecutionFailure as error:
        raise HTTPException(502, str(error)) from error
    except (
        exceptions.StorageFailure,
        exceptions.TransportFailure,
        exceptions.JobFailure,
    ) as error:
        raise HTTPException(503, str(error)) from error


def limit(request: Request, default: int, maximum: int) -> int:
    """Return the requested size of a page.

    :raises ValueError: if it is not a number from 1 to `maximum`.
    """
    value = int_parameter(request, "limit", default)
    if not 1 <= value <= maximum:
        raise ValueError(f"limit must be a number from 1 to {maximum}, got {value}")
    return value


def int_parameter(request: Request, name: str, default: int = 0) -> int:
    """Return a query parameter as a whole number.

    :raises ValueError: if it is not a whole number below 10^9.
    """
    return _parse_int(name, request.query_params.get(name, str(default)))


def int_parameters(request: Request, name: str) -> frozenset[int]:
    """Return all query parameters of this name as whole numbers.

    :raises ValueError: if any is not a whole number below 10^9.
    """
    return frozenset(_parse_int(name, text) for text in request.query_params.getlist(name))


def _parse_int(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name} must be a whole number, got {text!r:.40}")
    return int(text)
