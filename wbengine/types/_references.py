"""References to values that are stored out of line.

A record or message contains a reference in place of a large value. The engine passes it on without
reading the value. `_payloads` writes and reads the values.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

__all__ = ["IN_USE", "Reference", "checked"]

#: Maximum size of a value in bytes, and maximum length of its kind.
MAX_SIZE: Final = 2**40
MAX_KIND_LENGTH: Final = 100

_ADDRESS_AND_KEY: Final = re.compile(r"[0-9a-f]{64}\.[A-Za-z0-9_-]{0,64}")

#: Not empty if this process has created or received a reference, or received `ENCRYPTED`.
IN_USE: Final[set[Any]] = set()


class Reference(NamedTuple):
    """The address of a value in the folder or bucket for payloads.

    :ivar address: SHA-256 of the content of the payload in hexadecimal, or its HMAC.
    :ivar size: number of bytes of the content.
    :ivar kind: type of the value, for views.
    :ivar key: id of the key of the HMAC, or "".
    """

    address: str
    size: int
    kind: str
    key: str = ""

    def __repr__(self) -> str:
        return f"<{self.kind}, {self.size:,} bytes, payload {self.address[:12]}>"

    def __reduce__(self) -> Any:  # The process that unpickles it has one in use, too.
        return checked, tuple(self)


def checked(address: Any, size: Any, kind: Any, key: Any = "") -> Reference:
    """Return a reference from a record or message.

    :raises ValueError, TypeError: if it is not valid. It cannot name another location.
    """
    is_valid = _ADDRESS_AND_KEY.fullmatch(f"{address}.{key}") and 0 <= size <= MAX_SIZE
    if not (is_valid and type(size) is int and len(kind) <= MAX_KIND_LENGTH):
        raise ValueError("the address, size, kind or key of a payload is invalid")
    IN_USE.add(True)
    return Reference(address, size, str(kind), key)
