"""Key files: permissions, signing, trust and rotation."""

from __future__ import annotations

import copy
import hmac
import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import key_files
from wbengine import exceptions as exc
from wbengine._concurrency import manual_clock
from wbengine._security import keys

NOW = 1_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return key_files.shared(tmp_path / "keys.json")


@pytest.mark.parametrize("per_role", [False, True])
def test_new_key_signs_and_all_key_files_trust_it(per_role: bool) -> None:
    rings = {role: keys.Keyring(made) for role, made in keys.new(per_role=per_role).items()}
    for role, ring in rings.items():
        key = ring.signing_key(NOW)
        signature = key.sign("request", b"data")
        for other in rings.values():
            known = other.trusted(key.id, (role,), NOW)
            assert known.verifies("request", b"data", signature)
            assert not known.verifies("request", b"Data", signature)
            assert not known.verifies("response", b"data", signature)


def test_shared_key_signs_with_hmac_of_derived_key() -> None:
    """The construction is that of RFC 2104 and RFC 5869 (last step)."""
    content = keys.new()[keys.ANY]
    secret = keys._bytes(content["keys"][0]["secret"])
    derived = hmac.digest(secret, b"wbengine/1 message\x01", "sha256")
    signed = keys.Keyring(content).signing_key(NOW).sign("message", b"data" * 100)
    assert signed == hmac.digest(derived, b"data" * 100, "sha256")


def test_key_of_another_role_is_not_trusted() -> None:
    rings = {role: keys.Keyring(made) for role, made in keys.new(per_role=True).items()}
    worker = rings[keys.WORKER].signing_key(NOW)
    with pytest.raises(exc.NotTrusted, match="'worker' must not"):
        rings[keys.WORKER].trusted(worker.id, (keys.ENGINE,), NOW)


def test_key_file_contains_only_the_secret_of_its_role() -> None:
    for role, made in keys.new(per_role=True).items():
        assert [key["role"] for key in made["keys"] if "secret" in key] == [role]
    assert "store" not in keys.new(per_role=True)[keys.WORKER]


def test_unknown_key_is_not_trusted(path: Path) -> None:
    with pytest.raises(exc.NotTrusted, match="unknown key id"):
        keys.Keyring.load(path).trusted("other", keys.ROLES, NOW)


@pytest.mark.parametrize(
    "mode",
    [0o640, 0o604, 0o620, 0o602, 0o610],
    ids=["group-read", "others-read", "group-write", "others-write", "group-execute"],
)
def test_key_file_accessible_to_other_users_is_rejected(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(exc.InvalidFormat, match="chmod 600"):
        keys.Keyring.load(path)


def test_new_key_file_is_private_and_overwrites_no_file(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        keys.write(path, keys.new()[keys.ANY])


INVALID_CONTENT: dict[str, Any] = {
    "unknown-version": {"version": 2},
    "unknown-role": {"role": "king"},
    "no-keys": {"keys": []},
    "unknown-field": {"more": 1},
    "role-of-no-key": {"role": "engine"},
    "unknown-algorithm": {"keys": [{"id": "a", "algorithm": "none", "role": "any"}]},
    "no-secret": {"keys": [{"id": "a", "algorithm": "hmac-sha256", "role": "any"}]},
    "secret-of-wrong-length": {
        "keys": [{"id": "a", "algorithm": "hmac-sha256", "role": "any", "secret": "A" * 42}]
    },
}


@pytest.mark.parametrize("change", INVALID_CONTENT.values(), ids=INVALID_CONTENT)
def test_key_file_with_invalid_content_is_rejected(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(exc.InvalidFormat, match=r"keys\.json"):
        keys.Keyring.load(path)


def test_missing_or_non_json_key_file_is_rejected(path: Path) -> None:
    with pytest.raises(exc.InvalidFormat, match="cannot read key file"):
        keys.Keyring.load(path.with_name("none"))
    path.write_text("{")
    with pytest.raises(exc.InvalidFormat, match="must contain JSON"):
        keys.Keyring.load(path)


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, "[" * 200_000 + "]" * 200_000, "\udc80", "[]"],
    ids=["unclosed-brackets", "deep-nesting", "invalid-utf8", "list"],
)
def test_unparsable_key_file_raises_invalid_format(path: Path, text: str) -> None:
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(exc.InvalidFormat, match=r"keys\.json"):
        keys.Keyring.load(path)


def test_pipe_or_folder_as_key_file_is_rejected_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    for each in (path, tmp_path):
        with pytest.raises(exc.InvalidFormat, match=r"must be a regular file|cannot read"):
            keys.Keyring.load(each)


def _damaged(content: Any) -> Iterator[Any]:
    """Yield copies of the content, each with one damaged part."""
    if isinstance(content, str):
        yield from (content + "!", content + "A" * 100, [content], {"x": content})
    elif isinstance(content, dict):
        yield from (list(content.values()), {**content, "more": list(content.values())})
        for name, value in content.items():
            yield {other: content[other] for other in content if other != name}
            yield {**content, f"{name}!": value}
            yield from ({**content, name: other} for other in _damaged(value))
    elif isinstance(content, list):
        yield from ([], [content], [*content, *content])
        for each in content:
            yield from ([other] for other in _damaged(each))
    else:
        yield from ("x", [content], None)


@pytest.mark.parametrize("per_role", [False, True])
def test_error_for_damaged_key_file_contains_no_secret(path: Path, per_role: bool) -> None:
    content = next(iter(keys.new(per_role=per_role, encrypt=True).values()))
    secrets = [
        each["secret"]
        for name in ("keys", "store", "encrypt")
        for each in content[name]
        if "secret" in each
    ]
    assert len(secrets) == 3
    refusals = 0
    for damaged in _damaged(content):
        path.write_text(json.dumps(damaged))
        try:
            keys.Keyring.load(path)
        except exc.InvalidFormat as error:
            refusals += 1
            text = "".join(traceback.format_exception(error))
            assert not any(secret[:10] in text for secret in secrets), text
            assert "key file" in str(error)
    assert refusals > 70


def test_keys_option_is_path_keyring_or_environment_variable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(keys.VARIABLE, raising=False)
    assert keys.keyring(None) is None
    found = keys.keyring(str(path))
    assert found is not None and keys.keyring(found) is found
    monkeypatch.setenv(keys.VARIABLE, str(path))
    found = keys.keyring(None)
    assert found is not None and found.path == path


def test_empty_key_file_name_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.VARIABLE, "")
    with pytest.raises(exc.InvalidFormat, match=r"\$WBENGINE_KEYS must be a key file"):
        keys.keyring(None)
    with pytest.raises(exc.InvalidFormat, match="keys must be a key file"):
        keys.keyring("")
    assert keys.keyring(keys.NONE) is None


