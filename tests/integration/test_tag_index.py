"""Rows that lists of flows by tag and by uuid read in databases, and deletion of tags."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from wbengine.persistence import backends, models
from wbengine.persistence._listing import Position, Query
from wbengine.persistence.backends._sql import SQLBackend, flow_queries
from wbengine.types import _tags

FLOW_COUNT = 3000


@pytest.fixture
def many(sql_uri: str) -> Iterator[SQLBackend]:
    """Store with many tagged flows, each alone in its logbook."""
    with contextlib.closing(backends.fetch(sql_uri)) as backend:
        assert isinstance(backend, SQLBackend)
        backend.save_new_books(tagged_books(FLOW_COUNT))
        yield backend


def tagged_books(count: int) -> list[models.LogBook]:
    books = []
    for number in range(count):
        flow, book = models.FlowDetail(f"f{number}"), models.LogBook("b")
        flow.created = float(number)
        flow.meta[_tags.GIVEN] = {"customer": str(number // 10), "team": "a"}
        flow.meta[_tags.CHANGED] = {"amount": number}
        book.add(flow)
        books.append(book)
    return books


def rows_read(backend: SQLBackend, statement: sa.TextClause, parameters: dict[str, Any]) -> int:
    """Return the number of rows and entries of indexes that a statement reads."""
    dialect = backend.engine.dialect.name
    with backend.engine.connect() as raw:
        if dialect == "mysql":
            raw.execute(sa.text("FLUSH STATUS"))
            raw.execute(statement, parameters).all()
            counters = raw.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
            return sum(int(count) for _, count in counters)
        if dialect == "postgresql":
            explain = sa.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
            (plan,) = raw.execute(explain, parameters).scalar_one()
            return sum(_rows_of(plan["Plan"]))
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        driver: Any = raw.connection.dbapi_connection
        driver.set_progress_handler(count, 1)
        try:
            raw.execute(statement, parameters).all()
        finally:
            driver.set_progress_handler(None, 0)
        return steps // 40  # Instructions of the virtual machine for each row.


def _rows_of(plan: dict[str, Any]) -> Iterator[int]:
    if "Scan" in plan["Node Type"]:
        removed = plan.get("Rows Removed by Filter", 0) + plan.get(
            "Rows Removed by Index Recheck", 0
        )
        yield int((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    for part in plan.get("Plans", ()):
        yield from _rows_of(part)


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["customer=17", "team=a"])
@pytest.mark.parametrize("newest_first", [True, False])
def test_page_of_flows_with_tag_reads_few_rows(
    many: SQLBackend, condition: str, newest_first: bool
) -> None:
    """The number does not depend on the number of flows, also without statistics of the tables."""
    tags, after = _tags.conditions_of([condition]), None
    with many.get_connection() as connection:
        for size in (7, 3):
            query = Query(tags=tags, limit=7, newest_first=newest_first, after=after)
            statement, parameters = flow_queries._statement(many.engine.dialect.name, query)
            assert rows_read(many, statement, parameters) < 100
            page = connection.find_flows(query)
            assert len(page.flows) == (7 if condition == "team=a" else size)
            after = Position.parse(page.after) if page.after else None


@pytest.mark.slow
def test_search_by_start_of_uuid_reads_few_rows(many: SQLBackend) -> None:
    with many.get_connection() as connection:
        (flow,) = connection.list_flows(limit=1).flows
        for start in (flow.uuid[:8], flow.uuid[:9], flow.uuid):
            assert [row.uuid for row in connection.list_flows(uuid=start).flows] == [flow.uuid]
        for start in ("%", "____", "\\", f"{flow.uuid[:8]}g", f"{flow.uuid}0"):
            assert connection.list_flows(uuid=start).flows == []
    query = Query(uuid=flow.uuid[:8])
    statement, parameters = flow_queries._statement(many.engine.dialect.name, query)
    assert rows_read(many, statement, parameters) < 20


@pytest.mark.slow
def test_deletion_of_flow_deletes_its_tags(many: SQLBackend) -> None:
    with many.get_connection() as connection:
        (flow,) = connection.list_flows(tags=["amount>=17", "amount<=17"]).flows
        connection.destroy_flow(flow.uuid)
        with many.engine.connect() as raw:
            assert raw.scalar(sa.text("SELECT COUNT(*) FROM wbe_tags")) == 3 * (FLOW_COUNT - 1)
        connection.clear_all()
        with many.engine.connect() as raw:
            assert raw.scalar(sa.text("SELECT COUNT(*) FROM wbe_tags")) == 0
