"""Operations on many flows in the API and on pages."""

from __future__ import annotations

import contextlib
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.dashboard import story
from tests.dashboard.api_server import Server, carry_out
from tests.dashboard.conftest import refused, site
from tests.dashboard.forms import send, token_in
from tests.support.failed_flows import store_flows
from wbengine import states
from wbengine.dashboard import _openapi
from wbengine.operations import _bulk
from wbengine.persistence import base
from wbengine.persistence._bulk_records import Bulk, BulkFlow


@pytest.fixture
def server(store: base.Backend) -> Server:
    return Server(store)


def test_failed_flows_are_retried_by_filter(server: Server, audit: Any) -> None:
    uuids = store_flows(server.backend, 3, tags={"shop": "paris"})
    other = store_flows(server.backend, 2)
    body = {"filter": {"tags": {"shop": "paris"}}, "reason": "release 43", "rate": 50}
    dry = server.post("flows/retry", {**body, "dry_run": True}).json()
    assert (dry["schema"], dry["count"]) == ("wbengine/flow-retry-many/1", 3)
    assert {each["uuid"] for each in dry["examples"]} == set(uuids)
    assert server.get("bulks")["bulks"] == []
    answer = server.post("flows/retry", body)
    bulk = answer.json()
    assert answer.status_code == 201 and bulk["schema"] == "wbengine/bulk/1"
    assert answer.headers["location"] == f"/api/v1/bulks/{bulk['uuid']}"
    assert (bulk["total"], bulk["state"], bulk["rate"]) == (3, "RUNNING", 50.0)
    assert bulk["filter"] == {"tags": {"shop": "paris"}}
    assert bulk["by"] == "dashboard (olga, operator, 192.0.2.5)"
    carry_out(server.backend)
    shown = server.get(f"bulks/{bulk['uuid']}")
    assert (shown["done"], shown["open"], shown["reasons"]) == (3, 0, [])
    assert [each["uuid"] for each in server.get("bulks")["bulks"]] == [bulk["uuid"]]
    with contextlib.closing(server.backend.get_connection()) as connection:
        commands = connection.commands([*uuids, *other])
    assert set(commands) == set(uuids)
    assert {each.reason for each in commands.values()} == {"release 43"}
    assert [line.partition(", from")[0] for line in audit()] == [
        "flow retry of 3 flows, reason 'release 43'"
    ]


def test_flows_are_selected_by_ids_or_all(server: Server) -> None:
    uuids = store_flows(server.backend, 3, state=None)
    value = {"signal": "paid", "value": 5}
    some = server.post("flows/signal", {"flows": [*uuids[:2], uuids[0]], **value}).json()
    assert (some["total"], some["arguments"]) == (2, ["signal", "value"])
    carry_out(server.backend)
    with contextlib.closing(server.backend.get_connection()) as connection:
        assert set(connection.signals(uuids)) == set(uuids[:2])
    assert server.post("flows/cancel", {"all": True}).json()["total"] == 3
    # Without states, flows that do not wait for the signal are not selected.
    answer = server.post("flows/signal", {"all": True, **value})
    assert (answer.status_code, answer.json()["detail"]) == (409, "No flow is selected.")