def test_altered_record_fails_verification_with_store_secret() -> None:
    files = keys.new(per_role=True)
    engine, operator = keys.Keyring(files[keys.ENGINE]), keys.Keyring(files[keys.OPERATOR])
    mac = engine.mac("flow", b"record")
    operator.verify_mac("flow", b"record", mac)
    for purpose, data, told in [
        ("flow", b"Record", mac),
        ("atom", b"record", mac),
        ("flow", b"record", "x" + mac),
        ("flow", b"record", mac + "\udc80"),
        ("flow", b"record", None),
    ]:
        with pytest.raises(exc.NotTrusted):
            operator.verify_mac(purpose, data, told)
    with pytest.raises(exc.NotTrusted, match="must contain a secret for stores"):
        keys.Keyring(files[keys.WORKER]).mac("flow", b"record")


# Rotation.


@pytest.mark.parametrize("per_role", [False, True])
def test_rotated_key_signs_from_start_and_old_key_is_trusted_until_expiry(
    per_role: bool,
) -> None:
    before = keys.new(per_role=per_role)
    after = keys.rotated(copy.deepcopy(before), NOW + 60, NOW + 600, NOW)
    for role in before:
        old = keys.Keyring(before[role]).signing_key(NOW)
        ring = keys.Keyring(after[role])
        assert ring.signing_key(NOW + 59).id == old.id
        new = ring.signing_key(NOW + 60)
        assert new.id != old.id
        for other in after.values():
            assert keys.Keyring(other).trusted(new.id, (role,), NOW)
            assert keys.Keyring(other).trusted(old.id, (role,), NOW + 600)
            with pytest.raises(exc.NotTrusted, match="has expired"):
                keys.Keyring(other).trusted(old.id, (role,), NOW + 601)


def test_rotation_drops_expired_keys_and_extends_none() -> None:
    first = keys.new()
    second = keys.rotated(first, NOW, NOW + 10, NOW)
    third = keys.rotated(second, NOW + 5, NOW + 100, NOW + 5)
    assert [key.get("until") for key in third[keys.ANY]["keys"]] == [NOW + 10, NOW + 100, None]
    fourth = keys.rotated(third, NOW + 50, NOW + 1000, NOW + 50)
    assert [key.get("until") for key in fourth[keys.ANY]["keys"]] == [NOW + 100, NOW + 1000, None]


@pytest.mark.parametrize("per_role", [False, True])
@pytest.mark.parametrize("delay", [0, 120, 3600])
def test_signing_key_is_trusted_after_second_rotation(per_role: bool, delay: float) -> None:
    """A key that signs only later must stay trusted, or a fleet would stop."""
    files = keys.rotated(keys.new(per_role=per_role), NOW + 600, NOW + 1200, NOW)
    files = keys.rotated(files, NOW + 60 + delay, NOW + 120 + delay, NOW + 60)
    for at in (60, 120, 200, 601, 661, 1300, 3659, 3661, 10_000):
        for role, content in files.items():
            key = keys.Keyring(content).signing_key(NOW + at)
            for other in files.values():
                keys.Keyring(other).trusted(key.id, (role,), NOW + at)


