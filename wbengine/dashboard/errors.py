"""What is said when there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wbengine.dashboard import places
from wbengine.dashboard.desk import Desk

__all__ = ["asking", "page"]

_SAID: Final[Mapping[int, str]] = {
    401: "Show the token that was printed when the dashboard started.",
    403: "This is not allowed here.",
    404: "There is no such page, or what it showed is not kept any more.",
    405: "Pages can be read; actions are sent by their buttons.",
    421: "The dashboard is not known by this name.",
    500: "Something went wrong here. The log of the dashboard says what.",
}


def page(request: Request, desk: Desk, status: int, detail: str | None = None) -> Response:
    """An error, as JSON for a program, else as a page; `detail` is shown masked."""
    said = desk.redactor.text(detail) if detail else _SAID.get(status, HTTPStatus(status).phrase)
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    if places.wants_json(request):
        told = {"schema": "wbengine/error/1", "status": status, "error": said}
        return JSONResponse(told, status, headers)
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
    return desk.render(request, name, words, status=status, headers=headers)


def asking(request: Request, desk: Desk) -> Response:
    """The page that asks for the token."""
    return desk.render(request, "login.html", {"title": "Who is there?", "said": _SAID[401]})
