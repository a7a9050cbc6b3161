"""Messages as signed JSON to a URL."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Final

from wbengine._configuration.named_secrets import Secret
from wbengine._text import json_text
from wbengine.notifications._http import Endpoint
from wbengine.notifications._message import Message

__all__ = ["SIGNATURE", "TIMESTAMP", "Webhook", "signature"]

TIMESTAMP: Final = "Wbengine-Timestamp"
SIGNATURE: Final = "Wbengine-Signature"
MIN_KEY_LENGTH: Final = 16


class Webhook:
    """Sends messages as JSON.

    The header `Wbengine-Signature` is `sha256=` and the HMAC-SHA256 in hexadecimal of the value of
    `Wbengine-Timestamp`, a full stop and the body. Each attempt has a new timestamp.
    """

    takes_all: Final = False

    def __init__(self, endpoint: Endpoint, key: Secret) -> None:
        _checked_key(key)
        self._endpoint = endpoint
        self._key = key

    @property
    def place(self) -> str:
        return self._endpoint.place

    def send(self, message: Message) -> None:
        body = json_text.encode(message.to_dict())
        timestamp = str(int(time.time()))
        headers = {
            TIMESTAMP: timestamp,
            SIGNATURE: signature(_checked_key(self._key), timestamp, body),
        }
        self._endpoint.post(body, headers)


def signature(key: bytes, timestamp: str, body: bytes) -> str:
    """Return the value of the header for a body."""
    content = timestamp.encode() + b"." + body
    return f"sha256={hmac.new(key, content, hashlib.sha256).hexdigest()}"


def _checked_key(secret: Secret) -> bytes:
    key = secret.read().encode()
    if len(key) < MIN_KEY_LENGTH:
        raise ValueError(f"the key must have at least {MIN_KEY_LENGTH} bytes, got {len(key)}")
    return key
