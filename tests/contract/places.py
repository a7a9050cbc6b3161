"""Where the stores are that the suites of all of them run over."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams import stores
from tests.support import servers, tally

#: For tests that only those can pass that other processes can open.
durable = pytest.mark.parametrize("kind", stores.DURABLE, indirect=True, scope="module")


@contextlib.contextmanager
def place(kind: str, folder: Path, databases: servers.Lazy) -> Iterator[stores.Conf]:
    """Where a store of this kind is; empty, and gone afterwards."""
    if kind in ("mysql", "postgresql"):
        with databases[kind].database() as url:
            tally.backends[kind] = databases[kind].version
            yield {"connection": url}
        return
    tally.backends[kind.partition(",")[0]] = sqlite3.sqlite_version if kind == "sqlite" else ""
    yield stores.conf(kind, folder)
