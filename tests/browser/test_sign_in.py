"""Sign-in with OpenID Connect in a browser, at a provider of another site."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import SIZE, accessible
from tests.dashboard.site import running
from tests.support.browsers import PATIENCE
from tests.support.server_kinds import free_port
from tests.support.waiting import until
from wbengine.dashboard import Site
from wbengine.persistence.backends import _memory

SECRET = "a-secret-of-the-client"
PEOPLE = (
    {"sub": "1-ann", "preferred_username": "ann", "groups": ["staff", "flow-admins"]},
    {"sub": "2-victor", "preferred_username": "victor", "groups": ["staff"]},
    {"sub": "3-bill", "preferred_username": "bill", "groups": ["billing"]},
    {"sub": "4-eve", "preferred_username": "eve", "groups": []},
    {"sub": "5-nils", "preferred_username": "nils"},
)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider. Browsers treat localhost and 127.0.0.1 as different sites."""
    port = free_port()
    people = (word for person in PEOPLE for word in ("--user-claims", json.dumps(person)))
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port),
               "--require-nonce", *people]  # fmt: skip
    url = f"http://localhost:{port}"

    def answers() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/.well-known/openid-configuration", timeout=10).close()
            return True
        return False

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            until(answers, 30)
            yield url
        finally:
            process.kill()


class Dashboards:
    """Dashboards with the same settings."""

    def __init__(self, issuer: str, secret_file: Path) -> None:
        self.backend = _memory.MemoryBackend()
        self.port = free_port()
        self.oidc: dict[str, Any] = {
            "issuer": issuer,
            "client_id": "wbengine",
            "client_secret_file": str(secret_file),
            "dashboard_url": f"http://127.0.0.1:{self.port}",
            "label": "Example",
            "roles": [
                {"value": "flow-admins", "role": "admin"},
                {"value": "billing", "role": "operator", "tags": {"team": "billing"}},
                {"value": "staff", "role": "viewer"},
            ],
        }

    def running(self, port: int = 0, **options: Any) -> contextlib.AbstractContextManager[Site]:
        return running(self.backend, port, oidc=self.oidc, allow_actions=True, **options)


@pytest.fixture(scope="module")
def dashboards(issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Dashboards:
    secret_file = tmp_path_factory.mktemp("oidc") / "secret"
    secret_file.write_text(SECRET)
    return Dashboards(issuer, secret_file)


@pytest.fixture(scope="module")
def site(dashboards: Dashboards) -> Iterator[Site]:
    with dashboards.running(dashboards.port) as site:
        yield site


@pytest.fixture
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A browser without cookies. The test fails if a page violates the content security policy."""
    problems: list[str] = []
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(PATIENCE)
    context.on("console", lambda message: problems.append(message.text))
    yield context
    context.close()
    assert [text for text in problems if "Content Security Policy" in text] == []


def sign_in(page: Page, site: Site, person: str, path: str = "") -> None:
    page.goto(f"{site.address}{path}")
    page.get_by_role("link", name="Sign in with Example").click()
    page.get_by_role("button", name=person).click()


def test_person_signs_in_acts_and_signs_out(
    site: Site, window: BrowserContext, issuer: str, dashboards: Dashboards
) -> None:
    page = window.new_page()
    page.goto(f"{site.address}pauses?sort=name")
    expect(page.get_by_label("Token")).to_be_visible()
    accessible(page)
    page.get_by_role("link", name="Sign in with Example").click()
    assert page.url.startswith(f"{issuer}/oauth2/authorize?")
    page.get_by_role("button", name="1-ann").click()
    expect(page.get_by_text("oidc:ann · Actions allowed")).to_be_visible()
    assert page.url == f"{site.address}pauses?sort=name"
    accessible(page)
    page.get_by_role("textbox", name="Task type").fill("shop.pay")
    page.get_by_role("button", name="Pause", exact=True).click()
    row = page.locator("#pauses tbody tr")
    expect(row).to_contain_text("dashboard (oidc:ann, admin, 127.0.0.1)")
    row.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("No task types are paused")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="End session").click()
    expect(page).to_have_url(f"{site.address}login")
    page.goto(site.address)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_link_from_another_site_opens_the_page(
    site: Site, window: BrowserContext, issuer: str
) -> None:
    """The browser sends the cookie of the session, although the link is on another site."""
    page = window.new_page()
    sign_in(page, site, "2-victor")
    expect(page.get_by_text("oidc:victor")).to_be_visible()
    page.goto(f"{issuer}/")
    page.evaluate("url => { location.href = url }", f"{site.address}workers")
    expect(page.get_by_text("oidc:victor")).to_be_visible()


@pytest.mark.parametrize(
    ("person", "reason"),
    [
        ("4-eve", "You have no access: no value in the claim 'groups' has a role"),
        ("5-nils", "The provider sent no claim 'groups'"),
        ("Deny", "The response of the provider must contain state once"),
    ],
)
def test_refused_person_sees_the_reason(
    site: Site, window: BrowserContext, person: str, reason: str
) -> None:
    page = window.new_page()
    sign_in(page, site, person)
    expect(page.get_by_text(reason)).to_be_visible()
    accessible(page)
    page.goto(site.address)
    expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()


@pytest.mark.slow
def test_copied_link_of_a_sign_in_is_refused(
    site: Site, window: BrowserContext, browser: Browser
) -> None:
    """An attacker would send the link, to sign a victim in as the attacker."""
    page = window.new_page()
    page.goto(f"{site.address}login/oidc")
    answer = window.request.post(page.url, form={"sub": "1-ann"}, max_redirects=0)
    link = answer.headers["location"]
    assert link.startswith(f"{site.address}login/oidc/callback?code=")
    with contextlib.closing(browser.new_context()) as victim:
        other = victim.new_page()
        other.goto(link)
        expect(other.get_by_text("This browser started no sign-in")).to_be_visible()
        other.goto(f"{site.address}login/oidc")
        other.goto(link)
        expect(other.get_by_text("This browser did not start this sign-in")).to_be_visible()
        other.goto(site.address)
        expect(other.get_by_role("link", name="Sign in with Example")).to_be_visible()
    page.goto(link)  # the code was not used
    expect(page.get_by_text("oidc:ann")).to_be_visible()
