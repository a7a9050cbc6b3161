"""Formats of stored data: unknown versions are refused, and nothing is lost."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from wbengine import exceptions, transports
from wbengine._text import data_formats
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import proxy, worker
from wbengine.jobs import backends
from wbengine.transports._sql import sql_ledger

NEWER = 99


def test_redis_transport_with_newer_keys_is_refused(redis_url: Any, client: redis.Redis) -> None:
    target = transports.resolve(str(redis_url))
    with contextlib.closing(target.open()) as broker:
        broker.declare_queue("q")
    key = f"{target.place.prefix}m"
    client.hset(key, "f", NEWER)
    with pytest.raises(exceptions.TransportFailure, match="has key format 99, and wbengine"):
        target.open()
    client.hset(key, "f", data_formats.REDIS.written)
    with contextlib.closing(target.open()) as broker:
        assert broker.delete_queue("q") == 0


def test_redis_ledger_with_newer_keys_is_refused(redis_url: Any, client: redis.Redis) -> None:
    with contextlib.closing(ledgers.open_ledger(str(redis_url))) as ledger:
        ledger.open("a", 1)
    key = f"{transports.resolve(str(redis_url)).place.prefix}server"
    client.hset(key, "format", NEWER)
    with pytest.raises(exceptions.LedgerFailure, match="has key format 99, and wbengine"):
        ledgers.open_ledger(str(redis_url))
    client.hset(key, "format", data_formats.REDIS.written)
    with contextlib.closing(ledgers.open_ledger(str(redis_url))) as ledger:
        assert ledger.ids() == {"a"}


def test_newer_ledger_tables_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with contextlib.closing(ledgers.open_ledger(url)) as ledger:
        ledger.open("a", 1)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE wbe_ledger_about SET format = {NEWER}"))
    with pytest.raises(exceptions.LedgerFailure, match="has ledger format 99, and wbengine"):
        ledgers.open_ledger(url)
    engine.dispose()


def test_ledger_tables_that_two_releases_create_have_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with contextlib.closing(ledgers.open_ledger(url)) as first:
        monkeypatch.setattr(data_formats, "LEDGER", data_formats.Format("ledger", 2, (1, 2)))
        reads = iter((None,))
        read_about = sql_ledger.SQLLedger._about
        monkeypatch.setattr(
            sql_ledger.SQLLedger,
            "_about",
            lambda self, connection: next(reads, read_about(self, connection)),
        )
        with contextlib.closing(ledgers.open_ledger(url)) as second:
            assert second.digest == first.digest
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        rows = connection.execute(sa.text("SELECT format FROM wbe_ledger_about")).all()
    engine.dispose()
    assert rows == [(1,)]


def test_worker_prefers_earlier_topics_in_each_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_formats, "MESSAGE", data_formats.Format("message", 1, (1, 2)))
    consumed: list[str] = []
    monkeypatch.setattr(
        proxy.Proxy, "consume_shared", lambda self, names, slots: consumed.extend(names)
    )
    tasks = ["tests.support.async_tasks:Double"]
    worker.Worker("x", ["first", "second"], tasks, url="memory://formats").stop()
    assert [name.partition(".")[0] for name in consumed] == ["first", "first", "second", "second"]
    assert len(set(consumed)) == 4


def test_newer_job_is_ignored_and_stays_on_the_board(
    redis_url: Any, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(backends.fetch("b", {"board": str(redis_url)})) as board:
        board.connect()
        board.post("old")
        newer = board.post("new")
        hashes = [key for key in client.keys("*") if client.type(key) == b"hash"]
        (key,) = [key for key in hashes if b"{" in (client.hget(key, newer.uuid) or b"")]
        document = client.hget(key, newer.uuid)
        client.hset(key, newer.uuid, document.replace(b'"format": 1', b'"format": 99'))
        assert [job.name for job in board.iterjobs()] == ["old"]
        assert "has job format 99, and wbengine" in caplog.text
        with pytest.raises(exceptions.JobFailure, match="has job format 99, and wbengine"):
            board.find(newer.uuid)
        client.hset(key, newer.uuid, document)
        assert sorted(job.name for job in board.iterjobs()) == ["new", "old"]
