"""`wbengine db reencrypt` and `db move`."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Answer, Command, Words, opened
from tests.support import framed
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models


def test_store_and_large_values_are_encrypted_later(wbengine: Command, words: Words) -> None:
    with opened(words) as backend:
        engine = engines.load(framed.make(), backend=backend)
        engine.run()
        uuid = engine.storage.flow_uuid
    before = wbengine("flow", "show", uuid, *words, "--json").json
    assert wbengine("db", "reencrypt", *words).code == 2, "no key file"
    with_keys = (*words, "--keys", str(wbengine.folder / "keys.json"))
    assert wbengine("keys", "new", "--encrypt", str(wbengine.folder / "keys.json")).code == 0

    done = wbengine("db", "reencrypt", *with_keys)
    assert (done.code, done.out.startswith("changed ")) == (0, True), done
    refused = wbengine("db", "reencrypt", *words, "--keys", "none")
    assert (refused.code, "has no keys" in refused.err) == (2, True), refused
    again = wbengine("db", "reencrypt", *with_keys, "--json").json
    assert again["rows"] > again["rows_written"] == 0
    assert (again["payloads"], again["payloads_written"]) == (1, 0)
    (file,) = (wbengine.folder / "payloads").glob("data/*/*")
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
    wbengine: Command, home: Path, words: Words
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


def test_records_of_another_key_are_no_damage(wbengine: Command, home: Path, words: Words) -> None:
    for name in ("one", "other"):
        assert wbengine("keys", "new", "--encrypt", str(home / f"{name}.json")).code == 0
    run = ("flow", "run", "tests.support.framed:measure", "--inputs", '{"item": "a"}', *words)
    assert wbengine(*run, "--keys", str(home / "one.json")).code == 0
    checked = wbengine("db", "check", *words, "--keys", str(home / "other.json"), "--json")
    assert (checked.code, checked.json["damaged"]) == (1, []), checked
    (record,) = checked.json["without_key"]
    assert "is encrypted with key" in record


def test_missing_key_file_is_an_invalid_setting(wbengine: Command, words: Words) -> None:
    wbengine.setenv("WBENGINE_KEYS", str(wbengine.folder / "missing.json"))
    for command in (("flow", "list"), ("db", "check")):
        refused = wbengine(*command, *words)
        assert (refused.code, "cannot read key file" in refused.err) == (78, True), refused


@pytest.mark.slow
def test_doctor_reports_values_that_need_a_missing_setting(
    wbengine: Command, home: Path, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_URL", f"filesystem://{home}/broker")
    key_file = str(home / "keys.json")
    with opened(words) as backend:
        engines.load(framed.make(), backend=backend).run()
        assert missing_settings(wbengine("doctor", "--json")) == ["payloads"]
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


@contextlib.contextmanager
def connected(url: str) -> Iterator[base.Connection]:
    with contextlib.closing(backends.fetch(url)) as backend, backend.get_connection() as connection:
        yield connection


def a_flow(url: str, name: str = "a flow") -> None:
    book, flow = models.LogBook("book", uuid="book"), models.FlowDetail(name, uuid="flow")
    flow.add(models.TaskDetail("task", uuid="task"))
    book.add(flow)
    with connected(url) as connection:
        connection.save_logbook(book)


def test_missing_store_is_not_moved(wbengine: Command, home: Path) -> None:
    answer = wbengine("db", "move", f"sqlite:///{home}/none.db", f"sqlite:///{home}/new.db")
    assert answer.code == 69
    assert f"OLD must be an existing store, got sqlite:///{home}/none.db" in answer.error
    assert not (home / "new.db").exists()


class Square(task.Task):
    def execute(self, number: int) -> int:
        return number * number


def test_flow_that_ran_is_moved_completely(wbengine: Command, tmp_path: Path) -> None:
    old, new = f"dir://{tmp_path}/old", f"sqlite:///{tmp_path}/new.db"
    squares = task.Map(Square(), over="numbers", item="number", name="squares")
    with backends.backend(old) as backend:
        engine = engines.load(
            linear_flow.Flow("f", retry.Times(2, "again")).add(squares),
            store={"numbers": [1, 2, 3]}, backend=backend,
        )  # fmt: skip
        engine.run()
        uuid = engine.storage.flow_uuid
    answer = wbengine("db", "move", old, new)
    assert answer.out == f"copied 1 flows in 1 logbooks to {new} and verified them\n"
    again = wbengine("db", "move", old, new, "--json")
    assert again.code == 0 and again.json["flows"] == 1
    with connected(old) as before, connected(new) as after:
        flow = after.get_flow_details(uuid)
        assert [change.state for change in flow.history] == [states.RUNNING, states.SUCCESS]
        assert {atom.name for atom in flow} > {"squares", "again"}
        (mapped,) = [atom for atom in flow if atom.name == "squares"]
        assert [item.results for item in mapped.items or ()] == [1, 4, 9]
        outline = after.get_outline(uuid)
        assert outline is not None and outline.digest == flow.outlined
        # Epochs of later runs exceed all earlier ones, also in the ledgers of workers.
        epoch = before.get_flow_details(uuid).epoch
        assert after.acquire_lease(uuid, "me", 60).epoch == epoch + 1


def test_stores_of_other_kinds_are_moved(wbengine: Command, tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", f"dir://{tmp_path}/new"
    a_flow(old)
    assert wbengine("db", "move", old, new).code == 0
    with connected(old) as before, connected(new) as after:
        assert after.get_logbook("book").to_dict() == before.get_logbook("book").to_dict()
        assert [atom.name for atom in after.get_flow_details("flow")] == ["task"]


def test_move_to_a_store_with_another_logbook_of_that_name_is_refused(
    wbengine: Command, tmp_path: Path
) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", f"dir://{tmp_path}/new"
    a_flow(old)
    a_flow(new, "another one")
    answer = wbengine("db", "move", old, new)
    assert answer.code != 0 and "contains another logbook book" in answer.error
    with connected(new) as connection:
        assert connection.get_flow_details("flow").name == "another one"


def test_move_of_a_running_flow_is_refused(wbengine: Command, tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", f"dir://{tmp_path}/new"
    a_flow(old)
    with connected(old) as connection:
        connection.acquire_lease("flow", "somebody", 60)
    answer = wbengine("db", "move", old, new)
    assert (
        answer.code != 0 and "Flow flow must not be running, its owner is somebody" in answer.error
    )
    with connected(new) as connection, pytest.raises(exceptions.NotFound):
        connection.get_logbook("book")
