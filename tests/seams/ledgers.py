"""Ledgers: where each kind is, how one with a clock of the test's own is made, how time passes for
the others, and how a result is lost.

What a ledger does is said by its contract, `Ledger`; `open_ledger` is public.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from wbengine import _clock
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import base, memory
from wbengine.transports import _folder, resolve

__all__ = [
    "DATABASES",
    "DONE",
    "DURABLE",
    "FORGOTTEN",
    "GRANTED",
    "HELD",
    "InMemory",
    "KINDS",
    "MISSING",
    "MOST_LISTED",
    "ROW_CLAIMED",
    "ROW_DONE",
    "ROW_OPEN",
    "STALE",
    "Claim",
    "Ledger",
    "Page",
    "Row",
    "beaten",
    "boot_again",
    "grow_older",
    "in_memory",
    "kept",
    "left",
    "made_last_sweep_due",
    "of_broker",
    "open_ledger",
    "place",
    "preloaded",
    "rows",
    "silence",
]

DATABASES: Final = ("sqlite", "mysql", "postgresql")
KINDS: Final = ("memory", "dir", "redis", *DATABASES)
#: Those that other processes can open.
DURABLE: Final = KINDS[1:]

GRANTED: Final = base.GRANTED
DONE: Final = base.DONE
HELD: Final = base.HELD
STALE: Final = base.STALE
ROW_OPEN: Final = base.ROW_OPEN
ROW_CLAIMED: Final = base.ROW_CLAIMED
MISSING: Final = base.MISSING
ROW_DONE: Final = base.ROW_DONE
MOST_LISTED: Final = base.MOST_LISTED
#: Who has the rows that may have run before a Redis was set back.
FORGOTTEN: Final = "forgotten-by-redis"
Claim = base.Claim
Ledger = base.Ledger
Page = base.Page
Row = base.Row
InMemory = memory.MemoryLedger

open_ledger = ledgers.open_ledger


def place(kind: str, folder: Path, name: str = "ledger") -> str:
    """Where a ledger of a kind that is no server is; one in memory is of this process."""
    if kind == "memory":
        return f"memory://{name}"
    return f"dir://{folder}/{name}" if kind == "dir" else f"sqlite:///{folder}/{name}.db"


def in_memory(clock: _clock.Clock = _clock.SYSTEM) -> Ledger:
    """One that nobody else has, and for which time is what a clock says."""
    return InMemory(clock)


def kept(ledger: Ledger) -> Callable[[], None]:
    """Keep what is in one that is in memory; to be called to set it back to that, as a Redis is:
    what was OPEN may have run since, and counts as lost with the worker that had it."""
    assert isinstance(ledger, InMemory)
    tables = (ledger._rows, ledger._changed, ledger._beats)
    before = [dict(table) for table in tables]

    def set_back() -> None:
        ledger._digest += "-set-back"
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)
        for id, row in ledger._rows.items():
            if row.state == base.ROW_OPEN:
                ledger._rows[id] = Row(id, row.epoch, base.ROW_CLAIMED, FORGOTTEN)

    return set_back


def of_broker(url: str | None, role: str = "engine", **options: Any) -> Ledger | None:
    """The one that comes with a broker, for an engine or a worker; None: it has none."""
    transport = options.pop("transport", None)
    return ledgers.for_target(resolve(url, transport, options), role)


def preloaded(place: str) -> None:
    """Import what a ledger takes, and open none: before processes are forked that will."""
    if place.startswith("redis"):
        import wbengine.engines.worker_based.ledger.redis  # noqa: F401


# Time.

#: The tables and columns of a database that say when something of a row or a holder was.
MOMENTS: Final = (("wbe_ledger", "changed"), ("wbe_ledger_holders", "beat"))


def grow_older(place: str, seconds: float) -> None:
    """All that is in a ledger, rows and beats of holders, is so many seconds older."""
    kind = place.partition(":")[0]
    if kind == "memory":
        ledger = ledgers.open_ledger(place)
        assert isinstance(ledger, InMemory)
        for moments in (ledger._changed, ledger._beats):
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
    """What only a test does to a ledger in a folder."""
    with contextlib.closing(sqlite3.connect(folder / "wbengine.db", 30)) as connection, connection:
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
    """`moments`: in which column of which table."""
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


def made_last_sweep_due(place: str) -> None:
    """Whoever opens the ledger next looks what is stale: the last look was long ago."""
    kind, long = place.partition(":")[0], 2 * base.SWEEP_EVERY
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


# What is left in a folder.


def rows(folder: Path, state: str | None = None) -> list[str]:
    """The ids of the rows in a folder (in one state)."""
    if not (folder / "wbengine.db").exists():
        return []
    with contextlib.closing(ledgers.open_ledger(f"dir://{folder}", result_ttl=None)) as ledger:
        found = sorted(ledger.ids())
        if state is None:
            return found
        known = [ledger.state(id) for id in found]
        return [row.id for row in known if row is not None and row.state == state]


def boot_again(patch: pytest.MonkeyPatch) -> None:
    """From now on it is as if the host had been booted since folders were used."""
    patch.setattr(_folder, "_boot", lambda: "another")


def beaten(folder: Path, holder: str, ago: float) -> None:
    """The last beat of a holder in a folder was so long ago."""
    _folder_write(folder, f"UPDATE beat SET at = at - {ago} WHERE holder = '{holder}'")


def silence(folder: Path, holder: str) -> float:
    """Seconds since the last beat of a holder in a folder."""
    with contextlib.closing(ledgers.open_ledger(f"dir://{folder}", result_ttl=None)) as ledger:
        found = ledger.silence(holder)
        assert found is not None
        return found


_BEATS: Final = "SELECT holder FROM beat"


def left(folder: Path, beats: bool = True) -> list[str]:
    """What flows that came to their end must not leave: rows, and beats of workers that ended."""
    found = [f"row of {id}" for id in rows(folder)]
    if beats and (folder / "wbengine.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "wbengine.db", 30)) as connection:
            found += [f"beat of {holder}" for (holder,) in connection.execute(_BEATS)]
    return found
