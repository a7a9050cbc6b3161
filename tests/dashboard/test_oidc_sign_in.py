"""Sign-in with OpenID Connect: sessions, rights, attacks, and providers that do not work."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from joserfc import jwk
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.testclient import TestClient

from tests.dashboard import identity_provider as providers
from tests.dashboard import story
from tests.dashboard.conftest import FILE, TOKENS, bearer, client
from tests.dashboard.forms import send, token_in
from tests.dashboard.identity_provider import CLIENT, SECRET, IdentityProvider, identity_provider
from tests.dashboard.site import asked, running, serving
from wbengine import dashboard
from wbengine.dashboard import (
    _authentication,
    _failed_attempts,
    _key_management,
    _oidc_provider,
    parse_users,
)
from wbengine.dashboard._oidc_settings import parse_settings
from wbengine.dashboard._sessions import Sessions
from wbengine.dashboard._visitors import Visitor

ANN = {"preferred_username": "ann", "groups": ["admins"]}
ROLES = [
    {"value": "admins", "role": "admin"},
    {"value": "operators", "role": "operator"},
    {"value": "billing", "role": "operator", "tags": {"team": "billing"}},
    {"value": "reporting", "role": "operator", "queues": ["reports"]},
    {"value": "staff", "role": "viewer"},
]


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        provider.claims = dict(ANN)
        yield provider


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "oidc-secret"
    path.write_text(SECRET)
    return str(path)


class Settings:
    """Settings of a provider, with which dashboards are created."""

    def __init__(self, kept: story.Kept, issuer: str, secret_file: str) -> None:
        self.backend = kept.backend
        self.table: dict[str, Any] = {
            "issuer": issuer,
            "client_id": CLIENT,
            "client_secret_file": secret_file,
            "dashboard_url": story.HOST,
            "roles": ROLES,
        }

    def browser(self, changes: Any = None, **options: Any) -> TestClient:
        oidc = {**self.table, **(changes or {})}
        options = {"token": None, "allow_actions": True, "oidc": oidc, **options}
        browser = client(self.backend, **options)
        browser.follow_redirects = False
        return browser

    def sessions(self) -> Sessions:
        return Sessions(None, provider_key=parse_settings(self.table).session_key)


@pytest.fixture
def settings(kept: story.Kept, provider: IdentityProvider, secret_file: str) -> Settings:
    return Settings(kept, provider.issuer, secret_file)


@pytest.fixture
def browser(settings: Settings) -> Iterator[TestClient]:
    with settings.browser() as client:
        yield client


def started(browser: TestClient, path: str | None = None) -> str:
    """Start a sign-in, and return the URL of the provider."""
    query = {} if path is None else {"next": path}
    answer = browser.get("/login/oidc", params=query)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def signed_in(browser: TestClient, provider: IdentityProvider, path: str | None = None) -> Any:
    answer = browser.get(provider.sign_in(started(browser, path)))
    assert answer.status_code == 303, answer.text
    return answer


def refused(answer: Any, reason: str, status: int = 401) -> None:
    assert answer.status_code == status, answer.text
    assert re.search(reason, answer.text), answer.text
    assert "set-cookie" not in answer.headers
    assert "Sign in with 127.0.0.1" in answer.text


# Sessions. ----------------------------------------------------------------------------------------


def test_sign_in_leads_to_the_requested_page(
    browser: TestClient, provider: IdentityProvider, audit: Callable[[], list[str]]
) -> None:
    page = browser.get("/workers?sort=name&page=2")
    assert page.status_code == 401
    (link,) = re.findall(r'class="button primary" href="([^"]+)"', page.text)
    target = "/workers?sort=name&page=2"
    assert link == f"{story.HOST}/login/oidc?{urlencode({'next': target})}"
    started = browser.get(link)
    asked = dict(parse_qsl(urlsplit(started.headers["location"]).query))
    assert asked["scope"] == "openid profile email"
    assert asked["redirect_uri"] == f"{story.HOST}/login/oidc/callback"
    answer = browser.get(provider.sign_in(started.headers["location"]))
    assert (answer.status_code, answer.headers["location"]) == (303, target)
    page = browser.get("/")
    assert page.status_code == 200 and "oidc:ann · Actions allowed" in page.text
    assert audit()[-1] == "sign-in of subject 'user-1', from oidc:ann, admin, 192.0.2.5"


def test_cookies_are_sent_after_a_redirect_from_the_provider(
    browser: TestClient, provider: IdentityProvider
) -> None:
    """With `SameSite=Strict`, the page after the sign-in would ask for a sign-in again."""
    answer = browser.get("/login/oidc")
    first = answer.headers["set-cookie"].lower()
    assert "samesite=lax" in first and "httponly" in first and "path=/login/oidc;" in first
    second = signed_in(browser, provider).headers["set-cookie"].lower()
    assert "samesite=lax" in second and "httponly" in second and "path=/;" in second
    assert "secure" not in first + second


def test_cookies_are_secure_if_the_dashboard_url_is(
    settings: Settings, provider: IdentityProvider
) -> None:
    """A proxy may not report that the browser uses TLS."""
    changes = {"dashboard_url": "https://flows.example.com"}
    with settings.browser(changes) as browser:
        answer = browser.get("/login/oidc")
        assert "; secure" in answer.headers["set-cookie"].lower()
        cookie = answer.headers["set-cookie"].partition(";")[0]
        target = urlsplit(provider.sign_in(answer.headers["location"]))
        assert target.netloc == "flows.example.com"
        url = f"{target.path}?{target.query}"
        answer = browser.get(url, headers={"cookie": cookie})
        assert answer.status_code == 303 and "; secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("prefix", ["/wbe", "/tools/wbe"])
def test_sign_in_works_below_a_prefix(
    settings: Settings, provider: IdentityProvider, prefix: str
) -> None:
    changes = {"dashboard_url": f"{story.HOST}{prefix}"}
    with settings.browser(changes, url_prefix=prefix) as browser:
        page = browser.get(f"{prefix}/workers")
        (link,) = re.findall(r'class="button primary" href="([^"]+)"', page.text)
        answer = browser.get(link)
        assert f"path={prefix}/login/oidc;" in answer.headers["set-cookie"].lower()
        answer = browser.get(provider.sign_in(answer.headers["location"]))
        assert answer.headers["location"] == f"{prefix}/workers"
        assert f"path={prefix}/;" in answer.headers["set-cookie"].lower()
        assert browser.get(f"{prefix}/workers").status_code == 200


def test_sign_in_works_behind_a_proxy(
    kept: story.Kept, settings: Settings, provider: IdentityProvider
) -> None:
    """The redirect URI is that of the settings, whatever the proxy forwards."""
    table = {**settings.table, "dashboard_url": "https://flows.example.com/wbe"}
    options: Any = {"oidc": table, "allow_hosts": ["flows.example.com"], "url_prefix": "/wbe"}
    with running(kept.backend, **options) as site:
        for headers in ({"host": "flows.example.com"}, {"host": "127.0.0.1"}):
            with asked(site, "GET", "/wbe/login/oidc", headers) as answer:
                sent = parse_qs(urlsplit(answer.headers["location"]).query)
                assert sent["redirect_uri"] == ["https://flows.example.com/wbe/login/oidc/callback"]


def test_session_works_in_another_process_and_ends(
    settings: Settings, provider: IdentityProvider, monkeypatch: Any
) -> None:
    with settings.browser() as one, settings.browser({"label": "Example"}) as other:
        url = started(one)
        other.cookies = one.cookies
        signed_in = other.get(provider.sign_in(url))
        assert signed_in.status_code == 303
        one.cookies = other.cookies
        assert one.get("/").status_code == other.get("/").status_code == 200
    now = time.time()
    for seconds, status in ((12 * 3600 - 60, 200), (12 * 3600 + 1, 401)):
        clock = lambda seconds=seconds: now + seconds  # noqa: E731
        monkeypatch.setattr(Sessions.__init__, "__defaults__", (clock,))
        with settings.browser() as later:
            later.cookies = other.cookies
            assert later.get("/").status_code == status


def test_session_ends_if_rights_or_the_secret_change(
    settings: Settings, provider: IdentityProvider, browser: TestClient
) -> None:
    signed_in(browser, provider)
    (cookie,) = [each.value for each in browser.cookies.jar if each.path == "/"]
    assert cookie is not None
    names = set()
    for changes, status in (({}, 200), ({"roles": ROLES[1:]}, 401)):
        with settings.browser(changes) as other:
            key = parse_settings({**settings.table, **changes}).session_key
            name = Sessions(None, provider_key=key).cookie
            names.add(name)
            assert other.get("/", headers={"cookie": f"{name}={cookie}"}).status_code == status
    assert len(names) == 2


def test_changed_session_is_refused(
    settings: Settings, browser: TestClient, provider: IdentityProvider
) -> None:
    provider.claims["groups"] = ["staff"]
    signed_in(browser, provider)
    sessions = settings.sessions()
    good = browser.cookies.get(sessions.cookie, path="/")
    assert good is not None and sessions.visitor_of_cookie(good) == Visitor("oidc:ann", "viewer")
    text, mark, proof = good.split(".")
    other = Sessions(None, provider_key="x" * 64).new_provider_cookie(Visitor("oidc:eve"), 60)
    forged = f"{other.split('.')[0]}.{mark}.{proof}"
    for cookie in (forged, other, f"{text}.{mark}.", f"{text}.{mark}", f".{mark}.{proof}",
                   good.swapcase(), f"{mark}.{proof}", good[:-1]):  # fmt: skip
        assert sessions.visitor_of_cookie(cookie) is None
        headers = {"cookie": f"{sessions.cookie}={cookie}"}
        browser.cookies.clear()
        assert browser.get("/", headers=headers).status_code == 401


def test_each_sign_in_has_a_new_session(
    settings: Settings, browser: TestClient, provider: IdentityProvider
) -> None:
    """A cookie that an attacker planted in the browser is not continued."""
    name = settings.sessions().cookie
    cookies = {"planted"}
    browser.cookies.set(name, "planted", path="/")
    for _ in range(2):
        signed_in(browser, provider)
        cookies |= {each.value or "" for each in browser.cookies.jar if each.name == name}
    assert len(cookies) >= 3
    assert browser.get("/").status_code == 200


def test_two_tabs_can_sign_in(browser: TestClient, provider: IdentityProvider) -> None:
    one, two = started(browser, "/workers"), started(browser, "/queues")
    for url, path in ((one, "/workers"), (two, "/queues")):
        answer = browser.get(provider.sign_in(url))
        assert (answer.status_code, answer.headers["location"]) == (303, path)


def test_expired_session_ends_open_streams(
    kept: story.Kept, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_authentication, "RECHECK_SECONDS", 0.05)
    sessions = settings.sessions()
    site = dashboard.Site(kept.backend, port=0, oidc=settings.table)
    with serving(site):
        cookie = sessions.new_provider_cookie(Visitor("oidc:ann", "viewer"), 3.0)
        headers = {"cookie": f"{sessions.cookie}={cookie}"}
        with asked(site, "GET", "/stream/flows", headers) as answer:
            assert answer.status == 200
            assert answer.read()  # returns when the stream ends
        with asked(site, "GET", "/stream/flows", headers) as answer:
            assert answer.status == 401


# Rights. ------------------------------------------------------------------------------------------


def test_actions_are_logged_with_the_name_and_need_the_role_and_a_form(
    browser: TestClient,
    provider: IdentityProvider,
    audit: Callable[[], list[str]],
) -> None:
    provider.claims["groups"] = ["operators"]
    signed_in(browser, provider)
    token = token_in(browser.get("/pauses").text)
    fields = {"pattern": "shop.pay", "form_token": token}
    evil = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert send(browser, "/pauses/pause", fields, evil).status_code == 403
    stale = {**fields, "form_token": "0" * 64}
    assert send(browser, "/pauses/pause", stale).status_code == 403
    assert send(browser, "/pauses/pause", fields).status_code == 303
    assert audit()[-1] == "pause tasks 'shop.pay', from oidc:ann, operator, 192.0.2.5"
    (pause,) = browser.get("/api/v1/pauses").json()["pauses"]
    assert pause["by"] == "dashboard (oidc:ann, operator, 192.0.2.5)"
    assert send(browser, "/pauses/resume", fields).status_code == 303
    provider.claims["groups"] = ["staff"]
    signed_in(browser, provider)
    assert send(browser, "/pauses/pause", fields).status_code == 403


def test_tags_of_a_role_limit_the_flows(browser: TestClient, provider: IdentityProvider) -> None:
    provider.claims["groups"] = ["billing"]
    signed_in(browser, provider)
    page = browser.get("/")
    assert "team=billing" in page.text and "tr data-uuid" not in page.text
    assert 'href="/workers"' not in page.text
    assert browser.get("/workers").status_code == 403
    form = {"form_token": token_in(page.text)}
    assert send(browser, "/logout", form).status_code == 200


def test_queues_of_a_role_limit_the_flows(browser: TestClient, provider: IdentityProvider) -> None:
    provider.claims["groups"] = ["reporting"]
    signed_in(browser, provider)
    page = browser.get("/")
    assert "queue reports" in page.text and "No flows yet" in page.text
    assert browser.get("/workers").status_code == 403


def test_user_of_many_groups_has_a_small_cookie(
    settings: Settings, provider: IdentityProvider
) -> None:
    """Browsers ignore larger cookies, and then ask for a sign-in again and again."""
    tags = dict.fromkeys("abcdefg", "x" * 256)
    provider.claims["groups"] = [f"00000000-0000-0000-0000-{n:012}" for n in range(1_000)] + ["all"]
    provider.claims["preferred_username"] = "x" * 200
    with settings.browser({"roles": [{"value": "all", "role": "viewer", "tags": tags}]}) as browser:
        answer = signed_in(browser, provider)
        assert len(answer.headers["set-cookie"]) < 4_096
        assert browser.get("/").status_code == 200


def test_user_without_a_role_is_refused(
    browser: TestClient, provider: IdentityProvider, audit: Callable[[], list[str]]
) -> None:
    provider.claims["groups"] = ["<b>guests</b>"]
    answer = browser.get(provider.sign_in(started(browser)))
    refused(answer, "You have no access: no value in the claim .*&lt;b&gt;guests", 403)
    assert "no value in the claim 'groups'" in audit()[-1]
    assert browser.get("/").status_code == 401


def test_missing_claims_are_read_from_the_userinfo_endpoint(
    browser: TestClient, provider: IdentityProvider
) -> None:
    provider.claims = {}
    provider.user_claims = dict(ANN)
    signed_in(browser, provider)
    assert provider.requests.count("userinfo") == 1
    assert "oidc:ann" in browser.get("/").text
    provider.claims = dict(ANN)
    signed_in(browser, provider)
    assert provider.requests.count("userinfo") == 1


def test_signed_claims_take_precedence_over_the_userinfo_endpoint(
    browser: TestClient, provider: IdentityProvider, audit: Callable[[], list[str]]
) -> None:
    provider.claims = {"groups": ["staff"]}
    provider.user_claims = {"preferred_username": "ann", "groups": ["admins"]}
    signed_in(browser, provider)
    assert audit()[-1] == "sign-in of subject 'user-1', from oidc:ann, viewer, 192.0.2.5"


def test_claims_of_another_user_are_refused(
    browser: TestClient, provider: IdentityProvider
) -> None:
    provider.claims = {}
    provider.user_claims = {**ANN, "sub": "user-2"}
    refused(browser.get(provider.sign_in(started(browser))), "claims of another user")


def test_tokens_and_keys_remain_valid(
    kept: story.Kept, settings: Settings, provider: IdentityProvider
) -> None:
    key = _key_management.new(kept.backend, "for-oidc", "viewer").text
    with settings.browser(users=parse_users(FILE)) as browser:
        page = browser.get("/")
        assert "Sign in with 127.0.0.1" in page.text and 'id="token"' in page.text
        headers = bearer(key)
        assert browser.get("/api/v1/flows", headers=headers).status_code == 200
        assert send(browser, "/login", {"token": TOKENS["olga"]}).status_code == 303
        assert "olga" in browser.get("/").text
        signed_in(browser, provider)
        assert "oidc:ann" in browser.get("/").text
    with settings.browser() as browser:
        page = browser.get("/")
        assert page.status_code == 401 and 'id="token"' not in page.text
        assert browser.get("/api/v1/flows", headers=headers).status_code == 200
        assert browser.get("/api/v1/flows").status_code == 401
        assert send(browser, "/login", {"token": ""}).status_code == 401
        assert browser.get("/?token=").status_code == 401


# Sign-out. ----------------------------------------------------------------------------------------


def test_sign_out_ends_the_session_here_and_at_the_provider(
    browser: TestClient, provider: IdentityProvider, audit: Callable[[], list[str]]
) -> None:
    signed_in(browser, provider)
    form = {"form_token": token_in(browser.get("/").text)}
    assert send(browser, "/logout", {"form_token": "0" * 64}).status_code == 403
    evil = {"origin": "https://evil.example"}
    assert send(browser, "/logout", form, evil).status_code == 403
    assert browser.get("/logout").status_code == 405
    assert browser.get("/").status_code == 200
    answer = send(browser, "/logout", form)
    assert audit()[-1] == "sign-out, from oidc:ann, admin, 192.0.2.5"
    (url,) = re.findall(r'http-equiv="refresh" content="0; url=([^"]+)"', answer.text)
    parts = urlsplit(url.replace("&amp;", "&"))
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{provider.issuer}/end"
    assert parse_qs(parts.query) == {
        "x": ["1"],
        "client_id": [CLIENT],
        "post_logout_redirect_uri": [f"{story.HOST}/login"],
    }
    assert browser.get("/").status_code == 401


def test_sign_out_ends_the_session_without_the_provider(
    settings: Settings, provider: IdentityProvider
) -> None:
    provider.metadata["end_session_endpoint"] = None
    with settings.browser() as browser:
        signed_in(browser, provider)
        form = {"form_token": token_in(browser.get("/").text)}
        answer = send(browser, "/logout", form)
        assert answer.status_code == 200 and "http-equiv" not in answer.text
        assert browser.get("/").status_code == 401


def test_visitors_with_tokens_have_no_button_to_sign_out(settings: Settings) -> None:
    with settings.browser(token=story.TOKEN) as browser:
        browser.get("/", params={"token": story.TOKEN})
        page = browser.get("/")
        assert page.status_code == 200 and "Sign out" not in page.text


# Attacks. -----------------------------------------------------------------------------------------


def changed(url: str, **changes: str | None) -> str:
    """Return the URL with other parameters."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **changes}
    kept = {name: value for name, value in query.items() if value is not None}
    return parts._replace(query=urlencode(kept)).geturl()


