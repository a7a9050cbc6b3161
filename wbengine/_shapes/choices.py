"""Shapes with a fixed set of values: enumerations and literals."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final

from wbengine._shapes.base import Definitions, Place, Reading, Shape

__all__ = ["Enumeration", "Literals"]

_JSON_SCALARS: Final = (str, int, float, bool, type(None))
_MAX_LISTED: Final = 10


class Literals(Shape):
    """The values of a `Literal`."""

    is_scalar = True

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)
        self.name = _listed(self._values)

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        for each in self._values:
            if type(each) is type(value) and each == value:
                return each
        for each in self._values:
            if not reading.strict and isinstance(each, enum.Enum) and _same(each.value, value):
                return each
        return reading.reject(place, self.name, value)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        values = [each.value if isinstance(each, enum.Enum) else each for each in self._values]
        return {"enum": [each for each in values if isinstance(each, _JSON_SCALARS)]}


class Enumeration(Shape):
    """The members of an enumeration.

    JSON contains their values or, if a value is not plain, their names.
    """

    is_structured = True
    is_scalar = True

    def __init__(self, cls: type[enum.Enum]) -> None:
        self._cls = cls
        self.name = cls.__name__
        # With aliases, which have the value of another member.
        members = cls.__members__
        is_plain = all(isinstance(each.value, _JSON_SCALARS) for each in members.values())
        self._members = [
            (member.value if is_plain else name, member) for name, member in members.items()
        ]

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        if isinstance(value, self._cls):
            return value
        if not reading.strict:
            for each, member in self._members:
                if _same(each, value):
                    return member
        words = "" if reading.strict else f" ({_listed(self._words())})"
        return reading.reject(place, self.name + words, value)

    def _words(self) -> list[Any]:
        return list(dict.fromkeys(word for word, _ in self._members))

    def plain(self, value: Any) -> Any:
        words = [word for word, member in self._members if member is value]
        return words[0] if words else super().plain(value)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        return {"title": self.name, "enum": self._words()}


def _same(one: Any, other: Any) -> bool:
    # True and 1 are equal, but not the same value in JSON.
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _listed(values: Iterable[Any]) -> str:
    texts = [repr(each) for each in values]
    more = "" if len(texts) <= _MAX_LISTED else ", ..."
    return ", ".join(texts[:_MAX_LISTED]) + more
