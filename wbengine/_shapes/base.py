"""The base class of shapes, places in values, and the faults of a value."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine._security import masking
from wbengine.types import codec

__all__ = ["INVALID", "Definitions", "Place", "Reading", "Shape", "describe", "listed_names"]

#: The result of `Shape.read` for a value that does not fit.
INVALID: Final = object()

#: JSON schemas of classes, by name.
Definitions = dict[str, Any]

_MAX_FAULTS: Final = 10
_MAX_SHOWN_CHARS: Final = 80


class Place(NamedTuple):
    """A part of a value: its path, and whether it is the value of a key that looks secret."""

    path: str
    is_secret: bool = False

    def item(self, key: object) -> Place:
        """Return the place of an item of a list or dict."""
        return Place(
            f"{self.path}[{key!r:.{_MAX_SHOWN_CHARS}}]",
            self.is_secret or masking.is_secret_key(key),
        )

    def field(self, name: str) -> Place:
        """Return the place of a field of an object."""
        return Place(f"{self.path}.{name}", self.is_secret or masking.is_secret_key(name))


class Reading:
    """The reading of one value, and its faults.

    :param strict: whether values must be instances of their classes. Otherwise, JSON is converted.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.faults: list[str] = []

    def attempt(self, *, strict: bool) -> Reading:
        """Return a reading whose faults are not those of this one."""
        return Reading(strict=self.strict or strict)

    def reject(self, place: Place, expected: str, value: Any) -> Any:
        """Add the fault that a value has another type. Return `INVALID`."""
        return self.add(place, f"expected {expected}, got {shown(place, value)}")

    def add(self, place: Place, reason: str) -> Any:
        """Add a fault. Return `INVALID`."""
        self.faults.append(f"{place.path}: {reason}")
        return INVALID

    def describe(self) -> str:
        """Return all faults as one text."""
        return describe(self.faults)


def describe(faults: Sequence[str]) -> str:
    """Return faults as one text, which names the first ones."""
    text = "; ".join(faults[:_MAX_FAULTS])
    more = len(faults) - _MAX_FAULTS
    return f"{text}; and {more} more" if more > 0 else text


def shown(place: Place, value: Any) -> str:
    """Return a short text for a value in an error."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return masking.MASK if place.is_secret else f"{value!r:.{_MAX_SHOWN_CHARS}}"


class Shape(abc.ABC):
    """The values that an annotation allows."""

    #: The type in error messages.
    name: str
    #: Whether the annotation contains a class with fields, or an enumeration.
    is_structured = False
    #: Whether JSON contains the values as texts, numbers, booleans or null.
    is_scalar = False

    @abc.abstractmethod
    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        """Return the value of this shape, or add faults and return `INVALID`.

        A value that fits is returned without a change.
        """

    @abc.abstractmethod
    def schema(self, definitions: Definitions) -> dict[str, Any]:
        """Return the JSON schema of the values, whose classes are added to `definitions`."""

    def plain(self, value: Any) -> Any:
        """Return a value of this shape as JSON.

        :raises NotEncodable: if it has no form in JSON.
        """
        return codec.plain(value)

    def tags(self) -> Mapping[str, Any]:
        """Return the shapes of fields with few values, which tell the classes of a union apart."""
        return {}


def listed_names(shapes: tuple[Shape, ...]) -> str:
    return " | ".join(shape.name for shape in shapes)
