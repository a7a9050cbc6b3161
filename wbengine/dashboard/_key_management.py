"""Create, find, revoke and rotate access keys."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.dashboard import _key_macs, _roles, _visitors
from wbengine.jobs import _places
from wbengine.persistence import _access_keys, base
from wbengine.persistence import _listing as listings
from wbengine.persistence._access_keys import AccessKey

__all__ = ["NewKey", "find", "list_keys", "new", "revoke", "rotate", "state_of"]


class NewKey(NamedTuple):
    """A new key. Only this object contains its text; the store contains a digest.

    :ivar replaced: the keys that expire because of the new one.
    """

    key: AccessKey
    text: str
    replaced: tuple[AccessKey, ...] = ()


def new(
    backend: base.Backend,
    name: str,
    role: str,
    *,
    tags: Mapping[str, str] | None = None,
    queues: Iterable[str] = (),
    seconds: float | None = None,
    by: str | None = None,
) -> NewKey:
    """Create a key.

    :param seconds: time until it expires; None: it does not expire.
    :raises Duplicate: if a valid key has this name.
    :raises ValueError: if the name, the role, a tag or a queue is invalid.
    """
    _visitors.check_name(name, "name")
    if existing := _valid(backend, name):
        raise exceptions.Duplicate(
            f"Access key {name!r} already exists with id {existing[-1].id}; replace it with"
            f" `wbengine access rotate {name}`"
        )
    return _store(backend, name, role, tags or {}, _places.check_queues(queues), seconds, by)


def rotate(
    backend: base.Backend,
    text: str,
    *,
    keep: float,
    seconds: float | None = None,
    by: str | None = None,
) -> NewKey:
    """Create a key with the name and rights of the valid keys with a name or id, and end them.

    :param keep: seconds for which they remain valid.
    :raises NotFound: if there is none.
    """
    replaced = tuple(key for key in find(backend, text) if key.is_valid(time.time()))
    if not replaced:
        raise exceptions.NotFound(f"Access key {text!r} is not valid any more: create a new one")
    latest = replaced[-1]
    rights = latest.role, latest.tags, latest.queues
    created = _store(backend, latest.name, *rights, seconds, by)
    with contextlib.closing(backend.get_connection()) as connection:
        for key in replaced:
            connection.end_access_key(key.id, created.key.created + keep, revoke=False)
    return created._replace(replaced=replaced)


def revoke(backend: base.Backend, text: str) -> list[AccessKey]:
    """Revoke all keys with a name or id, and return those that were not revoked before.

    :raises NotFound: if there is none.
    """
    now = time.time()
    keys = find(backend, text)
    with contextlib.closing(backend.get_connection()) as connection:
        return [key for key in keys if connection.end_access_key(key.id, now, revoke=True)]


def find(backend: base.Backend, text: str) -> list[AccessKey]:
    """Return the keys with a name or id, the oldest first.

    :raises NotFound: if there is none; the message suggests a name.
    """
    keys = list_keys(backend)
    matching = [key for key in keys if text in (key.name, key.id)]
    if not matching:
        near = object_names.hint(text, [key.name for key in keys])
        raise exceptions.NotFound(f"Unknown access key {text!r}{near}")
    return matching


def list_keys(backend: base.Backend) -> list[AccessKey]:
    """Return all keys, by name and time of creation."""
    with contextlib.closing(backend.get_connection()) as connection:
        return list(connection.access_keys())


def state_of(key: AccessKey, now: float) -> str:
    """Return 'valid', 'expired' or 'revoked'."""
    if key.revoked is not None:
        return "revoked"
    return "valid" if key.is_valid(now) else "expired"


def _valid(backend: base.Backend, name: str) -> list[AccessKey]:
    now = time.time()
    return [key for key in list_keys(backend) if key.name == name and key.is_valid(now)]


def _store(
    backend: base.Backend,
    name: str,
    role: str,
    tags: Mapping[str, str],
    queues: tuple[str, ...],
    seconds: float | None,
    by: str | None,
) -> NewKey:
    key_id, text = _access_keys.generate()
    now = time.time()
    expires = None if seconds is None else now + seconds
    key = AccessKey(
        key_id,
        _access_keys.digest_of(text),
        name,
        _roles.check_role(role),
        listings.check_tags(tags),
        now,
        by,
        expires,
        queues=queues,
    )
    with contextlib.closing(backend.get_connection()) as connection:
        connection.add_access_key(_key_macs.signed(key))
    return NewKey(key, text)
