"""Small versions of `tools/fuzz`, which sends hostile messages to workers and engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import running
from tests.support.brokers import Place


def _fuzz(kind: str, folder: Path, count: int, where: str | None = None) -> None:
    report = running.run(kind, folder, count, seed=4, batch=100, where=where)
    assert not report.problems, "\n".join(report.problems)
    assert report.inputs > count
    # All kinds of refusals occur.
    ends = ("format", "type", "body", *(() if kind == "amqp" else ("unreadable",)))
    for who in ("worker", "engine"):
        for why in ends:
            assert report.counted[f"{who} refused {why}"], report.counted


@pytest.mark.parametrize("kind", ["memory", pytest.param("filesystem", marks=pytest.mark.slow)])
def test_hostile_messages_are_counted_in_memory_and_folders(kind: str, tmp_path: Path) -> None:
    _fuzz(kind, tmp_path, 1000)


@pytest.mark.slow
def test_hostile_messages_are_counted_on_redis(redis_url: Place, tmp_path: Path) -> None:
    _fuzz("redis", tmp_path, 600, redis_url)


@pytest.mark.slow
def test_hostile_messages_are_counted_on_postgresql(postgresql_url: str, tmp_path: Path) -> None:
    _fuzz("postgresql", tmp_path, 600, postgresql_url)


@pytest.mark.slow
def test_hostile_messages_are_counted_on_mysql(mariadb_url: str, tmp_path: Path) -> None:
    _fuzz("mysql", tmp_path, 600, mariadb_url)


@pytest.mark.slow
def test_hostile_messages_are_counted_on_rabbitmq(rabbitmq_url: Place, tmp_path: Path) -> None:
    _fuzz("amqp", tmp_path, 400, rabbitmq_url)
