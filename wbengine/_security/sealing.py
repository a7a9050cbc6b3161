"""Encryption of JSON texts for stores.

If `WBENGINE_KEYS` names a key file that encrypts, AES-GCM encrypts texts with a key that is derived
from the secret for stores.

As for other authenticated encryption, to *seal* is to encrypt and authenticate, and to *open* is to
verify and decrypt. The *place* of a text, for example a flow, an atom and a field, is its
associated data: a text cannot be opened in another place. A sealed text is stored as a tag of the
typed codec with the id of the key, the nonce and the ciphertext. A process without keys reads such
a tag, or `HIDDEN`, as `types._encrypted.ENCRYPTED`.

`persistence._sealed_fields` seals records: all secret fields of a record together (`sealed`), or
values of one object together (`sealed_parts`). `persistence._readable_parts` returns what remains
readable.

The nonce is a MAC of place and text. So no nonce is used twice for different texts, also in forked
processes, and equal texts in the same place are equal when they are encrypted.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import json
import os
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._security import NONE, VARIABLE
from wbengine.types._encoding import walk

if TYPE_CHECKING:
    from wbengine._security.keys import Keyring

__all__ = [
    "HIDDEN", "TAG", "current_key", "is_on", "is_sealed", "key_of", "opened",
    "opened_tag", "ring", "sealed", "sealed_tag",
]  # fmt: skip

#: Name of the tag of a sealed text.
TAG: Final = "encrypted"
#: Tag that stands for a text which is encrypted elsewhere.
HIDDEN: Final = {walk.TAG: TAG}
_START: Final = f'{{"{walk.TAG}":"{TAG}"'
_NONCE_BYTES: Final = 12


@functools.lru_cache(maxsize=8)
def _ring(path: str) -> Keyring:
    ring: Keyring = object_names.load("wbengine._security.keys:Keyring.load")(path)
    return ring


def ring() -> Keyring | None:
    """Return the keys of this process, or None.

    :raises InvalidFormat: if the key file cannot be read.
    """
    path = os.environ.get(VARIABLE)
    return None if not path or path == NONE else _ring(path)


def is_on() -> bool:
    """Return whether texts for stores are encrypted.

    :raises NotTrusted: if the keys encrypt, but contain no secret for stores.
    :raises InvalidFormat: if the key file cannot be read.
    """
    return current_key() is not None


def current_key() -> str | None:
    """Return the id of the key that encrypts texts now, or None if nothing is encrypted.

    :raises NotTrusted, InvalidFormat: as `is_on`.
    """
    current = ring()
    found = None if current is None else current.record_keys()
    return None if found is None else found[0]


class MissingKey(exceptions.NotTrusted):
    """A text is encrypted with a key that this process does not have."""


def sealed_tag(text: str, *place: str) -> dict[str, str] | None:
    """Return a text as a tag with the encrypted text, or None if nothing is to be encrypted.

    :param place: what identifies the place of the text in all stores.
    :raises NotTrusted: if the keys encrypt, but contain no secret for stores.
    :raises InvalidFormat: if the key file or the library for encryption is missing.
    """
    current = ring()
    found = None if current is None else current.record_keys()
    if current is None or found is None:
        return None
    key_id, key, nonce_key = found
    data, associated = text.encode("utf-8", "surrogatepass"), _associated_data(place)
    nonce = hmac.digest(nonce_key, associated + data, "sha256")[:_NONCE_BYTES]
    encrypted = nonce + current.cipher(key).encrypt(nonce, data, associated)
    return {walk.TAG: TAG, "k": key_id, "v": base64.b64encode(encrypted).decode()}


def opened_tag(tag: Any, *place: str) -> str | None:
    """Return the text of a tag of `sealed_tag`, or None if this process has no keys.

    :raises NotTrusted: if this process has other keys, or the tag was damaged or moved.
    """
    current = ring()
    if current is None:
        return None
    key_id, encrypted = _parts(tag)
    found = current.record_keys(key_id)
    if found is None:
        raise MissingKey(
            f"it is encrypted with key {key_id}, which the key file {current.path} does not contain"
        )
    cipher = current.cipher(found[1])
    try:
        data = cipher.decrypt(
            encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], _associated_data(place)
        )
    except Exception as error:  # The exception class belongs to a lazily imported library.
        raise exceptions.NotTrusted(
            f"it cannot be decrypted with key {key_id}: it was changed, or belongs to another place"
        ) from error
    text: str = data.decode("utf-8", "surrogatepass")
    return text


def sealed(text: str, *place: str) -> str:
    """Return a JSON text encrypted, or unchanged if nothing is to be encrypted.

    :raises NotTrusted, InvalidFormat: as `sealed_tag`.
    """
    tag = sealed_tag(text, *place)
    return text if tag is None else json.dumps(tag, separators=(",", ":"))


def opened(text: str, *place: str) -> str:
    """Return the text that `sealed` encrypted. In a process without keys, it stays encrypted.

    :raises NotTrusted: as `opened_tag`.
    """
    if not text.startswith(_START):
        return text
    found = opened_tag(_parsed(text), *place)
    return text if found is None else found


def is_sealed(text: str | None) -> bool:
    """Return whether `sealed` encrypted a text."""
    return text is not None and text.startswith(_START)


def key_of(tag: Any) -> str:
    """Return the id of the key of a tag.

    :raises NotTrusted: if the tag is damaged.
    """
    return _parts(tag)[0]


def _parts(tag: Any) -> tuple[str, bytes]:
    try:
        return str(tag["k"]), base64.b64decode(tag["v"], validate=True)
    except (LookupError, TypeError, binascii.Error, ValueError):
        raise exceptions.NotTrusted("it is encrypted and damaged") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _associated_data(place: tuple[str, ...]) -> bytes:
    return json.dumps(place, ensure_ascii=True).encode()
