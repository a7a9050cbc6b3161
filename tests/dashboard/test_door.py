"""Who gets in, and who does not."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client
from tests.dashboard.forms import send
from tests.dashboard.routes import everything
from wbengine.dashboard import Visitor, create_app
from wbengine.dashboard.sessions import LIFETIME, Sessions
from wbengine.persistence.backends import memory

ANN = Visitor("ann")


@pytest.mark.parametrize("header", [None, "Bearer wrong-token-0123456789", "Basic abc", "Bearer "])
def test_without_the_token_there_is_nothing_to_see(
    kept: story.Kept, stranger: TestClient, header: str | None
) -> None:
    headers = {"authorization": header} if header else {}
    for path in everything(kept):
        answer = stranger.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert "leaking" not in answer.text and kept.uuids["good"] not in answer.text
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_wrong_token_in_the_address_is_refused(stranger: TestClient) -> None:
    answer = stranger.get("/", params={"token": "wrong-token-0123456789"}, follow_redirects=False)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: TestClient) -> None:
    answer = stranger.get("/", params={"token": story.TOKEN, "name": "a b"}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?name=a+b"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert story.TOKEN not in cookie
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/x", "///evil.example", "//evil.example//"])
def test_an_address_with_the_token_leads_to_no_other_host(stranger: TestClient, path: str) -> None:
    url = f"{story.HOST}{path}?token={story.TOKEN}"
    answer = stranger.get(url, follow_redirects=False)
    assert answer.status_code == 303
    assert re.match(r"/(?!/)", answer.headers["location"])


def test_a_program_shows_the_token_in_a_header(stranger: TestClient) -> None:
    headers = {"authorization": f"Bearer {story.TOKEN}"}
    assert stranger.get("/api/v1/flows", headers=headers).status_code == 200
    assert "set-cookie" not in stranger.get("/", headers=headers).headers


@pytest.mark.parametrize("cookie", ["", "x", "1.2.3", "x.y.z", "9" * 400, "é"])
def test_a_made_up_cookie_is_none(kept: story.Kept, cookie: str) -> None:
    sessions = Sessions({story.TOKEN: ANN})
    with client(kept) as browser:
        header = f"{sessions.cookie}={cookie}".encode()
        assert browser.get("/", headers={b"cookie": header}).status_code == 401


def test_a_cookie_is_good_for_a_day_and_for_one_token() -> None:
    now = time.time()
    sessions = Sessions({story.TOKEN: ANN}, clock=lambda: now)
    cookie = sessions.begin(story.TOKEN)
    assert sessions.knows(cookie) == ANN
    assert not Sessions({"another-token-0123456789": ANN}).knows(cookie)
    name, _, proof = cookie.rpartition(".")
    assert not sessions.knows(f"{int(now) + 9}{name[name.index('.') :]}.{proof}")
    now += LIFETIME + 1
    assert not sessions.knows(cookie)


@pytest.mark.parametrize("token", ["short", "with a blank 0123456789", "not-ascii-é-0123456789"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Sessions({token: ANN})


def test_who_logs_in_by_hand_gets_a_cookie(stranger: TestClient) -> None:
    wrong = send(stranger, "/login", {"token": "wrong-token-0123456789"})
    assert wrong.status_code == 401 and "not the token" in wrong.text
    right = send(stranger, "/login", {"token": story.TOKEN})
    assert right.status_code == 303
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_no_token_and_tell_nothing_else(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 200
    assert answer.json() == {"schema": "wbengine/health/1", "ok": True}


def test_a_name_that_is_not_ours_is_refused(kept: story.Kept) -> None:
    with client(kept, token=None, hosts=["127.0.0.1", "::1"]) as browser:
        assert browser.get("/").status_code == 200
        assert browser.get("/", headers={"host": "[::1]:8585"}).status_code == 200
        for name in ("evil.example", "127.0.0.1.evil.example", "evil.example:8585", "[", ""):
            answer = browser.get("/", headers={"host": name})
            assert answer.status_code == 421, name
            assert "leaking" not in answer.text


def test_each_answer_says_what_a_browser_may_do(kept: story.Kept, guest: TestClient) -> None:
    nonces = set()
    for path in [p for p in everything(kept) if "stream" not in p]:
        answer = guest.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        for part in ("base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"):
            assert part in policy
        nonce = policy.partition("'nonce-")[2].partition("'")[0]
        nonces.add(nonce)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        if answer.headers["content-type"].startswith("text/html"):
            assert answer.text.count("<script") == answer.text.count(
                f'<script nonce="{nonce}" src='
            )
            assert " style=" not in answer.text and "<style" not in answer.text
            assert "javascript:" not in answer.text and " onclick=" not in answer.text
    assert len(nonces) > 10  # each its own


def test_a_websocket_is_closed(guest: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), guest.websocket_connect("/"):
        pass


class Broken(memory.MemoryBackend):
    """A store with a mistake in it."""

    def get_connection(self) -> Any:
        raise KeyError(f"amqp://wbe:{story.CANARY}@host//")


def test_a_page_that_breaks_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Broken(), token=story.TOKEN)
    with TestClient(app, base_url=story.HOST) as browser:
        answer = admitted(browser).get("/")
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "KeyError" not in answer.text and story.CANARY not in answer.text
    assert "KeyError" in caplog.text and story.CANARY not in caplog.text
