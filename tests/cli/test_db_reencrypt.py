"""`wbengine db reencrypt`, and commands with and without the key of an encrypted store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Answer, Command
from tests.support import framed
from wbengine import engines
from wbengine.persistence import backends


@pytest.fixture
def words(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    for name in ("WBENGINE_PAYLOADS", "WBENGINE_KEYS"):
        monkeypatch.delenv(name, raising=False)
    return "--persistence", f"sqlite:///{home}/flows.db", "--payloads", str(home / "payloads")


def test_store_and_large_values_are_encrypted_later(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    with backends.backend({"connection": words[1], "payloads": words[3]}) as backend:
        engine = engines.load(framed.make(), backend=backend)
        engine.run()
        uuid = engine.storage.flow_uuid
    before = wbengine("flow", "show", uuid, *words, "--json").json
    assert wbengine("db", "reencrypt", *words).code == 2, "no key file"
    with_keys = (*words, "--keys", str(home / "keys.json"))
    assert wbengine("keys", "new", "--encrypt", str(home / "keys.json")).code == 0

    done = wbengine("db", "reencrypt", *with_keys)
    assert (done.code, done.out.startswith("changed ")) == (0, True), done
    refused = wbengine("db", "reencrypt", *words, "--keys", "none")
    assert (refused.code, "has no keys" in refused.err) == (2, True), refused
    again = wbengine("db", "reencrypt", *with_keys, "--json").json
    assert again["rows"] > again["rows_written"] == 0
    assert (again["payloads"], again["payloads_written"]) == (1, 0)
    (file,) = (home / "payloads").glob("data/*/*")
    assert file.read_bytes().startswith(b"wbpenc")
    assert wbengine("flow", "show", uuid, *with_keys, "--json").json == before
    without = wbengine("flow", "show", uuid, *words, "--json")
    assert without.code == 0
    assert without.json["state"] == "SUCCESS"
    for words_of_command in (
        ("flow", "get", uuid),
        ("flow", "logs", uuid),
        ("flow", "export", uuid, "-o", "x"),
        ("db", "check"),
    ):
        refused = wbengine(*words_of_command, *words)
        assert (refused.code, "this process has no keys" in refused.err) == (69, True), refused
    assert wbengine("db", "check", *with_keys, "--read-payloads").code == 0


def test_doctor_reports_values_that_need_a_missing_setting(
    wbengine: Command, home: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_URL", f"filesystem://{home}/broker")
    key_file = str(home / "keys.json")
    with backends.backend({"connection": words[1], "payloads": words[3]}) as backend:
        engines.load(framed.make(), backend=backend).run()
        store = words[:2]
        assert missing_settings(wbengine("doctor", *store, "--json")) == ["payloads"]
        assert missing_settings(wbengine("doctor", *words, "--json")) == []
        assert wbengine("keys", "new", "--encrypt", key_file).code == 0
        monkeypatch.setenv("WBENGINE_KEYS", key_file)
        engines.load(framed.make(), backend=backend).run()
        monkeypatch.delenv("WBENGINE_KEYS")
    assert missing_settings(wbengine("doctor", *words, "--json")) == ["keys"]
    assert missing_settings(wbengine("doctor", *words, "--keys", key_file, "--json")) == []


def missing_settings(report: Answer) -> list[str]:
    """Return the settings that `doctor` asks for."""
    assert report.code in (0, 1), report
    fixes = [each["fix"] or "" for each in report.json["findings"] if each["check"] == "store"]
    return [name for fix in fixes for name in ("keys", "payloads") if f"set `{name}`" in fix]
