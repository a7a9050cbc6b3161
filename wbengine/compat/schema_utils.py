"""JSON Schema for data that is not quite JSON yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema

SchemaError = jsonschema.SchemaError
ValidationError = jsonschema.ValidationError


def schema_validate(data: Any, schema: Mapping[str, Any]) -> None:
    """Check `data`, in which tuples are arrays as well.

    :raises ValidationError: it is not as the schema says.
    :raises SchemaError: the schema is none.
    """
    kind: Any = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    arrays = kind.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))
    extend: Any = jsonschema.validators.extend
    extend(kind, type_checker=arrays)(schema).validate(data)
