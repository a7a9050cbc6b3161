"""`wbengine schedule`, and schedules in the settings file."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import ORDER, Command
from tests.support.waiting import until
from wbengine._cli import settings_schema

pytestmark = pytest.mark.usefixtures("store_url")


def listed(wbengine: Command) -> dict[str, dict[str, Any]]:
    data = wbengine("schedule", "list", "--json").json
    assert data["schema"] == "wbengine/schedule-ls/1"
    return {each["name"]: each for each in data["schedules"]}


def test_backfill_submits_past_times_once(wbengine: Command) -> None:
    wbengine("schedule", "add", "hourly", ORDER, "--every", "1h")
    backfill = ("schedule", "backfill", "hourly", "--from", "2026-01-01", "--limit", "9")
    until_two = (*backfill, "--to", "2026-01-01T02:00")
    dry = wbengine(*until_two, "--dry-run")
    assert dry.out.split("\n")[0] == "2026-01-01T00:00:00.000Z  -" and "would submit 3" in dry.error
    assert flows(wbengine, "hourly") == []
    [first] = wbengine(*backfill, "--to", "2026-01-01", "--json").lines
    assert first["schema"] == "wbengine/schedule-backfill/1" and not first["dry_run"]
    answer = wbengine(*until_two)
    assert "submitted 2 flows of hourly" in answer.error
    uuids = [line.split()[1] for line in answer.out.splitlines()]
    listed_flows = flows(wbengine, "hourly")
    assert {flow["uuid"] for flow in listed_flows} == {first["uuid"], *uuids}
    assert wbengine(*until_two).out == ""
    three = (*backfill, "--to", "2026-01-01T05:00", "--max-flows", "2", "--priority", "low")
    assert "would submit 2" in wbengine(*three, "--dry-run").error
    assert "submitted 2 flows of hourly" in wbengine(*three).error
    assert "would submit 1 " in wbengine(*three, "--dry-run").error
    early = ("--from", "1000-01-01", "--to", "1970-01-01", "--dry-run")
    assert wbengine("schedule", "backfill", "hourly", *early).out.startswith("1970-01-01T00:00")
    assert wbengine("schedule", "backfill", "daily", "--from", "1d").code == 66


def flows(wbengine: Command, name: str) -> list[dict[str, Any]]:
    listed_flows = wbengine("flow", "list", "--tag", f"schedule={name}", "--json").json["flows"]
    return list(listed_flows)


def test_existing_schedule_with_a_slash_stays_usable(wbengine: Command, home: Path) -> None:
    assert wbengine("schedule", "add", "old", ORDER, "--every", "1h").code == 0
    with contextlib.closing(sqlite3.connect(home / "flows.db")) as connection, connection:
        connection.execute("UPDATE wbe_schedules SET name = 'a/b'")
    add = ("schedule", "add", "a/b", ORDER, "--every", "2h")
    for words in (("run", "a/b"), ("pause", "a/b"), ("resume", "a/b"), (*add[1:], "--replace")):
        assert wbengine("schedule", *words).code == 0, words
    assert listed(wbengine)["a/b"]["every"] == 7200
    assert wbengine("schedule", "delete", "a/b").code == 0
    wbengine.fails(2, "Schedule name must not contain '/', or be '.' or '..', got 'a/b'", *add)


@pytest.mark.slow
def test_schedule_is_added_paused_run_and_deleted(wbengine: Command) -> None:
    added = wbengine("schedule", "add", "nightly", ORDER, "--cron", "30 2 * * *",
                     "--time-zone", "Europe/Berlin", "--jitter", "5m", "--tag", "team=post",
                     "--overlap", "queue")  # fmt: skip
    assert (added.code, added.out) == (0, "") and "nightly fires next at 20" in added.error
    data = wbengine("schedule", "add", "every", ORDER, "--every", "2h", "--json").json
    assert data["schema"] == "wbengine/schedule-add/1" and data["every"] == 7200
    schedules = listed(wbengine)
    assert schedules["nightly"]["cron"] == "30 2 * * *" and schedules["nightly"]["jitter"] == 300
    assert schedules["nightly"]["next"].endswith(":30:00Z") and schedules["every"]["last"] is None
    table = wbengine("schedule", "list").out
    assert "30 2 * * * Europe/Berlin" in table and "every 7200 s" in table
    again = wbengine("schedule", "add", "every", ORDER, "--every", "3h")
    assert again.code == 2
    assert "Schedule 'every' already exists; to replace it, pass --replace" in again.error
    assert wbengine("schedule", "add", "every", ORDER, "--every", "3h", "--replace").code == 0
    assert listed(wbengine)["every"]["every"] == 10800
    assert "every is paused" in wbengine("schedule", "pause", "every").error
    assert listed(wbengine)["every"]["paused"] and listed(wbengine)["every"]["next"] is None
    assert "paused" in wbengine("schedule", "list").out
    assert "every fires next at" in wbengine("schedule", "resume", "every").error
    assert not listed(wbengine)["every"]["paused"]
    uuid = wbengine("schedule", "run", "every").out.strip()
    assert wbengine("schedule", "run", "every", "--json").json["uuid"] == uuid
    process = wbengine.begin("serve")
    until(lambda: [flow["state"] for flow in flows(wbengine, "every")] == ["SUCCESS"], 15)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert listed(wbengine)["every"]["wanted"] is None
    assert [flow["uuid"] for flow in flows(wbengine, "every")] == [uuid]
    assert "deleted schedule every" in wbengine("schedule", "delete", "every").error
    assert listed(wbengine).keys() == {"nightly"} and len(flows(wbengine, "every")) == 1
    wbengine.fails(66, "Unknown schedule 'every'", "schedule", "delete", "every")


# Schedules in a file.


FILE = """
persistence = "sqlite:///flows.db"

