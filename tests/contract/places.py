"""Locations of the stores under test."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams import stores
from tests.support import servers, tally

#: Mark of tests for stores that other processes can open.
durable = pytest.mark.parametrize("kind", stores.DURABLE, indirect=True, scope="module")


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