def test_changed_or_missing_parameters_are_refused(
    browser: TestClient, provider: IdentityProvider
) -> None:
    url = provider.sign_in(started(browser))
    refused(browser.get(changed(url, state="x")), "did not start this sign-in")
    refused(browser.get(changed(url, state=None)), "must contain state once")
    refused(browser.get(f"{url}&state=x"), "must contain state once")
    refused(browser.get(changed(url, code=None)), "must contain code once")
    refused(browser.get(changed(url, iss="https://evil.example")), "must be from the provider")
    refused(browser.get("/login/oidc/callback"), "must contain state once")
    assert "token" not in provider.requests
    assert browser.get(changed(url, iss=provider.issuer)).status_code == 303


def test_sign_in_of_another_browser_is_refused(
    settings: Settings, browser: TestClient, provider: IdentityProvider
) -> None:
    """An attacker could otherwise sign a victim in as the attacker."""
    url = provider.sign_in(started(browser))
    with settings.browser() as victim:
        refused(victim.get(url), "started no sign-in at this address")
        started(victim)
        refused(victim.get(url), "did not start this sign-in")
    assert "token" not in provider.requests


def test_replayed_code_is_refused(browser: TestClient, provider: IdentityProvider) -> None:
    url = provider.sign_in(started(browser))
    assert browser.get(url).status_code == 303
    refused(browser.get(url), "refused the code of this sign-in.*invalid_grant")


