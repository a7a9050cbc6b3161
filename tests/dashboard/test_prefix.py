"""Dashboards below a path: mounted, prefixed, and behind proxies that keep or strip the path."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.dashboard import story
from wbengine.dashboard import create_app

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
    bearer = {"authorization": f"Bearer {story.TOKEN}"}
    page = browser.get(f"{sent}/", headers=bearer)
    assert page.status_code == 200 and f'href="{outside}/workers"' in page.text
    assert f'rel="stylesheet" href="{outside}/static/dashboard.css?' in page.text
    flow = f"/flows/{kept.uuids['good']}"
    assert browser.get(f"{sent}{flow}", headers=bearer).status_code == 200
    assert f'href="{outside}{flow}"' in page.text
    assert browser.get(f"{sent}/livez").status_code == 200
    assert browser.get(f"{sent}/static/graph.css").status_code == 200
    assert browser.get(f"{sent}{PREFIX}{PREFIX}/livez", headers=bearer).status_code == 404


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
