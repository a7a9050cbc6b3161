"""Users and roles: permissions and audit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import FILE, TOKENS, bearer, client, site
from tests.dashboard.forms import send, token_in
from tests.dashboard.held import Running
from wbengine.dashboard import Visitor, create_app, parse_users
from wbengine.dashboard._sessions import Sessions

GATEWAY = bearer(TOKENS["gateway"])


def test_operator_acts_and_is_named_in_the_audit(running: Running, audit: Any) -> None:
    with site(running.kept, "olga") as browser:
        page = browser.get(running.path).text
        assert "olga · Actions allowed" in page
        fields = {"form_token": token_in(page)}
        assert send(browser, f"{running.path}/suspend", fields).status_code == 303
        answer = send(browser, "/workers/drain", {**fields, "worker": "w"})
        assert answer.status_code == 403 and "needs role admin" in answer.text
    done, refused = audit()
    assert done == f"suspend flow {running.detail.uuid}, from olga, operator, 192.0.2.5"
    assert refused.startswith("drain worker refused, from olga, operator, 192.0.2.5: ")


def test_viewer_sees_no_actions(running: Running) -> None:
    with site(running.kept, "victor") as browser:
        page = browser.get(running.path).text
    assert "victor · Read-only" in page and "Suspend</button>" not in page


def test_viewer_with_a_valid_form_is_refused(kept: story.Kept, audit: Any) -> None:
    """The form token is valid; the role is missing."""
    with site(kept, "victor") as browser:
        (cookie,) = browser.cookies.values()
        fields = {"form_token": Sessions(parse_users(FILE)).form_token(cookie)}
        answer = send(browser, f"/flows/{kept.uuids['good']}/revert", fields)
    assert answer.status_code == 403 and "needs role operator" in answer.text
    assert "victor, viewer" in audit()[-1]


def test_proxy_names_user_and_role(running: Running, audit: Any) -> None:
    with site(running.kept) as browser:
        named = {**GATEWAY, "x-wbengine-user": "eve@example.com", "x-wbengine-role": "operator"}
        page = browser.get(running.path, headers=named).text
        assert "eve@example.com · Actions allowed" in page
        headers = {**named, "origin": story.HOST, "sec-fetch-site": "same-origin"}
        fields = {"form_token": token_in(page)}
        assert send(browser, f"{running.path}/suspend", fields, headers).status_code == 303
        looking = {**GATEWAY, "x-wbengine-user": "joe"}
        assert "joe · Read-only" in browser.get(running.path, headers=looking).text
    assert "from eve@example.com, operator, " in audit()[0]


@pytest.mark.parametrize(
    "user_header",
    [
        {},
        {"x-wbengine-user": "a b"},
        {"x-wbengine-user": "eve", "x-wbengine-role": "root"},
        {"x-wbengine-user": "eve", "x-wbengine-role": "proxy"},
    ],
    ids=str,
)
def test_proxy_without_a_valid_user_is_refused(
    kept: story.Kept, user_header: dict[str, str]
) -> None:
    with site(kept) as browser:
        assert browser.get("/", headers={**GATEWAY, **user_header}).status_code == 401
        assert send(browser, "/login", {"token": TOKENS["gateway"]}).status_code == 401


def test_user_header_without_proxy_token_is_ignored(kept: story.Kept) -> None:
    named = {"x-wbengine-user": "eve", "x-wbengine-role": "admin"}
    with site(kept) as browser:
        assert browser.get("/", headers=named).status_code == 401
        headers = {**named, **bearer(TOKENS["victor"])}
        assert "victor · Read-only" in browser.get("/", headers=headers).text


def test_cookie_of_a_proxy_user_does_not_log_in(kept: story.Kept) -> None:
    with site(kept) as browser:
        named = {**GATEWAY, "x-wbengine-user": "eve", "x-wbengine-role": "admin"}
        assert browser.get("/", headers=named).status_code == 200 and len(browser.cookies) == 1
        assert browser.get("/").status_code == 401
        twice = [*GATEWAY.items(), ("x-wbengine-user", "eve"), ("x-wbengine-user", "ann")]
        assert browser.get("/", headers=twice).status_code == 401


def test_user_cannot_sign_cookies_for_others(kept: story.Kept) -> None:
    """A user who has one token can sign cookies for no other user."""
    mine = {TOKENS["victor"]: Visitor("ceo", "admin")}
    with site(kept) as browser:
        name = Sessions(parse_users(FILE)).cookie
        browser.cookies.set(name, Sessions(mine).new_cookie(TOKENS["victor"]))
        assert "victor · Read-only" in browser.get("/").text


def test_removed_role_is_effective_immediately(kept: story.Kept) -> None:
    with site(kept, "ann") as browser:
        (value,) = browser.cookies.values()
    less = parse_users(FILE.replace("ann         admin", "ann         viewer"))
    with client(kept, token=None, users=less, allow_actions=True) as browser:
        browser.cookies.set(Sessions(less).cookie, value)
        assert "ann · Read-only" in browser.get("/").text


def test_cookie_of_a_removed_user_is_refused(kept: story.Kept) -> None:
    with site(kept, "ann") as browser:
        assert browser.get("/").status_code == 200
        fewer = parse_users(FILE.replace("ann ", "#"))
        with client(kept, token=None, users=fewer) as other:
            (value,) = browser.cookies.values()
            other.cookies.set(Sessions(fewer).cookie, value)
            assert other.get("/").status_code == 401


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must contain at least one user"),
        ("# nobody\n", "must contain at least one user"),
        ("ann admin\n", "line 1: must have a name, a role and a token"),
        ("\nann amdin token-of-ann-0123456789\n", "got 'amdin' (did you mean 'admin'?)"),
        ("a/b admin token-of-ann-0123456789", "got 'a/b'"),
        ("ann admin short", "at least 16 characters"),
        (
            "ann admin token-of-ann-0123456789\nbob admin token-of-ann-0123456789",
            "'bob' must have another token than 'ann'",
        ),
    ],
)
def test_invalid_file_of_users_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_users(text)
    assert message in str(caught.value) and "token-of-ann" not in str(caught.value)


def test_token_may_contain_a_comment_sign() -> None:
    assert parse_users("ann admin abc#0123456789abcdef # on duty") == {
        "abc#0123456789abcdef": Visitor("ann", "admin")
    }


def test_invalid_users_are_refused(kept: story.Kept) -> None:
    with pytest.raises(ValueError, match="at least one user"):
        create_app(kept.backend, users={})
    with pytest.raises(ValueError, match="user must have 1 to 64 characters"):
        Visitor("x\nforged")


def test_token_and_users_together_are_refused(kept: story.Kept) -> None:
    with pytest.raises(ValueError, match="at most one of token and users"):
        create_app(kept.backend, token=story.TOKEN, users=parse_users(FILE))
