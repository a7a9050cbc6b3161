"""Actions of the dashboard: permissions, forms and audit."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client, refused
from tests.dashboard.forms import OURS, send, token_in
from tests.dashboard.held import GO, Running
from tests.operations import flows
from tests.support import requested
from tests.support.workers import until
from wbengine import engines
from wbengine.persistence import base
from wbengine.testing import run_submitted

Fields = dict[str, str]


@pytest.fixture
def acting(running: Running) -> Iterator[tuple[TestClient, Fields]]:
    """Yield a logged-in browser and the form token of its session."""
    with client(running.kept, allow_actions=True) as browser:
        yield browser, {"form_token": token_in(admitted(browser).get(running.path).text)}


def test_flow_is_suspended_by_its_form(
    running: Running, acting: tuple[TestClient, Fields], audit: Any
) -> None:
    browser, fields = acting
    page = browser.get(running.path).text
    assert ">Suspend</button>" in page and ">Cancel</button>" in page
    assert ">Resume</button>" not in page
    answer = send(browser, f"{running.path}/suspend", fields)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{running.path}?done=suspend"
    assert "asked to suspend" in browser.get(answer.headers["location"]).text
    until(running.is_told)
    GO.set()
    until(lambda: running.state() == "SUSPENDED")
    assert running.state_of("c") == "PENDING"
    refused(send(browser, f"{running.path}/suspend", fields), 409, "SUSPENDED")
    uuid = running.detail.uuid
    assert audit()[0] == f"suspend flow {uuid}, from 192.0.2.5"
    assert audit()[1].startswith(f"suspend flow {uuid} failed, from 192.0.2.5: ")


def test_flow_is_cancelled_by_its_form(running: Running, acting: tuple[TestClient, Fields]) -> None:
    browser, fields = acting
    assert send(browser, f"{running.path}/cancel", fields).status_code == 303

    def seen() -> set[str]:
        """Return the state in the API and in the badges of the pages."""
        one = browser.get(f"/api/v1{running.path}").json()["shown_state"]
        (row,) = [
            each
            for each in browser.get("/api/v1/flows").json()["flows"]
            if each["uuid"] == running.detail.uuid
        ]
        pages = [browser.get(path).text for path in (running.path, "/")]
        badges = [re.search(r'class="badge state-([A-Z]+)"><i[^>]*data-f', page) for page in pages]
        return {one, row["shown_state"], *(badge[1] for badge in badges if badge)}

    assert seen() == {"CANCELLING"}
    page = browser.get(running.path).text
    assert ">Cancel</button>" not in page and ">Suspend</button>" in page
    until(running.is_told)
    GO.set()
    until(lambda: running.state() == "REVERTED")
    assert seen() == {"CANCELLED"}
    assert "<strong>Cancelled:</strong> by " in browser.get(running.path).text


@pytest.mark.parametrize("verb", ["suspend", "cancel"])
@pytest.mark.parametrize("state", ["PENDING", "WAITING"])
def test_submitted_flow_without_engine_is_suspended_and_cancelled(
    store: base.Backend, state: str, verb: str
) -> None:
    handle = engines.submit("tests.operations.flows:approval", backend=store)
    if state == "WAITING":
        run_submitted(store)
    path = f"/flows/{handle.id}"
    with client(store, allow_actions=True) as browser:
        page = admitted(browser).get(path).text
        assert f"state-{state}" in page
        assert ">Suspend</button>" in page and ">Cancel</button>" in page
        answer = send(browser, f"{path}/{verb}", {"form_token": token_in(page)})
        assert answer.status_code == 303
        page = browser.get(path).text
        assert f">{verb.capitalize()}</button>" not in page
    run_submitted(store)
    assert handle.state == ("SUSPENDED" if verb == "suspend" else "REVERTED")


def test_owner_is_shown_in_short_form(running: Running) -> None:
    short = f"{socket.gethostname()} · {os.getpid()}"
    whole = f"process {os.getpid()}"
    with client(running.kept) as browser:
        admitted(browser)
        for path in (running.path, "/"):
            page = browser.get(path).text
            assert f">{short}</span>" in page, path
            assert f'title="{whole}' in page, path
        assert browser.get(f"/api/v1{running.path}").json()["owner"].startswith(whole)


def test_actions_are_refused_unless_allowed(
    running: Running, acting: tuple[TestClient, Fields], audit: Any
) -> None:
    allowed, fields = acting
    with client(running.kept) as browser:  # same token, so the form token is valid
        browser.cookies.update(allowed.cookies)
        page = browser.get(running.path).text
        assert "<form" not in page and "Read-only" in page
        for path in (f"{running.path}/suspend", f"{running.path}/cancel", "/workers/drain"):
            refused(send(browser, path, {**fields, "worker": "x"}), 403, "--allow-actions")
    assert running.wish() is None
    assert len(audit()) == 3 and all("refused" in line for line in audit())


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example"},
        {"origin": story.HOST, "sec-fetch-site": "cross-site"},
        {"origin": story.HOST, "sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:8586"},
        {"origin": "null"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
        {"origin": ""},
        {"sec-fetch-site": "none"},
        {},
    ],
    ids=str,
)
def test_forms_of_other_sites_are_refused(
    running: Running, acting: tuple[TestClient, Fields], headers: dict[str, str]
) -> None:
    browser, fields = acting
    for path in (f"{running.path}/suspend", "/workers/drain", "/login"):
        assert send(browser, path, fields, headers).status_code == 403
    assert running.wish() is None


@pytest.mark.parametrize("fields", [{}, {"form_token": ""}, {"form_token": "0" * 64}], ids=str)
def test_form_without_its_token_is_refused(
    running: Running, acting: tuple[TestClient, Fields], fields: Fields
) -> None:
    refused(send(acting[0], f"{running.path}/suspend", fields), 403, "The form has expired")
    assert running.wish() is None


def test_form_of_another_session_is_refused(
    running: Running, acting: tuple[TestClient, Fields]
) -> None:
    with client(running.kept, allow_actions=True) as other:
        assert send(admitted(other), f"{running.path}/suspend", acting[1]).status_code == 403
        assert running.wish() is None


def test_bearer_token_alone_cannot_act(running: Running) -> None:
    """The Authorization header permits reading only; actions need a form token."""
    with client(running.kept, allow_actions=True) as browser:
        headers = {**OURS, "authorization": f"Bearer {story.TOKEN}"}
        assert send(browser, f"{running.path}/suspend", {}, headers).status_code == 403
        assert running.wish() is None


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"x" * 20_000, "application/x-www-form-urlencoded", 413),
        (b"\xff\xfe", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a=1" for _ in range(1_001)), "application/x-www-form-urlencoded", 400),
    ],
)
def test_invalid_form_body_is_refused(
    kept: story.Kept, keeper: TestClient, body: bytes, kind: str, status: int
) -> None:
    path = f"/flows/{kept.uuids['good']}/suspend"
    answer = keeper.post(path, content=body, headers={**OURS, "content-type": kind})
    assert answer.status_code == status


def test_get_requests_perform_no_action(kept: story.Kept, keeper: TestClient) -> None:
    for action in ("suspend", "resume", "revert", "cancel"):
        answer = keeper.get(f"/flows/{kept.uuids['good']}/{action}")
        assert answer.status_code in (404, 405)
    fields = {"form_token": "x"}
    path = f"/flows/{kept.uuids['good']}/destroy"
    assert send(keeper, path, fields).status_code == 404


def test_button_of_submitted_flow_requests_a_run_of_conductors(store: base.Backend) -> None:
    flows.DONE.clear()
    uuid = requested.failed(store).id
    with client(store, allow_actions=True) as browser:
        page = admitted(browser).get(f"/flows/{uuid}").text
        assert ">Retry failed</button>" in page
        fields = {"form_token": token_in(page)}
        assert send(browser, f"/flows/{uuid}/retry", fields).status_code == 303
        command = requested.command_of(store, uuid)
        assert command is not None and command.what == "retry"
        assert command.by == "dashboard (192.0.2.5)" and flows.DONE == []
        assert send(browser, f"/flows/{uuid}/retry", fields).status_code == 409
