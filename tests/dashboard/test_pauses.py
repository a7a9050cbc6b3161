"""The page of paused task types: contents, permissions, buttons and audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import FILE, site
from tests.dashboard.forms import send, token_in
from tests.support import paused_tasks
from wbengine import engines, operations
from wbengine.dashboard import parse_users
from wbengine.dashboard._sessions import Sessions
from wbengine.persistence import backends
from wbengine.persistence._pauses import TaskPause

PATTERN = "shop.billing.*"
WHO = "olga, operator, 192.0.2.5"


class Store:
    """A store on disk, and its pauses."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def pauses(self) -> list[TaskPause]:
        return operations.paused_tasks(self.backend)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        with backend.get_connection() as connection:
            connection.upgrade()
        yield Store(backend)


def test_operator_pauses_and_resumes_task_type(kept: Store, audit: Any) -> None:
    with site(kept, "olga") as browser:
        page = browser.get("/pauses").text
        assert "No task types are paused" in page
        fields = {"form_token": token_in(page), "pattern": PATTERN}
        more = {"reason": "the bank is down", "for": "4h"}
        answer = send(browser, "/pauses/pause", {**fields, **more})
        assert answer.status_code == 303
        (pause,) = kept.pauses()
        assert (pause.pattern, pause.reason) == (PATTERN, "the bank is down")
        assert pause.by == f"dashboard ({WHO})" and pause.until == pause.since + 4 * 3600
        page = browser.get(answer.headers["location"]).text
        assert "The task type is paused." in page and f"Resume: {PATTERN}" in page
        answer = send(browser, "/pauses/resume", fields)
        assert answer.status_code == 303 and kept.pauses() == []
        page = browser.get(answer.headers["location"]).text
        assert "The task type is resumed." in page and "Resume</button>" not in page
    assert audit() == [
        f"pause tasks '{PATTERN}' for '4h', reason 'the bank is down', from {WHO}",
        f"resume tasks '{PATTERN}', from {WHO}",
    ]


def test_pause_without_length_and_reason_has_neither(kept: Store, audit: Any) -> None:
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/pauses").text), "pattern": f" {PATTERN} "}
        send(browser, "/pauses/pause", {**fields, "reason": " ", "for": ""})
    (pause,) = kept.pauses()
    assert (pause.pattern, pause.reason, pause.until) == (PATTERN, None, None)
    assert audit() == [f"pause tasks '{PATTERN}', from {WHO}"]


def test_page_and_api_show_pauses_with_masked_reasons(kept: Store) -> None:
    reason = f"password={story.CANARY} {story.SCRIPT}"
    operations.pause_tasks(kept.backend, PATTERN, reason=reason, by="ann", seconds=60)
    operations.pause_tasks(kept.backend, "shop.<locals>", by=story.SCRIPT)
    with site(kept, "victor") as viewer:
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": ""}, "pattern must be the dotted name"),
        ({"pattern": "two words"}, "pattern must be the dotted name"),
        ({"pattern": "x" * 201}, "at most 200 characters"),
        ({"pattern": PATTERN, "reason": "x" * 501}, "at most 500 characters"),
        ({"pattern": PATTERN, "for": "soon"}, "length must be one of 15m, 1h,"),
    ],
)
def test_invalid_pause_is_refused_and_audited(
    kept: Store, audit: Any, fields: dict[str, str], message: str
) -> None:
    with site(kept, "olga") as browser:
        token = {"form_token": token_in(browser.get("/pauses").text)}
        answer = send(browser, "/pauses/pause", {**token, **fields})
    assert answer.status_code == 400 and message in answer.text
    assert kept.pauses() == []
    (line,) = audit()
    assert line.startswith("pause tasks '") and f" failed, from {WHO}: " in line
    assert len(line) < 1_200


def test_resuming_misspelled_type_names_the_nearest_one(kept: Store, audit: Any) -> None:
    operations.pause_tasks(kept.backend, "shop.charge")
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/pauses").text), "pattern": "shop.chrage"}
        answer = send(browser, "/pauses/resume", fields)
    assert answer.status_code == 404 and "did you mean" in answer.text
    assert len(kept.pauses()) == 1
    assert audit()[0].startswith(f"resume tasks 'shop.chrage' failed, from {WHO}: ")


def test_viewer_and_form_without_token_are_refused(kept: Store, audit: Any) -> None:
    operations.pause_tasks(kept.backend, "shop.charge")
    with site(kept, "victor") as viewer, site(kept, "olga") as operator:
        fields = {"form_token": token_in(operator.get("/pauses").text), "pattern": "shop.charge"}
        (cookie,) = viewer.cookies.values()
        own = {**fields, "form_token": Sessions(parse_users(FILE)).form_token(cookie)}
        for action in ("pause", "resume"):
            path = f"/pauses/{action}"
            answer = send(viewer, path, own)
            assert answer.status_code == 403 and "needs role operator" in answer.text
            assert send(operator, path, {"pattern": "shop.charge"}).status_code == 403
            foreign = {"origin": "http://evil.example"}
            assert send(operator, path, fields, foreign).status_code == 403
        assert send(operator, "/pauses/remove", fields).status_code == 404
    assert [pause.pattern for pause in kept.pauses()] == ["shop.charge"]
    assert all(" refused, from " in line for line in audit()) and len(audit()) == 6
    assert "pause tasks refused, from victor, viewer, 192.0.2.5: " in audit()[0]


def test_secret_in_reason_is_masked_in_audit(kept: Store, audit: Any) -> None:
    with site(kept, "olga") as browser:
        fields = {"form_token": token_in(browser.get("/pauses").text), "pattern": PATTERN}
        reason = f"password={story.CANARY}\nforged line"
        assert send(browser, "/pauses/pause", {**fields, "reason": reason}).status_code == 303
    (line,) = audit()
    assert story.CANARY not in line and "\n" not in line and "password=" in line


def test_list_and_page_show_why_a_parked_flow_waits(kept: Store) -> None:
    pattern = "tests.support.paused_tasks.*"
    reason = f"password={story.CANARY} {story.SCRIPT}"
    operations.pause_tasks(kept.backend, pattern, reason=reason, by="ann")
    engine: Any = engines.load(paused_tasks.charging(), backend=kept.backend)
    engine.park_after = 0.0
    engine.run()
    with site(kept, "victor") as viewer:
        row = viewer.get("/").text
        page = viewer.get(f"/flows/{engine.storage.flow_uuid}").text
        (flow,) = viewer.get("/api/v1/flows").json()["flows"]
    assert f"paused: {pattern} by ann: password=" in row
    assert 'class="badge state-WAITING"' in row and "state-WAITING" in page
    assert f"Its task type is paused ({pattern}) by ann since " in page
    assert story.CANARY not in row + page + str(flow) and story.SCRIPT not in row + page
    (pause,) = flow["paused_by"]
    assert flow["shown_state"] == "WAITING" and pause.startswith(f"{pattern} by ann: ")
