"""Views of what comes from elsewhere, with every text in them masked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from wbengine.views.masking import Masker

__all__ = ["masked"]

_T = TypeVar("_T")


def masked(views: Iterable[_T], masker: Masker) -> list[_T]:
    """Frozen views as they may be shown: those that hold no secret, themselves.

    Texts are looked at in tuples and in views inside of views, too; each is masked once, for
    workers have their topics and tasks in common.
    """
    said: dict[str, str] = {}
    return [_masked(view, masker, said) for view in views]


def _masked(value: Any, masker: Masker, said: dict[str, str]) -> Any:
    if isinstance(value, str):
        told = said.get(value)
        if told is None:
            told = said[value] = masker.text(value)
        return told
    if isinstance(value, tuple):
        return tuple(_masked(each, masker, said) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            new = _masked(old, masker, said)
            if new != old:
                found[field.name] = new
        return dataclasses.replace(value, **found) if found else value
    return value
