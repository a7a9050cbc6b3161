"""Keys, encryption, and masking of secrets."""

from __future__ import annotations

from typing import Final

__all__ = ["NONE", "VARIABLE"]

#: Environment variable for the default key file.
VARIABLE: Final = "WBENGINE_KEYS"
#: Value instead of a file name: no keys, even if the environment variable is set.
NONE: Final = "none"
