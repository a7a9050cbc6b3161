"""`wbengine db sweep`, and large values in the output of commands."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support import framed
from wbengine import engines, operations
from wbengine.persistence import backends


def payloads_in(place: Path) -> list[Path]:
    return [path for path in place.glob("data/*/*") if path.is_file()]


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


def test_values_of_deleted_flows_are_deleted(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    uuid = run_flow(words)
    place = home / "payloads"
    kept = wbengine("db", "sweep", *words, "--grace", "0")
    assert kept.out.startswith("deleted 0 values (0 bytes), kept 1: 1 in use ("), kept
    assert "0 younger than --grace" in kept.out
    assert wbengine("flow", "delete", uuid, *words[:2], "--yes").code == 0
    young = wbengine("db", "sweep", *words, "--force", "--json")
    assert (young.json["deleted"], young.json["kept"], young.json["young"]) == (0, 1, 1)
    for path in place.glob("*/*/*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    tried = wbengine("db", "sweep", *words, "--dry-run")
    assert tried.out.startswith("would delete 1 values"), tried
    assert "--force is required" in tried.err
    assert wbengine("db", "sweep", *words, "--dry-run", "--json").json["needs_force"] is True
    assert "--force" not in wbengine("db", "sweep", *words, "--dry-run", "--force").err
    assert len(payloads_in(place)) == 1
    assert wbengine("db", "sweep", *words).code == 2, "no flow is left"
    swept = wbengine("db", "sweep", *words, "--force", "--json")
    assert (swept.json["deleted"], swept.json["references_deleted"]) == (1, 1)
    assert payloads_in(place) == []


def test_sweep_with_another_store_is_refused(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    run_flow(words)
    other = f"sqlite:///{home}/other.db"
    engines.run(framed.make(), backend={"connection": other, "payloads": "none"})
    refused = wbengine("db", "sweep", "--persistence", other, *words[2:], "--grace", "0")
    assert refused.code == 2 and "--force" in refused.err, refused
    assert len(payloads_in(home / "payloads")) == 1
    forced = wbengine("db", "sweep", "--persistence", other, *words[2:], "--grace", "0", "--force")
    assert forced.out.startswith("deleted 1 values"), forced


def test_sweep_without_the_setting_names_it(wbengine: Command, words: tuple[str, ...]) -> None:
    run_flow(words)
    refused = wbengine("db", "sweep", *words[:2])
    assert refused.code == 2 and "--payloads" in refused.err


def test_sweep_of_a_missing_store_deletes_nothing(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    run_flow(words)
    others = ("--persistence", f"sqlite:///{home}/others.db", *words[2:])
    assert wbengine("db", "sweep", *others, "--grace", "0").code == 69
    assert len(payloads_in(home / "payloads")) == 1


def test_commands_show_references_without_loading_values(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    uuid = run_flow(words)
    for path in payloads_in(home / "payloads"):
        path.unlink()
    shown = wbengine("flow", "show", uuid, *words, "--results")
    assert shown.code == 0, shown
    assert "bytes, 299,776 items" in shown.out


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_result_of_a_flow_that_lost_a_value_is_printed(
    wbengine: Command, words: tuple[str, ...], engine: str
) -> None:
    flow = "tests.support.framed:lose"
    ran = wbengine("flow", "run", flow, *words, "--no-progress", "--json", "--engine", engine)
    assert ran.code == 1, ran
    assert ran.json["state"] == "REVERTED"
    assert "is lost" in str(ran.json["failures"])


def test_flow_that_is_blocked_by_a_lost_value_is_shown(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    with backends.backend({"connection": words[1], "payloads": words[3]}) as backend:
        engine = engines.load_from_factory(framed.make_grow, backend=backend)
        engine.park_after = 0.0
        engine.run()
        uuid = engine.storage.flow_uuid
        operations.signal(backend, uuid, "more", "more")
    for path in payloads_in(home / "payloads"):
        path.unlink()
    resumed = wbengine("flow", "resume", uuid, *words, "--no-progress", "--json")
    assert resumed.code == 1, resumed
    assert (resumed.json["state"], resumed.json["shown_state"]) == ("SUSPENDED", "BLOCKED")
    assert "is lost" in str(resumed.json["failures"]) and "BLOCKED: " in resumed.err


def test_lost_result_does_not_hide_the_others(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    flow = "tests.support.framed:make_and_lose"
    ran = wbengine("flow", "run", flow, *words, "--no-progress", "--json")
    assert ran.code == 0, ran
    assert ran.json["results"]["frame"].startswith("<bytes, 299,776 items")


def test_frames_are_printed_as_short_texts(wbengine: Command, words: tuple[str, ...]) -> None:
    ran = wbengine("flow", "run", "tests.support.framed:table", *words, "--no-progress", "--json")
    assert ran.code == 0, ran
    assert ran.json["results"]["table"].startswith(
        "pandas.DataFrame 3 \N{MULTIPLICATION SIGN} 1, "
    ), ran.json


def test_command_runs_a_flow_with_large_values(
    wbengine: Command, home: Path, words: tuple[str, ...]
) -> None:
    ran = wbengine("flow", "run", "tests.support.framed:make", *words, "--no-progress", "--json")
    assert ran.code == 0, ran
    assert len(payloads_in(home / "payloads")) == 1
    assert "WBENGINE_PAYLOADS" not in os.environ
