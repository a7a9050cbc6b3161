"""Access keys in all stores."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from wbengine import exceptions
from wbengine.persistence import _access_keys, _listing, base
from wbengine.persistence._access_keys import AccessKey

from . import places


def stored(connection: base.Connection, **fields: Any) -> AccessKey:
    """Store a new key."""
    key_id, text = _access_keys.generate()
    name = f"ci-{uuid.uuid4().hex}"
    digest = _access_keys.digest_of(text)
    key = AccessKey(key_id, digest, name, "operator", {"team": "Bücher"}, 1.5, "ann@host")
    key = key._replace(**fields)
    connection.add_access_key(key)
    return key


@places.everywhere
def test_key_is_read_by_id(connection: base.Connection) -> None:
    key = stored(connection, expires=9.25, mac="k:abc")
    assert connection.access_key(key.id) == key
    assert key in connection.access_keys()
    assert connection.access_key("unknown") is None


@places.everywhere
@pytest.mark.parametrize("tags", [{}, {"queues": "a"}])
def test_key_has_its_queues(connection: base.Connection, tags: dict[str, str]) -> None:
    key = stored(connection, tags=tags, queues=("default", "reports"))
    assert connection.access_key(key.id) == key


def test_reader_without_queues_refuses_a_key_with_queues() -> None:
    """It would give access to all queues."""
    key = AccessKey("k", "d", "n", "viewer", {"team": "a"}, 1.0, queues=("reports",))
    with pytest.raises(TypeError):
        _listing.check_tags(json.loads(_access_keys.text_of_limits(key)))


def test_keys_are_ordered_by_name_and_time(connection: base.Connection) -> None:
    names = ("Z", "a", "b")
    keys = [stored(connection, name=name, created=at) for name in names for at in (2.0, 1.0)]
    expected = sorted(keys, key=lambda key: (key.name, key.created))
    assert [key for key in connection.access_keys() if key in keys] == expected


def test_second_key_with_an_id_is_refused(connection: base.Connection) -> None:
    key = stored(connection)
    with pytest.raises(exceptions.Duplicate, match=key.id):
        connection.add_access_key(key._replace(role="admin"))
    assert connection.access_key(key.id) == key


def test_revocation_keeps_its_first_time(connection: base.Connection) -> None:
    key = stored(connection)
    assert connection.end_access_key(key.id, 5.0, revoke=True)
    assert not connection.end_access_key(key.id, 4.0, revoke=True)
    assert connection.access_key(key.id) == key._replace(revoked=5.0)
    assert not connection.end_access_key("unknown", 5.0, revoke=True)


def test_expiry_is_never_postponed(connection: base.Connection) -> None:
    key = stored(connection)
    assert connection.end_access_key(key.id, 8.0, revoke=False)
    assert not connection.end_access_key(key.id, 9.0, revoke=False)
    assert connection.end_access_key(key.id, 7.0, revoke=False)
    assert connection.access_key(key.id) == key._replace(expires=7.0)


def test_expiry_after_a_revocation_keeps_the_revocation(connection: base.Connection) -> None:
    """A rotation may overlap with a revocation."""
    key = stored(connection)
    assert connection.end_access_key(key.id, 5.0, revoke=True)
    connection.end_access_key(key.id, 99.0, revoke=False)
    connection.note_use_of_access_key(key.id, 6.0)
    after = connection.access_key(key.id)
    assert after is not None and (after.revoked, after.used) == (5.0, 6.0)
    assert not after.is_valid(10.0)


@places.dialects
def test_use_changes_only_its_time(connection: base.Connection) -> None:
    key = stored(connection)
    connection.note_use_of_access_key(key.id, 1795836556.25)
    connection.note_use_of_access_key("unknown", 1.0)
    assert connection.access_key(key.id) == key._replace(used=1795836556.25)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"team": 1}', '{"te am": "x"}', "null"),
        *('{"tags": {}, "queues": []}', '{"queues": ["a"]}', '{"tags": {}, "queues": [1]}'),
    ],
)
@places.on("sqlite")
def test_key_with_damaged_tags_is_not_read(
    connection: base.Connection, backend: Any, text: str
) -> None:
    """Without its tags, it would have more rights."""
    key = stored(connection)
    with backend.engine.begin() as sql:
        sql.execute(
            sa.text("UPDATE wbe_access_keys SET tags = :tags WHERE key_id = :id"),
            {"tags": text, "id": key.id},
        )
    with pytest.raises(exceptions.CorruptRecord, match=f"wbe_access_keys/{key.id} is damaged"):
        connection.access_key(key.id)
    with backend.engine.begin() as sql:
        sql.execute(sa.text("DELETE FROM wbe_access_keys WHERE key_id = :id"), {"id": key.id})


def test_generated_keys_have_a_public_id_and_a_secret() -> None:
    texts = {_access_keys.generate() for _ in range(100)}
    assert len({key_id for key_id, _ in texts}) == 100
    for key_id, text in texts:
        assert _access_keys.id_of(text) == key_id
        assert text.startswith(f"wbe_{key_id}_") and len(text) == 57


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1], lambda t: f"{t}x", str.upper, lambda t: f"{t}\n", lambda t: t[4:]]
)
def test_text_of_another_form_has_no_id(change: Any) -> None:
    assert _access_keys.id_of(change(_access_keys.generate()[1])) is None


def test_key_matches_only_its_own_text() -> None:
    _, text = _access_keys.generate()
    key = AccessKey("", _access_keys.digest_of(text), "", "", {}, 0.0)
    assert key.matches(text)
    for other in (text[:-1], text.swapcase(), "", "é", _access_keys.generate()[1]):
        assert not key.matches(other)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"expires": 10.0}, False),
        ({"expires": 10.1}, True),
        ({"revoked": 99.0}, False),
        ({"expires": 99.0, "revoked": 1.0}, False),
    ],
    ids=str,
)
def test_validity(fields: dict[str, Any], expected: bool) -> None:
    assert AccessKey("", "", "", "", {}, 0.0)._replace(**fields).is_valid(10.0) is expected
