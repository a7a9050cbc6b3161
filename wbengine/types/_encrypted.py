"""The value that stands for an encrypted one in a process without the key."""

from __future__ import annotations

from typing import Any, Final

from wbengine.types import _references

__all__ = ["ENCRYPTED", "NO_KEYS", "Encrypted", "received"]

#: The end of an error about a value.
NO_KEYS: Final = (
    "is encrypted, and this process has no keys: set `keys` (--keys or $WBENGINE_KEYS) to the key"
    " file of the process that wrote it"
)


class Encrypted:
    """The type of `ENCRYPTED`. The value can be displayed, but neither stored nor sent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<encrypted>"

    def __reduce__(self) -> Any:
        return "ENCRYPTED"


ENCRYPTED: Final = Encrypted()


def received() -> Encrypted:
    """Return `ENCRYPTED`, and note that this process received it."""
    _references.IN_USE.add(True)
    return ENCRYPTED
