"""Shapes of lists, tuples, sets, dicts and unions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine._shapes.base import (
    INVALID,
    Definitions,
    Place,
    Reading,
    Shape,
    listed_names,
)  # fmt: skip
from wbengine._shapes.plain import Plain

__all__ = ["Dict", "Items", "Tuple", "Union"]

#: An integer as the key of an object in JSON.
_INT_KEY: Final = re.compile("-?[0-9]{1,100}")


class _Container(Shape):
    """A shape with other shapes."""

    def __init__(self, parts: Iterable[Shape]) -> None:
        self._parts = tuple(parts)
        self.is_structured = any(part.is_structured for part in self._parts)


class Items(_Container):
    """Lists, sets, frozensets, and tuples of any length, of items of one shape.

    :param accepted: the types of Python that fit.
    :param build: creates the value of its items.
    """

    def __init__(self, item: Shape, build: Callable[[list[Any]], Any], accepted: type) -> None:
        super().__init__([item])
        self._item = item
        self._build = build
        self._accepted = accepted
        self.name = f"{accepted.__name__}[{item.name}]"

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        is_instance = isinstance(value, self._accepted) and not isinstance(value, str | bytes)
        if not is_instance and (reading.strict or not isinstance(value, list)):
            return reading.reject(place, self.name, value)
        items = _read_all(
            ((each, self._item, place.item(index)) for index, each in enumerate(value)), reading
        )
        if items is None:
            return INVALID
        if is_instance and all(new is old for new, old in zip(items, value, strict=True)):
            return value
        try:
            return self._build(items)
        except TypeError as error:  # An item of a set is not hashable.
            return reading.add(place, f"expected {self.name}: {error}")

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        return {"type": "array", "items": self._item.schema(definitions)}


class Tuple(_Container):
    """Tuples with a shape for each position."""

    def __init__(self, parts: Iterable[Shape]) -> None:
        super().__init__(parts)
        self.name = f"tuple[{', '.join(part.name for part in self._parts)}]"

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        if not isinstance(value, tuple if reading.strict else tuple | list):
            return reading.reject(place, self.name, value)
        if len(value) != len(self._parts):
            count = len(self._parts)
            return reading.add(place, f"expected {count} items ({self.name}), got {len(value)}")
        items = _read_all(
            (
                (each, part, place.item(index))
                for index, (each, part) in enumerate(zip(value, self._parts, strict=True))
            ),
            reading,
        )
        return INVALID if items is None else tuple(items)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        count = len(self._parts)
        return {
            "type": "array", "prefixItems": [part.schema(definitions) for part in self._parts],
            "minItems": count, "maxItems": count,
        }  # fmt: skip


class Dict(_Container):
    """Dicts with keys of one shape and values of another one. Keys in JSON are texts."""

    def __init__(self, key: Shape, value: Shape) -> None:
        super().__init__([key, value])
        self._key = key
        self._value = value
        self.name = f"dict[{key.name}, {value.name}]"

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        if not isinstance(value, Mapping):
            return reading.reject(place, self.name, value)
        entries: dict[Any, Any] = {}
        is_valid = True
        for key, each in value.items():
            new_key = self._read_key(key, Place(f"{place.path}<key {key!r:.80}>"), reading)
            new = self._value.read(each, place.item(key), reading)
            if new_key is INVALID or new is INVALID:
                is_valid = False
            elif new_key in entries:
                reading.add(place.item(key), f"key {new_key!r:.80} is repeated")
                is_valid = False
            else:
                entries[new_key] = new
        return entries if is_valid else INVALID

    def _read_key(self, key: Any, place: Place, reading: Reading) -> Any:
        is_int = isinstance(self._key, Plain) and self._key.cls is int
        if is_int and isinstance(key, str) and _INT_KEY.fullmatch(key) and not reading.strict:
            return int(key)
        return self._key.read(key, place, reading)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": self._value.schema(definitions),
        }
        is_text = isinstance(self._key, Plain) and self._key.cls is str
        keys = {} if is_text else self._key.schema(definitions)
        if keys.get("type") == "string" or "enum" in keys:
            schema["propertyNames"] = keys
        elif isinstance(self._key, Plain) and self._key.cls is int:
            schema["propertyNames"] = {"pattern": f"^{_INT_KEY.pattern}$"}
        return schema


class Union(_Container):
    """The values of one of several shapes.

    A value that fits without a conversion stays. Otherwise, it must fit only one of the classes.
    """

    def __init__(self, parts: Iterable[Shape]) -> None:
        super().__init__(parts)
        self.name = listed_names(self._parts)

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        for part in self._parts:
            if isinstance(part, Plain) and part.cls is type(value):
                return value
        candidates = self._candidates(value)
        for strict in (True, False):
            results = []
            for part in candidates:
                attempt = reading.attempt(strict=strict)
                result = part.read(value, place, attempt)
                if result is not INVALID:
                    results.append((part, result))
            structured = [part for part, _ in results if part.is_structured]
            if isinstance(value, dict) and len(structured) > 1:
                names = " and ".join(part.name for part in structured)
                return reading.add(
                    place, f"fits {names}: give each of them a field with another Literal"
                )
            if results:
                return results[0][1]
        return self._reject(value, place, candidates, reading)

    def _candidates(self, value: Any) -> list[Shape]:
        """Return the shapes without those whose tags are different."""
        if not isinstance(value, dict):
            return list(self._parts)
        return [part for part in self._parts if _fits_tags(part, value)]

    def _reject(self, value: Any, place: Place, candidates: list[Shape], reading: Reading) -> Any:
        similar = [part for part in candidates if not part.is_scalar]
        if isinstance(value, dict | list) and len(similar) == 1:
            # Its faults explain more than the name of the union.
            return similar[0].read(value, place, reading)
        return reading.reject(place, self.name, value)

    def plain(self, value: Any) -> Any:
        for part in self._parts:
            if part.read(value, Place(""), Reading(strict=True)) is not INVALID:
                return part.plain(value)
        return super().plain(value)

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        return {"anyOf": [part.schema(definitions) for part in self._parts]}


def _fits_tags(shape: Shape, value: dict[Any, Any]) -> bool:
    return all(
        name not in value or tag.read(value[name], Place(""), Reading(strict=False)) is not INVALID
        for name, tag in shape.tags().items()
    )


def _read_all(items: Iterable[tuple[Any, Shape, Place]], reading: Reading) -> list[Any] | None:
    """Read items; return None if one of them does not fit."""
    results = [shape.read(value, place, reading) for value, shape, place in items]
    return None if any(result is INVALID for result in results) else results
