"""Conversion of values to JSON: complete, with secrets masked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine._security import masking
from wbengine.types._references import Reference

__all__ = ["MAX_MEMBERS", "shorten", "to_json"]

#: Maximum number of members of a list, such as the results of a Map, that a terminal shows.
MAX_MEMBERS: Final = 20

#: Maximum depth of nested values. Deeper values become text.
_MAX_DEPTH: Final = 100


def shorten(values: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Shorten each list to `MAX_MEMBERS` members. Return the values and whether one was longer.

    A text in place of the other members contains their number.
    """
    short = dict(values)
    cut = False
    for name, value in short.items():
        if isinstance(value, list | tuple) and len(value) > MAX_MEMBERS:
            remark = f"... and {len(value) - MAX_MEMBERS:,} more"
            short[name] = [*value[:MAX_MEMBERS], remark]
            cut = True
    return short, cut


def to_json(
    value: Any, mask: Callable[[str], str], text: Callable[[Any], str], depth: int = 0
) -> Any:
    """Return a value that JSON can represent, without omissions.

    `Redactor.value` is different: it shortens long values for display.

    :param mask: masks secrets in texts.
    :param text: converts values that JSON cannot represent.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Reference):
        return mask(repr(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return mask(value)
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {
            mask(str(key)): (
                masking.MASK
                if masking.is_secret_key(key) and inside is not None
                else to_json(inside, mask, text, depth + 1)
            )
            for key, inside in value.items()
        }
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [to_json(each, mask, text, depth + 1) for each in value]
    return mask(text(value))