def test_stolen_code_is_refused(
    settings: Settings, browser: TestClient, provider: IdentityProvider
) -> None:
    """The code of another browser has another PKCE challenge."""
    stolen = dict(parse_qsl(urlsplit(provider.sign_in(started(browser))).query))["code"]
    with settings.browser() as thief:
        url = provider.sign_in(started(thief))
        refused(thief.get(changed(url, code=stolen)), "refused the code")


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "nonce-of-another-sign-in"}, "nonce must be that of this sign-in"),
        ({"nonce": None}, "nonce must be that of this sign-in"),
        ({"aud": "another-client"}, "aud must contain"),
        ({"azp": "another-client"}, "azp must be"),
        ({"iss": "https://evil.example"}, "iss must be"),
        ({"exp": 1}, "it expired"),
        ({"iat": 9e9}, "iat is .* ahead"),
    ],
)
def test_invalid_token_is_refused(
    browser: TestClient, provider: IdentityProvider, claims: dict[str, Any], reason: str
) -> None:
    provider.claims |= claims
    refused(browser.get(provider.sign_in(started(browser))), reason)
    assert browser.get("/").status_code == 401


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "/\\evil", "\\\\evil", "https://evil.example", "/\t/evil.example",
     "javascript:alert(1)", "/login"],
)  # fmt: skip
def test_page_after_the_sign_in_is_on_this_host(
    browser: TestClient, provider: IdentityProvider, path: str
) -> None:
    assert signed_in(browser, provider, path).headers["location"] == "/"


