"""`wbengine bulk`, and commands on many flows that store their operation."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

from tests.cli.conftest import Command
from tests.support.failed_flows import store_flows
from tests.support.waiting import until
from wbengine import states
from wbengine.conductors import _bulks
from wbengine.operations import _bulk
from wbengine.persistence import base
from wbengine.persistence._bulk_records import COMPLETE, BulkFlow


def requests(store: base.Backend, uuids: list[str]) -> dict[str, Any]:
    with contextlib.closing(store.get_connection()) as connection:
        return {uuid: each.what for uuid, each in connection.commands(uuids).items()}


def stored(store: base.Backend, uuids: list[str], **options: Any) -> str:
    flows = [BulkFlow(uuid, states.FAILURE) for uuid in uuids]
    return _bulk.start(store, "flow retry", flows, {}, by="ann", reason="again", **options).uuid


def test_submitted_flows_are_retried_by_a_stored_operation(
    wbengine: Command, store: base.Backend
) -> None:
    uuids = store_flows(store, 12)
    answer = wbengine("flow", "retry", "--all", "--reason", "release 43", "--yes", "--json")
    assert (answer.code, answer.json["count"]) == (0, 12)
    assert sorted(answer.json["flows"]) == sorted(uuids)
    bulk = _bulk.find(store, answer.json["bulk"])
    assert (bulk.operation, bulk.reason, bulk.done) == ("flow retry", "release 43", 12)
    assert requests(store, uuids) == dict.fromkeys(uuids, "retry")


def test_flows_of_this_process_are_not_part_of_the_stored_operation(
    wbengine: Command, store: base.Backend
) -> None:
    submitted = store_flows(store, 2)
    own = store_flows(store, 1, is_submitted=False)
    answer = wbengine("flow", "retry", "--all", "--yes", "--background")
    assert answer.code == 2 and "--background requires submitted flows, got 1 others" in answer.err
    assert requests(store, submitted) == {}
    answer = wbengine("flow", "retry", "--all", "--yes", "--json")
    assert answer.code == 0 and sorted(answer.json["flows"]) == sorted([*submitted, *own])
    assert _bulk.find(store, answer.json["bulk"]).total == 2
    with contextlib.closing(store.get_connection()) as connection:
        assert connection.get_flow_details(own[0]).state == states.SUCCESS


def test_operation_in_the_background_is_left_to_serve(
    wbengine: Command, store: base.Backend
) -> None:
    uuids = store_flows(store, 3)
    answer = wbengine("flow", "retry", "--all", "--yes", "--background", "--json")
    assert (answer.code, answer.json["flows"]) == (0, [])
    assert requests(store, uuids) == {}
    service = _bulks.BulkService(store, "serve")
    until(
        lambda: service.run_due() >= 0 and _bulk.find(store, answer.json["bulk"]).state == COMPLETE
    )
    assert len(requests(store, uuids)) == 3


def test_each_flow_of_a_file_of_edits_has_its_own_values(
    wbengine: Command, store: base.Backend, tmp_path: Path
) -> None:
    one, two = store_flows(store, 2)
    lines = [
        f'{{"flow": "{one}", "set": {{"x": 1}}}}',
        f'{{"flow": "{two}", "set": {{"y": 2}}}}',
    ]
    (tmp_path / "edits.jsonl").write_text("\n".join(lines))
    answer = wbengine("flow", "retry", "--edits", f"{tmp_path}/edits.jsonl", "--yes", "--json")
    assert answer.code == 1
    reasons = {each["uuid"]: each["reason"] for each in answer.json["refused"]}
    assert "'x'" in reasons[one] and "'y'" in reasons[two]


def test_rate_limits_the_command(wbengine: Command, store: base.Backend) -> None:
    store_flows(store, 6)
    began = time.monotonic()
    assert wbengine("flow", "retry", "--all", "--yes", "--rate", "8/s").code == 0
    assert time.monotonic() - began >= (6 - 2) / 8


def test_killed_command_is_continued(wbengine: Command, store: base.Backend) -> None:
    uuids = store_flows(store, 8)
    process = wbengine.begin("flow", "retry", "--all", "--yes", "--rate", "4/s")
    until(lambda: len(requests(store, uuids)) >= 2)
    process.kill()
    _, err = process.communicate()
    (bulk,) = wbengine("bulk", "list", "--json").json["bulks"]
    assert f"operation {bulk['uuid']}: retry 8 flows" in err, "it was printed at the start"
    assert bulk["state"] == "RUNNING" and bulk["done"] == len(requests(store, uuids)) < 8
    with contextlib.closing(store.get_connection()) as connection:
        connection.bulks.release(bulk["uuid"], bulk["owner"])  # As after the end of the claim.
    resumed = wbengine("bulk", "resume", bulk["uuid"], "--json")
    assert (resumed.code, resumed.json["done"], resumed.json["skipped"]) == (0, 8, 0)
    assert len(requests(store, uuids)) == 8


def test_interrupted_command_releases_the_operation(wbengine: Command, store: base.Backend) -> None:
    uuids = store_flows(store, 8)
    process = wbengine.begin("flow", "retry", "--all", "--yes", "--rate", "4/s")
    until(lambda: len(requests(store, uuids)) >= 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    (bulk,) = wbengine("bulk", "list", "--json").json["bulks"]
    assert (bulk["state"], bulk["owner"]) == ("RUNNING", None)
    assert f"wbengine bulk resume {bulk['uuid']}" in err and "not tried: " in err


def test_operation_is_listed_shown_and_cancelled(wbengine: Command, store: base.Backend) -> None:
    assert wbengine("bulk", "list").error == "No operations."
    uuids = [*store_flows(store, 1), *store_flows(store, 2, is_submitted=False)]
    uuid = stored(store, uuids, rate=2.5)
    assert wbengine("bulk", "list").out.splitlines()[1].split()[:5] == [
        uuid, "flow", "retry", "RUNNING", "0/3",
    ]  # fmt: skip
    assert wbengine("bulk", "cancel", uuid).out.startswith(f"{uuid}: flow retry is CANCELLED: 0 of")
    assert wbengine("bulk", "resume", uuid, "--background").code == 0
    assert _bulk.find(store, uuid).state == "RUNNING"
    assert wbengine("bulk", "resume", uuid).code == 1
    shown = wbengine("bulk", "show", uuid[:8], "--json").json
    assert (shown["schema"], shown["state"], shown["open"]) == ("wbengine/bulk-show/1", COMPLETE, 0)
    assert (shown["done"], shown["skipped"], shown["rate"], shown["arguments"]) == (1, 2, 2.5, [])
    (reason,) = shown["reasons"]
    assert reason["flows"] == 2 and reason["reason"].startswith("Flow ID was not submitted")
    assert "2  Flow ID was not submitted" in wbengine("bulk", "show", uuid).out
    for verb in ("cancel", "resume"):
        wbengine.fails(1, "is COMPLETE: it cannot be", "bulk", verb, uuid)
