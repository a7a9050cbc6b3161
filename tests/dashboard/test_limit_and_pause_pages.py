"""The pages of limits and of paused task types: contents, permissions, buttons and audit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import FILE, refused, site
from tests.dashboard.forms import send, token_in
from tests.support import paused_tasks
from wbengine import engines, operations
from wbengine._limits import account_stores
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.dashboard import parse_users
from wbengine.dashboard._sessions import Sessions
from wbengine.persistence import base

NAME = "shop.call[eve]"
PATTERN = "shop.billing.*"
WHO = "olga, operator, 192.0.2.5"


@pytest.fixture
def limits(store: base.Backend) -> account_stores.Store:
    """The limits of the store, of which a flow uses one."""
    limits = account_stores.store_of(store)
    limits.settle({NAME: (Quota("100/m", 0.6, 4), [PermitRequest("f1", 1, 2, 7, 60)])})
    return limits


def test_operator_changes_and_unsets_limit(
    store: base.Backend, limits: account_stores.Store, audit: Any
) -> None:
    with site(store, "olga") as browser:
        page = browser.get("/limits").text
        assert NAME in page and "Unset</button>" not in page
        fields = {"form_token": token_in(page), "name": NAME}
        more = {"rate": "5/s", "concurrency": "2", "reason": "slow shop"}
        answer = send(browser, "/limits/set", {**fields, **more})
        assert answer.status_code == 303
        change = limits.changes()[NAME]
        assert (change.rate, change.concurrency, change.reason) == ("5/s", 2, "slow shop")
        assert change.by == f"dashboard ({WHO})"
        page = browser.get(answer.headers["location"]).text
        assert "The limit is changed." in page and f"Unset: {NAME}" in page
        assert "code: 100/m" in page and "code: 4" in page and ": slow shop" in page
        answer = send(browser, "/limits/unset", fields)
        assert answer.status_code == 303 and limits.changes() == {}
        page = browser.get(answer.headers["location"]).text
        assert "The values of the code apply." in page and "Unset</button>" not in page
    assert audit() == [
        f"set limit '{NAME}' to '5/s 2 at once', reason 'slow shop', from {WHO}",
        f"unset limit '{NAME}', from {WHO}",
    ]


def test_page_and_api_show_changes_with_masked_reasons(
    store: base.Backend, limits: account_stores.Store
) -> None:
    reason = f"password={story.CANARY} {story.SCRIPT}"
    limits.change(LimitChange("shop.call", "5/s", None, reason, "ann", 1e9))
    with site(store, "victor") as viewer:
        page = viewer.get("/limits").text
        part = viewer.get("/limits?part=rows").text
        _, limit = viewer.get("/api/v1/limits").json()["limits"]
    assert NAME in page and "(all keys)" in page and "by ann" in page and "password=" in page
    assert story.SCRIPT not in page and story.CANARY not in page + str(limit)
    assert "Unset</button>" not in page and "<form" not in page
    assert 'id="limits"' in part and "<html" not in part
    assert (limit["name"], limit["rate"], limit["held"]) == (NAME, "5/s", 4)
    assert limit["changes"][0]["by"] == "ann" and limit["defined"]["rate"] == "100/m"


def test_operator_pauses_and_resumes_task_type(store: base.Backend, audit: Any) -> None:
    with site(store, "olga") as browser:
        page = browser.get("/pauses").text
        assert "No task types are paused" in page
        fields = {"form_token": token_in(page), "pattern": PATTERN}
        more = {"reason": "the bank is down", "for": "4h"}
        answer = send(browser, "/pauses/pause", {**fields, **more})
        assert answer.status_code == 303
        (pause,) = operations.paused_tasks(store)
        assert (pause.pattern, pause.reason) == (PATTERN, "the bank is down")
        assert pause.by == f"dashboard ({WHO})" and pause.until == pause.since + 4 * 3600
        page = browser.get(answer.headers["location"]).text
        assert "The task type is paused." in page and f"Resume: {PATTERN}" in page
        answer = send(browser, "/pauses/resume", fields)
        assert answer.status_code == 303 and operations.paused_tasks(store) == []
        page = browser.get(answer.headers["location"]).text
        assert "The task type is resumed." in page and "Resume</button>" not in page
    assert audit() == [
        f"pause tasks '{PATTERN}' for '4h', reason 'the bank is down', from {WHO}",
        f"resume tasks '{PATTERN}', from {WHO}",
    ]


def test_pause_without_length_and_reason_has_neither(store: base.Backend, audit: Any) -> None:
    with site(store, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/pauses").text), "pattern": f" {PATTERN} "}
        send(browser, "/pauses/pause", {**fields, "reason": " ", "for": ""})
    (pause,) = operations.paused_tasks(store)
    assert (pause.pattern, pause.reason, pause.until) == (PATTERN, None, None)
    assert audit() == [f"pause tasks '{PATTERN}', from {WHO}"]


def test_page_and_api_show_pauses_with_masked_reasons(store: base.Backend) -> None:
    reason = f"password={story.CANARY} {story.SCRIPT}"
    operations.pause_tasks(store, PATTERN, reason=reason, by="ann", seconds=60)
    operations.pause_tasks(store, "shop.<locals>", by=story.SCRIPT)
    with site(store, "victor") as viewer:
        page = viewer.get("/pauses").text
        part = viewer.get("/pauses?part=rows").text
        data = viewer.get("/api/v1/pauses").json()
    assert PATTERN in page and ">ann<" in page and "shop.&lt;locals&gt;" in page
    assert "password=" in page and story.SCRIPT not in page
    assert story.CANARY not in page + str(data)
    assert "Resume</button>" not in page and "<form" not in page
    assert 'id="pauses"' in part and "<html" not in part
    assert data["schema"] == "wbengine/pauses/1"
    second, first = data["pauses"]
    assert (first["pattern"], first["by"]) == (PATTERN, "ann")
    assert first["until"] == first["since"] + 60
    assert (second["reason"], second["until"]) == (None, None)


def test_resuming_misspelled_type_names_the_nearest_one(store: base.Backend, audit: Any) -> None:
    operations.pause_tasks(store, "shop.charge")
    with site(store, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/pauses").text), "pattern": "shop.chrage"}
        refused(send(browser, "/pauses/resume", fields), 404, "did you mean")
    assert len(operations.paused_tasks(store)) == 1
    assert audit()[0].startswith(f"resume tasks 'shop.chrage' failed, from {WHO}: ")


def test_list_and_page_show_why_a_parked_flow_waits(store: base.Backend) -> None:
    pattern = "tests.support.paused_tasks.*"
    reason = f"password={story.CANARY} {story.SCRIPT}"
    operations.pause_tasks(store, pattern, reason=reason, by="ann")
    engine: Any = engines.load(paused_tasks.charging(), backend=store)
    engine.park_after = 0.0
    engine.run()
    with site(store, "victor") as viewer:
        row = viewer.get("/").text
        page = viewer.get(f"/flows/{engine.storage.flow_uuid}").text
        (flow,) = viewer.get("/api/v1/flows").json()["flows"]
    assert f"paused: {pattern} by ann: password=" in row
    assert 'class="badge state-WAITING"' in row and "state-WAITING" in page
    assert f"Its task type is paused ({pattern}) by ann since " in page
    assert story.CANARY not in row + page + str(flow) and story.SCRIPT not in row + page
    (pause,) = flow["paused_by"]
    assert flow["shown_state"] == "WAITING" and pause.startswith(f"{pattern} by ann: ")


# Both pages. --------------------------------------------------------------------------------------


LONG = "x" * 501


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/limits/set", {"name": NAME}, "requires at least one of rate, concurrency"),
        ("/limits/set", {"name": "", "rate": "5/s"}, "requires parameter 'name'"),
        ("/limits/set", {"name": NAME, "rate": "5"}, "rate must be a number from 1 per s, m, h or"),
        ("/limits/set", {"name": NAME, "concurrency": "0"}, "concurrency must be at least 1"),
        ("/limits/set", {"name": NAME, "concurrency": "x"}, "concurrency must be a number"),
        ("/limits/set", {"name": NAME, "rate": "5/s", "reason": LONG}, "at most 500 characters"),
        ("/pauses/pause", {"pattern": ""}, "pattern must be the dotted name"),
        ("/pauses/pause", {"pattern": "two words"}, "pattern must be the dotted name"),
        ("/pauses/pause", {"pattern": "x" * 201}, "at most 200 characters"),
        ("/pauses/pause", {"pattern": PATTERN, "reason": LONG}, "at most 500 characters"),
        ("/pauses/pause", {"pattern": PATTERN, "for": "soon"}, "length must be one of 15m, 1h,"),
    ],
)
def test_invalid_change_is_refused_and_audited(
    store: base.Backend, audit: Any, path: str, fields: dict[str, str], message: str
) -> None:
    page, _, action = path.rpartition("/")
    with site(store, "olga") as browser:
        token = {"form_token": token_in(browser.get(page).text)}
        refused(send(browser, path, {**token, **fields}), 400, message)
    assert operations.paused_tasks(store) == [] and account_stores.store_of(store).changes() == {}
    (line,) = audit()
    begin = {"set": "set limit '", "pause": "pause tasks '"}[action]
    assert line.startswith(begin) and f" failed, from {WHO}: " in line
    assert len(line) < 1_200


@pytest.mark.parametrize(
    ("page", "actions", "fields"),
    [
        ("/limits", ("set limit", "unset limit"), {"name": NAME, "rate": "5/s"}),
        ("/pauses", ("pause tasks", "resume tasks"), {"pattern": "shop.charge"}),
    ],
)
def test_viewer_and_form_without_token_are_refused(
    store: base.Backend, audit: Any, page: str, actions: tuple[str, ...], fields: dict[str, str]
) -> None:
    operations.pause_tasks(store, "shop.charge")
    with site(store, "victor") as viewer, site(store, "olga") as operator:
        own = {**fields, "form_token": token_in(operator.get(page).text)}
        (cookie,) = viewer.cookies.values()
        of_viewer = {**fields, "form_token": Sessions(parse_users(FILE)).form_token(cookie)}
        for action in actions:
            path = f"{page}/{action.partition(' ')[0]}"
            refused(send(viewer, path, of_viewer), 403, "needs role operator")
            assert send(operator, path, fields).status_code == 403
            foreign = {"origin": "http://evil.example"}
            assert send(operator, path, own, foreign).status_code == 403
        assert send(operator, f"{page}/remove", own).status_code == 404
    assert [pause.pattern for pause in operations.paused_tasks(store)] == ["shop.charge"]
    assert account_stores.store_of(store).changes() == {}
    assert all(" refused, from " in line for line in audit()) and len(audit()) == 6
    assert f"{actions[0]} refused, from victor, viewer, 192.0.2.5: " in audit()[0]


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/limits/set", {"name": NAME, "rate": "1/s"}), ("/pauses/pause", {"pattern": PATTERN})],
)
def test_secret_in_reason_is_masked_in_audit(
    store: base.Backend, audit: Any, path: str, fields: dict[str, str]
) -> None:
    with site(store, "olga") as browser:
        token = {"form_token": token_in(browser.get(path.rpartition("/")[0]).text)}
        reason = f"password={story.CANARY}\nforged line"
        answer = send(browser, path, {**token, **fields, "reason": reason})
        assert answer.status_code == 303
    (line,) = audit()
    assert story.CANARY not in line and "\n" not in line and "password=" in line
