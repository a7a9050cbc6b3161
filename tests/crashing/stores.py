"""The stores of flows whose processes are killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.seams import stores

KINDS = ("dir", "sqlite", "postgresql")


class Stores:
    """Creates stores in a folder, or returns the databases of this process on running servers."""

    def __init__(self, folder: Path, databases: dict[str, str]) -> None:
        self._folder = folder
        self._databases = databases

    def conf(self, kind: str, name: str) -> stores.Conf:
        if kind in self._databases:
            return {"connection": self._databases[kind]}
        return stores.conf(kind, self._folder, name)


@contextlib.contextmanager
def databases(kinds: Iterable[str], count: int) -> Iterator[list[dict[str, str]]]:
    """Yield a database on each server for each of `count` processes."""
    with contextlib.ExitStack() as stack:
        connections: list[dict[str, str]] = [{} for _ in range(count)]
        if "postgresql" in kinds:
            from tests.support import servers

            server = stack.enter_context(servers.postgresql())
            for mine in connections:
                mine["postgresql"] = stack.enter_context(server.database())
        yield connections
