"""Authentication: tokens, cookies, host names and response headers."""

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
from wbengine.dashboard._sessions import COOKIE_SECONDS, Sessions
from wbengine.persistence.backends import _memory

ANN = Visitor("ann")


@pytest.mark.parametrize("header", [None, "Bearer wrong-token-0123456789", "Basic abc", "Bearer "])
def test_pages_without_valid_token_are_refused(
    kept: story.Kept, stranger: TestClient, header: str | None
) -> None:
    headers = {"authorization": header} if header else {}
    for path in everything(kept):
        answer = stranger.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert "leaking" not in answer.text and kept.uuids["good"] not in answer.text
        assert answer.headers["www-authenticate"] == "Bearer"


def test_wrong_token_in_the_url_is_refused(stranger: TestClient) -> None:
    answer = stranger.get("/", params={"token": "wrong-token-0123456789"}, follow_redirects=False)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_token_in_the_url_becomes_a_cookie(stranger: TestClient) -> None:
    answer = stranger.get("/", params={"token": story.TOKEN, "name": "a b"}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?name=a+b"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert story.TOKEN not in cookie
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/x", "///evil.example", "//evil.example//"])
def test_redirect_after_login_stays_on_this_host(stranger: TestClient, path: str) -> None:
    url = f"{story.HOST}{path}?token={story.TOKEN}"
    answer = stranger.get(url, follow_redirects=False)
    assert answer.status_code == 303
    assert re.match(r"/(?!/)", answer.headers["location"])


def test_bearer_token_is_accepted_without_a_cookie(stranger: TestClient) -> None:
    headers = {"authorization": f"Bearer {story.TOKEN}"}
    assert stranger.get("/api/v1/flows", headers=headers).status_code == 200
    assert "set-cookie" not in stranger.get("/", headers=headers).headers


@pytest.mark.parametrize("cookie", ["", "x", "1.2.3", "x.y.z", "9" * 400, "é"])
def test_forged_cookie_is_refused(kept: story.Kept, cookie: str) -> None:
    sessions = Sessions({story.TOKEN: ANN})
    with client(kept) as browser:
        header = f"{sessions.cookie}={cookie}".encode()
        assert browser.get("/", headers={b"cookie": header}).status_code == 401


def test_cookie_expires_after_a_day_and_is_bound_to_its_token() -> None:
    now = time.time()
    sessions = Sessions({story.TOKEN: ANN}, clock=lambda: now)
    cookie = sessions.new_cookie(story.TOKEN)
    assert sessions.visitor_of_cookie(cookie) == ANN
    assert not Sessions({"another-token-0123456789": ANN}).visitor_of_cookie(cookie)
    name, _, proof = cookie.rpartition(".")
    assert not sessions.visitor_of_cookie(f"{int(now) + 9}{name[name.index('.') :]}.{proof}")
    now += COOKIE_SECONDS + 1
    assert not sessions.visitor_of_cookie(cookie)


@pytest.mark.parametrize("token", ["short", "with a blank 0123456789", "not-ascii-é-0123456789"])
def test_weak_or_unsendable_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Sessions({token: ANN})


def test_login_form_sets_a_cookie(stranger: TestClient) -> None:
    wrong = send(stranger, "/login", {"token": "wrong-token-0123456789"})
    assert wrong.status_code == 401 and "The token is not valid" in wrong.text
    right = send(stranger, "/login", {"token": story.TOKEN})
    assert right.status_code == 303
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_no_token_and_reveal_nothing(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 200
    assert answer.json() == {"schema": "wbengine/health/1", "ok": True}


def test_unknown_host_name_is_refused(kept: story.Kept) -> None:
    with client(kept, token=None, hosts=["127.0.0.1", "::1"]) as browser:
        assert browser.get("/").status_code == 200
        assert browser.get("/", headers={"host": "[::1]:8585"}).status_code == 200
        for name in ("evil.example", "127.0.0.1.evil.example", "evil.example:8585", "[", ""):
            answer = browser.get("/", headers={"host": name})
            assert answer.status_code == 421, name
            assert "leaking" not in answer.text


def test_responses_have_security_headers(kept: story.Kept, guest: TestClient) -> None:
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
    assert len(nonces) > 10  # one nonce per response


def test_websocket_is_refused(guest: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), guest.websocket_connect("/"):
        pass


class Broken(_memory.MemoryBackend):
    """A store whose connections fail with a secret in the exception."""

    def get_connection(self) -> Any:
        raise KeyError(f"amqp://wbe:{story.CANARY}@host//")


def test_internal_error_reveals_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Broken(), token=story.TOKEN)
    with TestClient(app, base_url=story.HOST) as browser:
        answer = admitted(browser).get("/")
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "KeyError" not in answer.text and story.CANARY not in answer.text
    assert "KeyError" in caplog.text and story.CANARY not in caplog.text
