"""Values as `repr` shows them, at no more than the cost of what is shown."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["LONGEST", "shown"]

#: So many characters are told of arguments and results.
LONGEST: Final = 1024

#: Whose `repr` is known, and short.
_PLAIN: Final = frozenset((bool, complex, float, type(None), dt.date, dt.timedelta, uuid.UUID))
_ZONES: Final = (type(None), dt.timezone)
_BRACKETS: Final[Mapping[type, tuple[str, str]]] = {
    dict: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    list: ("[", "]"),
    set: ("{", "}"),
    tuple: ("(", ")"),
}
_MOST_ITEMS: Final = 64
_DEEPEST: Final = 4


def shown(value: Any, longest: int = LONGEST, *, asks: bool = False) -> str:
    """Much as `repr(value)[:longest]`, but no longer than that takes; never raises.

    No code of its classes is run: of what is not built in, only the class is told, unless it `asks`
    those for their `repr`.
    """
    text = _shown(value, longest, _DEEPEST, asks)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _shown(value: Any, room: int, depth: int, asks: bool) -> str:
    cls = type(value)
    if cls is str or cls is bytes:
        return repr(value[:room])
    if cls is int:
        return repr(value) if value.bit_length() < 4096 else "<a long int>"
    if cls in _PLAIN or (cls is dt.datetime and type(value.tzinfo) in _ZONES):
        return repr(value)
    brackets = _BRACKETS.get(cls)
    if brackets is None:
        return _of_class(value, cls, asks)
    if depth == 0:
        return f"{brackets[0]}...{brackets[1]}"
    parts: list[str] = []
    # In one step: whoever made it may go on changing it.
    items = list(itertools.islice(value.items() if cls is dict else value, _MOST_ITEMS + 1))
    for item in items:
        if room <= 0 or len(parts) == _MOST_ITEMS:
            parts.append("...")
            break
        if cls is dict:
            name = _shown(item[0], room, depth - 1, asks)
            part = f"{name}: {_shown(item[1], room, depth - 1, asks)}"
        else:
            part = _shown(item, room, depth - 1, asks)
        parts.append(part)
        room -= len(part) + 2
    inner = ", ".join(parts)
    if cls is tuple and len(parts) == 1:
        inner += ","
    if cls in (set, frozenset) and not parts:
        return repr(value)
    return f"{brackets[0]}{inner}{brackets[1]}"


def _of_class(value: Any, cls: type, asks: bool) -> str:
    if asks:
        try:
            return repr(value)
        except Exception:
            return f"<{cls.__name__}>"
    return f"<{cls.__module__}.{cls.__qualname__}>"
