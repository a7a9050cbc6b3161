"""The ledgers that engines and workers share in addition to the broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.media import FENCE, Left, keys
from tests.seams import ledgers, stores
from tests.support import brokers, servers

WORDS = ("sqlite", "dir", "postgresql", "redis")


@dataclass(frozen=True)
class Place:
    """The URL of a ledger (None: the ledger of the broker, if it has one), and its remaining
    content.
    """

    url: str | None
    left: Callable[[], list[Left]] = list


@contextlib.contextmanager
def place(what: str | None, folder: Path) -> Iterator[Place]:
    """Yield a new ledger of a kind, or the ledger at a URL."""
    if what == "sqlite":
        url = f"sqlite:///{folder / 'ledger.sqlite'}"
        yield Place(url, lambda: _rows(url))
    elif what == "dir":
        ledger = folder / "ledger"
        yield Place(f"dir://{ledger}", lambda: _files(ledger))
    elif what == "postgresql":
        with servers.postgresql() as server, server.database() as url:
            yield Place(url, lambda: _rows(url))
    elif what == "redis":
        with brokers.redis() as broker:
            yield Place(broker.url(), lambda: keys(broker))
    else:
        yield Place(what)


def _rows(url: str) -> list[Left]:
    """Return the remaining rows. Rows of killed owners stay until they expire."""
    return [
        Left(what, what.endswith("_holders"))
        for what in stores.left_in({"connection": url})
        if not what.endswith("_about")
    ]


def _files(ledger: Path) -> list[Left]:
    return [Left(what, f" {FENCE}" in what) for what in ledgers.left(ledger)]
