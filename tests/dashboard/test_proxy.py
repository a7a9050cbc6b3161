"""A dashboard behind a proxy with TLS and a public name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.site import asked, running
from wbengine import dashboard
from wbengine._cli import app

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
