"""What is in records: values of users, and failures."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from wbengine.types import failure as ft

__all__ = ["deep", "failure_from_dict", "failure_to_dict"]


def deep(value: Any) -> Any:
    """A copy that shares nothing; what cannot change is its own copy."""
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    return copy.deepcopy(value)


def failure_to_dict(failure: ft.Failure | None) -> dict[str, Any] | None:
    return None if failure is None else failure.to_json()


def failure_from_dict(data: Mapping[str, Any] | None) -> ft.Failure | None:
    return None if data is None else ft.Failure.from_dict(data)
