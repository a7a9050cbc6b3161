"""Check of the backend that an operation receives."""

from __future__ import annotations

from wbengine.persistence import base

__all__ = ["check"]


def check(backend: base.Backend) -> None:
    """Check that an argument is a backend.

    :raises TypeError: if it is not, for example because it is a URL.
    """
    if not isinstance(backend, base.Backend):
        raise TypeError(
            "backend must be a Backend, as wbengine.persistence.backends.fetch(URL) returns it, got"
            f" {type(backend).__name__}"
        )
