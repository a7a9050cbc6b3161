"""Where records are kept that are to survive, and what is left there when all is forgotten."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

KINDS = ("dir", "sqlite", "postgresql")


class Stores:
    """Makes stores below a folder; servers are there already, a database of each for each user."""

    def __init__(self, folder: Path, databases: dict[str, str]) -> None:
        self._folder = folder
        self._databases = databases

    def conf(self, kind: str, name: str) -> Any:
        if kind == "memory":
            return {"connection": "memory"}
        if kind in self._databases:
            return {"connection": self._databases[kind]}
        if kind == "dir":
            return {"connection": "dir", "path": str(self._folder / f"{name}.store")}
        return {"connection": f"sqlite:///{self._folder / f'{name}.sqlite'}"}


def tear(conf: Any) -> None:
    """Leave behind what a process does that dies in the middle of a write: a turn without its end,
    after those that were written.
    """
    for journal in Path(conf["path"]).rglob("journal.*"):
        data = journal.read_bytes()
        at = data.rfind(b" 1 turn ")
        if at > 0:
            journal.write_bytes(data + data[data.rfind(b"\n", 0, at) + 1 : -5])


def left_in(conf: Any) -> list[str]:
    """What a store still has after all its books were destroyed."""
    if conf["connection"] == "dir":
        root = Path(conf["path"])
        return [str(path.relative_to(root)) for path in root.rglob("*") if _is_record(root, path)]
    return _rows(str(conf["connection"]))


def _is_record(root: Path, path: Path) -> bool:
    """Everything but the folders that the store itself consists of, and its own notes."""
    return path.parent != root and not path.name.startswith(".")


def _rows(url: str) -> list[str]:
    import sqlalchemy as sa

    made = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with made.connect() as connection:
            found = []
            for table in sa.inspect(connection).get_table_names():
                if table.startswith("wbe_") and "alembic" not in table:
                    count = connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar()
                    if count:
                        found.append(f"{count} rows of {table}")
            return found
    finally:
        made.dispose()


@contextlib.contextmanager
def databases(kinds: Iterable[str], count: int) -> Iterator[list[dict[str, str]]]:
    """One database of each server for each of `count` users."""
    with contextlib.ExitStack() as stack:
        made: list[dict[str, str]] = [{} for _ in range(count)]
        if "postgresql" in kinds:
            from tests import servers

            server = stack.enter_context(servers.postgresql())
            for mine in made:
                mine["postgresql"] = stack.enter_context(server.database())
        yield made
