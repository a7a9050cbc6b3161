"""The undo of complete flows on pages and in the API."""

from __future__ import annotations

import contextlib

import pytest

from tests.dashboard.conftest import TOKENS, admitted, allowing, bearer, client, site
from tests.dashboard.forms import send, token_in
from tests.operations import undo_flows
from wbengine import engines, operations, states
from wbengine.operations import _bulk
from wbengine.persistence import base, models
from wbengine.persistence._bulk_records import BulkFlow
from wbengine.testing import run_submitted


@pytest.fixture(autouse=True)
def clear_tasks() -> None:
    undo_flows.UNDONE.clear()


def test_page_shows_limit_users_and_outcome_of_the_undo(store: base.Backend) -> None:
    handle = engines.submit(undo_flows.order, backend=store, undo_until="30d")
    run_submitted(store)
    fork = operations.fork(store, handle.id, start="tests.operations.undo_flows.send")
    with client(store) as opened:
        browser = admitted(opened)
        page = browser.get(f"/flows/{handle.id}").text
        assert "can be undone until 20" in page
        assert "<dt>Used by</dt>" in page and "(fork in PENDING)" in page
        document = browser.get(f"/api/v1/flows/{handle.id}").json()
        assert document["undo_until"].startswith("20")
        (user,) = document["used_by"]
        assert user == {
            "flow": fork.uuid, "kind": "fork", "name": "order", "state": states.PENDING,
        }  # fmt: skip
        run_submitted(store)
        operations.request(store, handle.id, "revert", partial=True)
        run_submitted(store)
        page = browser.get(f"/flows/{handle.id}").text
        assert "partial, irreversible: tests.operations.undo_flows.send" in page
        assert "Used by" not in page and "can be undone until" not in page


def test_flow_submitted_by_the_api_or_the_page_has_a_time(
    store: base.Backend,
) -> None:
    path = "tests.operations.undo_flows:plain"
    with allowing("tests.operations.undo_flows"):
        with client(store, allow_actions=True) as opened:
            browser = admitted(opened)
            form = browser.get("/submit", params={"factory": path}).text
            assert "Undo until</label>" in form
            fields = {"form_token": token_in(form), "factory": path}
            answer = send(browser, "/submit", {**fields, "undo_until": "2d"})
            of_page = answer.headers["location"].rpartition("/")[2].partition("?")[0]
            assert send(browser, "/submit", {**fields, "undo_until": "x"}).status_code == 400
        with site(store, "olga") as server:
            headers = bearer(TOKENS["olga"])
            bodies = [{"factory": path, "undo_until": each} for each in ("2d", 172_800, "x", 0)]
            answers = [server.post("/api/v1/flows", json=body, headers=headers) for body in bodies]
    assert [answer.status_code for answer in answers[2:]] == [400, 400]
    uuids = [of_page, *(answer.json()["uuid"] for answer in answers[:2])]
    with contextlib.closing(store.get_connection()) as connection:
        for flow in connection.flow_records(uuids).values():
            assert flow.meta[models.UNDO_UNTIL] == 172_800.0


def test_page_lists_refused_undos_of_many_flows(store: base.Backend) -> None:
    handle = engines.submit(undo_flows.order, backend=store)
    run_submitted(store)
    bulk = _bulk.start(store, "flow revert", [BulkFlow(handle.id, states.SUCCESS)], {})
    _bulk.carry_out(_bulk.BulkRun(store, bulk, "here"), lambda _: None)
    with client(store) as opened:
        browser = admitted(opened)
        assert "Refused flows" not in browser.get(f"/bulks/{bulk.uuid}").text
        run_submitted(store)
        page = browser.get(f"/bulks/{bulk.uuid}").text
        assert "Refused flows" in page and "cannot be undone" in page
        (refused,) = browser.get(f"/api/v1/bulks/{bulk.uuid}").json()["refused"]
        assert refused["uuid"] == handle.id and "cannot be undone" in refused["reason"]
