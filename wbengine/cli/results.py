"""Values as JSON has them: whole, but for secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import _secrets

__all__ = ["shown"]

#: What is deeper inside is told as text.
_DEEPEST: Final = 100


def shown(
    value: Any, mask: Callable[[str], str], text: Callable[[Any], str], depth: int = 0
) -> Any:
    """`value` as something for JSON, with nothing left out: a redactor's own `value` is for eyes,
    and cuts what is long.

    :param mask: hides secrets in texts.
    :param text: of what JSON has no form for.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return mask(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {
            mask(str(key)): (
                _secrets.MASK
                if _secrets.is_secret_key(key) and inside is not None
                else shown(inside, mask, text, depth + 1)
            )
            for key, inside in value.items()
        }
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [shown(each, mask, text, depth + 1) for each in value]
    return mask(text(value))
