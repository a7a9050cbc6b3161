"""Attacks: scripts in names, paths, queries and forms; leaked secrets."""

from __future__ import annotations

import asyncio
import contextlib
import html.parser
import re
import socket
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.cli import hostile
from tests.dashboard import story
from tests.dashboard.conftest import admitted, client, refused
from tests.dashboard.routes import everything
from tests.dashboard.site import PATIENCE, running
from tests.support.waiting import until
from tests.views import records
from wbengine.dashboard import _audited_actions, _flow_cache, _stream
from wbengine.persistence import models
from wbengine.types import _outline as outlines
from wbengine.views import watcher


class Elements(html.parser.HTMLParser):
    """Parser that collects the elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def pages(kept: story.Kept, browser: TestClient) -> list[str]:
    """Return all paths that show the stored flows, including atoms."""
    paths = [path for path in everything(kept) if "stream" not in path]
    for uuid in kept.uuids.values():
        data = browser.get(f"/api/v1/flows/{uuid}").json()
        paths += [f"/flows/{uuid}/atoms/{atom['uuid']}" for atom in data["atoms"]]
        paths += [f"/flows/{uuid}/failures", f"/flows/{uuid}/events", f"/flows/{uuid}?part=head"]
    return [*paths, "/?part=rows", "/workers?part=rows", "/?name=<script>", "/?state=<script>"]


def are_texts(kept: story.Kept, escaped: str, **options: Any) -> int:
    """Check that texts are never markup; return the number of pages that contain `escaped`."""
    seen = 0
    with client(kept, allow_actions=True, **options) as browser:
        for path in pages(kept, admitted(browser)):
            answer = browser.get(path)
            assert answer.status_code in (200, 400, 403, 404), path
            if not answer.headers["content-type"].startswith("text/html"):
                continue
            assert story.SCRIPT not in answer.text, path
            seen += escaped in answer.text
            for tag, attributes in Elements(answer.text).found:
                assert tag != "img" and (tag != "script" or attributes.get("src")), path
                assert not [name for name in attributes if name.startswith("on")], path
    return seen


@pytest.mark.parametrize("show_values", [False, True])
def test_names_results_and_tracebacks_are_escaped(kept: story.Kept, show_values: bool) -> None:
    assert are_texts(kept, "&lt;script&gt;alert(", show_values=show_values) > 5


@pytest.mark.parametrize("show_values", [False, True])
def test_secrets_appear_on_no_page(
    kept: story.Kept, show_values: bool, log: Callable[[], str]
) -> None:
    with client(kept, show_values=show_values, allow_actions=True) as browser:
        seen = 0
        for path in pages(kept, admitted(browser)):
            answer = browser.get(path)
            assert story.CANARY not in answer.text, path
            assert story.CANARY not in str(answer.headers), path
            seen += "cannot log in" in answer.text
        assert seen > 2, "the failure is to be seen, without its secret"
    assert story.CANARY not in log()
    assert story.TOKEN not in log()


@pytest.mark.parametrize("show_values", [False, True])
def test_no_response_contains_control_characters(show_values: bool) -> None:
    hostile_flows = story.Kept()
    hostile_flows.run("leaking", hostile.flow())
    hostile_flows.run("published", hostile.published())
    query = urllib.parse.quote(hostile.ORDERS)
    with client(hostile_flows, show_values=show_values, allow_actions=True) as browser:
        paths = pages(hostile_flows, admitted(browser))
        paths += [f"{url}{query}" for url in ("/", "/?find=", "/?state=", "/api/v1/flows?after=")]
        paths += [f"/api/v1/flows/{hostile_flows.uuids['leaking']}/logs?task={query}"]
        for path in [*paths, f"/api/v1/flows?state={query}", "/schedules", "/pauses"]:
            answer = browser.get(path)
            assert not hostile.CONTROLS.search(answer.content.decode()), path
            assert not hostile.CONTROLS.search(str(answer.headers)), path
        listed = browser.get("/api/v1/flows").json()["flows"]
    assert f"flow {hostile.ORDERS}" in [flow["name"] for flow in listed]
    event = _stream._event({"name": hostile.ORDERS}, None).decode()
    assert not hostile.CONTROLS.search(event.replace("\r\n", "\n"))


async def ask(browser: TestClient, path: str) -> tuple[int, dict[str, str], str]:
    """Send a request as a server would: HTTP clients resolve dots before sending."""
    plain = urllib.parse.unquote(path.partition("?")[0])
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    headers = [(b"host", b"127.0.0.1:8585"), (b"cookie", cookies.encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": plain, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1),
    }  # fmt: skip
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await browser.app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in messages)
    told = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return messages[0]["status"], told, body.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/flows/..%2f..%2fetc%2fpasswd",
        "/flows/../../etc/passwd",
        "/flows/00000000-0000-0000-0000-00000000000g",
        "/flows/' OR 1=1 --",
        "/flows/%00",
        "/flows/{uuid}/../../workers",
        "/flows/{uuid}/atoms/..",
        "/flows/{uuid}/atoms/%2e%2e%2f",
        "/flows/{uuid}%0d%0aset-cookie: x=1",
        "/api/v1/flows/..",
        "/api/v1/flows/{uuid}/events/../../../../etc",
        "/static/../desk.py",
        "/static/..%2fdesk.py",
        "/static/%2e%2e/desk.py",
        "/static/....//desk.py",
        "/static/vendor/../../desk.py",
        "/static//etc/passwd",
        "/static/%5c..%5cdesk.py",
        "/templates/base.html",
        "//evil.example/",
    ],
)
def test_path_traversal_is_refused(kept: story.Kept, guest: TestClient, path: str) -> None:
    path = path.replace("{uuid}", kept.uuids["good"])
    status, headers, text = asyncio.run(ask(guest, path))
    assert status in (400, 404), path
    assert "root:" not in text and "import" not in text
    assert "x=1" not in headers.get("set-cookie", "")


def test_unknown_flow_is_not_found(guest: TestClient) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    for path in (f"/flows/{unknown}", f"/flows/{unknown}/graph", f"/flows/{unknown}/stream"):
        assert guest.get(path).status_code == 404
    response = guest.get(f"/api/v1/flows/{unknown}")
    assert response.status_code == 404 and response.json()["schema"] == "wbengine/error/1"


@pytest.mark.parametrize(
    "query",
    [
        "state=NOTHING",
        "engine=nothing",
        "queue=a+b",
        "since=forever",
        "limit=0",
        "limit=100000",
        "limit=x",
        "after=%7B%7D",
    ],
)
def test_invalid_query_is_refused(guest: TestClient, query: str) -> None:
    name = query.partition("=")[0]
    for path in ("/", "/api/v1/flows"):
        refused(guest.get(f"{path}?{query}"), 400, name)


def test_deeply_nested_cursor_is_refused(guest: TestClient) -> None:
    for path in ("/", "/api/v1/flows", "/stream/flows"):
        refused(guest.get(path, params={"after": "[" * 5_000}), 400, "after")


def test_head_request_of_flow_stream_closes_its_watcher(
    kept: story.Kept, guest: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[watcher.FlowWatcher] = []
    ended: list[watcher.FlowWatcher] = []
    watch, close = _flow_cache.Store.watch, watcher.FlowWatcher.close

    def begin(*given: Any) -> watcher.FlowWatcher:
        begun.append(watch(*given))
        return begun[-1]

    def end(each: watcher.FlowWatcher) -> None:
        ended.append(each)
        close(each)

    monkeypatch.setattr(_flow_cache.Store, "watch", begin)
    monkeypatch.setattr(watcher.FlowWatcher, "close", end)
    assert guest.head(f"/flows/{kept.uuids['good']}/stream").status_code == 200
    # A poll in progress completes first.
    until(lambda: ended == begun)
    assert len(begun) == 1


def test_incomplete_form_is_refused_after_a_timeout(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has no token."""
    monkeypatch.setattr(_audited_actions, "BODY_SECONDS", 0.2)
    with running(kept.backend) as site:
        where = urllib.parse.urlsplit(site.address)
        with socket.create_connection((where.hostname, where.port), PATIENCE) as connection:
            connection.sendall(
                f"POST /login HTTP/1.1\r\nHost: {where.netloc}\r\n"
                f"Origin: http://{where.netloc}\r\nContent-Length: 100\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=".encode()
            )
            assert b" 408 " in connection.recv(1000).split(b"\r\n")[0]


