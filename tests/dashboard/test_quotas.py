"""Limits of concurrent requests and streams."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from tests.dashboard import story
from tests.dashboard.conftest import TOKENS
from tests.dashboard.raw import answer, bearer, connected, request, status
from tests.dashboard.site import PATIENCE, running
from tests.support.waiting import until
from wbengine.dashboard import Site, _quotas, parse_users
from wbengine.persistence.backends import _memory

USERS = """\
ann     viewer  token-of-ann-0123456789
victor  viewer  token-of-victor-0123456789
"""


class Slow(_memory.MemoryBackend):
    """A store that blocks until `may` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.may.set()
        self.asked = 0

    def get_connection(self) -> Any:
        self.asked += 1
        assert self.may.wait(PATIENCE)
        return super().get_connection()


@pytest.fixture
def store() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may.set()


def session(site: Site, source: str = "127.0.0.1") -> str:
    """Return the cookie of a new browser."""
    with connected(site, source) as connection:
        connection.sendall(request(f"/?token={story.TOKEN}"))
        cookie = answer(connection).headers["set-cookie"]
        return f"cookie: {cookie.partition(';')[0]}"


Ask = Callable[..., socket.socket]


@contextlib.contextmanager
def asking(site: Site) -> Iterator[Ask]:
    """Yield a function that sends a request and does not wait for the response."""
    with contextlib.ExitStack() as end:

        def ask(path: str, *headers: str, source: str = "127.0.0.1") -> socket.socket:
            connection = end.enter_context(connected(site, source))
            connection.sendall(request(path, *headers))
            return connection

        yield ask


def held(site: Site, store: Slow, ask: Ask, count: int, *headers: str, source: str) -> None:
    """Send requests whose responses wait until `store.may` is set."""
    store.may.clear()
    before = store.asked
    for _ in range(count):
        ask("/", *headers, source=source)
    until(lambda: store.asked == before + count)


def test_client_above_its_request_limit_is_refused_and_others_are_not(store: Slow) -> None:
    limit = _quotas.MAX_REQUESTS_PER_CLIENT
    with running(store) as site, asking(site) as ask:
        hers, his = session(site), session(site)
        held(site, store, ask, limit, hers, source="127.0.0.1")
        with answer(ask("/", hers)) as page:
            assert page.status == 429 and int(page.headers["retry-after"]) > 0
            assert f"at most {limit} requests at a time for one client" in page.read().decode()
        with answer(ask("/api/v1/flows?wait=1", hers)) as response:  # not a long poll
            error = json.loads(response.read())
            assert error["schema"] == "wbengine/error/1" and error["status"] == 429
        assert status(site, "/livez", hers) == 200
        others = ask("/", his), ask("/", bearer())
        store.may.set()
        assert [answer(each).status for each in others] == [200, 200]
        until(lambda: status(site, "/", hers) == 200)


def test_refused_client_is_disconnected(store: Slow) -> None:
    """Its pipelined requests are not answered."""
    with running(store) as site, asking(site) as ask:
        held(site, store, ask, _quotas.MAX_REQUESTS_PER_CLIENT, bearer(), source="127.0.0.1")
        with connected(site) as connection:
            connection.sendall(request("/", bearer()) * 20)
            received = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(65536):
                    received += part
        assert received.count(b"HTTP/1.1 429 ") == 1
        store.may.set()


def test_named_user_is_one_client_in_all_sessions(store: Slow) -> None:
    users = parse_users(USERS)
    ann, victor = bearer(TOKENS["ann"]), bearer(TOKENS["victor"])
    with running(store, users=users) as site, asking(site) as ask:
        held(site, store, ask, _quotas.MAX_REQUESTS_PER_CLIENT, ann, source="127.0.0.1")
        assert status(site, "/", ann, source="127.0.0.2") == 429
        other = ask("/", victor)
        store.may.set()
        assert answer(other).status == 200


def test_one_address_takes_at_most_half_of_the_requests(
    store: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_quotas, "MAX_REQUESTS", 6)
    monkeypatch.setattr(_quotas, "MAX_REQUESTS_PER_CLIENT", 2)
    with running(store) as site, asking(site) as ask:
        sessions = [session(site) for _ in range(7)]
        for each in sessions[:3]:
            held(site, store, ask, 1, each, source="127.0.0.1")
        assert status(site, "/", sessions[3]) == 429
        for number, each in enumerate(sessions[3:6]):
            held(site, store, ask, 1, each, source=f"127.0.0.{number + 2}")
        assert status(site, "/", sessions[6], source="127.0.0.9") == 503
        assert status(site, "/livez") == 200
        store.may.set()
        until(lambda: status(site, "/", sessions[6]) == 200)


@pytest.mark.parametrize(("most", "per_client", "code"), [(20, 3, 429), (3, 20, 503)])
def test_streams_above_the_limit_are_refused(
    kept: story.Kept,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    per_client: int,
    code: int,
) -> None:
    monkeypatch.setattr(_quotas, "MAX_STREAMS", most)
    monkeypatch.setattr(_quotas, "MAX_STREAMS_PER_CLIENT", per_client)
    paths = ("/stream/flows", f"/flows/{kept.uuids['good']}/stream")
    with running(kept.backend) as site:
        with asking(site) as ask:
            # For the total limit, each request has another source address.
            asked = [
                ask(
                    paths[number % 2],
                    bearer(),
                    source=f"127.0.0.{number + 2 if code == 503 else 1}",
                )
                for number in range(40)
            ]
            responses = [answer(each) for each in asked]
            assert sorted(each.status for each in responses) == [200] * 3 + [code] * 37
            assert all("retry-after" in each.headers for each in responses if each.status == code)
            # Pages have their own limit.
            assert status(site, "/", bearer()) == 200
        until(lambda: status(site, "/", bearer()) == 200)
        with asking(site) as ask:
            until(lambda: answer(ask("/stream/flows", bearer())).status == 200)


def test_quota_counts_only_requests_in_progress() -> None:
    quota = _quotas.Quota("requests", 4, 2)
    for _ in range(10):
        with quota.acquire("ann", "192.0.2.1"), quota.acquire("ann", "192.0.2.1"):
            with pytest.raises(HTTPException, match="429"), quota.acquire("ann", "192.0.2.2"):
                pass
            with pytest.raises(HTTPException, match="429"), quota.acquire("bob", "192.0.2.1"):
                pass
            with quota.acquire("bob", "192.0.2.2"), quota.acquire("bob", "192.0.2.2"):  # noqa: SIM117
                with pytest.raises(HTTPException, match="503"), quota.acquire("eve", "192.0.2.3"):
                    pass
    assert not quota._counts
    with contextlib.suppress(ZeroDivisionError), quota.acquire("ann", "192.0.2.1"):
        _ = 1 / 0
    assert not quota._counts