def test_failed_sign_ins_are_limited(
    browser: TestClient, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 3)
    url = provider.sign_in(started(browser))
    for _ in range(3):
        refused(browser.get(changed(url, code="x")), "refused the code")
    answer = browser.get(url)
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
    assert provider.requests.count("token") == 3


def test_pages_of_other_sites_cannot_block_sign_ins(
    browser: TestClient, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 2)
    url = provider.sign_in(started(browser))
    for _ in range(5):
        assert browser.get("/login/oidc/callback?state=x&code=x").status_code == 401
        assert browser.get("/login/oidc/callback").status_code == 401
    assert browser.get(url, follow_redirects=False).status_code == 303


def test_secrets_appear_in_no_log(
    browser: TestClient, provider: IdentityProvider, log: Callable[[], str]
) -> None:
    url = provider.sign_in(started(browser))
    code = dict(parse_qsl(urlsplit(url).query))["code"]
    browser.get(url)
    browser.get(url)
    assert SECRET not in log() and code not in log() and "eyJ" not in log()


# Providers that do not work. ----------------------------------------------------------------------


def test_dashboard_works_without_the_provider(
    kept: story.Kept,
    secret_file: str,
    monkeypatch: pytest.MonkeyPatch,
    audit: Callable[[], list[str]],
) -> None:
    monkeypatch.setattr(_oidc_provider, "RETRY_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = Settings(kept, f"http://127.0.0.1:{port}", secret_file)
    with settings.browser(token=story.TOKEN) as browser:
        assert browser.get("/login").status_code == 200
        for _ in range(2):
            answer = browser.get("/login/oidc")
            refused(answer, f"The sign-in service 127.0.0.1:{port} cannot be reached", 503)
        assert "cannot be reached" in audit()[0]
        assert send(browser, "/login", {"token": story.TOKEN}).status_code == 303
        assert browser.get("/").status_code == 200
        with socket.create_server(("127.0.0.1", port)) as listener:
            later = IdentityProvider(port)
            later.claims = dict(ANN)
            with providers.serving(later, listener):
                signed_in(browser, later)


def test_unreachable_provider_is_not_contacted_for_each_request(
    kept: story.Kept, secret_file: str
) -> None:
    contacts = []

    def refuse(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                contacts.append(1)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,), daemon=True)
        thread.start()
        settings = Settings(kept, f"http://127.0.0.1:{listener.getsockname()[1]}", secret_file)
        with settings.browser() as browser:
            for _ in range(5):
                refused(browser.get("/login/oidc"), "cannot be reached", 503)
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert contacts == [1]


