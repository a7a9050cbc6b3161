"""Errors: as a page or as JSON, and which HTTP status an exception is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wbengine import exceptions
from wbengine.dashboard import urls
from wbengine.dashboard.app_state import AppState

__all__ = ["asking", "limit", "page", "refused", "whole", "wholes"]

_SAID: Final[Mapping[int, str]] = {
    401: "Show the token that was printed when the dashboard started.",
    403: "This is not allowed here.",
    404: "There is no such page, or what it showed is not kept any more.",
    405: "Pages can be read; actions are sent by their buttons.",
    421: "The dashboard is not known by this name.",
    500: "Something went wrong here. The log of the dashboard says what.",
}


def page(request: Request, app_state: AppState, status: int, detail: str | None = None) -> Response:
    """An error, as JSON for a program, else as a page; `detail` is shown masked."""
    said = (
        app_state.redactor.text(detail) if detail else _SAID.get(status, HTTPStatus(status).phrase)
    )
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    if urls.wants_json(request):
        content = {"schema": "wbengine/error/1", "status": status, "error": said}
        return JSONResponse(content, status, headers)
    if said.partition(" ")[0].isalpha():  # and no name of a parameter
        said = said[0].upper() + said[1:]
    words: dict[str, object] = {
        "status": status,
        "title": HTTPStatus(status).phrase,
        "said": said,
    }
    if status not in (401, 421):  # who may not come in has nowhere to go
        words["here"] = ""
    name = "login.html" if status == 401 else "error.html"
    return app_state.render(request, name, words, status=status, headers=headers)


def asking(request: Request, app_state: AppState) -> Response:
    """The page that asks for the token."""
    return app_state.render(request, "login.html", {"title": "Who is there?", "said": _SAID[401]})


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """What cannot be shown or done becomes an error that says why."""
    try:
        yield
    except exceptions.NotFound as error:
        raise HTTPException(404, str(error)) from error
    except (ValueError, exceptions.NotEncodable) as error:
        raise HTTPException(400, str(error)) from error
    except (exceptions.InvalidState, exceptions.FlowBusy, exceptions.Duplicate) as error:
        raise HTTPException(409, str(error)) from error
    except exceptions.ExecutionFailure as error:
        raise HTTPException(502, str(error)) from error
    except (exceptions.StorageFailure, exceptions.TransportFailure) as error:
        raise HTTPException(503, str(error)) from error


def limit(request: Request, default: int, most: int) -> int:
    """How many things a page is asked to have.

    :raises ValueError: it cannot.
    """
    found = whole(request, "limit", default)
    if not 1 <= found <= most:
        raise ValueError(f"limit={found} is no number from 1 to {most}")
    return found


def whole(request: Request, name: str, default: int = 0) -> int:
    """A whole number in an address, or what it is where there is none.

    :raises ValueError: it is something else.
    """
    return _whole(name, request.query_params.get(name, str(default)))


def wholes(request: Request, name: str) -> frozenset[int]:
    """The whole numbers of that name in an address.

    :raises ValueError: one of them is something else.
    """
    return frozenset(_whole(name, text) for text in request.query_params.getlist(name))


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name}={text!r:.40} is no whole number")
    return int(text)