def test_operation_is_cancelled_and_resumed(server: Server, audit: Any) -> None:
    store_flows(server.backend, 3)
    uuid = server.post("flows/retry", {"all": True}).json()["uuid"]
    assert server.post(f"bulks/{uuid}/cancel").json()["state"] == "CANCELLED"
    assert server.post(f"bulks/{uuid}/resume").json()["state"] == "RUNNING"
    carry_out(server.backend)
    refused(server.post(f"bulks/{uuid}/cancel"), 409, "is COMPLETE")
    assert audit()[1].startswith(f"cancel operation {uuid} (flow retry), from olga")
    missing = "00000000-0000-4000-8000-000000000000"
    assert server.post(f"bulks/{missing}/cancel").status_code == 404
    assert server.get(f"bulks/{missing}")["status"] == 404


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "exactly one of flows, filter, all"),
        ({"all": False}, "all must be one of true, got False"),
        ({"filter": {}}, "filter must not be empty"),
        ({"filter": {"name": ""}}, "filter['name'] must not be empty"),
        ({"filter": {"forks": True}}, "filter"),
        ({"filter": {"states": []}}, "filter['states'] must not be empty"),
        ({"filter": {"tags": {}}}, "filter['tags'] must not be empty"),
        ({"filter": {"since": None}}, "filter['since'] must be of type number"),
        ({"flows": []}, "flows must not be empty"),
        ({"all": True, "flows": ["f" * 36]}, "exactly one of flows, filter, all"),
        ({"filter": {"states": ["FAILED"]}}, "must be one of PENDING"),
        ({"filter": {"stat": ["FAILURE"]}}, "filter must satisfy additionalProperties"),
        ({"filter": {"tags": {"": "x"}}}, "tag"),
        ({"filter": {"engine": "paralel"}}, "paralel"),
        ({"filter": {"queue": "a b"}}, "filter['queue'] must"),
        ({"all": True, "rate": 0}, "rate must be at least"),
        ({"all": True, "input": {}}, "no parameter 'input'"),
        ({"all": True, "flow": "x"}, "use flows instead of flow"),
        ({"all": True, "reason": "x" * 501}, "at most 500 characters"),
    ],
)
def test_invalid_request_stores_nothing(server: Server, body: Any, message: str) -> None:
    store_flows(server.backend, 1)
    refused(server.post("flows/retry", body), 400, message)
    assert server.get("bulks")["bulks"] == []


def test_unknown_flow_is_reported(server: Server) -> None:
    assert server.post("flows/retry", {"flows": ["f" * 36]}).status_code == 404
    refused(server.post("flows/retry", {"flows": ["x"]}), 400, "flows[0] must be a uuid")


def test_role_is_that_of_the_operation(server: Server) -> None:
    uuids = store_flows(server.backend, 2)
    assert server.post("flows/retry", {"all": True}, user="victor").status_code == 403
    assert server.post("flows/delete", {"all": True}, user="olga").status_code == 403
    deletion = server.post("flows/delete", {"all": True}, user="ann").json()["uuid"]
    assert server.post(f"bulks/{deletion}/cancel", user="olga").status_code == 403
    assert server.post(f"bulks/{deletion}/cancel", user="ann").status_code == 200
    assert server.post(f"bulks/{deletion}/resume", user="olga").status_code == 403
    with contextlib.closing(server.backend.get_connection()) as connection:
        assert {row.uuid for row in connection.list_flows().flows} == set(uuids)
        assert not connection.commands(uuids)


def test_cookie_alone_starts_no_operation(server: Server) -> None:
    store_flows(server.backend, 1, state=states.FAILURE)
    browser = site(server)
    answer = browser.post("/api/v1/flows/retry", json={"all": True})
    assert answer.status_code in (401, 403)


def test_paths_are_described(server: Server) -> None:
    paths = _openapi.document()["paths"]
    for verb in ("suspend", "cancel", "signal", "retry", "resume", "revert", "delete"):
        body = paths[f"/flows/{verb}"]["post"]["requestBody"]["content"]["application/json"]
        assert {"flows", "filter", "all", "rate", "dry_run"} <= set(body["schema"]["properties"])
    assert body["schema"]["properties"]["any_state"]["type"] == "boolean"
    assert paths["/bulks/{uuid}"]["get"]["parameters"][0]["description"].endswith("operation.")
    assert {"/bulks", "/bulks/{uuid}/cancel", "/bulks/{uuid}/resume"} <= set(paths)


def test_other_values_need_role_editor(server: Server) -> None:
    store_flows(server.backend, 1)
    body = {"all": True, "inputs": {"x": 1}}
    assert server.post("flows/retry", body, user="olga").status_code == 403
    uuid = server.post("flows/retry", body, user="ann").json()["uuid"]
    assert server.post(f"bulks/{uuid}/cancel", user="olga").status_code == 403


