"""Objects that exist once in each process. Forks do not inherit them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerProcess"]

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """A callable that returns the object of this process. A fork creates its own object."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._object = self._make()

    def __call__(self) -> _T:
        return self._object
