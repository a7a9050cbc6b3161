"""Functions and classes whose annotations name classes of values.

They are noted when they are defined, and read when a value has a class that is not known yet.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from typing import Any, Final

_unread: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
_numbers: Final = itertools.count()


def note(item: Any) -> None:
    """Note a function or class, which may be deleted before it is read. Ignore other objects."""
    while isinstance(item, functools.partial):
        item = item.func
    if isinstance(item, types.FunctionType | type):
        _unread[next(_numbers)] = item


def take() -> list[Any]:
    """Return the items that were noted since the last call, in their order."""
    items = []
    while _unread:
        try:
            items.append(_unread.popitem()[1])
        except KeyError:  # The last items were deleted in the meantime.
            break
    return items[::-1]
