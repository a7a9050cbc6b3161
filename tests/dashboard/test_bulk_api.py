"""Operations on many flows in the API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.api_server import Server
from tests.dashboard.conftest import TOKENS, site
from tests.support.failed_flows import store_flows
from wbengine import states
from wbengine.conductors import _bulks
from wbengine.dashboard import _openapi
from wbengine.operations import _bulk
from wbengine.persistence import backends
from wbengine.persistence._bulk_records import COMPLETE, BulkFlow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield Server(backend)


def carry_out(server: Server, uuid: str) -> None:
    service = _bulks.BulkService(server.backend, "serve")
    while _bulk.find(server.backend, uuid).state != COMPLETE:
        service.run_due()


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
    carry_out(server, bulk["uuid"])
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
    carry_out(server, some["uuid"])
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
    carry_out(server, uuid)
    answer = server.post(f"bulks/{uuid}/cancel")
    assert answer.status_code == 409 and "is COMPLETE" in answer.json()["detail"]
    assert audit()[1].startswith(f"cancel operation {uuid} (flow retry), from olga")
    missing = "00000000-0000-4000-8000-000000000000"
    assert server.post(f"bulks/{missing}/cancel").status_code == 404
    bearer = {"authorization": f"Bearer {TOKENS['victor']}"}
    assert server.browser.get(f"/api/v1/bulks/{missing}", headers=bearer).status_code == 404


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
    answer = server.post("flows/retry", body)
    assert answer.status_code == 400 and message in answer.json()["detail"]
    assert server.get("bulks")["bulks"] == []


def test_unknown_flow_is_reported(server: Server) -> None:
    assert server.post("flows/retry", {"flows": ["f" * 36]}).status_code == 404
    answer = server.post("flows/retry", {"flows": ["x"]})
    assert answer.status_code == 400 and "flows[0] must be a uuid" in answer.json()["detail"]


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
