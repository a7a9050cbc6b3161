"""What the floors below refuse, as what HTTP calls it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from starlette.exceptions import HTTPException
from starlette.requests import Request

from wbengine import exceptions

__all__ = ["refused", "whole"]


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """What cannot be shown or done becomes an error that says why."""
    try:
        yield
    except exceptions.NotFound as error:
        raise HTTPException(404, str(error)) from error
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    except (exceptions.InvalidState, exceptions.FlowBusy) as error:
        raise HTTPException(409, str(error)) from error
    except exceptions.ExecutionFailure as error:
        raise HTTPException(502, str(error)) from error
    except (exceptions.StorageFailure, exceptions.TransportFailure) as error:
        raise HTTPException(503, str(error)) from error


def whole(request: Request, name: str, default: int = 0) -> int:
    """A whole number in an address, or what it is where there is none.

    :raises ValueError: it is something else.
    """
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name}={text!r:.40} is no whole number")
    return int(text)
