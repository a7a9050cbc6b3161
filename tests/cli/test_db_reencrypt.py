"""`wbengine db reencrypt`, and commands with and without the key of an encrypted store."""

from __future__ import annotations

import json
import shutil
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


def test_key_file_that_signs_encrypts_from_the_start_of_its_rotation(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    def run(letter: str) -> bytes:
        # Another name, because a process reads a key file again only after some seconds.
        with_keys = (*words, "--keys", str(shutil.copy(home / "keys.json", home / letter)))
        inputs = json.dumps({"item": letter * framed.SIZE})
        ran = wbengine(
            "flow", "run", "tests.support.framed:measure", "--inputs", inputs, *with_keys
        )
        assert ran.code == 0, ran
        latest = max((home / "payloads").glob("data/*/*"), key=lambda path: path.stat().st_mtime_ns)
        return latest.read_bytes()[:6]

    assert wbengine("keys", "new", str(home / "keys.json")).code == 0
    plain = run("a")
    assert wbengine("keys", "rotate", "--encrypt", str(home / "keys.json")).code == 0
    shown = wbengine("keys", "show", str(home / "keys.json"), "--json").json
    assert (shown["encrypts"], run("b")) == (False, plain)
    now = ("keys", "rotate", "--encrypt", "--in", "0", str(home / "keys.json"))
    assert wbengine(*now).code == 0
    shown = wbengine("keys", "show", str(home / "keys.json"), "--json").json
    assert (shown["encrypts"], run("c")) == (True, b"wbpenc")
    check = ("db", "check", "--read-payloads", *words, "--keys", str(home / "c"), "--json")
    checked = wbengine(*check)
    assert (checked.code, checked.json["values"]) == (0, 3), checked


def test_records_of_another_key_are_no_damage(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    for name in ("one", "other"):
        assert wbengine("keys", "new", "--encrypt", str(home / f"{name}.json")).code == 0
    run = ("flow", "run", "tests.support.framed:measure", "--inputs", '{"item": "a"}', *words)
    assert wbengine(*run, "--keys", str(home / "one.json")).code == 0
    checked = wbengine("db", "check", *words, "--keys", str(home / "other.json"), "--json")
    assert (checked.code, checked.json["damaged"]) == (1, []), checked
    (record,) = checked.json["without_key"]
    assert "is encrypted with key" in record


def test_missing_key_file_is_an_invalid_setting(
    wbengine: Command, home: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_KEYS", str(home / "missing.json"))
    for command in (("flow", "list"), ("db", "check")):
        refused = wbengine(*command, *words)
        assert (refused.code, "cannot read key file" in refused.err) == (78, True), refused


@pytest.mark.slow
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
