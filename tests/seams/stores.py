"""Stores: where each kind is, and what is in it whatever that means.

What a store does is said by `wbengine.persistence.base`, which is public; here is what must be
known besides to make stores of every kind, and to look into them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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
    "Lease",
    "Owner",
    "conf",
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


def _file(conf: Conf) -> Path:
    """The file of an sqlite database."""
    if conf["connection"] == "dir":
        return Path(conf["path"]) / "flows.db"
    return Path(conf["connection"].removeprefix("sqlite:///"))
