"""Fixtures that several integration tests share."""

from __future__ import annotations

import contextlib

import pytest

from tests.contract import places
from tests.support import callers, receivers, reply_dropper, shop
from tests.support.destinations import Destination
from tests.support.orders import Orders
from tests.support.redis_ends import Both, End
from wbengine.jobs import backends as boards
from wbengine.persistence import backends as stores
from wbengine.transports._redis import redis_link


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request, tmp_path, database_servers):
    """URI of a database. Modules that need other kinds define their own fixture."""
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def sql_uri(request, tmp_path, database_servers):
    """URI of a database of each kind."""
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture
def store(uri):
    with stores.backend(uri) as backend:
        yield backend


@pytest.fixture
def board(store):
    """Job board in the database of the flows."""
    with boards.backend("board", "sql", persistence=store) as sql_board:
        yield sql_board


@pytest.fixture
def site():
    with receivers.receiver() as opened:
        yield opened


@pytest.fixture
def new_ops(store, site, tmp_path):
    """Webhook of the store that has not begun."""
    return Destination(store, site, tmp_path)


@pytest.fixture
def ops(new_ops):
    """Webhook of the store that sends all later events."""
    return new_ops.begin()


@pytest.fixture
def orders(store, tmp_path):
    return Orders(store, tmp_path)


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def here(request, tmp_path, database_servers):
    """Database of a user with tasks in transactions."""
    folder = tmp_path / "shop"
    folder.mkdir()
    with (
        places.place(request.param, folder, database_servers) as conf,
        contextlib.closing(shop.Shop(conf["connection"])) as database,
    ):
        yield database


@pytest.fixture
def place(request, tmp_path, database_servers):
    """Store for a kind of callers (`callers.on`)."""
    kind, _, _ = request.param.partition(" ")
    with (
        places.place(kind, tmp_path, database_servers) as conf,
        stores.backend(conf["connection"]) as backend,
    ):
        yield callers.Place(conf["connection"], backend)


@pytest.fixture
def caller(request, place):
    """Caller with a connection to the database of `place`."""
    _, _, kind = request.node.callspec.params["place"].partition(" ")
    with callers.caller(kind, place.url) as new_caller:
        yield new_caller


@pytest.fixture
def patient(monkeypatch):
    """Disable polling for a minute, so that only wake-ups deliver messages."""
    monkeypatch.setattr(redis_link, "POLL_SECONDS", 60)


@pytest.fixture
def ends(redis_url):
    """Yield a function that opens Redis ends, and close them afterwards."""
    with contextlib.ExitStack() as stack:

        def make(url=redis_url, **options):
            return stack.enter_context(contextlib.closing(End(url, **options)))

        yield make


@pytest.fixture
def dropper(redis_server):
    with contextlib.closing(reply_dropper.ReplyDropper(redis_server.port)) as proxy:
        yield proxy


@pytest.fixture
def client(redis_url, redis_server):
    with redis_server.client(redis_url.rpartition("/")[2]) as redis_client:
        yield redis_client


@pytest.fixture
def both(redis_url):
    with contextlib.closing(Both(redis_url)) as ends:
        yield ends
