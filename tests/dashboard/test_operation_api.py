"""Operations of the table as paths of the API, and the keys of its documents."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.api_server import Server
from tests.dashboard.conftest import TOKENS, allowing, bearer, client, refused, site
from tests.dashboard.forms import OURS
from tests.dashboard.site import PATIENCE
from wbengine import engines, operations
from wbengine.dashboard import _openapi, _operation_routes
from wbengine.engines import _allowed
from wbengine.operations import _operation
from wbengine.persistence import base
from wbengine.schedules import Schedule, Schedules

FACTORY = "tests.operations.flows:steps"
SIGNAL_FACTORY = "tests.dashboard.api_flows:approval"


@pytest.fixture
def server(store: base.Backend) -> Iterator[Server]:
    with allowing("tests.operations.flows", "tests.dashboard.api_flows"):
        yield Server(store)


def test_flow_is_submitted_signalled_and_cancelled(server: Server, audit: Any) -> None:
    answer = server.post("flows", {"factory": SIGNAL_FACTORY, "tags": {"shop": "paris"}})
    submitted = answer.json()
    assert answer.status_code == 201 and submitted["schema"] == "wbengine/flow-submit/1"
    uuid = submitted["uuid"]
    assert answer.headers["location"] == f"/api/v1/flows/{uuid}"
    assert server.get(f"flows/{uuid}")["tags"] == {"shop": "paris"}
    value = {"by": "ann", "limit": 500}
    answer = server.post(f"flows/{uuid}/signal", {"signal": "approved", "value": value})
    assert answer.json()["number"] == 1
    cancelled = server.post(f"flows/{uuid}/cancel", {"reason": "order withdrawn"})
    assert cancelled.status_code == 200 and cancelled.json()["old"] == "PENDING"
    lines = audit()
    assert [line.partition(",")[0] for line in lines] == [
        f"flow submit {SIGNAL_FACTORY!r}", f"flow signal '{uuid}'", f"flow cancel '{uuid}'",
    ]  # fmt: skip
    assert all("olga, operator" in line for line in lines)


def test_repeated_submission_has_one_flow(server: Server) -> None:
    """A client whose response was lost repeats the request; another body is a conflict."""
    key = {"idempotency-key": "order-17"}
    first = server.post("flows", {"factory": FACTORY}, **key)
    again = server.post("flows", {"factory": FACTORY}, **key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["uuid"] == again.json()["uuid"]
    refused(server.post("flows", {"factory": SIGNAL_FACTORY}, **key), 409, "another factory")
    own = server.post("flows", {"factory": FACTORY, "unique": "order-18"}, **key)
    assert own.status_code == 201 and own.json()["uuid"] != first.json()["uuid"]


def test_repeated_cancellation_has_the_same_result(server: Server) -> None:
    uuid = server.post("flows", {"factory": FACTORY}).json()["uuid"]
    for _ in range(2):
        answer = server.post(f"flows/{uuid}/cancel")
        assert answer.status_code == 200, answer.text


def test_ended_flow_is_not_cancelled(server: Server) -> None:
    engine = operations.start(server.backend, FACTORY)
    engine.run()
    uuid = engine.storage.flow_uuid
    refused(server.post(f"flows/{uuid}/cancel"), 409, "SUCCESS")
    answer = server.post(f"flows/{uuid}/delete", user="ann")
    assert answer.json() == {"schema": "wbengine/flow-delete/1", "uuid": uuid}
    assert server.post(f"flows/{uuid}/delete", user="ann").status_code == 404


def test_only_allowed_flows_are_submitted(server: Server) -> None:
    for factory in ("os:system", "tests.dashboard.story:good"):
        refused(server.post("flows", {"factory": factory}), 403, "not allowed")
    _allowed.set_for_process(())
    refused(server.post("flows", {"factory": FACTORY}), 403, "--flows")


def test_errors_of_factories_and_inputs_are_those_of_the_client(server: Server) -> None:
    for name, text in (("charged", "amount"), ("failing", "KeyError")):
        body = {"factory": f"tests.dashboard.api_flows:{name}"}
        refused(server.post("flows", body), 400, text)


@pytest.mark.parametrize(
    ("path", "name"),
    [("jobs/pause", "reason"), ("limits/unset", "name"), ("tasks/resume", "pattern")],
)
def test_text_that_is_no_unicode_is_invalid(server: Server, path: str, name: str) -> None:
    others = {"name": "reports"} if name == "reason" else {}
    content = json.dumps({**others, name: "\ud800"})
    headers = {**bearer(TOKENS["olga"]), "content-type": "application/json"}
    answer = server.browser.post(f"/api/v1/{path}", content=content, headers=headers)
    refused(answer, 400, f"{name} must be valid Unicode")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"factry": FACTORY}, "flow submit has no parameter 'factry' (did you mean 'factory'?)"),
        ({}, "flow submit requires parameter 'factory'"),
        ({"factory": 7}, "factory must be of type string, got a number"),
        ({"factory": FACTORY, "inputs": []}, "inputs must be of type object, got an array"),
        (
            {"factory": FACTORY, "priority": "HIHG"},
            (
                "priority must be one of VERY_HIGH, HIGH, NORMAL, LOW, VERY_LOW, got 'HIHG'"
                " (did you mean 'HIGH'?)"
            ),
        ),
        (
            {"factory": FACTORY, "tags": {"shop": [7]}},
            (
                "tags['shop'] must be a text of 1 to 256 printable characters without surrounding"
                ' blanks, a number, a boolean, or a time such as {"time": "2026-12-01"}, got [7]'
            ),
        ),
        ([1], "The body must be a JSON object."),
    ],
    ids=str,
)
def test_invalid_argument_is_named(server: Server, body: Any, message: str) -> None:
    answer = server.browser.post("/api/v1/flows", json=body, headers=bearer(TOKENS["olga"]))
    problem = answer.json()
    assert answer.status_code == 400 and problem["detail"] == message
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["schema"], problem["status"]) == ("wbengine/error/1", 400)
    assert problem["title"] == "Bad Request"


def test_roles(server: Server) -> None:
    uuid = server.post("flows", {"factory": FACTORY}).json()["uuid"]
    refused(server.post(f"flows/{uuid}/cancel", user="victor"), 403, "needs role operator")
    refused(server.post(f"flows/{uuid}/delete"), 403, "needs role admin")


@pytest.mark.parametrize("edits", [{"inputs": {"amount": 2}}, {"results": {"first": 2}}], ids=str)
def test_retry_with_other_values_needs_role_editor(
    server: Server, audit: Any, edits: dict[str, Any]
) -> None:
    uuid = server.post("flows", {"factory": FACTORY}).json()["uuid"]
    for user, body in (("olga", {}), ("olga", {"inputs": {}, "results": None}), ("edith", edits)):
        answer = server.post(f"flows/{uuid}/retry", body, user=user)
        assert answer.status_code != 403, "the flow has not failed, but the role suffices"
    answer = server.post(f"flows/{uuid}/retry", edits)
    assert answer.status_code == 403
    assert answer.json()["detail"] == "This action needs role editor, got operator."
    assert "flow retry refused, from olga, operator, 192.0.2.5" in audit()[-1]
    assert server.post(f"flows/{uuid}/delete", user="edith").status_code == 403


def test_cookie_is_not_enough(server: Server, kept: story.Kept) -> None:
    """A hostile page can send the cookie of a browser, but not the token."""
    with site(server, "olga") as browser:
        for headers in (OURS, {}):
            answer = browser.post("/api/v1/flows", json={"factory": FACTORY}, headers=headers)
            assert answer.status_code == 403 and "token" in answer.json()["detail"], headers
    assert server.get("flows")["flows"] == []


def test_page_of_another_origin_is_refused(server: Server) -> None:
    answer = server.post("flows", {"factory": FACTORY}, origin="https://evil.example")
    assert answer.status_code == 403 and server.get("flows")["flows"] == []


def test_read_only_dashboard_changes_nothing(server: Server) -> None:
    with client(server) as browser:
        answer = browser.post("/api/v1/flows", json={"factory": FACTORY}, headers=bearer())
    refused(answer, 403, "--allow-actions")


def test_body_must_be_json_and_short(server: Server) -> None:
    for body, kind, status in (
        (b"{", "application/json", 400),
        (b'{"factory": NaN}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"factory=x", "application/x-www-form-urlencoded", 415),
        (b" " * (_operation_routes.MAX_BODY_BYTES + 1), "application/json", 413),
    ):
        headers = {**bearer(TOKENS["olga"]), "content-type": kind}
        answer = server.browser.post("/api/v1/flows", content=body, headers=headers)
        assert answer.status_code == status, body[:20]


def test_tasks_and_schedules(server: Server) -> None:
    paused = server.post("tasks/pause", {"pattern": "shop.*", "seconds": 60}).json()
    assert paused["pattern"] == "shop.*" and paused["until"] - paused["since"] == 60
    assert server.get("pauses")["pauses"][0]["by"].startswith("dashboard (olga")
    assert server.post("tasks/resume", {"pattern": "shop.*"}).status_code == 200
    assert server.post("tasks/resume", {"pattern": "shop.*"}).status_code == 404
    nightly = Schedule(name="nightly report", factory=SIGNAL_FACTORY, cron="0 2 * * *")
    Schedules(server.backend).declare(nightly)
    for verb in ("pause", "resume", "run"):
        answer = server.post(f"schedules/nightly report/{verb}")
        assert answer.json()["schedule"] == "nightly report", answer.text
    assert server.post("schedules/nightly report/delete", user="ann").status_code == 200
    assert server.post("schedules/nightly report/run").status_code == 404


def test_submitted_flow_is_retried_with_other_inputs(server: Server) -> None:
    handle = engines.submit(FACTORY, backend=server.backend)
    answer = server.post(f"flows/{handle.id}/resume")
    assert answer.json()["is_new"] is True, answer.text
    answer = server.post(f"flows/{handle.id}/resume")
    assert answer.json()["is_new"] is False
    answer = server.post(f"flows/{handle.id}/retry", {"inputs": {"unknown": 1}}, user="edith")
    assert answer.status_code in (404, 409), answer.text


def test_response_waits_for_the_end_of_the_flow(server: Server) -> None:
    uuid = server.post("flows", {"factory": FACTORY}).json()["uuid"]
    assert server.get(f"flows/{uuid}?wait=0")["state"] == "PENDING"
    with server.running():
        assert server.get(f"flows/{uuid}?wait={PATIENCE}")["state"] == "SUCCESS"
    refused = server.get(f"flows/{uuid}?wait=61")
    assert refused["detail"] == "wait must be a number of seconds from 0 to 60, got '61'"


def test_document_describes_all_operations(server: Server) -> None:
    with client(server) as browser:
        document = browser.get("/api/v1/openapi.json", headers=bearer()).json()
        page = browser.get("/api", headers=bearer()).text
    openapi_spec_validator.validate(document)
    ids = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids))
    for operation in _operation.table().values():
        path = _operation_routes.path_of(operation).removeprefix("/api/v1")
        described = document["paths"][path]["post"]
        assert described["summary"] == operation.summary
        assert path in page and operation.summary in page
    assert "null" not in json.dumps(document).replace('"null"', "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("flows/{flow}/tag", {}),
        ("flows/{flow}/tag", {"set": {}}),
        ("flows/{flow}/tag", {"remove": []}),
        ("flows/{flow}/tag", {"set": {"a b": "c"}}),
        ("flows/{flow}/tag", {"set": {"a": " c"}}),
        ("flows/{flow}/tag", {"set": {"a": "c"}, "remove": ["b"]}),
        ("flows/{flow}/tag", {"set": {"a": 1.5, "b": True, "c": {"time": "2026-12-01T12:00Z"}}}),
        ("flows/{flow}/tag", {"set": {"a": {"time": "soon"}}}),
        ("flows/{flow}/tag", {"set": {"a": 2**60}}),
        ("flows/{flow}/signal", {"signal": "pa\nid"}),
        ("flows/{flow}/signal", {"signal": "bezahlt \u202f ✓"}),
        ("flows/{flow}/signal", {"signal": "\u202e"}),
        ("schedules/{schedule}/add", {"factory": FACTORY}),
        ("schedules/{schedule}/add", {"factory": FACTORY, "cron": "@daily", "every": 60}),
        ("schedules/{schedule}/add", {"factory": FACTORY, "every": 60}),
        ("tasks/pause", {"pattern": ""}),
        ("tasks/pause", {"pattern": "two words"}),
        ("tasks/pause", {"pattern": "shop.*"}),
        ("flows/tag", {"set": {"a": "c"}}),
        ("flows/tag", {"all": True}),
        ("flows/tag", {"all": True, "set": {"a": "c"}, "rate": 1e-9}),
        ("flows/tag", {"all": True, "set": {"a": "c"}, "dry_run": True}),
        ("flows/tag", {"filter": {"tags": ["amount>100"]}, "set": {"a": "c"}, "dry_run": True}),
        ("flows/tag", {"filter": {"tags": ["amount>much"]}, "set": {"a": "c"}, "dry_run": True}),
        ("flows/tag", {"filter": {"tags": {"a": ""}}, "set": {"a": "c"}, "dry_run": True}),
    ],
    ids=str,
)
def test_described_bodies_are_those_that_are_accepted(server: Server, path: str, body: Any) -> None:
    schema = _openapi.document()["paths"][f"/{path}"]["post"]["requestBody"]["content"]
    validator = jsonschema.Draft202012Validator(schema["application/json"]["schema"])
    flow = server.post("flows", {"factory": FACTORY}).json()["uuid"]
    server.post(f"flows/{flow}/suspend")
    answer = server.post(path.format(flow=flow, schedule="nightly"), body, user="ann")
    assert validator.is_valid(body) == (answer.status_code != 400), answer.text


def test_results_have_the_described_schema(server: Server) -> None:
    """The names in a result are those of the definition, for one operation of each kind."""
    uuid = server.post("flows", {"factory": FACTORY}).json()["uuid"]
    for path, name in (
        (f"flows/{uuid}/suspend", "flow suspend"), (f"flows/{uuid}/resume", "flow resume"),
    ):  # fmt: skip
        result = server.post(path).json()
        assert result.keys() - {"schema"} == _operation.table()[name].result.keys()


def test_each_operation_is_one_module() -> None:
    for name, operation in _operation.table().items():
        assert operation.function.__module__.endswith("." + name.replace(" ", "_"))
        assert operation.summary.endswith(".") and len(operation.summary) <= 90


def test_schedule_is_added_only_for_allowed_flows(server: Server) -> None:
    times = {"every": 3600, "tags": {"shop": "paris"}}
    body = {"factory": FACTORY, **times}
    assert server.post("schedules/hourly/add", body).status_code == 403, "an operator"
    added = server.post("schedules/hourly/add", body, user="ann")
    assert added.status_code == 200 and added.json()["next"].endswith(":00:00.000Z"), added.text
    again = server.post("schedules/hourly/add", body, user="ann")
    assert again.status_code == 409, again.text
    replaced = server.post("schedules/hourly/add", {**body, "replace": True}, user="ann")
    assert replaced.status_code == 200, replaced.text
    (entry,) = Schedules(server.backend).all()
    assert (entry.schedule.every, entry.schedule.tags) == (3600, {"shop": "paris"})
    foreign = {"factory": "os:system", **times}
    refused(server.post("schedules/x/add", foreign, user="ann"), 403, "not allowed")
    both = {**body, "cron": "0 0 * * *"}
    refused(server.post("schedules/x/add", both, user="ann"), 400, "exactly one of cron, every")


def test_backfill_submits_a_bounded_number_of_flows(server: Server) -> None:
    nightly = Schedule(name="nightly report", factory=SIGNAL_FACTORY, every=3600)
    Schedules(server.backend).declare(nightly)
    path, times = "schedules/nightly report/backfill", {"from_time": "2026-01-01", "max_flows": 2}
    body = {**times, "to_time": "2026-01-01T02:00+00:00"}
    hours = [f"2026-01-01T0{hour}:00:00.000Z" for hour in range(3)]
    dry = server.post(path, {**body, "dry_run": True}).json()
    assert dry == {
        "schema": "wbengine/schedule-backfill/1", "schedule": "nightly report", "dry_run": True,
        "flows": [{"scheduled_at": hour, "uuid": None} for hour in hours[:2]], "next": hours[2],
    }  # fmt: skip
    assert server.get("flows")["flows"] == []
    first = server.post(path, body).json()
    assert [each["scheduled_at"] for each in first["flows"]] == hours[:2]
    rest = server.post(path, {**body, "from_time": first["next"]}).json()
    assert [each["scheduled_at"] for each in rest["flows"]] == hours[2:] and rest["next"] is None
    uuids = {each["uuid"] for each in (*first["flows"], *rest["flows"])}
    assert uuids == {flow["uuid"] for flow in server.get("flows")["flows"]} and len(uuids) == 3
    assert server.post(path, body).json()["flows"] == []
    assert server.post(path, body, user="victor").status_code == 403


def test_backfill_calls_only_allowed_factories(server: Server) -> None:
    Schedules(server.backend).declare(Schedule(name="s", factory="os:getcwd", every=3600))
    refused(server.post("schedules/s/backfill", {"from_time": "1d"}), 403, "not allowed")
    dry = server.post("schedules/s/backfill", {"from_time": "1d", "dry_run": True})
    assert dry.status_code == 200 and dry.json()["flows"]


@pytest.mark.parametrize("name", ["a/b", ".", ".."])
def test_schedule_that_no_path_can_name_is_not_added(server: Server, name: str) -> None:
    with pytest.raises(ValueError, match="Schedule name must not contain '/', or be"):
        Schedules(server.backend).add(Schedule(name=name, factory=FACTORY, every=60))
    assert Schedules(server.backend).all() == []


@pytest.mark.parametrize("name", ["...", "a.b", "50% off", "a?b#c", "ä;b=1", "a\\b"])
def test_schedule_of_any_other_name_is_addressed(server: Server, name: str) -> None:
    Schedules(server.backend).declare(Schedule(name=name, factory=FACTORY, every=60))
    answer = server.post(f"schedules/{urllib.parse.quote(name, safe='')}/pause")
    assert answer.status_code == 200 and answer.json()["schedule"] == name, answer.text


def test_flows_of_unknown_code_are_not_assigned(server: Server) -> None:
    body = {"from_code": "v43", "to_code": "v42"}
    assert server.post("flows/assign", body).status_code == 403, "an operator"
    answer = server.post("flows/assign", {**body, "dry_run": True}, user="ann")
    refused(answer, 404, "Unknown code version 'v43'")


def test_worker_is_not_found_without_a_broker(server: Server) -> None:
    assert server.post("workers/w/drain").status_code == 403, "an operator"
    refused(server.post("workers/w/drain", user="ann"), 404, "broker")


def test_backfill_is_bounded_by_the_present_and_1970(server: Server) -> None:
    rare = {"factory": FACTORY, "cron": "0 0 29 2 *"}
    assert server.post("schedules/leap/add", rare, user="ann").status_code == 200
    future = {"from_time": "9999-12-31", "dry_run": True}
    answer = server.post("schedules/leap/backfill", future, user="ann")
    assert answer.status_code == 200 and answer.json()["flows"] == [], answer.text
    past = {"from_time": "1000-01-01", "to_time": "1972-03-01", "dry_run": True}
    answer = server.post("schedules/leap/backfill", past, user="ann")
    assert answer.status_code == 200, answer.text
    assert [flow["scheduled_at"][:10] for flow in answer.json()["flows"]] == ["1972-02-29"]


@pytest.mark.parametrize(("day", "status"), [("1816-02-29", 200), ("1815-02-29", 400)])
def test_only_days_of_the_calendar_are_times(server: Server, day: str, status: int) -> None:
    past = {"from_time": day, "to_time": "1972-01-01", "dry_run": True}
    added = {"factory": FACTORY, "cron": "0 0 29 2 *"}
    assert server.post("schedules/leap/add", added, user="ann").status_code == 200
    answer = server.post("schedules/leap/backfill", past, user="ann")
    assert answer.status_code == status, answer.text


def test_whole_number_may_have_a_fraction_of_zero(server: Server) -> None:
    """As in JSON schema."""
    answer = server.post("limits/set", {"name": "shop", "concurrency": 5.0})
    assert answer.status_code == 200, answer.text
    assert answer.json()["concurrency"] == 5 and "5.0" not in answer.text
    answer = server.post("limits/set", {"name": "shop", "concurrency": 5.5})
    assert answer.status_code == 400


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
