"""Stores: where each kind is, what is in it whatever that means, and how it is damaged.

What a store does is said by `wbengine.persistence.base`, which is public; here is what must be
known besides to make stores of every kind, and to hurt them.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wbengine.persistence import leases, models, owners, trees
from wbengine.persistence.writer import EPOCHS_PER_RUN

__all__ = [
    "DURABLE",
    "EPOCHS_PER_RUN",
    "KINDS",
    "MODULES",
    "Conf",
    "Harm",
    "Lease",
    "Owner",
    "conf",
    "damage",
    "left_in",
    "owner",
    "raw",
    "row",
]

#: 'memory, shared' keeps values of users as they are, instead of copies of them.
KINDS: Final = ("memory", "memory, shared", "dir", "sqlite", "mysql", "postgresql")
#: Those that other processes can open.
DURABLE: Final = KINDS[2:]

#: What a store of a kind is made of: for processes that import it before they fork.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": ("wbengine.persistence.backends.memory",),
    **{
        kind: (
            "alembic.command",
            "alembic.context",
            "wbengine.persistence.backends.directory",
            dialect,
        )
        for kind, dialect in (
            ("dir", "sqlalchemy.dialects.sqlite"),
            ("sqlite", "sqlalchemy.dialects.sqlite"),
            ("postgresql", "sqlalchemy.dialects.postgresql.psycopg"),
        )
    },
}

#: Of a store: what `backends.fetch` takes.
Conf = dict[str, Any]

#: The right to write the records of a flow, and who has it.
Lease = leases.Lease
Owner = owners.Owner
owner = owners.new


def conf(kind: str, folder: Path, name: str = "store") -> Conf:
    """Where a store of a kind that is no server is, below a folder."""
    if kind == "dir":
        return {"connection": "dir", "path": str(folder / name)}
    if kind == "sqlite":
        return {"connection": f"sqlite:///{folder / name}.sqlite"}
    if kind == "memory, shared":
        return {"connection": "memory", "deep_copy": False}
    return {"connection": "memory"}


def row(record: models.LogBook | models.FlowDetail | models.AtomDetail | models.ItemDetail) -> Any:
    """The record's own row, as plain data."""
    return trees.tree_of(record)


# What is in it.


def raw(conf: Conf) -> Any:
    """All there is in a durable store, byte for byte, whatever it means."""
    with _database(conf) as engine:
        return {name: sorted(map(repr, rows)) for name, rows in _tables(engine).items()}


def left_in(conf: Conf) -> list[str]:
    """What a store still has after all its books were destroyed."""
    with _database(conf) as engine:
        return [
            f"{len(rows)} rows of {name}"
            for name, rows in _tables(engine).items()
            if rows and name.startswith("wbe_") and "alembic" not in name
        ]


@contextlib.contextmanager
def _database(conf: Conf) -> Iterator[Any]:
    import sqlalchemy

    url = conf["connection"].replace("mysql:", "mysql+pymysql:")
    if url == "dir":
        url = f"sqlite:///{_file(conf)}"
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        yield engine
    finally:
        engine.dispose()


def _tables(engine: Any) -> dict[str, list[Any]]:
    import sqlalchemy

    tables = sqlalchemy.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        return {
            name: list(connection.execute(sqlalchemy.select(table)))
            for name, table in tables.tables.items()
        }


# How it is damaged.


@dataclass(frozen=True)
class Harm:
    """One damage: where it is done to a copy of the store, and how to undo it."""

    text: str
    undo: Callable[[], None]
    #: Whether what was damaged is there still, unchanged.
    kept: Callable[[], bool]


def _spoilt(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Some bytes with one of them flipped, or the end cut off."""
    at = chance.randrange(len(data))
    if chance.random() < 0.4:
        return data[:at], f"cut at {at} of {len(data)}"
    bit = 1 << chance.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], f"byte {at} flipped by {bit}"


def damage(conf: Conf, chance: random.Random) -> Harm:
    """Flip a bit of what is stored, or cut off the end of it, somewhere."""
    path = _file(conf)
    if chance.random() < 0.3:
        return _of_file(path, path.parent, chance)
    return _of_row(path, chance)


def _file(conf: Conf) -> Path:
    """The file of an sqlite database."""
    if conf["connection"] == "dir":
        return Path(conf["path"]) / "flows.db"
    return Path(conf["connection"].removeprefix("sqlite:///"))


def _of_file(path: Path, root: Path, chance: random.Random) -> Harm:
    before = path.read_bytes()
    after, text = _spoilt(before, chance)
    path.write_bytes(after)

    def kept() -> bool:
        if path.suffix in (".sqlite", ".db"):
            return path.exists()  # the flows that are fine go on in the same file
        return any(p.is_file() and after in p.read_bytes() for p in root.rglob("*"))

    # What was damaged may have been set aside since.
    return Harm(f"{path.name}: {text}", lambda: _put_back(path, before), kept)


def _put_back(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _of_row(path: Path, chance: random.Random) -> Harm:
    """A text in a random row; keys are left alone, as they are what a row is asked for by."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            if name.startswith("wbe_") and "alembic" not in name and "ledger" not in name
        ]
        cells = []
        for table in sorted(tables):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for row in connection.execute(f"SELECT rowid, * FROM {table}"):
                cells += [
                    (table, column, row[0], value)
                    for column, value in zip(columns, row[1:], strict=True)
                    if isinstance(value, str) and value and not _is_key(column)
                ]
        table, column, number, value = chance.choice(cells)
        data, text = _spoilt(value.encode(), chance)
        after = data.decode(errors="replace")
        _set(path, table, column, number, after)
    return Harm(
        f"{table}.{column} of row {number}: {text}",
        lambda: _set(path, table, column, number, value),
        lambda: True,
    )


def _set(path: Path, table: str, column: str, number: int, value: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, number))


def _is_key(column: str) -> bool:
    return column == "uuid" or column.endswith("_uuid")
