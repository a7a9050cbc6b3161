"""JSON Schemas: compiled for validation, interpreted for explanations of errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import exceptions as exc

__all__ = ["Schema"]

_DRAFT: Final = "http://json-schema.org/draft-04/schema#"


class Schema:
    """A schema of draft 4, without references to other documents.

    fastjsonschema compiles it on first use (about 2 ms, then 1 to 3 µs for each message).
    jsonschema explains errors. Data is JSON: dicts, lists, strings, numbers, booleans, None.
    Thread-safe.
    """

    def __init__(self, schema: Mapping[str, Any], name: str, *, secret: bool = False) -> None:
        """Create a schema.

        :param name: name of the data in errors.
        :param secret: errors do not show values.
        """
        self.schema = schema
        self.name = name
        self._secret = secret

    @functools.cached_property
    def _compiled(self) -> Callable[[Any], object]:
        # Imported here, because both libraries take long to import.
        import fastjsonschema

        validate: Callable[[Any], object] = fastjsonschema.compile(
            {"$schema": _DRAFT, **self.schema}, use_default=False, detailed_exceptions=False
        )
        return validate

    def check(self, data: Any, name: str | None = None) -> None:
        """Validate `data`; `name` names it in errors.

        :raises InvalidFormat: if it is invalid; the message names the part.
        """
        try:
            self._compiled(data)
        except ValueError:  # exceptions of fastjsonschema are of this type
            raise exc.InvalidFormat(self._explain(data, name or self.name)) from None

    def _explain(self, data: Any, name: str) -> str:
        import jsonschema

        try:
            error = next(jsonschema.Draft4Validator(self.schema).iter_errors(data), None)
            if error is not None:
                where = "".join(f"[{part!r}]" for part in error.absolute_path)
                explanation = (
                    f"{error.validator}: {error.validator_value}" if self._secret else error.message
                )
                return f"{name}{where} is invalid: {explanation[:200]}"
        except (RecursionError, ValueError):  # the value cannot be shown in a message
            pass
        return f"{name} is invalid"
