"""Dashboards that listen on a port, and their event streams."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from tests.dashboard import story
from wbengine.dashboard import Site

#: Timeout in seconds for a server and its responses; only a hang reaches it.
PATIENCE = 60


@contextlib.contextmanager
def running(backend: Any, at_port: int = 0, **options: Any) -> Iterator[Site]:
    """Run a dashboard in a thread; it has ended when the context exits."""
    site = Site(backend, port=at_port, token=story.TOKEN, **options)
    with serving(site):
        yield site


@contextlib.contextmanager
def serving(site: Site) -> Iterator[None]:
    """Run a dashboard that already listens, as `running` does."""
    ready = threading.Event()
    thread = threading.Thread(target=site.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield
    finally:
        site.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextlib.contextmanager
def asked(
    site: Site, method: str, path: str, headers: Mapping[str, str], body: str | None = None
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and yield the response."""
    where = urllib.parse.urlsplit(site.address)
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    connection.request(method, path, body, headers)
    with contextlib.closing(connection), connection.getresponse() as answer:
        yield answer


@contextlib.contextmanager
def stream(site: Site, path: str, last: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the events of a stream as they arrive: `id`, `event` and the parsed `data`."""
    headers = {"authorization": f"Bearer {story.TOKEN}"}
    if last is not None:
        headers["last-event-id"] = last
    with asked(site, "GET", path, headers) as answer:
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer)


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if name:
            event[name] = value
        elif "data" in event:
            yield {**event, "data": json.loads(event["data"])}
            event = {}
        else:
            event = {}