def test_other_values_of_one_flow_need_role_editor(server: Server) -> None:
    edited, plain = store_flows(server.backend, 2)
    flows = [
        BulkFlow(edited, states.FAILURE, {"inputs": {"x": 1}}),
        BulkFlow(plain, states.FAILURE),
    ]
    bulk = _bulk.start(server.backend, "flow retry", flows, {})
    _bulk.cancel(server.backend, bulk.uuid)
    assert server.post(f"bulks/{bulk.uuid}/resume", user="olga").status_code == 403
    assert server.post(f"bulks/{bulk.uuid}/resume", user="ann").status_code == 200


WHO = "olga, operator, 192.0.2.5"
PARIS = "find=shop%3Dparis&state=FAILURE"


def bulks(store: base.Backend) -> list[Bulk]:
    with contextlib.closing(store.get_connection()) as connection:
        latest: list[Bulk] = connection.bulks.latest()
    return latest


def test_operator_retries_all_flows_of_the_filter(store: base.Backend, audit: Any) -> None:
    paris = store_flows(store, 3, tags={"shop": "paris"})
    others = store_flows(store, 2)
    with site(store, "olga") as browser:
        page = browser.get(f"/?{PARIS}").text
        assert "Apply to all matching flows" in page and '<option value="retry">' in page
        assert '<option value="delete">' not in page
        page = browser.get(f"/bulks/new?operation=retry&{PARIS}").text
        assert "Retry 3 flows" in page and "order 2" in page
        fields = {"form_token": token_in(page), "reason": " release 43 ", "rate": "50"}
        answer = send(browser, f"/bulks?operation=retry&{PARIS}", fields)
        assert answer.status_code == 303
        (bulk,) = bulks(store)
        assert (bulk.total, bulk.reason, bulk.rate) == (3, "release 43", 50.0)
        assert bulk.by == f"dashboard ({WHO})"
        page = browser.get(answer.headers["location"]).text
        assert "The operation is stored." in page and "0 of 3 flows done" in page
        carry_out(store)
        page = browser.get(f"/bulks/{bulk.uuid}").text
        assert "3 of 3 flows done, 0 skipped" in page and "<button" not in page
        listed = browser.get("/bulks").text
        assert bulk.uuid[:8] in listed and "3 of 3" in listed
    with contextlib.closing(store.get_connection()) as connection:
        assert set(connection.commands([*paris, *others])) == set(paris)
    assert audit() == [f"flow retry of 3 flows, reason 'release 43', from {WHO}"]


def test_filter_with_longest_name_selects_only_its_flow(store: base.Backend) -> None:
    uuids = store_flows(store, 2, prefix="x" * 253)
    path = f"operation=retry&state=FAILURE&name={'x' * 253}+1"
    with site(store, "olga") as browser:
        fields = {"form_token": token_in(browser.get(f"/bulks/new?{path}").text)}
        assert send(browser, f"/bulks?{path}", fields).status_code == 303
    carry_out(store)
    with contextlib.closing(store.get_connection()) as connection:
        assert list(connection.commands(uuids)) == uuids[1:]


