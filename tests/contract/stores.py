"""Every kind of persistence backend, for the suites that all of them have to pass."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers, tally

#: 'memory, shared' keeps values of users as they are, instead of copies of them.
KINDS = ("memory", "memory, shared", "dir", "sqlite", "mysql", "postgresql")
#: Those that other processes can open.
DURABLE = KINDS[2:]
#: For tests that only those can pass.
durable = pytest.mark.parametrize("kind", DURABLE, indirect=True, scope="module")

Conf = dict[str, Any]


@contextlib.contextmanager
def place(kind: str, folder: Path, databases: servers.Lazy) -> Iterator[Conf]:
    """Where a store of this kind is; empty, and gone afterwards."""
    if kind in ("mysql", "postgresql"):
        with databases[kind].database() as url:
            tally.backends[kind] = databases[kind].version
            yield {"connection": url}
        return
    tally.backends[kind.partition(",")[0]] = sqlite3.sqlite_version if kind == "sqlite" else ""
    if kind == "dir":
        yield {"connection": "dir", "path": str(folder / "store")}
    elif kind == "sqlite":
        yield {"connection": f"sqlite:///{folder}/store.db"}
    elif kind == "memory, shared":
        yield {"connection": "memory", "deep_copy": False}
    else:
        yield {"connection": "memory"}


def raw(kind: str, conf: Conf) -> Any:
    """All there is in a durable store, byte for byte, whatever it means."""
    if kind == "dir":
        root = Path(conf["path"])
        return {
            str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in root.rglob("*")
            if path.is_file()
        }
    import sqlalchemy

    url = conf["connection"].replace("mysql:", "mysql+pymysql:")
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        tables = sqlalchemy.MetaData()
        tables.reflect(engine)
        with engine.connect() as connection:
            return {
                name: sorted(map(repr, connection.execute(sqlalchemy.select(table))))
                for name, table in tables.tables.items()
            }
    finally:
        engine.dispose()
