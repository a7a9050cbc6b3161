"""What the records of books, flows and atoms have in common."""

from __future__ import annotations

import threading
from typing import Any, Final

__all__ = ["Annotated"]

_making: Final = threading.Lock()


class Annotated:
    """A record with a `meta`: whatever listeners and users attach."""

    __slots__ = ("_meta",)

    def __init__(self) -> None:
        self._meta: dict[str, Any] | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """Made when first asked for."""
        if self._meta is None:
            with _making:  # two threads must get the same one
                if self._meta is None:
                    self._meta = {}
        self._show(self._meta)
        return self._meta

    @meta.setter
    def meta(self, value: dict[str, Any] | None) -> None:
        self._meta = value

    @property
    def has_meta(self) -> bool:
        return bool(self._meta)

    def _show(self, meta: dict[str, Any]) -> None:
        """Put in what is to be seen there but is kept elsewhere."""
