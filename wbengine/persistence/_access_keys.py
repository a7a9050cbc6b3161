"""Access keys: secrets with which programs sign in to the HTTP API of the dashboard."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import string
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._security import masking
from wbengine.persistence import _listing

__all__ = [
    "ID_CHARACTERS", "PREFIX", "AccessKey", "generate", "id_of", "is_key", "limits_of",
    "text_of_limits",
]  # fmt: skip

#: Start of each key, by which scanners of source code recognize it. The id follows, then the
#: secret: `masking.ACCESS_KEY`.
PREFIX: Final = "wbe_"
ID_CHARACTERS: Final = 12
_SECRET_CHARACTERS: Final = 40
_ID_ALPHABET: Final = string.ascii_lowercase + string.digits
_SECRET_ALPHABET: Final = string.ascii_letters + string.digits


class AccessKey(NamedTuple):
    """A stored key. Times are Unix seconds.

    :ivar id: the public part of the key, which identifies it.
    :ivar digest: SHA-256 of the key. A slow hash as for passwords would not add security, because
        no one can guess 40 random characters (238 bits).
    :ivar role: what its owner may do; see `dashboard._roles`.
    :ivar tags: its owner has access only to flows with all of these tags.
    :ivar queues: its owner has access only to flows of these queues; empty: of all.
    :ivar creator: who created it.
    :ivar expires: end of its validity; None: no end.
    :ivar used: the latest use, up to a minute ago; None: never used.
    :ivar revoked: time of its revocation; None: not revoked.
    :ivar mac: MAC of the fields that never change; None: the process that created it had no keys.
    """

    id: str
    digest: str
    name: str
    role: str
    tags: Mapping[str, str]
    created: float
    creator: str | None = None
    expires: float | None = None
    used: float | None = None
    revoked: float | None = None
    mac: str | None = None
    queues: tuple[str, ...] = ()

    def is_valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def matches(self, text: str) -> bool:
        """Return whether a text is this key, in a time that does not depend on the text."""
        return hmac.compare_digest(digest_of(text), self.digest)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields without the digest and the MAC."""
        fields = self._asdict().items()
        return {name: value for name, value in fields if name not in ("digest", "mac")}


def generate() -> tuple[str, str]:
    """Return the id of a new key, and the key."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(ID_CHARACTERS))
    secret = "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(_SECRET_CHARACTERS))
    return key_id, f"{PREFIX}{key_id}_{secret}"


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def is_key(text: str) -> bool:
    """Return whether a text has the prefix of keys."""
    return text.startswith(PREFIX)


def id_of(text: str) -> str | None:
    """Return the id in a key; None if the text does not have the form of a key."""
    match = masking.ACCESS_KEY.fullmatch(text)
    return None if match is None else match[1].removeprefix(PREFIX).rstrip("_")


def text_of_limits(key: AccessKey) -> str:
    """Return the stored text of the tags and queues of a key.

    Readers that know no queues raise `CorruptRecord` for a text with queues.
    """
    tags = dict(key.tags)
    return json.dumps({"tags": tags, "queues": list(key.queues)} if key.queues else tags)


def limits_of(text: str, key_id: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the tags and the queues in a stored text.

    :raises CorruptRecord: if the text is damaged. Without them, a key would have more rights.
    """
    try:
        stored = json.loads(text)
        if not isinstance(stored, dict) or not isinstance(stored.get("queues"), list):
            return _listing.check_tags(stored), ()
        tags, queues = _listing.check_tags(stored["tags"]), tuple(stored["queues"])
        if not queues or not all(isinstance(queue, str) for queue in queues):
            raise ValueError("queues must be a list of names")
        return tags, queues
    except (LookupError, ValueError, TypeError, RecursionError) as error:
        path = f"wbe_access_keys/{key_id}"
        raise exceptions.CorruptRecord(f"{path} is damaged: {error}", path=path) from error
