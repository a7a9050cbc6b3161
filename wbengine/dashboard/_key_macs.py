"""MACs of access keys, for processes with keys (`WBENGINE_KEYS`)."""

from __future__ import annotations

from typing import Any

from wbengine.persistence import _macs
from wbengine.persistence._access_keys import AccessKey

__all__ = ["signed", "verify"]


def signed(key: AccessKey) -> AccessKey:
    """Return the key with a MAC of the fields that never change, if this process has keys."""
    return key._replace(mac=_macs.sign(_macs.ACCESS_KEY, key.id, _fields(key)))


def verify(key: AccessKey) -> None:
    """Verify the MAC, if this process has keys: any writer of the store can add an access key.

    :raises NotTrusted: if it is missing or wrong.
    """
    _macs.verify(_macs.ACCESS_KEY, key.id, {**_fields(key), _macs.MAC: key.mac})


def _fields(key: AccessKey) -> dict[str, Any]:
    fields = {"digest": key.digest, "name": key.name, "role": key.role, "tags": dict(key.tags)}
    return {**fields, "queues": list(key.queues)} if key.queues else fields
