"""Below a path: mounted, prefixed, both, and behind proxies that leave the path or take it away."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from tests.dashboard import story
from wbengine.dashboard import create_app

#: Also the name of pages inside, so that nobody can guess from a path what is before it.
PREFIX = "/flows"


def made(kept: story.Kept, **options: Any) -> Any:
    return create_app(kept.backend, token=story.TOKEN, **options)


def mounted(at: str, app: Any) -> Any:
    return Starlette(routes=[Mount(at, app)])


def check(browser: TestClient, kept: story.Kept, outside: str, *, sent: str | None = None) -> None:
    """All is `outside`, while requests say that they are for what is below `sent`."""
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
def test_it_is_mounted_with_and_without_a_prefix(kept: story.Kept, given: str) -> None:
    app = mounted(PREFIX, made(kept, url_prefix=given))
    with TestClient(app, base_url=story.HOST) as browser:
        check(browser, kept, PREFIX)


@pytest.mark.parametrize("given", [PREFIX, f"/tools{PREFIX}"])
def test_it_is_mounted_in_what_is_mounted(kept: story.Kept, given: str) -> None:
    app = mounted("/tools", mounted(PREFIX, made(kept, url_prefix=given)))
    with TestClient(app, base_url=story.HOST) as browser:
        check(browser, kept, f"/tools{PREFIX}")


@pytest.mark.parametrize("at", ["/tools", f"/my{PREFIX[1:]}"])
def test_a_prefix_below_another_mount_is_one_more(kept: story.Kept, at: str) -> None:
    app = mounted(at, made(kept, url_prefix=PREFIX))
    with TestClient(app, base_url=story.HOST) as browser:
        check(browser, kept, f"{at}{PREFIX}")


def test_a_proxy_leaves_the_prefix(kept: story.Kept) -> None:
    with TestClient(made(kept, url_prefix=PREFIX), base_url=story.HOST) as browser:
        check(browser, kept, PREFIX)


@pytest.mark.parametrize(("prefix", "sent"), [(PREFIX, PREFIX), ("/dash", "/dash"), ("/dash", "")])
@pytest.mark.parametrize("is_told", [False, True])
def test_a_proxy_takes_the_prefix_and_the_server_knows(
    kept: story.Kept, prefix: str, sent: str, is_told: bool
) -> None:
    """Servers with a `root_path` put it before the path again, or leave it to the application."""
    app = made(kept, url_prefix=prefix if is_told else "")
    with TestClient(app, base_url=story.HOST, root_path=prefix) as browser:
        check(browser, kept, prefix, sent=sent)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/", "/livez", "/dashes/livez", "/<script>"])
def test_a_proxy_takes_the_prefix_and_nobody_knows(
    kept: story.Kept, method: str, path: str
) -> None:
    with TestClient(made(kept, url_prefix="/dash"), base_url=story.HOST) as browser:
        answer = browser.request(method, path)
        assert answer.status_code == 404
        (line,) = answer.text.splitlines()
        assert "below /dash/" in line and "proxy" in line and "script" not in line
        assert answer.headers["content-type"].startswith("text/plain")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("given", ["flows", "https://x.example/y", "//x", "/a//b", "/a?b", "/a b"])
def test_what_is_no_path_is_told(kept: story.Kept, given: str) -> None:
    with pytest.raises(ValueError, match=r"url_prefix='.* is no path such as '/flows'"):
        made(kept, url_prefix=given)
