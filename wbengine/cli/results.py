"""What a flow came to, for whoever ran it: whole, but for secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine import _secrets
from wbengine.views import redaction

__all__ = ["shown"]

#: What is deeper inside is told as text.
_DEEPEST: Final = 100


def shown(value: Any, redactor: redaction.Redactor, depth: int = 0) -> Any:
    """`value` as something for JSON, with nothing left out: a redactor's own `value` is for eyes,
    and cuts what is long.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redactor.text(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {
            redactor.text(str(key)): (
                redaction.MASK
                if _secrets.is_secret_key(key) and inside is not None
                else shown(inside, redactor, depth + 1)
            )
            for key, inside in value.items()
        }
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [shown(each, redactor, depth + 1) for each in value]
    return redactor.text(repr(value))
