"""The expected types of values of signals."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._shapes.annotations import shape_of
from wbengine._shapes.base import INVALID, Definitions, Place, Reading
from wbengine.types._encoding import annotated_classes, classes

__all__ = ["ExpectedType"]

#: Maximum size of a schema that is stored with a wait.
_MAX_SCHEMA_BYTES: Final = 16_384


class ExpectedType:
    """The type of the value of a signal.

    :param annotation: as of a parameter, but not a text.
    :raises TypeError: if it is a text, or names a class that is not allowed as a value.
    """

    def __init__(self, annotation: Any) -> None:
        if isinstance(annotation, str):
            raise TypeError(f"type of a signal must be a class or annotation, got {annotation!r}")
        _check_allowed(annotation)
        self._shape = shape_of(annotation)

    def convert(self, name: str, value: Any) -> Any:
        """Return the value of a signal as an instance of the type.

        :raises InvalidFormat: if it does not fit; the message contains all faults.
        """
        reading = Reading(strict=False)
        result = self._shape.read(value, Place("signals").item(name), reading)
        if result is INVALID:
            raise exceptions.InvalidFormat(reading.describe())
        return result

    @functools.cached_property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema that senders check. One that is too large is replaced by `{}`."""
        definitions: Definitions = {}
        schema = self._shape.schema(definitions)
        if definitions:
            schema = {**schema, "$defs": definitions}
        return schema if len(json.dumps(schema)) <= _MAX_SCHEMA_BYTES else {}


def _check_allowed(annotation: Any) -> None:
    """Check that a later process can decode the values.

    :raises TypeError: if one of the classes is not allowed.
    """
    classes.read_annotations()
    owner = types.SimpleNamespace(__annotations__={"type": annotation})
    for cls in annotated_classes.classes_of(owner):
        name = object_names.dotted(cls)
        form = classes.ALLOWED.get(name)
        if form is None or form.cls is not cls:
            raise TypeError(
                f"Class {name} of a signal must be allowed: decorate it with"
                " wbengine.types.codec.allow"
            )
