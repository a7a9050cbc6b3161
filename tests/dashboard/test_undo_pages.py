"""The undo of complete flows on pages and in the API."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.conftest import admitted, client
from tests.operations import undo_flows
from wbengine import engines, operations, states
from wbengine.operations import _bulk
from wbengine.persistence import backends, base
from wbengine.persistence._bulk import BulkFlow
from wbengine.testing import run_submitted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[base.Backend]:
    undo_flows.UNDONE.clear()
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def test_page_shows_limit_users_and_outcome_of_the_undo(store: base.Backend) -> None:
    handle = engines.submit(undo_flows.order, backend=store, undo_until="30d")
    run_submitted(store)
    fork = operations.fork(store, handle.id, start="tests.operations.undo_flows.send")
    with client(types.SimpleNamespace(backend=store)) as opened:
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


def test_page_lists_refused_undos_of_many_flows(store: base.Backend) -> None:
    handle = engines.submit(undo_flows.order, backend=store)
    run_submitted(store)
    bulk = _bulk.start(store, "flow revert", [BulkFlow(handle.id, states.SUCCESS)], {})
    _bulk.carry_out(_bulk.BulkRun(store, bulk, "here"), lambda _: None)
    with client(types.SimpleNamespace(backend=store)) as opened:
        browser = admitted(opened)
        assert "Refused flows" not in browser.get(f"/bulks/{bulk.uuid}").text
        run_submitted(store)
        page = browser.get(f"/bulks/{bulk.uuid}").text
        assert "Refused flows" in page and "cannot be undone" in page
        (refused,) = browser.get(f"/api/v1/bulks/{bulk.uuid}").json()["refused"]
        assert refused["uuid"] == handle.id and "cannot be undone" in refused["reason"]
