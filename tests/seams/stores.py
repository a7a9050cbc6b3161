"""Stores: their addresses, and their raw content.

`wbengine.persistence.base` is public and describes the contract. This module creates stores of all
kinds and reads their content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import sqlalchemy as sa

from wbengine.persistence import _lease_renewer, _leases, _owners, _trees, base, models
from wbengine.persistence._writer import EPOCHS_PER_RUN
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import flow_queries
from wbengine.signals import Signal

__all__ = [
    "ALL_KINDS",
    "DURABLE",
    "EPOCHS_PER_RUN",
    "KINDS",
    "MODULES",
    "Conf",
    "Lease",
    "Owner",
    "conf",
    "delivered_signals",
    "engine_of",
    "left_in",
    "owner",
    "raw",
    "read_errors_in_steps_of",
    "row",
]

#: Kinds with code of their own. Tests of the contract run on these.
KINDS: Final = ("memory", "sqlite", "postgresql")
#: Those that other processes can open.
DURABLE: Final = KINDS[1:]
#: The kinds and their variants. 'memory, shared' stores the values of users themselves instead of
#: copies, 'dir' is SQLite in a folder, and 'mysql' is a dialect.
ALL_KINDS: Final = (*KINDS, "memory, shared", "dir", "mysql")

#: Modules of each kind, for processes that import them before they fork.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": ("wbengine.persistence.backends._memory",),
    **{
        kind: (
            "alembic.command",
            "alembic.context",
            "wbengine.persistence.backends._directory",
            dialect,
        )
        for kind, dialect in (
            ("dir", "sqlalchemy.dialects.sqlite"),
            ("sqlite", "sqlalchemy.dialects.sqlite"),
            ("postgresql", "sqlalchemy.dialects.postgresql.psycopg"),
        )
    },
}

#: The configuration of a store for `backends.fetch`.
Conf = dict[str, Any]

#: The lease of a flow with its owner.
Lease = _leases.Lease
Owner = _owners.Owner
owner = _owners.new


def conf(kind: str, folder: Path, name: str = "store") -> Conf:
    """Return the configuration of a store without a server, in a folder."""
    if kind == "dir":
        return {"connection": "dir", "path": str(folder / name)}
    if kind == "sqlite":
        return {"connection": f"sqlite:///{folder / name}.sqlite"}
    if kind == "memory, shared":
        return {"connection": "memory", "deep_copy": False}
    return {"connection": "memory"}


def read_errors_in_steps_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one statement read only this number of rows to search for errors of flows."""
    monkeypatch.setattr(flow_queries, "_ROWS_PER_READ", rows)


def row(record: models.LogBook | models.FlowDetail | models.AtomDetail | models.ItemDetail) -> Any:
    """Return the row of a record as plain data."""
    return _trees.tree_of(record)


# Content.


def raw(conf: Conf) -> Any:
    """Return the raw content of a durable store."""
    with _database(conf) as engine:
        return {name: sorted(map(repr, rows)) for name, rows in _tables(engine).items()}


def left_in(conf: Conf) -> list[str]:
    """Return the rows that remain after all books were destroyed."""
    with _database(conf) as engine:
        return [
            f"{len(rows)} rows of {name}"
            for name, rows in _tables(engine).items()
            if rows and name.startswith("wbe_") and "alembic" not in name
        ]


def engine_of(backend: base.Backend) -> sa.Engine:
    """Return the SQLAlchemy engine of a database backend."""
    assert isinstance(backend, _sql.SQLBackend)
    return backend.engine


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
    """Return the file of an SQLite database."""
    if conf["connection"] == "dir":
        return Path(conf["path"]) / "flows.db"
    return Path(conf["connection"].removeprefix("sqlite:///"))


def delivered_signals(backend: base.Backend, flows: Sequence[str]) -> dict[str, list[Signal]]:
    """Return the signals that one read of the store delivers to the engines of flows."""
    delivered = {uuid: list[Signal]() for uuid in flows}
    leases = [
        SimpleNamespace(lease=SimpleNamespace(flow=uuid), on_signals=delivered[uuid].extend)
        for uuid in flows
    ]
    _lease_renewer._StoreLeases(time.monotonic)._deliver_signals(backend, cast(Any, leases))
    return delivered
