"""Processes that are killed while they store a request or carry it out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.killed import is_killed, points
from tests.support.requested import conducting
from tests.support.waiting import until
from wbengine import engines, operations, states
from wbengine.jobs import backends as boards
from wbengine.persistence import backends
from wbengine.persistence.backends import _sql


def run_jobs(url: str) -> None:
    """Run a conductor until the board has no job."""
    with backends.backend(url) as store, conducting(store, never_resolve=True) as board:
        until(lambda: board.job_count == 0)


def request(url: str, uuid: str) -> None:
    with backends.backend(url) as store:
        edits = operations.Edits({"card": "a"}, {"quote": 7})
        operations.request(store, uuid, "retry", by="ann", edits=edits)


@pytest.fixture
def failed(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield the URL of a store, and the uuid of a submitted flow that failed in it."""
    url = f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as store:
        inputs = {"order": 1, "card": "bad"}
        uuid = engines.submit("tests.cli.payments:purchase", backend=store, inputs=inputs).id
    run_jobs(url)
    yield url, uuid


def expire_claims(url: str) -> None:
    """Let the claims of killed conductors expire."""
    with backends.backend(url) as store:
        assert isinstance(store, _sql.SQLBackend)
        with store.engine.begin() as connection:
            connection.execute(sa.text("UPDATE wbe_jobs SET owner_until = 1 WHERE owner <> ''"))


def check_retried_once(url: str, uuid: str) -> None:
    with backends.backend(url) as store:
        handle = engines.handle(uuid, backend=store)
        assert handle.result(0) == {"order": 1, "card": "a", "price": 7, "paid": "a 7"}
        with contextlib.closing(store.get_connection()) as connection:
            detail = connection.get_flow_details(uuid)
            assert connection.commands([uuid]) == {}
    reasons = [change.why for change in detail.history if change.state == states.PENDING]
    assert reasons == ["input 'card' and result of 'quote' replaced; retried by ann"]


@pytest.mark.parametrize("number", points([*range(5, 13), 15, 20, 25, 31, 36, 42, 45]))
def test_request_is_carried_out_once_if_the_conductor_is_killed(
    failed: tuple[str, str], number: int
) -> None:
    url, uuid = failed
    request(url, uuid)
    assert is_killed(number, run_jobs, url)
    expire_claims(url)
    run_jobs(url)
    check_retried_once(url, uuid)


@pytest.mark.slow
def test_request_is_stored_with_its_job_or_not_at_all(failed: tuple[str, str]) -> None:
    url, uuid = failed
    number = 1
    while is_killed(number, request, url, uuid):
        with backends.backend(url) as store:
            with contextlib.closing(store.get_connection()) as connection:
                is_stored = bool(connection.commands([uuid]))
            with boards.backend("b", "sql", persistence=store) as board:
                assert board.job_count == is_stored
            if is_stored:
                operations.suspend(store, uuid)  # withdraws it
        run_jobs(url)
        number += 1
    assert number > 2
    run_jobs(url)
    check_retried_once(url, uuid)
