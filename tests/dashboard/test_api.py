"""JSON for programs: stable keys and schemas."""

from __future__ import annotations

from starlette.testclient import TestClient

from tests.dashboard import story

FLOW = {
    "schema", "uuid", "name", "book", "state", "owner", "owner_died", "created", "started", "ended",
    "updated", "duration", "counts", "total", "progress", "waiting", "waits_for", "wish", "error",
    "history", "interrupted", "shown_state", "cancelled", "queued", "failures", "revert_path",
    "values", "cursor", "atoms", "tags", "published",
    "step_counts", "queue", "fair_key",
    "forked_from", "forks", "superseded_by", "parent", "children", "undo",
    "undo_until", "used_by",
}  # fmt: skip
ATOM = {
    "node", "uuid", "name", "kind", "path", "task", "state", "shown_state", "intention", "attempt",
    "action", "worker", "submitted", "started", "ended", "runtime", "progress", "attempts",
    "attempts_dropped", "executions", "reversions", "failure", "revert_failure", "result", "items",
    "waiting", "waits_for", "queued", "item_rows", "incidents", "gate",
    "steps", "execution_runtime", "reversion_runtime", "inherited",
}  # fmt: skip
ROW = {
    "uuid", "name", "state", "shown_state", "created", "updated", "counts", "total", "progress",
    "owner", "error", "waits_for", "will_wait_for", "step_counts", "paused_by", "queue", "code",
}  # fmt: skip


def test_flow_list_has_stable_keys(guest: TestClient) -> None:
    data = guest.get("/api/v1/flows").json()
    assert data["schema"] == "wbengine/flows/1"
    assert {"schema", "flows", "after"} <= set(data)
    assert len(data["flows"]) == 2
    assert all(set(row) >= ROW for row in data["flows"])


def test_unchanged_list_is_not_sent_again(guest: TestClient) -> None:
    first = guest.get("/api/v1/flows")
    tag = first.headers["etag"]
    again = guest.get("/api/v1/flows", headers={"if-none-match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = guest.get("/api/v1/flows?limit=1", headers={"if-none-match": tag})
    assert other.status_code == 200 and other.headers["etag"] != tag


def test_flow_has_stable_keys(kept: story.Kept, guest: TestClient) -> None:
    path = f"/api/v1/flows/{kept.uuids['leaking']}"
    data = guest.get(path).json()
    assert data["schema"] == "wbengine/flow/1"
    assert set(data) == FLOW
    assert all(set(atom) == ATOM for atom in data["atoms"])
    assert data["state"] == "REVERTED" and data["failures"][0]["type"].endswith("RuntimeError")
    assert "atoms" not in guest.get(f"{path}?atoms=0").json()


def test_events_have_stable_keys(kept: story.Kept, guest: TestClient) -> None:
    data = guest.get(f"/api/v1/flows/{kept.uuids['good']}/events").json()
    assert data["schema"] == "wbengine/events/1"
    assert set(data) == {"schema", "cursor", "events", "after"}
    assert {event["schema"] for event in data["events"]} == {"wbengine/event/1"}
    assert {"first", "last"} <= {event["name"] for event in data["events"]}


def test_errors_are_json(guest: TestClient, stranger: TestClient) -> None:
    for answer, status in ((guest.get("/api/v1/nothing"), 404), (stranger.get("/api/v1/x"), 401)):
        assert answer.status_code == status
        assert answer.json()["schema"] == "wbengine/error/1"
        assert answer.json()["status"] == status
