"""Wake-ups of conductors by an SQLite file."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support import conducted
from tests.support.waiting import until
from wbengine import _sql, engines
from wbengine._sql import notifications
from wbengine.conductors import backends as conductors
from wbengine.conductors.backends import impl_executor
from wbengine.jobs import _stored
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores

CHECK = "PRAGMA data_version"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """List of the statements of all connections that are opened during the test."""
    executed: list[str] = []

    def trace(connection: sqlite3.Connection, record: object) -> None:
        connection.set_trace_callback(executed.append)

    sa.event.listen(sa.Engine, "connect", trace)
    yield executed
    sa.event.remove(sa.Engine, "connect", trace)


@pytest.fixture
def conducting(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[jobs.JobBoard]:
    """Board, in the database of the flows, of a conductor that does not poll.

    For a second, the board contains a job that a dead conductor has claimed.
    """
    monkeypatch.setattr(impl_sql, "_WATCHED_POLL_SECONDS", 1e6)
    monkeypatch.setattr(impl_executor.ExecutorConductor, "CLAIM_SECONDS", 1e6)
    with (
        stores.backend(uri) as store,
        boards.backend("b", "sql", persistence=store) as board,
    ):
        board.claim(board.post("claimed"), "dead", expiry=1)
        with conducted.running(conductors.fetch("nonblocking", "c", board, persistence=store)):
            yield board


def test_idle_conductor_reads_no_jobs_without_commits(
    statements: list[str], conducting: jobs.JobBoard
) -> None:
    until(lambda: conducting.job_count == 0)
    until(lambda: statements[-10:] == [CHECK] * 10)
    statements.clear()
    until(lambda: statements.count(CHECK) >= 20)
    assert not [each for each in statements if "wbe_jobs" in each]


@pytest.mark.parametrize("eta", [None, 0.3])
def test_conductor_without_polls_starts_flow_of_other_connection(
    uri: str, conducting: jobs.JobBoard, eta: float | None
) -> None:
    with stores.backend(uri) as store:
        for name in ("Ada", "Bob"):
            inputs = {"name": name}
            handle = engines.submit(conducted.greeting, backend=store, inputs=inputs, eta=eta)
            assert handle.result(60)["greeting"] == f"hello {name}"


def test_conductor_without_polls_finds_expired_claim(conducting: jobs.JobBoard) -> None:
    until(lambda: conducting.job_count == 0)  # The conductor moves it to the trash: it has no flow.


def test_waking_block_opens_unconnected_board_and_closes_its_connection(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stored, "_RELISTEN_SECONDS", 1e6)
    closed: list[object] = []
    closes = closed.append
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    board = boards.fetch("b", uri)
    with board.waking(lambda: woken.put(None)) as poll_seconds:
        assert poll_seconds > jobs.JobBoard.POLL_SECONDS
        with boards.backend("other", uri) as other:
            other.post("x")
        woken.get(timeout=60)
        sa.event.listen(sa.pool.Pool, "close_detached", closes)
    sa.event.remove(sa.pool.Pool, "close_detached", closes)
    assert len(closed) == 1


def test_board_in_memory_is_polled() -> None:
    with boards.backend("b", "sqlite://") as board, board.waking(lambda: None) as poll_seconds:
        assert poll_seconds == jobs.JobBoard.POLL_SECONDS


class Time:
    """Simulated time, with 64 checks of the file per second; `step` is called before each."""

    def __init__(self, step: Callable[[int], None], checks: int) -> None:
        self._step, self._checks = step, checks
        self.number = 0

    def monotonic(self) -> float:
        return self.number / 64

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.01
        self.number += 1
        self._step(self.number)

    def is_over(self) -> bool:
        return self.number == self._checks


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as made:
        made.execute("CREATE TABLE due (seconds REAL)")
        made.execute("INSERT INTO due VALUES (NULL)")
        yield made


def watch(
    monkeypatch: pytest.MonkeyPatch,
    file: sqlite3.Connection,
    checks: int,
    changes: Callable[[int], str | None],
) -> list[int]:
    """Watch the file for so many checks. Return the numbers of the checks that called `on_due`.

    `changes` returns the assignment to commit before a check, or None.
    """

    def step(number: int) -> None:
        change = changes(number)
        if change is not None:
            file.execute(f"UPDATE due SET seconds = {change}")

    simulated, due = Time(step, checks), list[int]()
    monkeypatch.setattr(notifications, "time", simulated)
    path = file.execute("PRAGMA database_list").fetchone()[2]
    engine = _sql.make_engine(_sql.parse(f"sqlite:///{path}"))
    _sql.watch(
        engine, "SELECT seconds FROM due", {}, lambda: due.append(simulated.number), 5 / 64,
        simulated.is_over,
    )  # fmt: skip
    _sql.dispose(engine)
    return due


def test_watch_reports_due_query_once_per_interval_during_commits(
    monkeypatch: pytest.MonkeyPatch, file: sqlite3.Connection
) -> None:
    due = watch(monkeypatch, file, 100, lambda number: f"{9 - number}" if number > 9 else None)
    assert due == list(range(10, 100, 5))


def test_watch_reports_at_once_after_the_query_was_not_due(
    monkeypatch: pytest.MonkeyPatch, file: sqlite3.Connection
) -> None:
    due = watch(monkeypatch, file, 20, {3: "0", 4: "NULL", 5: "0", 6: "NULL"}.get)
    assert due == [3, 5]


def test_watch_reads_again_at_the_time_that_the_query_returned(
    monkeypatch: pytest.MonkeyPatch, file: sqlite3.Connection, statements: list[str]
) -> None:
    """At the checks 0, 3 (a commit), 35, 67 and 99."""
    watch(monkeypatch, file, 100, {3: "0.5"}.get)
    assert [each for each in statements if "PRAGMA" not in each] == ["SELECT seconds FROM due"] * 5