[schedules.report]
factory = "tests.cli.shop:order"
cron = "30 2 * * *"
time_zone = "Europe/Berlin"

[schedules.tick]
factory = "tests.cli.shop:order"
every = "1s"
catch_up = "all"
overlap = "allow"
jitter = "0.5s"
undo_until = "2d"
"""


@pytest.mark.slow
def test_schedules_in_a_file_are_fired_by_serve(wbengine: Command, home: Path) -> None:
    def succeeded() -> list[str]:
        return [flow["uuid"] for flow in flows(wbengine, "tick") if flow["state"] == "SUCCESS"]

    file = home / "wbengine.toml"
    file.write_text(FILE)
    assert wbengine("db", "upgrade").code == 0
    process = wbengine.begin("serve")
    until(lambda: len(flows(wbengine, "tick")) > 2 and succeeded(), 15)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    schedules = listed(wbengine)
    assert schedules["report"]["time_zone"] == "Europe/Berlin" and schedules["tick"]["every"] == 1
    assert schedules["tick"]["jitter"] == 0.5
    assert "can be undone until 20" in wbengine("flow", "show", succeeded()[0]).out
    ticks = sorted(flow["tags"]["scheduled"] for flow in flows(wbengine, "tick"))
    assert len(ticks) == len(set(ticks))
    wbengine("schedule", "pause", "report")
    file.write_text(file.read_text().replace("30 2", "45 3"))
    process = wbengine.begin("serve")
    until(lambda: listed(wbengine)["report"]["cron"] == "45 3 * * *", 15)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert listed(wbengine)["report"]["paused"]


def test_settings_schema_includes_schedules(wbengine: Command, home: Path) -> None:
    schema = json.loads(wbengine("config", "schema").out)
    good = {"schedules": {"a": {"factory": "m:f", "every": "5m", "inputs": {"x": [1]}}}}
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schedules": {"a": {"factory": "m:f", "overlap": "x"}}}, schema)
    assert "schedules" in settings_schema.SCHEMA["properties"]
