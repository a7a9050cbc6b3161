"""Audit log of refused requests: one line each, limited in number, client texts escaped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client
from tests.dashboard.forms import send
from tests.support.waiting import until
from wbengine.dashboard import _audited_actions
from wbengine.dashboard._audit import MAX_REFUSALS, WINDOW_SECONDS, Audit
from wbengine.views.redaction import Redactor

WRONG = "wrong-token-0123456789"
FLOW = "/flows/00000000-0000-4000-8000-000000000000/suspend"

Lines = Callable[[], list[str]]


def test_form_of_another_site_is_audited(keeper: TestClient, audit: Lines) -> None:
    answer = send(keeper, FLOW, {}, {"origin": "http://evil.example"})
    assert answer.status_code == 403
    assert audit() == [
        f"POST {FLOW} refused, from 192.0.2.5: request from another origin 'http://evil.example'"
    ]


def test_wrong_token_is_audited_without_the_token(stranger: TestClient, audit: Lines) -> None:
    bearer = {"authorization": f"Bearer {WRONG}"}
    assert stranger.get("/", params={"token": WRONG}).status_code == 401
    assert stranger.get("/api/v1/flows", headers=bearer).status_code == 401
    assert send(stranger, FLOW, {}).status_code == 401
    assert send(stranger, "/login", {"token": WRONG}).status_code == 401
    assert audit() == [
        "GET / refused, from 192.0.2.5: no valid token",
        "GET /api/v1/flows refused, from 192.0.2.5: no valid token",
        f"POST {FLOW} refused, from 192.0.2.5: no valid token",
        "login refused, from 192.0.2.5",
    ]


def test_unknown_host_name_is_audited(kept: story.Kept, audit: Lines) -> None:
    with client(kept, hosts=["127.0.0.1"]) as browser:
        assert browser.get("/", headers={"host": "evil.example:80"}).status_code == 421
        assert browser.get("/livez", headers={"host": ""}).status_code == 421
    assert audit() == [
        "GET / refused, from 192.0.2.5: unknown host name 'evil.example:80'",
        "GET /livez refused, from 192.0.2.5: unknown host name ''",
    ]


def test_missing_login_is_not_audited(stranger: TestClient, audit: Lines) -> None:
    assert stranger.get("/").status_code == 401
    assert stranger.get("/nothing", headers={"cookie": "wbengine_1=old"}).status_code == 401
    assert admitted(stranger).get("/").status_code == 200
    assert audit() == []


def test_client_texts_are_escaped_masked_and_truncated(kept: story.Kept, audit: Lines) -> None:
    texts = (
        "/a%0d%0aWARNING%20login%20of%20root",
        "/%1b%5b2J%e2%80%a8%c2%85%00",
        f"/{story.TOKEN}",
        f"/x?y=password%3D{story.CANARY}",
        f"/password%3D{story.CANARY}",
        f"/amqp:%2F%2Fu:{story.CANARY}@host",
        "/" + "z" * 5_000,
        "/" + "token%3Dq%20" * 500 + story.TOKEN,
    )
    headers = [("authorization", "Basic x"), ("origin", f"http://u:{story.CANARY}@evil\x1b[2J")]
    with client(kept) as browser:
        for text in texts:
            assert browser.get(text, headers=headers[:1]).status_code == 401, text
        admitted(browser)
        for text in texts:
            assert browser.post(text, headers=headers[1:]).status_code == 403, text
        for text in texts:
            name = {"host": f"x{story.TOKEN}\x1b[2J{story.CANARY * 9}"}
            browser.get(text, headers=name)
    lines = audit()
    assert len(lines) >= 2 * len(texts)
    for line in lines:
        assert line.isascii() and line.isprintable(), line
        assert story.TOKEN not in line and len(line) < 300
    for line in lines[: 2 * len(texts)]:
        assert story.CANARY not in line
    assert r"/a\r\nWARNING login of root refused" in lines[0]


def test_number_of_audited_refusals_is_limited(audit: Lines) -> None:
    now = 0.0
    kept = Audit(Redactor(), clock=lambda: now)
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": []})
    for _ in range(10 * MAX_REFUSALS):
        kept.rejected(request, "no")
        kept.refused(request, "login")
    assert len(audit()) == MAX_REFUSALS
    now = WINDOW_SECONDS - 0.1
    kept.refused(request, "login")
    kept.done(request, "suspend")
    assert audit()[MAX_REFUSALS:] == ["suspend, from unknown address"]
    now = WINDOW_SECONDS
    kept.refused(request, "login")
    kept.refused(request, "login")
    assert audit()[MAX_REFUSALS + 1 :] == [
        f"{19 * MAX_REFUSALS + 1} more requests refused; not logged one by one",
        "login refused, from unknown address",
        "login refused, from unknown address",
    ]


def test_action_of_a_request_that_is_cancelled_is_audited(audit: Lines) -> None:
    """A server that ends cancels requests, but their threads continue."""
    begun, may_end = threading.Event(), threading.Event()
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []})
    state: Any = SimpleNamespace(audit=Audit(Redactor()))

    def act() -> None:
        begun.set()
        may_end.wait(30)

    async def cancel() -> None:
        action = _audited_actions.perform(state, request, "suspend flow 7", act)
        task = asyncio.create_task(action)
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    may_end.set()
    until(audit)
    assert audit() == ["suspend flow 7, from unknown address"]
