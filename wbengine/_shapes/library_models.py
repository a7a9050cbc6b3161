"""Shapes of classes that a library validates: models of pydantic, and structs of msgspec."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from wbengine._introspection import object_names
from wbengine._shapes.base import INVALID, Definitions, Place, Reading, Shape, shown

__all__ = ["Model", "Struct"]

#: The place in an error of msgspec: ` - at `$.lines[0].amount``.
_MSGSPEC_PLACE = re.compile(r"(?P<reason>.*) - at `(?P<key>key in )?\$(?P<path>.*)`")


class _Validated(Shape):
    """A class that a library validates."""

    is_structured = True

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.name = cls.__name__

    def read(self, value: Any, place: Place, reading: Reading) -> Any:
        if isinstance(value, self._cls):
            return value
        if reading.strict:
            return reading.reject(place, self.name, value)
        return self._convert(value, place, reading)

    def _convert(self, value: Any, place: Place, reading: Reading) -> Any:
        raise NotImplementedError

    def _add_schema(
        self, definitions: Definitions, create: Callable[[str], tuple[Any, Mapping[str, Any]]]
    ) -> dict[str, Any]:
        """Add the schema of a library.

        :param create: returns the schema of the class, and those of others by name. It receives a
            template for references, with the prefix that tells these names from other ones.
        """
        key = object_names.dotted(self._cls)
        if key not in definitions:
            definitions[key] = {}
            definitions[key], others = create(f"#/$defs/{key}.")
            definitions.update((f"{key}.{name}", other) for name, other in others.items())
        return {"$ref": f"#/$defs/{key}"}


class Model(_Validated):
    """Instances of a model or dataclass of pydantic."""

    @functools.cached_property
    def _adapter(self) -> Any:
        # The module is loaded, because it created the class.
        return sys.modules["pydantic"].TypeAdapter(self._cls)

    def _convert(self, value: Any, place: Place, reading: Reading) -> Any:
        error_type: Any = sys.modules["pydantic_core"].ValidationError
        try:
            try:
                # Strict models accept dates and tuples only in JSON.
                text = json.dumps(value)
            except TypeError:
                return self._adapter.validate_python(value)
            return self._adapter.validate_json(text)
        except error_type as error:
            for fault in error.errors(include_url=False, include_context=False):
                here = _place_at(place, fault["loc"])
                is_missing = fault["type"] == "missing"
                got = "" if is_missing else f", got {shown(here, fault['input'])}"
                reading.add(here, fault["msg"] + got)
            return INVALID
        except Exception as error:  # A validator of the user.
            return reading.add(place, f"{self.name} raised {type(error).__name__}: {error}")

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        def create(prefix: str) -> tuple[Any, Mapping[str, Any]]:
            schema = self._adapter.json_schema(ref_template=prefix + "{model}")
            return schema, schema.pop("$defs", {})

        return self._add_schema(definitions, create)


class Struct(_Validated):
    """Instances of a `msgspec.Struct`."""

    def _convert(self, value: Any, place: Place, reading: Reading) -> Any:
        msgspec: Any = sys.modules["msgspec"]
        try:
            return msgspec.convert(value, self._cls)
        except msgspec.ValidationError as error:
            match = _MSGSPEC_PLACE.fullmatch(str(error))
            if match is None:
                return reading.add(place, str(error))
            return reading.add(Place(place.path + match["path"]), match["reason"])
        except Exception as error:  # `__post_init__` of the user.
            return reading.add(place, f"{self.name} raised {type(error).__name__}: {error}")

    def schema(self, definitions: Definitions) -> dict[str, Any]:
        def create(prefix: str) -> tuple[Any, Mapping[str, Any]]:
            (schema,), others = sys.modules["msgspec"].json.schema_components(
                [self._cls], ref_template=prefix + "{name}"
            )
            return schema, others

        return self._add_schema(definitions, create)


def _place_at(place: Place, steps: tuple[int | str, ...]) -> Place:
    for step in steps:
        is_name = isinstance(step, str) and step.isidentifier()
        place = place.field(str(step)) if is_name else place.item(step)
    return place
