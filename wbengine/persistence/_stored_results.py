"""Results of steps that a run keeps only in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["StoredResult", "is_small"]

_SMALL_TYPES: Final = frozenset({type(None), bool, int, float})
_MAX_SMALL_LENGTH: Final = 1000


class StoredResult:
    """A result that its record contains only in the store. Thread-safe.

    :param read: reads the result of the record with a uuid from the store.
    """

    __slots__ = ("_read", "_uuid")

    def __init__(self, read: Callable[[str], Any], uuid: str) -> None:
        self._read = read
        self._uuid = uuid

    def read(self) -> Any:
        """Return a new copy of the result from the store.

        :raises StorageFailure: if the store cannot be read.
        :raises NotFound: if the flow was deleted.
        """
        return self._read(self._uuid)


def is_small(value: Any) -> bool:
    """Return whether a result, or a `StoredResult`, takes so little memory that it may stay."""
    kind = type(value)
    return (
        kind in _SMALL_TYPES
        or kind is StoredResult
        or (kind in (str, bytes) and len(value) <= _MAX_SMALL_LENGTH)
    )