def test_silent_provider_does_not_block_other_pages(kept: story.Kept, secret_file: str) -> None:
    """Also with more sign-ins than threads that render pages."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        settings = Settings(kept, f"http://127.0.0.1:{listener.getsockname()[1]}", secret_file)
        site = dashboard.Site(kept.backend, port=0, oidc=settings.table)
        with serving(site), contextlib.ExitStack() as opened:
            address = urlsplit(site.address)
            for _ in range(50):
                where = (str(address.hostname), address.port)
                waiting = opened.enter_context(socket.create_connection(where))
                waiting.sendall(b"GET /login/oidc HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            contact, _ = listener.accept()  # the provider was asked
            with asked(site, "GET", "/login", {}) as answer:
                assert answer.status == 200
            contact.close()
            assert b" 503 " in waiting.recv(1_000)


def test_slow_provider_is_reported(
    kept: story.Kept, secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_oidc_provider, "_REQUEST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = Settings(kept, f"http://127.0.0.1:{listener.getsockname()[1]}", secret_file)
        with settings.browser() as browser:
            refused(browser.get("/login/oidc"), "cannot be reached", 503)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"issuer": "https://evil.example"}, "issuer of the provider must be"),
        ({"issuer": "SLASH"}, "a slash at the end counts"),
        ({"issuer": None}, "issuer of the provider must be"),
        ({"token_endpoint": None}, "token_endpoint of the provider must be a URL"),
        ({"token_endpoint": "http://192.0.2.1/token"}, "must be a URL of https"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri of the provider must be a URL of https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "must be a URL of https"),
        ({"end_session_endpoint": "//evil"}, "end_session_endpoint of the provider must be"),
        ({"token_endpoint": "https://login.example.com:99999/"}, "token_endpoint of the provider"),
    ],
)
def test_wrong_description_is_reported(
    browser: TestClient, provider: IdentityProvider, metadata: dict[str, Any], reason: str
) -> None:
    if metadata.get("issuer") == "SLASH":
        metadata = {"issuer": f"{provider.issuer}/"}
    provider.metadata = metadata
    refused(browser.get("/login/oidc"), reason, 503)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (JSONResponse({"error": "invalid_client"}, 401), "check client_id and the client secret"),
        (JSONResponse({"error": "unauthorized_client"}, 400), "check client_id"),
        (JSONResponse({}), "sent no ID token"),
        (JSONResponse([]), "must answer with a JSON object"),
        (PlainTextResponse("<html>", 502), "must answer with a JSON object, got status: 502"),
        (PlainTextResponse(" " * 1_100_000), "is too long"),
        (PlainTextResponse('{"id_token":' + "[" * 100_000), "must answer with a JSON object"),
        (RedirectResponse("http://127.0.0.1:1/"), "must answer with a JSON object"),
    ],
)
def test_wrong_response_to_the_code_is_reported(
    browser: TestClient,
    provider: IdentityProvider,
    response: Any,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider.token_response = lambda: response
    monkeypatch.setattr(_failed_attempts, "MAX_FAILURES", 1)
    for _ in range(2):  # does not count as a failure of the browser
        refused(browser.get(provider.sign_in(started(browser))), reason, 503)


def test_denied_sign_in_is_reported(browser: TestClient, provider: IdentityProvider) -> None:
    url = changed(provider.sign_in(started(browser)), code=None, error="access_denied")
    refused(browser.get(url), "did not sign you in: access_denied")


def test_secret_is_sent_in_the_form_if_the_provider_requires_it(
    settings: Settings, provider: IdentityProvider
) -> None:
    provider.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    with settings.browser() as browser:
        signed_in(browser, provider)


def test_new_keys_are_read_once(
    browser: TestClient, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(browser, provider)
    signed_in(browser, provider)
    assert provider.requests.count("keys") == provider.requests.count("description") == 1
    provider.key = jwk.generate_key("RSA", 2048, {"kid": providers.KEY_ID})
    refused(browser.get(provider.sign_in(started(browser))), "no key of the provider verifies")
    assert provider.requests.count("keys") == 1  # the latest request was too recent
    monkeypatch.setattr(_oidc_provider, "RETRY_SECONDS", 0.0)
    signed_in(browser, provider)
    assert provider.requests.count("keys") == 2


def test_no_auth_excludes_the_sign_in(kept: story.Kept, settings: Settings) -> None:
    with pytest.raises(ValueError, match="no_auth cannot be used with oidc"):
        dashboard.Site(kept.backend, no_auth=True, oidc=settings.table)
