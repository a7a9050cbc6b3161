"""By what records are known: uuids, made many at a time, and names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions

__all__ = ["identity_in", "new_uuid", "new_uuids"]

_UUID_LENGTH: Final = 16
_VARIANTS: Final = "89ab"


def new_uuids(count: int) -> list[str]:
    """Make `count` random (version 4) uuids, with one call of the system's random source."""
    digits = os.urandom(_UUID_LENGTH * count).hex()
    found = []
    for start in range(0, len(digits), 2 * _UUID_LENGTH):
        text = digits[start : start + 2 * _UUID_LENGTH]
        variant = _VARIANTS[int(text[16], 16) & 3]
        found.append(f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}")
    return found


def new_uuid() -> str:
    """Make one random (version 4) uuid."""
    return new_uuids(1)[0]


def identity_in(data: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the uuid in the description of a record.

    :raises InvalidFormat: they are not there.
    """
    try:
        return data["name"], data["uuid"]
    except (KeyError, TypeError):
        raise exceptions.InvalidFormat(
            f"The description of a record is a dict with 'name' and 'uuid', not {data!r:.80}"
        ) from None
