"""Ledgers: their addresses, ledgers with a simulated clock, passage of time, and loss of results.

`Ledger` describes the contract; `open_ledger` is public.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from wbengine._concurrency import clocks
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import _ledger, resolve
from wbengine.transports._folder import folder_tables
from wbengine.transports._memory import memory_broker

__all__ = [
    "DONE",
    "DURABLE",
    "FORGOTTEN",
    "GRANTED",
    "HELD",
    "InMemory",
    "KINDS",
    "MISSING",
    "MAX_LISTED_ROWS",
    "ROW_CLAIMED",
    "ROW_DONE",
    "ROW_OPEN",
    "STALE",
    "Claim",
    "Fence",
    "FencedRow",
    "Ledger",
    "Page",
    "Row",
    "make_heartbeat_older",
    "simulate_reboot",
    "make_content_older",
    "in_memory",
    "snapshot",
    "left",
    "make_sweep_due",
    "of_broker",
    "open_ledger",
    "place",
    "preloaded",
    "rows",
    "silence",
]

#: Kinds with code of their own. MySQL is a dialect of the ledgers in databases.
KINDS: Final = ("memory", "dir", "redis", "sqlite", "postgresql")
#: Those that other processes can open.
DURABLE: Final = KINDS[1:]

GRANTED: Final = _ledger.GRANTED
DONE: Final = _ledger.DONE
HELD: Final = _ledger.HELD
STALE: Final = _ledger.STALE
ROW_OPEN: Final = _ledger.ROW_OPEN
ROW_CLAIMED: Final = _ledger.ROW_CLAIMED
MISSING: Final = _ledger.MISSING
ROW_DONE: Final = _ledger.ROW_DONE
MAX_LISTED_ROWS: Final = _ledger.MAX_LISTED_ROWS
#: Owner of the rows that possibly ran before a Redis was restored from older data.
FORGOTTEN: Final = "forgotten-by-redis"
Claim = _ledger.Claim
Fence = _ledger.Fence
FencedRow = _ledger.FencedRow
Ledger = _ledger.Ledger
Page = _ledger.Page
Row = _ledger.Row
InMemory = memory_broker.MemoryLedger

open_ledger = ledgers.open_ledger


def place(kind: str, folder: Path, name: str = "ledger") -> str:
    """Return the URL of a ledger without a server. A ledger in memory belongs to this process."""
    if kind == "memory":
        return f"memory://{name}"
    return f"dir://{folder}/{name}" if kind == "dir" else f"sqlite:///{folder}/{name}.db"


def in_memory(clock: clocks.Clock = clocks.SYSTEM) -> Ledger:
    """Return a private ledger with this clock."""
    return InMemory(clock)


def snapshot(ledger: Ledger) -> Callable[[], None]:
    """Copy the content of a ledger in memory. The returned function restores it like a Redis.

    After that, requests that were OPEN count as lost with their worker, because they possibly ran.
    """
    assert isinstance(ledger, InMemory)
    tables = (ledger._rows, ledger._changed, ledger._heartbeats)
    before = [dict(table) for table in tables]

    def set_back() -> None:
        ledger._digest += "-set-back"
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)
        for id, row in ledger._rows.items():
            if row.state == _ledger.ROW_OPEN and not id.startswith(_ledger.FENCE_PREFIX):
                ledger._rows[id] = Row(id, row.epoch, _ledger.ROW_CLAIMED, FORGOTTEN)

    return set_back


def of_broker(url: str | None, role: str = "engine", **options: Any) -> Ledger | None:
    """Return the ledger of a broker for an engine or a worker, or None if it has none."""
    transport = options.pop("transport", None)
    return ledgers.choose(None, resolve(url, transport, options), role)


def preloaded(place: str) -> None:
    """Import the modules of a ledger before processes are forked, without opening it."""
    if place.startswith("redis"):
        import wbengine.transports._redis.redis_ledger  # noqa: F401


# Time.

#: Tables and columns of a database that contain times of rows and owners.
MOMENTS: Final = (("wbe_ledger", "changed"), ("wbe_ledger_holders", "beat"))


def make_content_older(place: str, seconds: float) -> None:
    """Make all rows and heartbeats in a ledger older."""
    kind = place.partition(":")[0]
    if kind == "memory":
        ledger = ledgers.open_ledger(place)
        assert isinstance(ledger, InMemory)
        for moments in (ledger._changed, ledger._heartbeats):
            moments.update({name: moment - seconds for name, moment in moments.items()})
    elif kind == "dir":
        _folder_write(
            Path(place.removeprefix("dir://")),
            f"UPDATE request SET changed = changed - {seconds}",
            f"UPDATE beat SET at = at - {seconds}",
        )
    elif kind == "redis":
        _older_redis(place, seconds)
    else:
        _older_database(place, seconds, MOMENTS)


def _folder_write(folder: Path, *statements: str) -> None:
    """Execute statements on the database of a ledger in a folder."""
    opened = sqlite3.connect(folder / "wbengine.db", timeout=30)
    with contextlib.closing(opened) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def _older_redis(place: str, seconds: float) -> None:
    import redis

    with contextlib.closing(redis.Redis.from_url(place.partition("?")[0])) as client:
        for kind in ("rows", "beats"):
            for key in client.scan_iter(f"*{kind}"):
                for name, _ in client.zscan_iter(key):
                    client.zincrby(key, -1000 * seconds, name)


def _older_database(place: str, seconds: float, moments: Iterable[tuple[str, str]]) -> None:
    """Make the given (table, column) pairs older."""
    import sqlalchemy

    url = place.replace("mysql:", "mysql+pymysql:").replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            for table, column in moments:
                text = f"UPDATE {table} SET {column} = {column} - :seconds"
                connection.execute(sqlalchemy.text(text), {"seconds": seconds})
    finally:
        engine.dispose()


def make_sweep_due(place: str) -> None:
    """Let the next process that opens the ledger delete stale rows, because the last sweep was long
    ago.
    """
    kind, long = place.partition(":")[0], 2 * _ledger.SWEEP_PERIOD_SECONDS
    if kind == "dir":
        _folder_write(
            Path(place.removeprefix("dir://")), f"UPDATE about SET rows_swept = rows_swept - {long}"
        )
    elif kind == "redis":
        import redis

        with contextlib.closing(redis.Redis.from_url(place.partition("?")[0])) as client:
            for key in client.scan_iter("*swept"):
                client.delete(key)
    else:
        _older_database(place, long, [("wbe_ledger_about", "swept")])


# Content of folders.


def rows(folder: Path, state: str | None = None) -> list[str]:
    """Return the ids of the rows in a folder, optionally only those in one state."""
    if not (folder / "wbengine.db").exists():
        return []
    with contextlib.closing(ledgers.open_ledger(f"dir://{folder}", result_ttl=None)) as ledger:
        ids = sorted(ledger.ids())
        if state is None:
            return ids
        known = [ledger.state(id) for id in ids]
        return [row.id for row in known if row is not None and row.state == state]


def simulate_reboot(patch: pytest.MonkeyPatch) -> None:
    """Simulate a reboot of the host after the last use of folders."""
    patch.setattr(folder_tables, "_boot", lambda: "another")


def make_heartbeat_older(folder: Path, holder: str, ago: float) -> None:
    """Make the last heartbeat of an owner in a folder older."""
    _folder_write(folder, f"UPDATE beat SET at = at - {ago} WHERE holder = '{holder}'")


def silence(folder: Path, holder: str) -> float:
    """Return the seconds since the last heartbeat of an owner in a folder."""
    with contextlib.closing(ledgers.open_ledger(f"dir://{folder}", result_ttl=None)) as ledger:
        seconds = ledger.silence(holder)
        assert seconds is not None
        return seconds


_BEATS: Final = "SELECT holder FROM beat"


def left(folder: Path, beats: bool = True) -> list[str]:
    """Return objects that must not remain: rows, and heartbeats of workers that ended."""
    texts = [f"row of {id}" for id in rows(folder)]
    if beats and (folder / "wbengine.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "wbengine.db", timeout=30)) as connection:
            texts += [f"beat of {holder}" for (holder,) in connection.execute(_BEATS)]
    return texts
