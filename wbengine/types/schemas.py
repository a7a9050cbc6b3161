"""A JSON Schema that data is judged by: compiled for what fits, explained for what does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import exceptions as exc

__all__ = ["Schema"]

_DRAFT: Final = "http://json-schema.org/draft-04/schema#"


class Schema:
    """A schema of draft 4, without references to other documents.

    fastjsonschema compiles it on first use (about 2 ms; then 1 to 3 us a message), and jsonschema
    explains what it refuses.  Data is JSON: dicts, lists, texts, numbers, booleans, None.
    Thread-safe.
    """

    def __init__(self, schema: Mapping[str, Any], name: str, *, secret: bool = False) -> None:
        """`name` says in errors what is described; of what is secret they show nothing."""
        self.schema = schema
        self.name = name
        self._secret = secret

    @functools.cached_property
    def _compiled(self) -> Callable[[Any], object]:
        # Neither library on top: who checks nothing should not wait until they are imported.
        import fastjsonschema

        made: Callable[[Any], object] = fastjsonschema.compile(
            {"$schema": _DRAFT, **self.schema}, use_default=False, detailed_exceptions=False
        )
        return made

    def check(self, data: Any, name: str | None = None) -> None:
        """Nothing, if `data` (for errors: `name`) is as the schema says.

        :raises InvalidFormat: it is not; the message names the part that is wrong.
        """
        try:
            self._compiled(data)
        except ValueError:  # those of fastjsonschema are
            raise exc.InvalidFormat(self._explain(data, name or self.name)) from None

    def _explain(self, data: Any, name: str) -> str:
        import jsonschema

        try:
            error = next(jsonschema.Draft4Validator(self.schema).iter_errors(data), None)
            if error is not None:
                where = "".join(f"[{part!r}]" for part in error.absolute_path)
                told = (
                    f"{error.validator}: {error.validator_value}" if self._secret else error.message
                )
                return f"{name}{where} is invalid: {told[:200]}"
        except (RecursionError, ValueError):  # what cannot even be shown in the message
            pass
        return f"{name} is invalid"
