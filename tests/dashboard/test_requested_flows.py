"""Flows with a request that no conductor has begun, in the pages and the API."""

from __future__ import annotations

import contextlib
from pathlib import Path

from starlette.testclient import TestClient

from tests.support import requested
from wbengine import operations
from wbengine.dashboard import create_app
from wbengine.persistence import backends


def test_open_request_is_a_displayed_state_with_a_filter(tmp_path: Path) -> None:
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as store:
        uuid, other = requested.failed(store).id, requested.failed(store).id
        operations.request(store, uuid, "retry", by="ann")
        with TestClient(create_app(store), base_url="http://127.0.0.1") as browser:
            rows = browser.get("/api/v1/flows?state=REQUESTED").json()["flows"]
            assert [(row["uuid"], row["shown_state"]) for row in rows] == [(uuid, "REQUESTED")]
            page = browser.get("/?state=REQUESTED").text
            assert uuid in page and other not in page and "state-REQUESTED" in page
            assert "state-REQUESTED" in browser.get(f"/flows/{uuid}").text
            body = {"filter": {"states": ["REQUESTED"]}, "dry_run": True}
            answer = browser.post("/api/v1/flows/suspend", json=body)
            assert answer.status_code in (200, 403)
