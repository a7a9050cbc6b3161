"""Shapes of classes with named fields: dataclasses, classes of attrs, NamedTuple and TypedDict."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._shapes.base import INVALID, Definitions, Place, Reading, Shape

__all__ = ["Field", "Record"]

#: The default of a field that has one which is unknown or not a JSON value.
SOME_DEFAULT: Final = object()


class Field(NamedTuple):
    """A field of a class.

    :ivar default: its default, for the schema, or `SOME_DEFAULT`.
    """

    shape: Shape
    is_required: bool
    default: Any = SOME_DEFAULT


class Record(Shape):
    """The instances of a class, which are objects in JSON.

    :param find_fields: returns the fields by name. It is called once, when they are used.
    :param build: creates an instance of its fields, as keyword arguments; None: a TypedDict.
    """

    is_structured = True

    def __init__(
        self,
        cls: type,
        name: str,
        find_fields: Callable[[], Mapping[str, Field]],
        build: Callable[..., Any] | None,
    ) -> None:
        self._cls = cls
        self.name = name
        self._find_fields = find_fields
        self._build = build

    @functools.cached_property
    def _fields(self) -> Mapping[str, Field]:
        return self._find_fields()

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        if self._build is None:
            if type(value) is dict:
                fields = self._read_fields(value, place, reading)
                return INVALID if fields is None else fields
        elif isinstance(value, self._cls):
            return value
        elif not reading.strict:
            if issubclass(self._cls, tuple) and type(value) is list:
                value = self._by_name(value, place, reading)
                if value is None:
                    return INVALID
            if type(value) is dict:
                return self._create(self._read_fields(value, place, reading), place, reading)
        return reading.reject(place, self.name, value)

    def _by_name(self, items: list[Any], place: Place, reading: Reading) -> dict[str, Any] | None:
        if len(items) > len(self._fields):
            reading.add(place, f"expected {len(self._fields)} items, got {len(items)}")
            return None
        return dict(zip(self._fields, items, strict=False))

    def _read_fields(
        self, value: dict[Any, Any], place: Place, reading: Reading
    ) -> dict[str, Any] | None:
        fields: dict[str, Any] = {}
        is_valid = True
        for key in value:
            if key not in self._fields:
                hint = object_names.hint(str(key), self._fields)
                reading.add(self._place_of(place, key), f"{self.name} has no such field{hint}")
                is_valid = False
        for name, field in self._fields.items():
            if name in value:
                fields[name] = field.shape.read(value[name], self._place_of(place, name), reading)
                is_valid = is_valid and fields[name] is not INVALID
            elif field.is_required:
                reading.add(self._place_of(place, name), f"missing, expected {field.shape.name}")
                is_valid = False
        return fields if is_valid else None

    def _place_of(self, place: Place, key: Any) -> Place:
        is_field = self._build is not None and isinstance(key, str) and key.isidentifier()
        return place.field(key) if is_field else place.item(key)

    def _create(self, fields: dict[str, Any] | None, place: Place, reading: Reading) -> Any:
        if fields is None:
            return INVALID
        assert self._build is not None
        try:
            return self._build(**fields)
        except Exception as error:  # The class is code of the user.
            return reading.add(place, f"{self.name} raised {type(error).__name__}: {error}")

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        key = object_names.dotted(self._cls) + self.name[len(self._cls.__name__) :]
        if key not in definitions:
            definitions[key] = {}  # It may contain itself.
            schema: dict[str, Any] = {"title": self.name, "type": "object"}
            schema["properties"] = {
                name: _with_default(field, field.shape.schema(definitions))
                for name, field in self._fields.items()
            }
            schema["required"] = [name for name, field in self._fields.items() if field.is_required]
            schema["additionalProperties"] = False
            if issubclass(self._cls, tuple):
                parts = list(schema["properties"].values())
                counts = {"minItems": len(schema["required"]), "maxItems": len(parts)}
                array = {"type": "array", "prefixItems": parts, **counts}
                schema = {"title": self.name, "anyOf": [schema, array]}
            definitions[key] = schema
        return {"$ref": f"#/$defs/{key}"}

    def tags(self) -> Mapping[str, Any]:
        return {
            name: field.shape for name, field in self._fields.items() if field.shape.is_scalar
            and "enum" in field.shape.schema({})
        }  # fmt: skip


def _with_default(field: Field, schema: dict[str, Any]) -> dict[str, Any]:
    if field.default is SOME_DEFAULT:
        return schema
    try:
        return {**schema, "default": field.shape.plain(field.default)}
    except exceptions.NotEncodable:
        return schema
