"""Validation of data with JSON Schemas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import exceptions as exc

__all__ = ["Schema"]

_DRAFT: Final = "http://json-schema.org/draft-04/schema#"


class Schema:
    """A schema of draft 4, without references to other documents. Thread-safe.

    fastjsonschema compiles it on first use (about 2 ms, then 1 to 3 µs for each message).
    jsonschema explains errors. Data is JSON: dicts, lists, strings, numbers, booleans, None.
    """

    def __init__(self, schema: Mapping[str, Any], name: str, *, secret: bool = False) -> None:
        """Create a schema.

        :param name: name of the data, for errors.
        :param secret: whether to omit values from errors.
        """
        self.schema = schema
        self.name = name
        self._secret = secret

    @functools.cached_property
    def _compiled(self) -> Callable[[Any], object]:
        # Imported here, because importing these libraries takes long.
        import fastjsonschema

        validate: Callable[[Any], object] = fastjsonschema.compile(
            {"$schema": _DRAFT, **self.schema}, use_default=False, detailed_exceptions=False
        )
        return validate

    def check(self, data: Any, name: str | None = None) -> None:
        """Validate `data`. Errors call it `name`.

        :raises InvalidFormat: if it is invalid; the message contains the invalid part.
        """
        try:
            self._compiled(data)
        except ValueError:  # fastjsonschema raises subclasses of this.
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
        except (RecursionError, ValueError):  # The value cannot be printed.
            pass
        return f"{name} is invalid"
