"""Large values: `wbengine db check`, `db sweep`, and other commands about them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Words, opened
from tests.support import framed
from wbengine import engines, operations, steps, task
from wbengine.persistence import backends, base
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
def uuid(words: Words) -> str:
    """Run a flow with a large value, and return its uuid."""
    with opened(words) as backend:
        engine = engines.load(framed.make(), backend=backend)
        engine.run()
        return str(engine.storage.flow_uuid)


def payloads_in(home: Path) -> list[Path]:
    return [path for path in (home / "payloads").glob("data/*/*") if path.is_file()]


def payload_in(home: Path) -> Path:
    (path,) = payloads_in(home)
    return path


@pytest.fixture
def unknown(store: base.Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store a flow whose values have classes that this process does not know any more."""
    for cls in (Card, Color):
        classes.allow(cls)
    engine = engines.load(issue, {"card": Card("ann")}, backend=store)
    engine.run()
    for cls in (Card, Color):
        monkeypatch.delitem(classes.ALLOWED, f"{__name__}.{cls.__name__}")
    uuid: str = engine.storage.flow_uuid
    return uuid


def test_values_of_unknown_classes_are_counted_and_are_no_damage(
    wbengine: Command, unknown: str
) -> None:
    checked = wbengine("db", "check", "--json")
    assert (checked.code, checked.json["damaged"]) == (0, []), checked
    counts = checked.json["unknown_classes"]
    assert set(counts) == {f"{__name__}.Card", f"{__name__}.Color"} and min(counts.values()) >= 1
    shown = wbengine("db", "check")
    assert "-I/--include" in shown.err and f"{__name__}.Card" in shown.err


def test_damaged_value_of_a_known_class_is_damage(wbengine: Command, unknown: str) -> None:
    with contextlib.closing(sqlite3.connect(wbengine.folder / "flows.db")) as database, database:
        database.execute("UPDATE wbe_atomdetails SET results = replace(results, 'data', 'dota')")
    checked = wbengine("db", "check", "--json")
    assert checked.code == 1 and "unknown tag 'dota'" in str(checked.json["damaged"])


def test_values_of_unknown_classes_are_exported_and_imported_unchanged(
    wbengine: Command, home: Path, unknown: str
) -> None:
    exported = wbengine("flow", "export", unknown, "-o", str(home / "a.json"))
    assert exported.code == 0, exported
    other = ("--persistence", f"sqlite:///{home}/other.db")
    assert wbengine("flow", "import", str(home / "a.json"), *other).code == 0
    assert wbengine("flow", "export", unknown, "-o", str(home / "b.json"), *other).code == 0
    assert json.loads((home / "a.json").read_text()) == json.loads((home / "b.json").read_text())
    moved = f"sqlite:///{home}/moved.db"
    assert wbengine("db", "move", f"sqlite:///{home}/flows.db", moved).code == 0
    for cls in (Card, Color):
        classes.allow(cls)
    for url in (other[1], moved):
        with backends.backend(url) as backend:
            assert operations.published(backend, unknown) == {
                "colors": {Color.RED: (Card("ann"), 1)}
            }


def test_lost_value_is_reported_with_its_place(wbengine: Command, words: Words, uuid: str) -> None:
    good = wbengine("db", "check", *words, "--json")
    assert (good.code, good.json["values"], good.json["unavailable"]) == (0, 1, [])
    path = payload_in(wbengine.folder)
    path.unlink()
    lost = wbengine("db", "check", *words, "--json")
    assert lost.code == 1, lost
    (value,) = lost.json["unavailable"]
    assert (value["flow"], value["atom"], value["field"]) == (uuid, "make", "results")
    assert value["address"] == path.name and "is lost" in value["problem"]
    shown = wbengine("db", "check", *words)
    assert f"flow {uuid} atom 'make' results: the value" in shown.out


