"""Factories that callers of operations name: only those that the server allows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wbengine import exceptions
from wbengine.engines import _allowed

__all__ = ["loading"]


@contextlib.contextmanager
def loading(factory: str) -> Iterator[None]:
    """Check that a factory is allowed, and call it in the block.

    :raises NotTrusted: if it is not allowed.
    :raises ValueError: instead of other errors of the factory.
    """
    allowed = _allowed.of_process()
    if not allowed.names:
        raise exceptions.NotTrusted(
            "Flows can be submitted here only if the server has a list of allowed flows: --flows,"
            f" ${_allowed.FLOWS_VARIABLE} or flows="
        )
    try:
        allowed.load(factory)
        yield
    except (exceptions.WbengineException, ValueError):
        raise
    except Exception as error:  # The factory is code of the user.
        raise ValueError(f"{factory}: {type(error).__name__}: {error}") from error
