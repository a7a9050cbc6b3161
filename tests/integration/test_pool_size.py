"""Databases without a pool of connections."""

from __future__ import annotations

import contextlib

import sqlalchemy as sa

from tests.support.servers import Server
from tests.support.waiting import until
from wbengine._transactions import user_engines
from wbengine.persistence import backends, models


def test_store_without_pool_keeps_no_connections(
    postgresql_server: Server, postgresql_url: str
) -> None:
    with backends.backend(postgresql_url, max_pool_size=0) as store:
        with contextlib.closing(store.get_connection()) as connection:
            connection.save_logbook(models.LogBook("b"))
            assert connection.count_flows() == 0
        until(lambda: postgresql_server.connections(postgresql_url) == 0)


def test_database_of_tasks_without_pool_keeps_no_connections(
    postgresql_server: Server, postgresql_url: str
) -> None:
    engine = user_engines.engine(f"{postgresql_url}?max_pool_size=0")
    with contextlib.closing(engine.connect()) as connection:
        assert connection.scalar(sa.text("SELECT 42")) == 42
        assert postgresql_server.connections(postgresql_url) == 1
    until(lambda: postgresql_server.connections(postgresql_url) == 0)