@pytest.mark.parametrize(
    "filters",
    [
        {"name": "x" * 256},
        {"find": f"shop={' ' * 324}paris"},
        {"parent": "x" * 65},
    ],
    ids=lambda filters: next(iter(filters)),
)
def test_too_long_filter_is_refused(filters: dict[str, str], store: base.Backend) -> None:
    """Its beginning may select more flows."""
    store_flows(store, 1, tags={"shop": "p"})
    message = f"{next(iter(filters))} must have at most"
    query = urlencode(filters)
    with site(store, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/bulks/new?operation=retry").text)}
        for answer in (
            browser.get(f"/?{query}"),
            browser.get(f"/api/v1/flows?{query}"),
            browser.get(f"/bulks/new?operation=retry&{query}"),
            send(browser, f"/bulks?operation=retry&{query}", fields),
        ):
            assert answer.status_code == 400 and message in answer.text
    assert bulks(store) == []


def test_only_confirmed_flows_are_deleted(store: base.Backend) -> None:
    store_flows(store, 2)
    with site(store, "ann") as browser:
        path = "operation=delete&state=FAILURE"
        page = browser.get(f"/bulks/new?{path}").text
        fields = {"form_token": token_in(page), "selection": value_of(page, "selection")}
        store_flows(store, 1)
        answer = send(browser, f"/bulks?{path}", fields)
        refused(answer, 409, "it has 3 flows now")
        assert bulks(store) == []
        page = browser.get(f"/bulks/new?{path}").text
        fields["selection"] = value_of(page, "selection")
        assert send(browser, f"/bulks?{path}", fields).status_code == 303
        assert [bulk.total for bulk in bulks(store)] == [3]


def value_of(page: str, name: str) -> str:
    """Return the value of a hidden field."""
    match = re.search(f'name="{name}" value="([^"]+)"', page)
    assert match is not None
    return match[1]


def test_signal_has_name_and_value(store: base.Backend) -> None:
    uuids = store_flows(store, 2, state=None)
    with site(store, "olga") as browser:
        path = "operation=signal&state=PENDING"
        page = browser.get(f"/bulks/new?{path}").text
        fields = {"form_token": token_in(page), "signal": "paid", "value": '{"by": "ann"}'}
        wrong = send(browser, f"/bulks?{path}", {**fields, "value": "{"})
        assert wrong.status_code == 400 and "value must be JSON" in wrong.text
        missing = send(browser, f"/bulks?{path}", {**fields, "signal": ""})
        assert missing.status_code == 400 and "requires parameter" in missing.text
        assert send(browser, f"/bulks?{path}", fields).status_code == 303
    carry_out(store)
    with contextlib.closing(store.get_connection()) as connection:
        (received,) = connection.signals(uuids)[uuids[0]]
    assert received.name == "paid" and '"ann"' in received.text


def test_operation_is_cancelled_and_resumed_from_its_page(store: base.Backend, audit: Any) -> None:
    uuids = store_flows(store, 2)
    flows = [BulkFlow(uuid, states.FAILURE) for uuid in uuids]
    bulk = _bulk.start(store, "flow retry", flows, {}, reason=story.SCRIPT)
    with site(store, "olga") as browser:
        page = browser.get(f"/bulks/{bulk.uuid}").text
        assert story.SCRIPT not in page and "Cancel</button>" in page
        fields = {"form_token": token_in(page)}
        answer = send(browser, f"/bulks/{bulk.uuid}/cancel", fields)
        page = browser.get(answer.headers["location"]).text
        assert "The operation is cancelled." in page and "Resume</button>" in page
        answer = send(browser, f"/bulks/{bulk.uuid}/resume", fields)
        assert "The operation continues." in browser.get(answer.headers["location"]).text
        assert send(browser, f"/bulks/{bulk.uuid}/delete", fields).status_code == 404
    assert audit()[0] == f"cancel operation {bulk.uuid} (flow retry), from {WHO}"


def test_skipped_flows_are_reported_with_reasons(store: base.Backend) -> None:
    uuids = store_flows(store, 2, is_submitted=False)
    flows = [BulkFlow(uuid, states.FAILURE) for uuid in uuids]
    bulk = _bulk.start(store, "flow retry", flows, {})
    carry_out(store)
    with site(store, "victor") as viewer:
        page = viewer.get(f"/bulks/{bulk.uuid}?part=bulk").text
    assert "0 of 2 flows done, 2 skipped" in page and "Flow ID was not submitted" in page


def test_visitor_without_the_role_changes_nothing(store: base.Backend) -> None:
    store_flows(store, 1)
    with site(store, "victor") as viewer:
        assert "Apply to all" not in viewer.get("/").text
        assert viewer.get("/bulks/new?operation=retry").status_code == 403
        assert send(viewer, "/bulks?operation=retry").status_code == 403
    with site(store, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/bulks/new?operation=retry").text)}
        assert browser.get("/bulks/new?operation=delete").status_code == 403
        assert send(browser, "/bulks?operation=delete", fields).status_code == 403
        assert send(browser, "/bulks?operation=retry").status_code == 403  # without the token
        assert browser.get("/bulks/new?operation=submit").status_code == 404
        assert send(browser, "/bulks?operation=retry&state=X", fields).status_code == 400
        assert send(browser, "/bulks?operation=retry&find=no", fields).status_code == 409
    assert bulks(store) == []