@pytest.mark.parametrize("per_role", [False, True])
def test_rotation_also_replaces_store_and_encryption_secrets(
    per_role: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stolen key file is useless after its keys expired."""
    clock = manual_clock.ManualClock(NOW)
    monkeypatch.setattr(keys, "time", clock)
    before = keys.new(per_role=per_role, encrypt=True)
    after = keys.rotated(before, NOW + 60, NOW + 600, NOW)
    role = keys.ENGINE if per_role else keys.ANY
    stolen, ring = keys.Keyring(before[role]), keys.Keyring(after[role])
    others = [keys.Keyring(content) for content in after.values()]
    for wait in (0, 59):
        clock.advance(wait)
        stolen.verify_mac("flow", b"x", ring.mac("flow", b"x"))
        assert stolen.open(*ring.seal(b"x", b""), b"") == b"x"
    mac, sealed = stolen.mac("flow", b"x"), stolen.seal(b"x", b"")
    clock.advance(1)
    new, hidden = ring.mac("flow", b"x"), ring.seal(b"x", b"")
    for other in others:
        assert other.open(*sealed, b"") == other.open(*hidden, b"") == b"x"
        if other.role != keys.WORKER:
            other.verify_mac("flow", b"x", mac)
            other.verify_mac("flow", b"x", new)
    for call in (lambda: stolen.verify_mac("flow", b"x", new), lambda: stolen.open(*hidden, b"")):
        with pytest.raises(exc.NotTrusted, match=r"is unknown or has expired|unknown .*key"):
            call()
    clock.advance(541)
    with pytest.raises(exc.NotTrusted, match="has expired"):
        ring.verify_mac("flow", b"x", mac)
    with pytest.raises(exc.NotTrusted, match="unknown encryption key id"):
        ring.open(*sealed, b"")
    assert "store" not in after.get(keys.WORKER, {})


def test_rotation_repairs_an_interrupted_rotation() -> None:
    """Only the engine received its new file: all roles then trust its earlier signatures."""
    before = keys.new(per_role=True, encrypt=True)
    torn = {**before, keys.ENGINE: keys.rotated(before, NOW, NOW + 600, NOW)[keys.ENGINE]}
    after = {
        role: keys.Keyring(content)
        for role, content in keys.rotated(torn, NOW + 60, NOW + 600, NOW + 1).items()
    }
    said = keys.Keyring(torn[keys.ENGINE])
    for ring in after.values():
        assert ring.trusted(said.signing_key(NOW + 1).id, (keys.ENGINE,), NOW + 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "time", manual_clock.ManualClock(NOW + 2))
        after[keys.OPERATOR].verify_mac("flow", b"x", said.mac("flow", b"x"))
        assert after[keys.WORKER].open(*said.seal(b"x", b""), b"") == b"x"
    for ring in after.values():
        assert {key.role for key in ring.keys.values() if key.secret} == {ring.role}


def test_expired_key_does_not_sign_if_another_key_is_valid() -> None:
    content = keys.new()[keys.ANY]
    first, second = content["keys"][0], keys.new()[keys.ANY]["keys"][0]
    content["keys"] = [first, {**second, "since": NOW, "until": NOW + 10}]
    ring = keys.Keyring(content)
    signing = [ring.signing_key(NOW + at).id for at in (-1, 5, 11)]
    assert signing == [first["id"], second["id"], first["id"]]


def test_keyring_reloads_changed_file_and_keeps_keys_if_file_is_damaged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring = keys.Keyring.load(path)
    old = ring.signing_key(NOW)
    files = keys.rotated({keys.ANY: json.loads(path.read_text())}, NOW, NOW + 600, NOW)
    keys.write(path, files[keys.ANY], replace=True)
    assert ring.signing_key(NOW + keys.CHECK_SECONDS - 1) is old
    new = ring.signing_key(NOW + keys.CHECK_SECONDS)
    assert new.id != old.id
    path.write_text("{")
    assert ring.signing_key(NOW + 2 * keys.CHECK_SECONDS).id == new.id
    os.remove(path)
    assert ring.signing_key(NOW + 3 * keys.CHECK_SECONDS).id == new.id
    assert caplog.text.count("using the previous keys") == 2


# Message bodies.


def test_sealed_body_opens_only_with_its_key_and_associated_data() -> None:
    ring = keys.Keyring(keys.new(encrypt=True)[keys.ANY])
    key_id, sealed = ring.seal(b"secret", b"id")
    assert b"secret" not in sealed
    assert ring.open(key_id, sealed, b"id") == b"secret"
    for wrong in [(key_id, sealed, b"other"), (key_id, sealed[:-1], b"id"), ("x", sealed, b"id")]:
        with pytest.raises(exc.NotTrusted):
            ring.open(*wrong)
