"""Results of steps that a run keeps only in the store."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["StoredResult"]


class StoredResult(functools.partial[Any]):
    """A result that is only in the store. A call reads a new copy of it. Thread-safe.

    :raises StorageFailure: from a call, if the store cannot be read.
    :raises NotFound: from a call, if the flow was deleted.
    """

    __slots__ = ()
