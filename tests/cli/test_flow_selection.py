"""Commands on several flows: selection, confirmation and results; parents and children."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.support import child_flows
from wbengine import engines, states, testing
from wbengine._cli import flow_selection
from wbengine.persistence import _listing, base, models

NAMES = {
    "failed": states.FAILURE,
    "reverted": states.REVERTED,
    "done": states.SUCCESS,
    "new": states.PENDING,
    "held": states.SUSPENDED,
}


@pytest.fixture
def store(store: base.Backend) -> Iterator[base.Connection]:
    with contextlib.closing(store.get_connection()) as connection:
        yield connection


def put(store: base.Connection, name: str, state: str, why: str | None = None) -> models.FlowDetail:
    book, flow = models.LogBook("b"), models.FlowDetail(name)
    flow.enter(state, 1.0, why)
    book.add(flow)
    store.save_logbook(book)
    return flow


@pytest.fixture
def flows(store: base.Connection) -> dict[str, models.FlowDetail]:
    """One flow in each of these states, one that was cancelled, and one that waits for 'go'."""
    made = {name: put(store, name, state, f"{name} card") for name, state in NAMES.items()}
    made["cancelled"] = put(store, "cancelled", states.REVERTED)
    made["cancelled"].cancel(1.0, None)
    made["waits"] = put(store, "waits", states.SUSPENDED, "it waits")
    made["waits"].waits_for = (_listing.Wait("t", "go", 1.0, None),)
    for name in ("cancelled", "waits"):
        store.save_changes(made[name], ())
    return made


def names(answer: Any, flows: dict[str, models.FlowDetail], key: str = "flows") -> set[str]:
    by_uuid = {flow.uuid: name for name, flow in flows.items()}
    uuids = [each if isinstance(each, str) else each["uuid"] for each in answer.json[key]]
    return {by_uuid[uuid] for uuid in uuids}


@pytest.mark.parametrize(
    ("words", "selected"),
    [
        (("suspend", "--all"), {"new", "waits"}),
        (("cancel", "--all"), {"new", "held", "waits"}),
        (("delete", "--all"), {"failed", "reverted", "done", "cancelled"}),
        (("delete", "--state", "held"), None),
        (("delete", "--state", "suspended"), {"held", "waits"}),
        (("delete", "--error", "CARD"), {"failed", "reverted"}),
        (("delete", "--name", "e", "--state", "REVERTED"), {"reverted", "cancelled"}),
        (("delete", "--since", "1h", "--tag", "a=b"), set()),
        (("signal", "--all", "go"), {"waits"}),
        (("signal", "--all", "other"), set()),
        (("signal", "--state", "SUSPENDED", "other"), {"held", "waits"}),
    ],
)
def test_filters_select_flows_that_the_command_accepts(
    wbengine: Command,
    flows: dict[str, models.FlowDetail],
    words: tuple[str, ...],
    selected: set[str] | None,
) -> None:
    answer = wbengine("flow", *words, "--dry-run", "--json")
    if selected is None:
        assert answer.code == 2 and "must be one of" in answer.json_error["error"]
        return
    assert answer.code == 0
    assert names(answer, flows) == selected and answer.json["count"] == len(selected)


def test_dry_run_prints_displayed_states_and_the_number_of_others(
    wbengine: Command, flows: dict[str, models.FlowDetail], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("flow", "signal", "--state", "SUSPENDED", "other", "--dry-run")
    lines = wbengine(*words).out.splitlines()
    shown = {line.split()[0]: line.split()[2] for line in lines[2:]}
    assert shown == {flows["held"].uuid: "SUSPENDED", flows["waits"].uuid: "WAITING"}
    monkeypatch.setattr(flow_selection, "_MAX_EXAMPLES", 1)
    assert wbengine(*words).out.splitlines()[-1] == "1 more"


def test_engine_selects_listed_flows(
    wbengine: Command, flows: dict[str, models.FlowDetail], store: base.Connection
) -> None:
    for name, kind in (("held", "workers"), ("new", "parallel"), ("done", "worker-based")):
        flows[name].meta["engine"] = kind
        store.save_changes(flows[name], ())
    listed = wbengine("flow", "list", "--engine", "worker-based", "--json")
    assert names(listed, flows) == {"held", "done"}
    listed = wbengine("flow", "list", "--engine", "parallel", "--state", "PENDING", "--json")
    assert names(listed, flows) == {"new"}


def test_queue_selects_listed_flows_and_those_of_an_operation(
    wbengine: Command, flows: dict[str, models.FlowDetail], store: base.Connection
) -> None:
    assert "QUEUE" not in wbengine("flow", "list").out
    for name, note in (("done", {"queue": "reports"}), ("new", {}), ("waits", {"queue": "a"})):
        flows[name].meta[models.SUBMITTED] = {"board": "b", "rank": 2, **note}
        store.save_changes(flows[name], ())
    listed = wbengine("flow", "list", "--queue", "default", "--json")
    assert names(listed, flows) == {"new"} and listed.json["flows"][0]["queue"] == "default"
    assert "QUEUE" not in wbengine("flow", "list", "--queue", "default").out
    head, line = wbengine("flow", "list", "--queue", "reports").out.splitlines()
    assert head.split()[6] == "QUEUE" and "reports" in line.split()
    chosen = wbengine("flow", "cancel", "--queue", "a", "--dry-run", "--json")
    assert names(chosen, flows) == {"waits"}


def test_selected_flows_are_confirmed_once_with_their_number(
    wbengine: Command, flows: dict[str, models.FlowDetail], store: base.Connection
) -> None:
    wbengine.fails(2, "pass --yes to cancel 3 flows: 'waits' (", "flow", "cancel", "--all")
    assert not store.commands([flow.uuid for flow in flows.values()])
    several = wbengine("flow", "cancel", flows["held"].uuid, flows["new"].uuid)
    assert several.code == 0 and several.out.startswith("requested to cancel 2 flows: 'held' (")
    one = wbengine("flow", "delete", flows["done"].uuid)
    assert one.code == 2 and f"to delete 'done' ({flows['done'].uuid}, SUCCESS)" in one.error


def test_each_result_is_reported_and_refusals_are_grouped(
    wbengine: Command, flows: dict[str, models.FlowDetail], store: base.Connection
) -> None:
    chosen = [flows[name].uuid for name in ("done", "failed", "held", "new", "reverted", "held")]
    answer = wbengine("flow", "cancel", *chosen, "--reason", "no stock", "--json")
    assert answer.code == 1
    assert answer.json["schema"] == "wbengine/flow-cancel-many/1"
    assert (answer.json["count"], answer.json["dry_run"]) == (5, False)
    assert names(answer, flows) == {"held", "new"}
    assert names(answer, flows, "refused") == {"done", "failed", "reverted"}
    held = store.commands([flows["held"].uuid])[flows["held"].uuid]
    assert (held.what, held.reason) == ("cancel", "no stock")
    put(store, "more", states.SUCCESS)
    text = wbengine("flow", "cancel", "--state", "SUCCESS", "--state", "SUSPENDED", "--yes")
    assert text.code == 1
    assert [line.split()[:2] for line in text.out.splitlines()] == [
        ["requested", "to"], ["REFUSED", "REASON"], ["2", "Flow"],
    ]  # fmt: skip
    assert "2  Flow ID has ended in SUCCESS: there is nothing to cancel; " in text.out


def test_operation_that_the_store_interrupts_is_resumed(
    wbengine: Command,
    flows: dict[str, models.FlowDetail],
    store: base.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from wbengine import exceptions
    from wbengine.operations import _bulk, _suspend_and_cancel

    cancel, calls = _suspend_and_cancel.cancel, itertools.count(1)

    def fails_second(backend: base.Backend, uuid: str, **options: Any) -> Any:
        if next(calls) == 2:
            raise exceptions.StorageFailure("disk full")
        return cancel(backend, uuid, **options)

    monkeypatch.setattr(_bulk.BulkRun, "FIRST_BATCH", 1)
    monkeypatch.setattr(_suspend_and_cancel, "cancel", fails_second)
    answer = wbengine("flow", "cancel", "--all", "--yes", "--json")
    assert answer.code == 69
    assert len(answer.json["flows"]) == 1 and answer.json["count"] == 3
    assert json.loads(answer.err.splitlines()[-1])["error"] == "disk full"
    began, hint, not_tried, _ = answer.err.splitlines()
    assert began == f"operation {answer.json['bulk']}: cancel 3 flows"
    assert hint.endswith(f"wbengine bulk resume {answer.json['bulk']}")
    assert not_tried == "not tried: 2 flows"
    resumed = wbengine("bulk", "resume", answer.json["bulk"][:8], "--json")
    assert (resumed.code, resumed.json["state"], resumed.json["done"]) == (0, "COMPLETE", 3)
    assert len(store.commands([flow.uuid for flow in flows.values()])) == 3


def test_signal_is_sent_to_all_flows_that_wait_for_it(
    wbengine: Command, flows: dict[str, models.FlowDetail], store: base.Connection
) -> None:
    sent = wbengine("flow", "signal", "go", "--all", "--value", "1", "--yes")
    assert sent.code == 0 and sent.out.startswith("sent the signal to 'waits' (")
    assert [*store.signals([flow.uuid for flow in flows.values()])] == [flows["waits"].uuid]


def test_wait_requires_one_flow(wbengine: Command, flows: dict[str, models.FlowDetail]) -> None:
    for verb in "suspend", "retry", "revert":
        answer = wbengine("flow", verb, "--all", "--wait", "1m", "--yes")
        assert answer.code == 2 and "wait requires one ID: omit it for several" in answer.error


def test_forks_require_a_filter(wbengine: Command, flows: dict[str, models.FlowDetail]) -> None:
    answer = wbengine("flow", "fork", flows["waits"].uuid, "--from", "failed", "--forks")
    assert answer.code == 2 and "--forks requires filters or --all" in answer.error
    assert wbengine("flow", "fork", "--from", "failed", "--forks", "--dry-run").code == 2


def test_tag_instead_of_an_id_names_the_options(
    wbengine: Command, flows: dict[str, models.FlowDetail]
) -> None:
    for verb in "tag", "cancel":
        answer = wbengine("flow", verb, flows["waits"].uuid, "owner=ann")
        assert answer.code == 2 and "got 'owner=ann': --tag owner=ann selects" in answer.error
        assert "--set owner=ann of `flow tag` sets it" in answer.error


def test_no_selected_flow_is_no_error(
    wbengine: Command, flows: dict[str, models.FlowDetail]
) -> None:
    for words in ((), ("--dry-run",)):
        answer = wbengine("flow", "delete", "--name", "nothing", *words)
        assert (answer.code, answer.out, answer.error) == (0, "", "No flows found.")


def test_dry_run_prints_number_and_examples(wbengine: Command, store: base.Connection) -> None:
    for number in range(12):
        put(store, f"f{number}", states.FAILURE, "card declined")
    answer = wbengine("flow", "delete", "--error", "declined", "--dry-run")
    lines = answer.out.splitlines()
    assert lines[0] == "would delete 12 flows" and len(lines) == 13
    assert lines[-1] == "2 more"
    assert lines[2].split()[1:] == ["f11", "FAILURE", "card", "declined"]
    assert len(store.list_flows().flows) == 12


@pytest.fixture
def parent(home: Path, store_url: str) -> str:
    given = {"folder": str(home), "items": ["tea"] * 22}
    handle = engines.submit(child_flows.order_and_wait, inputs=given, backend=store_url)
    testing.run_submitted(store_url)
    return handle.id


@pytest.mark.slow
def test_flow_show_contains_parent_and_children(wbengine: Command, parent: str) -> None:
    shown = wbengine("flow", "show", parent)
    assert "22 SUSPENDED" in shown.out and shown.out.count("1 of 2 steps") == 20
    assert f"wbengine flow list --parent {parent}" in shown.out + shown.err
    document = wbengine("flow", "show", parent, "--json").json
    assert document["parent"] is None and document["children"] == {"SUSPENDED": 22}
    child = wbengine("flow", "list", "--parent", parent, "--json").json["flows"][0]["uuid"]
    assert wbengine("flow", "show", child, "--json").json["parent"] == parent


@pytest.mark.slow
def test_flow_list_shows_children_below_their_parent(wbengine: Command, parent: str) -> None:
    (root,) = wbengine("flow", "list", "--tree", "--json").json["flows"]
    assert root["uuid"] == parent and root["children"] == {"SUSPENDED": 22}
    assert len(root["child_flows"]) == 20
    shown = wbengine("flow", "list", "--tree")
    assert "  tests.support.child_flows.wait" in shown.out
    assert "2 more children" in shown.out + shown.err


@pytest.mark.slow
def test_flow_list_pages_through_children(wbengine: Command, parent: str) -> None:
    first = wbengine("flow", "list", "--parent", parent, "--limit", "15", "--json").json
    second = wbengine("flow", "list", "--parent", parent, "--after", first["after"], "--json").json
    uuids = {flow["uuid"] for page in (first, second) for flow in page["flows"]}
    assert len(uuids) == 22 and second["after"] is None


@pytest.mark.slow
@pytest.mark.parametrize("words", ["revert", "retry", "fork --from failed"])
def test_commands_that_run_flows_again_select_parents(
    wbengine: Command, parent: str, store_url: str, words: str
) -> None:
    wbengine("flow", "cancel", parent)
    testing.run_submitted(store_url)
    command = ("flow", *words.split(), "--state", "REVERTED", "--dry-run")
    assert f"order_and_wait' ({parent}, CANCELLED)" in wbengine(*command).out
