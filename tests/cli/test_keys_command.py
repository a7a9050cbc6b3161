"""`wbengine keys`: create, show and rotate key files."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from wbengine._security import keys


def test_new_key_file_is_private_and_never_overwritten(wbengine: Command, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    assert wbengine("keys", "new", str(path)).code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = keys.Keyring.load(path)
    assert (ring.role, ring.encrypts, ring.accept_unsigned_until) == (keys.ANY, False, 0)
    before = path.read_bytes()
    answer = wbengine("keys", "new", str(path))
    assert answer.code == 1 and "exists" in answer.err
    assert path.read_bytes() == before


def test_new_files_of_all_roles_are_created_and_valid(wbengine: Command, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    more = ("--encrypt", "--accept-unsigned", "1h")
    assert wbengine("keys", "new", "--per-role", str(folder), *more).code == 0
    assert sorted(each.name for each in folder.iterdir()) == [
        "engine.json", "operator.json", "worker.json",
    ]  # fmt: skip
    for role in keys.ROLES:
        ring = keys.Keyring.load(folder / f"{role}.json")
        assert (ring.role, ring.encrypts) == (role, True)
        assert 3500 < ring.accept_unsigned_until - time.time() < 3700
    assert wbengine("keys", "new", "--per-role", str(folder)).code == 1


def test_keys_show_prints_no_secret(wbengine: Command, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    wbengine("keys", "new", str(path), "--encrypt")
    answer = wbengine("keys", "show", str(path), "--json")
    shown = json.loads(answer.out)
    (key,) = shown["keys"]
    assert (key["state"], key["algorithm"], shown["encrypts"]) == ("signs", "hmac-sha256", True)
    as_text = wbengine("keys", "show", "--keys", str(path))
    assert "this file also encrypts" in as_text.err
    text = answer.out + as_text.out
    assert key["id"] in text
    content = json.loads(path.read_text())
    for secret in (*content["keys"], *content["store"], *content["encrypt"]):
        assert secret["secret"] not in text


@pytest.mark.parametrize("per_role", [False, True])
def test_rotated_keys_sign_and_old_keys_stay_trusted(
    wbengine: Command, tmp_path: Path, per_role: bool
) -> None:
    path = tmp_path / "keys"
    wbengine("keys", "new", str(path), *(("--per-role",) if per_role else ()))
    answer = wbengine("keys", "rotate", str(path), "--in", "0", "--keep", "1h")
    assert answer.code == 0, answer.err
    one = path / "worker.json" if per_role else path
    shown = json.loads(wbengine("keys", "show", str(one), "--json").out)["keys"]
    assert sorted(each["state"] for each in shown).count("signs") == 1
    assert len(shown) == (6 if per_role else 2)
    (old,) = [each for each in shown if each["role"] in ("worker", "any") and each["until"]]
    assert old["state"] == "trusted" and 3500 < old["until"] - time.time() < 3700


def test_rotation_of_one_role_file_is_refused(wbengine: Command, tmp_path: Path) -> None:
    """A file without the new public keys would reject all messages."""
    path = tmp_path / "keys"
    wbengine("keys", "new", str(path), "--per-role")
    answer = wbengine("keys", "rotate", str(path / "worker.json"))
    assert answer.code == 1 and "engine.json, operator.json is missing" in answer.err


def test_rotation_that_cannot_write_one_file_changes_none(
    wbengine: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    wbengine("keys", "new", str(path), "--per-role")
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    write, calls = keys.write, iter(range(3))

    def full(*args: Any, **more: Any) -> None:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*args, **more)

    monkeypatch.setattr(keys, "write", full)
    answer = wbengine("keys", "rotate", str(path), "--in", "0")
    assert answer.code == 1 and "No space left" in answer.err
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


def test_rotation_follows_a_symlink(wbengine: Command, tmp_path: Path) -> None:
    path, link = tmp_path / "keys.json", tmp_path / "link.json"
    wbengine("keys", "new", str(path))
    link.symlink_to(path)
    assert wbengine("keys", "rotate", str(link)).code == 0
    assert link.is_symlink() and len(keys.Keyring.load(path).keys) == 2


def test_rotation_of_shared_and_role_files_together_is_refused(
    wbengine: Command, tmp_path: Path
) -> None:
    """Every role would receive its secret."""
    path = tmp_path / "keys"
    wbengine("keys", "new", str(path), "--per-role")
    wbengine("keys", "new", str(path / "shared.json"))
    answer = wbengine("keys", "rotate", str(path))
    assert answer.code == 1 and "a shared key file or key files of roles" in answer.err


def test_key_file_that_others_can_read_is_refused(wbengine: Command, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    wbengine("keys", "new", str(path))
    path.chmod(0o644)
    for words in (("keys", "show"), ("keys", "rotate"), ("status",), ("workers", "list")):
        answer = wbengine(*words, "--keys", str(path))
        assert answer.code in (2, 78) and "chmod 600" in answer.err, words


def test_keys_show_without_key_file_is_refused(wbengine: Command) -> None:
    assert wbengine("keys", "show").code == 2


def test_empty_key_file_name_is_refused(wbengine: Command, tmp_path: Path) -> None:
    """A worker would start without keys."""
    worker = ("worker", "t", "--tasks", "tests.support.sample_tasks", "--burst")
    where = f"--url=filesystem://{tmp_path}/broker"
    answer = wbengine(*worker, where, "--keys", "")
    assert answer.code == 2 and "--keys must be a key file, or 'none' for no keys" in answer.err
    wbengine.setenv("WBENGINE_KEYS", "")
    answer = wbengine(*worker, where)
    assert answer.code in (2, 78) and "$WBENGINE_KEYS must be a key file" in answer.err


def test_worker_prints_which_keys_it_uses(wbengine: Command, tmp_path: Path) -> None:
    worker = ("worker", "t", "--tasks", "tests.support.sample_tasks", "--burst")
    where, path = f"--url=filesystem://{tmp_path}/broker", tmp_path / "keys.json"
    assert "keys      none" in wbengine(*worker, where).err
    wbengine("keys", "new", str(path))
    answer = wbengine(*worker, where, "--keys", str(path))
    assert "keys      hmac-sha256 of role 'any'" in answer.err


def test_expired_key_is_reported(wbengine: Command, tmp_path: Path) -> None:
    """`keys show` and the doctor report it."""
    path = tmp_path / "keys.json"
    doctor = ("doctor", "--url", f"memory://{tmp_path.name}", "--keys", str(path), "--json")
    (content,) = keys.new().values()
    keys.write(path, content)
    assert "have expired" not in wbengine("keys", "show", str(path)).err
    assert _of_keys(wbengine(*doctor)) == [True]
    content["keys"][0]["until"] = time.time() - 1
    keys.write(path, content, replace=True)
    assert "have expired" in wbengine("keys", "show", str(path)).err
    answer = wbengine(*doctor)
    assert _of_keys(answer) == [False]
    assert {
        "check": "round trip", "good": None, "text": "skipped: the keys cannot be used", "fix": None
    } in answer.json["findings"]  # fmt: skip


def _of_keys(answer: Any) -> list[bool | None]:
    return [each["good"] for each in answer.json["findings"] if each["check"] == "keys"]
