"""`wbengine db check`: lost and damaged large values, and values of unknown classes."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support import framed
from wbengine import engines, operations, steps, task
from wbengine.persistence import backends
from wbengine.types._encoding import classes


@dataclasses.dataclass(frozen=True)
class Card:
    owner: str


class Color(enum.Enum):
    RED = 1


@task.workflow
def issue(steps, card):  # type: ignore[no-untyped-def]
    steps.publish("colors", {Color.RED: (card, 1)})
    return {card}


@task.workflow
def tell(steps: steps.Steps) -> str:
    return str(steps.wait_for("told"))


@pytest.fixture
def words(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.delenv("WBENGINE_PAYLOADS", raising=False)
    return "--persistence", f"sqlite:///{home}/flows.db", "--payloads", str(home / "payloads")


def run_flow(words: tuple[str, ...]) -> str:
    with backends.backend({"connection": words[1], "payloads": words[3]}) as backend:
        engine = engines.load(framed.make(), backend=backend)
        engine.run()
        uuid: str = engine.storage.flow_uuid
        return uuid


def payload_in(home: Path) -> Path:
    (path,) = (path for path in (home / "payloads").glob("data/*/*") if path.is_file())
    return path


@pytest.fixture
def unknown(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store a flow whose values have classes that this process does not know any more."""
    for cls in (Card, Color):
        classes.allow(cls)
    with backends.backend(f"sqlite:///{home}/flows.db") as backend:
        engine = engines.load(issue, {"card": Card("ann")}, backend=backend)
        engine.run()
    for cls in (Card, Color):
        monkeypatch.delitem(classes.ALLOWED, f"{__name__}.{cls.__name__}")
    uuid: str = engine.storage.flow_uuid
    return uuid


def test_values_of_unknown_classes_are_counted_and_are_no_damage(
    wbengine: Command, words: tuple[str, ...], unknown: str
) -> None:
    checked = wbengine("db", "check", *words[:2], "--json")
    assert (checked.code, checked.json["damaged"]) == (0, []), checked
    counts = checked.json["unknown_classes"]
    assert set(counts) == {f"{__name__}.Card", f"{__name__}.Color"} and min(counts.values()) >= 1
    shown = wbengine("db", "check", *words[:2])
    assert "-I/--include" in shown.err and f"{__name__}.Card" in shown.err


def test_damaged_value_of_a_known_class_is_damage(
    wbengine: Command, home: Path, words: tuple[str, ...], unknown: str
) -> None:
    with contextlib.closing(sqlite3.connect(home / "flows.db")) as database, database:
        database.execute("UPDATE wbe_atomdetails SET results = replace(results, 'data', 'dota')")
    checked = wbengine("db", "check", *words[:2], "--json")
    assert checked.code == 1 and "unknown tag 'dota'" in str(checked.json["damaged"])


def test_values_of_unknown_classes_are_exported_and_imported_unchanged(
    wbengine: Command, home: Path, words: tuple[str, ...], unknown: str
) -> None:
    exported = wbengine("flow", "export", unknown, "-o", str(home / "a.json"), *words[:2])
    assert exported.code == 0, exported
    other = ("--persistence", f"sqlite:///{home}/other.db")
    assert wbengine("flow", "import", str(home / "a.json"), *other).code == 0
    assert wbengine("flow", "export", unknown, "-o", str(home / "b.json"), *other).code == 0
    assert json.loads((home / "a.json").read_text()) == json.loads((home / "b.json").read_text())
    moved = f"sqlite:///{home}/moved.db"
    assert wbengine("db", "move", words[1], moved).code == 0
    for cls in (Card, Color):
        classes.allow(cls)
    for url in (other[1], moved):
        with backends.backend(url) as backend:
            assert operations.published(backend, unknown) == {
                "colors": {Color.RED: (Card("ann"), 1)}
            }


def test_lost_value_is_reported_with_its_place(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    uuid = run_flow(words)
    good = wbengine("db", "check", *words, "--json")
    assert (good.code, good.json["values"], good.json["unavailable"]) == (0, 1, [])
    path = payload_in(home)
    path.unlink()
    lost = wbengine("db", "check", *words, "--json")
    assert lost.code == 1, lost
    (value,) = lost.json["unavailable"]
    assert (value["flow"], value["atom"], value["field"]) == (uuid, "make", "results")
    assert value["address"] == path.name and "is lost" in value["problem"]
    shown = wbengine("db", "check", *words)
    assert f"flow {uuid} atom 'make' results: the value" in shown.out


def test_damaged_value_is_found_by_reading(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    run_flow(words)
    path = payload_in(home)
    path.write_bytes(path.read_bytes()[:-1])
    assert wbengine("db", "check", *words).code == 0
    read = wbengine("db", "check", *words, "--read-payloads", "--json")
    assert read.code == 1 and "is damaged" in read.json["unavailable"][0]["problem"]


def test_lost_value_of_a_signal_is_reported(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    with backends.backend({"connection": words[1], "payloads": words[3]}) as backend:
        handle = engines.submit(tell, backend=backend)
        handle.signal("told", "x" * framed.SIZE)
    payload_in(home).unlink()
    lost = wbengine("db", "check", *words, "--json")
    assert [each["field"] for each in lost.json["unavailable"]] == ["signal 'told'"]


def test_values_without_the_setting_are_counted(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    run_flow(words)
    payload_in(home).unlink()
    checked = wbengine("db", "check", *words[:2], "--json")
    assert (checked.code, checked.json["values"]) == (0, 1)
    assert checked.json["values_checked"] is False
    shown = wbengine("db", "check", *words[:2])
    assert "1 large value not checked: set `payloads`" in shown.err
    assert wbengine("db", "check", *words[:2], "--read-payloads").code == 2


def test_doctor_writes_and_reads_in_the_place(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    good = wbengine("doctor", *words, "--json").json["findings"]
    (finding,) = (each for each in good if each["check"] == "payloads")
    assert finding["good"] is True, finding
    assert [path for path in (home / "payloads").rglob("*") if path.is_file()] == []
    (home / "payloads" / "doctor").rmdir()
    (home / "payloads" / "doctor").write_text("not a folder")
    bad = wbengine("doctor", *words, "--json").json["findings"]
    (finding,) = (each for each in bad if each["check"] == "payloads")
    assert finding["good"] is False and "payloads" in finding["text"], finding
