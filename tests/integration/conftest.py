"""What several modules of these tests use."""

from __future__ import annotations

import contextlib

import pytest

from tests.contract import places
from tests.support import eaters
from tests.support.redis_ends import Both, End
from wbengine.jobs import backends as boards
from wbengine.persistence import backends as stores
from wbengine.transports import _redis_wait


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request, tmp_path, database_servers):
    """Where a database is; modules that want other kinds have one of their own."""
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture
def store(uri):
    with stores.backend(uri) as made:
        yield made


@pytest.fixture
def board(store):
    """That in the database of the flows."""
    with boards.backend("board", "sql", persistence=store) as made:
        yield made


@pytest.fixture
def patient(monkeypatch):
    """Nobody polls before a minute is over: what comes sooner came by itself."""
    monkeypatch.setattr(_redis_wait, "POLL", 60)


@pytest.fixture
def ends(redis_url):
    """Make ends; they are closed."""
    with contextlib.ExitStack() as stack:

        def make(url=redis_url, **options):
            return stack.enter_context(contextlib.closing(End(url, **options)))

        yield make


@pytest.fixture
def eater(redis_server):
    with contextlib.closing(eaters.Eater(redis_server.port)) as made:
        yield made


@pytest.fixture
def client(redis_url, redis_server):
    with redis_server.client(redis_url.rpartition("/")[2]) as made:
        yield made


@pytest.fixture
def both(redis_url):
    with contextlib.closing(Both(redis_url)) as made:
        yield made