def test_damaged_value_is_found_by_reading(wbengine: Command, words: Words, uuid: str) -> None:
    path = payload_in(wbengine.folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert wbengine("db", "check", *words).code == 0
    read = wbengine("db", "check", *words, "--read-payloads", "--json")
    assert read.code == 1 and "is damaged" in read.json["unavailable"][0]["problem"]


def test_lost_value_of_a_signal_is_reported(wbengine: Command, home: Path, words: Words) -> None:
    with opened(words) as backend:
        handle = engines.submit(tell, backend=backend)
        handle.signal("told", "x" * framed.SIZE)
    payload_in(home).unlink()
    lost = wbengine("db", "check", *words, "--json")
    assert [each["field"] for each in lost.json["unavailable"]] == ["signal 'told'"]


def test_values_without_the_setting_are_counted(wbengine: Command, words: Words, uuid: str) -> None:
    payload_in(wbengine.folder).unlink()
    checked = wbengine("db", "check", "--json")
    assert (checked.code, checked.json["values"]) == (0, 1)
    assert checked.json["values_checked"] is False
    shown = wbengine("db", "check")
    assert "1 large value not checked: set `payloads`" in shown.err
    assert wbengine("db", "check", "--read-payloads").code == 2


def test_doctor_writes_and_reads_in_the_place(wbengine: Command, home: Path, words: Words) -> None:
    good = wbengine("doctor", *words, "--json").json["findings"]
    (finding,) = (each for each in good if each["check"] == "payloads")
    assert finding["good"] is True, finding
    assert [path for path in (home / "payloads").rglob("*") if path.is_file()] == []
    (home / "payloads" / "doctor").rmdir()
    (home / "payloads" / "doctor").write_text("not a folder")
    bad = wbengine("doctor", *words, "--json").json["findings"]
    (finding,) = (each for each in bad if each["check"] == "payloads")
    assert finding["good"] is False and "payloads" in finding["text"], finding


def test_values_of_deleted_flows_are_deleted(wbengine: Command, words: Words, uuid: str) -> None:
    place = wbengine.folder / "payloads"
    kept = wbengine("db", "sweep", *words, "--grace", "0")
    assert kept.out.startswith("deleted 0 values (0 bytes), kept 1: 1 in use ("), kept
    assert "0 younger than --grace" in kept.out
    assert wbengine("flow", "delete", uuid, "--yes").code == 0
    young = wbengine("db", "sweep", *words, "--force", "--json")
    assert (young.json["deleted"], young.json["kept"], young.json["young"]) == (0, 1, 1)
    for path in place.glob("*/*/*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    tried = wbengine("db", "sweep", *words, "--dry-run")
    assert tried.out.startswith("would delete 1 values"), tried
    assert "--force is required" in tried.err
    assert wbengine("db", "sweep", *words, "--dry-run", "--json").json["needs_force"] is True
    assert "--force" not in wbengine("db", "sweep", *words, "--dry-run", "--force").err
    assert len(payloads_in(wbengine.folder)) == 1
    assert wbengine("db", "sweep", *words).code == 2, "no flow is left"
    swept = wbengine("db", "sweep", *words, "--force", "--json")
    assert (swept.json["deleted"], swept.json["references_deleted"]) == (1, 1)
    assert payloads_in(wbengine.folder) == []


def test_sweep_with_another_store_is_refused(wbengine: Command, words: Words, uuid: str) -> None:
    other = f"sqlite:///{wbengine.folder}/other.db"
    engines.run(framed.make(), backend={"connection": other, "payloads": "none"})
    refused = wbengine("db", "sweep", "--persistence", other, *words, "--grace", "0")
    assert refused.code == 2 and "--force" in refused.err, refused
    assert len(payloads_in(wbengine.folder)) == 1
    forced = wbengine("db", "sweep", "--persistence", other, *words, "--grace", "0", "--force")
    assert forced.out.startswith("deleted 1 values"), forced


def test_sweep_of_a_missing_store_deletes_nothing(
    wbengine: Command, home: Path, words: Words, uuid: str
) -> None:
    others = ("--persistence", f"sqlite:///{home}/others.db", *words)
    assert wbengine("db", "sweep", *others, "--grace", "0").code == 69
    assert len(payloads_in(home)) == 1


def test_commands_show_references_without_loading_values(
    wbengine: Command, home: Path, words: Words, uuid: str
) -> None:
    for path in payloads_in(home):
        path.unlink()
    shown = wbengine("flow", "show", uuid, *words, "--results")
    assert shown.code == 0, shown
    assert "bytes, 299,776 items" in shown.out


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_result_of_a_flow_that_lost_a_value_is_printed(
    wbengine: Command, words: Words, engine: str
) -> None:
    flow = "tests.support.framed:lose"
    ran = wbengine("flow", "run", flow, *words, "--no-progress", "--json", "--engine", engine)
    assert ran.code == 1, ran
    assert ran.json["state"] == "REVERTED"
    assert "is lost" in str(ran.json["failures"])


def test_flow_that_is_blocked_by_a_lost_value_is_shown(wbengine: Command, words: Words) -> None:
    with opened(words) as backend:
        engine = engines.load_from_factory(framed.make_grow, backend=backend)
        engine.park_after = 0.0
        engine.run()
        uuid = engine.storage.flow_uuid
        operations.signal(backend, uuid, "more", "more")
    for path in payloads_in(wbengine.folder):
        path.unlink()
    resumed = wbengine("flow", "resume", uuid, *words, "--no-progress", "--json")
    assert resumed.code == 1, resumed
    assert (resumed.json["state"], resumed.json["shown_state"]) == ("SUSPENDED", "BLOCKED")
    assert "is lost" in str(resumed.json["failures"]) and "BLOCKED: " in resumed.err


def test_lost_result_does_not_hide_the_others(wbengine: Command, home: Path, words: Words) -> None:
    flow = "tests.support.framed:make_and_lose"
    ran = wbengine("flow", "run", flow, *words, "--no-progress", "--json")
    assert ran.code == 0, ran
    assert ran.json["results"]["frame"].startswith("<bytes, 299,776 items")


def test_frames_are_printed_as_short_texts(wbengine: Command, words: Words) -> None:
    ran = wbengine("flow", "run", "tests.support.framed:table", *words, "--no-progress", "--json")
    assert ran.code == 0, ran
    assert ran.json["results"]["table"].startswith(
        "pandas.DataFrame 3 \N{MULTIPLICATION SIGN} 1, "
    ), ran.json


def test_command_runs_a_flow_with_large_values(wbengine: Command, home: Path, words: Words) -> None:
    ran = wbengine("flow", "run", "tests.support.framed:make", *words, "--no-progress", "--json")
    assert ran.code == 0, ran
    assert len(payloads_in(home)) == 1
    assert "WBENGINE_PAYLOADS" not in os.environ


def test_commands_name_values_that_the_file_does_not_contain(
    wbengine: Command, home: Path, uuid: str
) -> None:
    file = "flow.json"
    answer = wbengine("flow", "export", uuid, "-o", file)
    assert answer.code == 0 and "refers to large values (1)" in answer.err, answer
    plain = wbengine("flow", "import", file, "--persistence", f"sqlite:///{home}/plain.db")
    assert plain.code == 0 and "this store has no place for them" in plain.err, plain
    new = "--persistence", f"sqlite:///{home}/new.db", "--payloads", str(home / "new")
    answer = wbengine("flow", "import", file, *new, "--json")
    (address,) = (path.name for path in payloads_in(home))
    assert answer.json["missing_values"] == [address]
    assert f"data/{address[:2]}/{address} (bytes, 299,776 items" in answer.err, answer
    shutil.copytree(home / "payloads" / "data", home / "same" / "data")
    same = "--persistence", f"sqlite:///{home}/same.db", "--payloads", str(home / "same")
    answer = wbengine("flow", "import", file, *same, "--json")
    assert (answer.json["missing_values"], answer.err) == ([], "")
