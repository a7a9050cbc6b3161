"""Queries that read all rows of a table in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from wbengine.persistence import backends
from wbengine.persistence.backends._sql import paging, tables
from wbengine.persistence.backends._sql.backend import SQLBackend

ITEMS = 1000
KEYS = [(f"a{number // 20:03}", 1, number % 20) for number in range(ITEMS)]


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[SQLBackend]:
    with backends.backend(mariadb_url) as backend:
        assert isinstance(backend, SQLBackend)
        backend.prepare()
        with backend.engine.begin() as connection:
            connection.execute(sa.insert(tables.BOOKS).values(uuid="b", name="b"))
            connection.execute(sa.insert(tables.FLOWS).values(uuid="f", book_uuid="b", name="f"))
            connection.execute(
                sa.insert(tables.ATOMS),
                [
                    {"uuid": uuid, "flow_uuid": "f", "kind": "task", "name": "a"}
                    for uuid in sorted({uuid for uuid, _, _ in KEYS})
                ],
            )
            connection.execute(
                sa.insert(tables.ITEMS),
                [dict(zip(("atom_uuid", "attempt", "item"), key, strict=True)) for key in KEYS],
            )
        yield backend


def test_mariadb_reads_only_the_rows_of_a_page(mariadb: SQLBackend) -> None:
    pages = list[Any]()
    after = None
    with mariadb.engine.connect() as connection:
        while True:
            query = paging.next_rows(tables.ITEMS, after, 30, "mysql")
            connection.execute(sa.text("FLUSH STATUS"))
            page = list(connection.execute(query.with_for_update()).mappings())
            counters = connection.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
            assert sum(int(count) for _, count in counters) <= 40
            if not page:
                break
            pages += [(row["atom_uuid"], row["attempt"], row["item"]) for row in page]
            after = dict(page[-1])
    assert pages == KEYS
