"""Locations of the stores under test."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams import stores
from tests.support import servers, tally
from wbengine.persistence import backends


def on(*kinds: str) -> pytest.MarkDecorator:
    """Return the mark of tests that run on these kinds of stores instead of `stores.KINDS`."""
    return pytest.mark.parametrize("kind", kinds, indirect=True)


#: Marks of tests for stores that other processes can open; for all kinds and variants; and for SQL
#: that differs between dialects.
durable = on(*stores.DURABLE)
everywhere = on(*stores.ALL_KINDS)
every_durable = on(*stores.DURABLE, "dir", "mysql")
dialects = on(*stores.KINDS, "mysql")
durable_dialects = on(*stores.DURABLE, "mysql")


class Places:
    """One store of each kind. Tests share it, because creating one is slow."""

    def __init__(self, folder: Path, databases: servers.Databases) -> None:
        self._folder, self._databases = folder, databases
        self._stack = contextlib.ExitStack()
        self._confs: dict[str, stores.Conf] = {}

    def conf(self, kind: str) -> stores.Conf:
        """Return the configuration of a store with the current layout."""
        if kind not in self._confs:
            folder = self._folder / kind
            folder.mkdir()
            options = self._stack.enter_context(place(kind, folder, self._databases))
            with backends.backend(options):
                pass
            self._confs[kind] = options
        return self._confs[kind]

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def place(kind: str, folder: Path, databases: servers.Databases) -> Iterator[stores.Conf]:
    """Yield the configuration of an empty store of a kind; delete the store afterwards."""
    if kind in ("mysql", "postgresql"):
        with databases[kind].database() as url:
            tally.backends[kind] = databases[kind].version
            yield {"connection": url}
        return
    tally.backends[kind.partition(",")[0]] = sqlite3.sqlite_version if kind == "sqlite" else ""
    yield stores.conf(kind, folder)
