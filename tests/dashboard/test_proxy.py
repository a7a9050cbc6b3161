"""Dashboards below a path, and behind a proxy with TLS and a public name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import bearer
from tests.dashboard.site import asked, running
from wbengine import dashboard
from wbengine._cli import app
from wbengine.dashboard import create_app

NAME = "flows.example.com"
#: Headers that nginx sends in the guide.
PROXY = {"host": NAME, "x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.7"}
FORM = {"content-type": "application/x-www-form-urlencoded", "origin": f"https://{NAME}"}


@pytest.fixture(scope="module")
def site(kept: story.Kept) -> Iterator[dashboard.Site]:
    with running(kept.backend, allow_hosts=["Flows.Example.com."], url_prefix="/wbe") as proxied:
        yield proxied


def status(site: dashboard.Site, *request: Any) -> int:
    with asked(site, *request) as answer:
        return answer.status


def test_only_allowed_host_names_are_accepted(site: dashboard.Site) -> None:
    for name in (NAME, f"{NAME}:8443", f"{NAME}.", "localhost"):
        assert status(site, "GET", "/wbe/livez", {"host": name}) == 200, name
    for name in ("evil.example", f"{NAME}.evil.example", f"evil.{NAME}", "192.0.2.1"):
        assert status(site, "GET", "/wbe/livez", {"host": name}) == 421, name


def test_cookie_is_secure_behind_tls(site: dashboard.Site) -> None:
    path = f"/wbe/?token={story.TOKEN}"
    with asked(site, "GET", path, PROXY) as answer:
        assert answer.status == 303 and answer.headers["location"] == "/wbe/"
        assert {"Secure", "HttpOnly"} <= {
            part.strip() for part in answer.headers["set-cookie"].split(";")
        }
    with asked(site, "GET", path, {"host": NAME}) as plain:
        assert "Secure" not in plain.headers["set-cookie"]


def test_form_must_originate_from_the_public_name(site: dashboard.Site) -> None:
    """The proxy must forward the name that the browser requested."""
    body = f"token={story.TOKEN}"
    path = "/wbe/login"
    assert status(site, "POST", path, {**PROXY, **FORM}, body) == 303
    away = {**PROXY, **FORM, "origin": "https://evil.example"}
    assert status(site, "POST", path, away, body) == 403
    assert status(site, "POST", path, {**FORM, "host": "127.0.0.1:8585"}, body) == 403


def test_audit_names_the_client_of_a_trusted_proxy(
    site: dashboard.Site, kept: story.Kept, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="wbengine.audit")
    for forwarded in ("192.0.2.7", "some words, 192.0.2.8", "not an address"):
        status(
            site,
            "POST",
            "/wbe/login",
            {**PROXY, **FORM, "x-forwarded-for": forwarded},
            "token=wrong",
        )
    with running(kept.backend) as other:  # without a trusted proxy
        there = {"x-forwarded-for": "192.0.2.9", **FORM, "origin": other.address.rstrip("/")}
        status(other, "POST", "/login", there, "token=wrong")
    assert [record.getMessage() for record in caplog.records] == [
        "login refused, from 192.0.2.7",
        "login refused, from 192.0.2.8",
        "login refused, from unknown address",
        "login refused, from 127.0.0.1",
    ]


def test_streams_disable_proxy_buffering(site: dashboard.Site) -> None:
    headers = {**PROXY, "authorization": f"Bearer {story.TOKEN}"}
    with asked(site, "GET", "/wbe/stream/flows", headers) as answer:
        assert answer.headers["x-accel-buffering"] == "no"


def test_allow_hosts_requires_authentication(kept: story.Kept) -> None:
    with pytest.raises(ValueError, match="no_auth cannot be used with allow_hosts"):
        dashboard.Site(kept.backend, no_auth=True, allow_hosts=[NAME])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("https://flows.example.com/x", "flows.example.com"),
        ("flows.example.com:443", "flows.example.com"),
        ("*.example.com", None),
        ("*", None),
        ("", None),
        ("a b", None),
        ("-x.example", None),
        ("x" * 300, None),
    ],
)
def test_invalid_host_name_is_refused(name: str, meant: str | None) -> None:
    with pytest.raises(ValueError, match="must be a host name such as") as refused:
        dashboard.check_host(name)
    assert (f"did you mean {meant}?" in str(refused.value)) == (meant is not None)


def test_command_reports_an_invalid_host_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["dashboard", "--allow-host", "flows.example.com:443"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--allow-host" in line and "did you mean flows.example.com?" in line


#: Also a path inside the app, so that the prefix cannot be guessed from a path.
PREFIX = "/flows"


def made(kept: story.Kept, **options: Any) -> Any:
    return create_app(kept.backend, token=story.TOKEN, **options)


def mounted(at: str, app: Any) -> Any:
    return Starlette(routes=[Mount(at, app)])


def check(browser: TestClient, kept: story.Kept, outside: str, *, sent: str | None = None) -> None:
    """Check that all URLs start with `outside` if requests arrive below `sent`."""
    sent = outside if sent is None else sent
    answer = browser.get(f"{sent}/?token={story.TOKEN}", follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == f"{outside}/"
    assert f"path={outside}/;" in answer.headers["set-cookie"].lower() + ";"
    page = browser.get(f"{sent}/", headers=bearer())
    assert page.status_code == 200 and f'href="{outside}/workers"' in page.text
    assert f'rel="stylesheet" href="{outside}/static/dashboard.css?' in page.text
    flow = f"/flows/{kept.uuids['good']}"
    assert browser.get(f"{sent}{flow}", headers=bearer()).status_code == 200
    assert f'href="{outside}{flow}"' in page.text
    assert browser.get(f"{sent}/livez").status_code == 200
    assert browser.get(f"{sent}/static/graph.css").status_code == 200
    assert browser.get(f"{sent}{PREFIX}{PREFIX}/livez", headers=bearer()).status_code == 404


@pytest.mark.parametrize("given", ["", PREFIX, f"{PREFIX}/"])
def test_app_is_mounted_with_and_without_prefix(kept: story.Kept, given: str) -> None:
    app = mounted(PREFIX, made(kept, url_prefix=given))
    with TestClient(app, base_url=story.HOST) as browser:
        check(browser, kept, PREFIX)


@pytest.mark.parametrize("given", [PREFIX, f"/tools{PREFIX}"])
def test_app_is_mounted_in_a_mounted_app(kept: story.Kept, given: str) -> None:
    app = mounted("/tools", mounted(PREFIX, made(kept, url_prefix=given)))
    with TestClient(app, base_url=story.HOST) as browser:
        check(browser, kept, f"/tools{PREFIX}")


@pytest.mark.parametrize("at", ["/tools", f"/my{PREFIX[1:]}"])
def test_prefix_is_appended_to_another_mount_path(kept: story.Kept, at: str) -> None:
    app = mounted(at, made(kept, url_prefix=PREFIX))
    with TestClient(app, base_url=story.HOST) as browser:
        check(browser, kept, f"{at}{PREFIX}")


def test_proxy_may_keep_the_prefix(kept: story.Kept) -> None:
    with TestClient(made(kept, url_prefix=PREFIX), base_url=story.HOST) as browser:
        check(browser, kept, PREFIX)


@pytest.mark.parametrize(("prefix", "sent"), [(PREFIX, PREFIX), ("/dash", "/dash"), ("/dash", "")])
@pytest.mark.parametrize("is_told", [False, True])
def test_proxy_may_strip_the_prefix_if_root_path_is_set(
    kept: story.Kept, prefix: str, sent: str, is_told: bool
) -> None:
    """Servers with a `root_path` prepend it to the path or leave that to the application."""
    app = made(kept, url_prefix=prefix if is_told else "")
    with TestClient(app, base_url=story.HOST, root_path=prefix) as browser:
        check(browser, kept, prefix, sent=sent)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/", "/livez", "/dashes/livez", "/<script>"])
def test_stripped_prefix_without_root_path_is_reported(
    kept: story.Kept, method: str, path: str
) -> None:
    with TestClient(made(kept, url_prefix="/dash"), base_url=story.HOST) as browser:
        answer = browser.request(method, path)
        assert answer.status_code == 404
        (line,) = answer.text.splitlines()
        assert "the dashboard is at /dash/" in line and "proxy" in line and "script" not in line
        assert answer.headers["content-type"].startswith("text/plain")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("given", ["flows", "https://x.example/y", "//x", "/a//b", "/a?b", "/a b"])
def test_invalid_prefix_is_refused(kept: story.Kept, given: str) -> None:
    with pytest.raises(ValueError, match=r"url_prefix must be a path such as '/flows'"):
        made(kept, url_prefix=given)
