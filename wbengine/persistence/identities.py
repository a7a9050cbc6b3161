"""By what records are known: uuids, made many at a time, and names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions

__all__ = ["identity_in", "new_uuid", "new_uuids"]

_UUID_LENGTH: Final = 16

# What says that they are random, in the seventh byte and the ninth.
_VERSION: Final = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT: Final = bytes(0x80 | byte & 0x3F for byte in range(256))


def new_uuids(count: int) -> list[str]:
    """Make `count` random (version 4) uuids, with one call of the system's random source."""
    made = bytearray(os.urandom(_UUID_LENGTH * count))
    made[6::_UUID_LENGTH] = made[6::_UUID_LENGTH].translate(_VERSION)
    made[8::_UUID_LENGTH] = made[8::_UUID_LENGTH].translate(_VARIANT)
    # All of them at once: groups of four digits, without the dashes that are too many.
    text = bytearray(made.hex("-", 2), "ascii")
    del text[34::40], text[29::39], text[4::38]
    text[36::37] = b" " * (count - 1)
    return text.decode().split()


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
