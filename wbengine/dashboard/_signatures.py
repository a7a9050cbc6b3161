"""Signatures of cookies, forms and sign-ins, and the values that are signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

__all__ = ["are_equal", "pack", "sign", "unpack"]


def sign(secret: str, *words: str) -> str:
    """Return the signature of some words, as 64 hexadecimal digits."""
    key = hashlib.sha256(f"wbengine dashboard\0{secret}".encode()).digest()
    return hmac.new(key, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def are_equal(one: str, other: str) -> bool:
    """Compare two texts in a time that does not depend on the number of equal characters."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def pack(*values: Any) -> str:
    """Return values of JSON as a text that cookies and URLs can contain, without dots."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode("ascii")


def unpack(text: str) -> Any:
    """Return the values of a text from `pack`, whose signature was verified."""
    return json.loads(base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}"))