BAD = f'x" onload="alert(1)"><img src=x onerror=alert(1)>{story.SCRIPT}'


def test_every_text_of_a_record_is_escaped() -> None:
    """A store may contain any text for workers, states, reasons and commands."""
    flows = story.Kept()
    detail, outline = records.order("SUSPENDED")
    detail.name = BAD
    detail.enter("SUSPENDED", records.T, why=BAD)
    detail.meta["x"] = BAD
    for number, atom in enumerate(detail):
        atom.name += BAD
        atom.worker = BAD
        if number == 3:
            atom.state = BAD
        if number == 4:
            atom.put("FAILURE", records.failure(BAD, BAD))
    nodes = tuple(
        node._replace(name=node.name + BAD, task=BAD, notes=BAD) for node in outline.nodes
    )
    book = models.LogBook(BAD)
    book.add(detail)
    with contextlib.closing(flows.backend.get_connection()) as connection:
        connection.save_logbook(book)
        connection.save_outline(detail.uuid, outlines.Outline(nodes, outline.edges))
    flows.uuids |= {"good": detail.uuid, "leaking": detail.uuid}
    assert are_texts(flows, "&lt;img src=x", show_values=True) > 8


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_http_methods_are_refused(kept: story.Kept, guest: TestClient, method: str) -> None:
    for path in ("/", f"/flows/{kept.uuids['good']}", "/api/v1/flows"):
        answer = guest.request(method, path, headers={"origin": "http://evil.example"})
        assert answer.status_code == 405
        assert not re.search("access-control", str(answer.headers), re.IGNORECASE)
