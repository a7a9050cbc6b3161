"""One folder of the filesystem transport: its exchanges, queues and bindings.

    exchanges/<exchange>/=<kind>             the kind of the exchange
    exchanges/<exchange>/<queue>=<key>       a binding (empty file, the key is percent-encoded)
    queues/<queue>/<9 - priority><time>.<process>[.r]    a waiting message; `.r`: it came back
    claims/<holder>/<queue>=<message>        a message that is being worked on, unless its queue is
                                             the holder's own: then it stays there
    claims/<holder>/<queue>=                 a queue that goes when its holder dies
    holders/<holder>                         locked as long as the consumer lives
    spare/ temp/ rejected/                   to recycle, half-written, undeliverable files

Every step that another process can see is one rename, or the making of one empty file.  The file of
a request begins with a line that names its row in the ledger: see `_claims`.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, unquote

from kombu.exceptions import ChannelError

from wbengine import exceptions
from wbengine.transports import _files, _routing, _spares

LOG = logging.getLogger("wbengine.transports.filesystem")

#: What the file of a message is called.
MESSAGE_NAME: Final = re.compile(r"[0-9]{21}\.[0-9a-f]{12}(?:\.r)?").fullmatch

#: A queue that nobody consumes or publishes to for so long is removed with all it holds.
STALE_AFTER: Final = 7 * 24 * 3600.0

_SWEEP_EVERY: Final = 3600.0
#: A folder that changed less than this ago may change again within the same tick of its clock.
_SETTLE: Final = 0.05
_NAME_LIMIT: Final = 250
_LOG_LIMIT: Final = 100


class _Cached:
    """The bindings of an exchange as last read, and whether the folder's time can be trusted."""

    __slots__ = ("names", "seen", "settled", "stamp", "table")

    def __init__(self, stamp: tuple[int, int], seen: float) -> None:
        self.stamp = stamp
        self.seen = seen
        self.settled = False
        self.names: list[str] = []
        self.table = _routing.Table("", ())


class Tree:
    """A folder that holds exchanges, queues and bindings.  Thread-safe."""

    def __init__(self, root: str) -> None:
        """Make or open.

        :raises TransportFailure: the folder cannot be used.
        """
        self.root = _files.make_folder(root)
        self._cache: dict[str, _Cached] = {}
        self._rejections = 0
        self.exchanges = f"{self.root}/exchanges"
        self.queues = f"{self.root}/queues"
        self.claims = f"{self.root}/claims"
        self.holders = f"{self.root}/holders"
        self.temp = f"{self.root}/temp"
        self.rejected = f"{self.root}/rejected"
        spare = f"{self.root}/spare"
        folders = (self.exchanges, self.queues, self.claims, self.holders, self.temp)
        for folder in (*folders, self.rejected, spare):
            if not os.path.isdir(folder):
                _files.make_folder(folder)
        self.spares = _spares.spares(spare, self.temp)
        _files.sweep_temp(self.temp)
        self._sweep_stale()

    def close(self) -> None:
        """Nothing more is published or taken."""
        self.spares.release()

    # -- exchanges

    def declare_exchange(self, name: str, kind: str) -> None:
        """Make the exchange when it is not there."""
        folder = f"{self.exchanges}/{name}"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _files.touch(f"{folder}/={kind}")

    def exchange_kind(self, name: str) -> str | None:
        """Its kind, or None."""
        found = self._bindings_of(name)
        return None if found is None else found.table.kind or None

    def delete_exchange(self, name: str) -> None:
        """Forget it with its bindings."""
        _files.remove_tree(f"{self.exchanges}/{name}")

    def bind(self, exchange: str, key: str, queue: str) -> None:
        """Add a binding; ChannelError when the names are too long for a file."""
        name = f"{queue}={quote(key, safe='*#')}"
        if len(name) > _NAME_LIMIT:
            raise ChannelError(f"routing key {key[:100]!r} is too long for a binding of {queue}")
        _files.touch(f"{self.exchanges}/{exchange}/{name}")

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        """Remove a binding."""
        _files.remove(f"{self.exchanges}/{exchange}/{queue}={quote(key, safe='*#')}")

    def bindings(self) -> Iterator[tuple[str, str, str]]:
        """All (queue, exchange, key)."""
        for exchange in sorted(os.listdir(self.exchanges)):
            for name in sorted(_names(f"{self.exchanges}/{exchange}")):
                queue, mark, key = name.partition("=")
                if mark and queue:
                    yield queue, exchange, unquote(key)

    def route(self, exchange: str, key: str) -> Sequence[str]:
        """The queues behind a routing key; reads the bindings only when their folder changed."""
        found = self._bindings_of(exchange)
        return () if found is None else found.table.route(key)

    def _bindings_of(self, exchange: str) -> _Cached | None:
        folder = f"{self.exchanges}/{exchange}"
        try:
            status = os.stat(folder)
        except FileNotFoundError:
            return None
        stamp = (status.st_ino, status.st_mtime_ns)
        found = self._cache.get(exchange)
        if found is not None and found.settled and found.stamp == stamp:
            return found
        now = time.monotonic()
        known = found
        if found is None or found.stamp != stamp:
            found = _Cached(stamp, now)
        names = sorted(_names(folder))
        if known is not None and known.names == names:
            found.table = known.table
        else:
            split = [name.partition("=") for name in names]
            kinds = [kind for queue, mark, kind in split if mark and not queue]
            pairs = [(unquote(key), queue) for queue, mark, key in split if mark and queue]
            found.table = _routing.Table(kinds[0] if kinds else "", pairs)
        found.names = names
        found.settled = now - found.seen > _SETTLE
        self._cache[exchange] = found
        return found

    # -- queues

    def declare_queue(self, queue: str) -> None:
        """Make the queue when it is not there."""
        os.makedirs(f"{self.queues}/{queue}", mode=0o700, exist_ok=True)

    def has_queue(self, queue: str) -> bool:
        """Whether it is there."""
        return os.path.isdir(f"{self.queues}/{queue}")

    def delete_queue(self, queue: str) -> int:
        """Remove bindings, then the queue with its messages; how many messages went."""
        prefix = f"{queue}="
        for exchange in os.listdir(self.exchanges):
            folder = f"{self.exchanges}/{exchange}"
            for name in _names(folder):
                if name.startswith(prefix):
                    _files.remove(f"{folder}/{name}")
        gone = f"{self.temp}/{_files.unique()}"
        try:
            os.rename(f"{self.queues}/{queue}", gone)
        except FileNotFoundError:
            return 0
        return _files.remove_tree(gone)

    def purge(self, queue: str) -> int:
        """Remove the waiting messages; how many."""
        folder = f"{self.queues}/{queue}"
        return sum(_files.remove(f"{folder}/{name}") for name in _names(folder))

    def size(self, queue: str) -> int:
        """How many messages wait."""
        return len(_names(f"{self.queues}/{queue}"))

    def put(self, queue: str, priority: int, data: bytes) -> bool:
        """Append a message; False when there is no such queue.

        :raises TransportFailure: it cannot be written (no space, no permission).
        """
        target = f"{self.queues}/{queue}/{9 - priority}{_files.ordered()}"
        try:
            self.spares.place(data, target)
        except FileNotFoundError:
            if self.has_queue(queue) or not os.path.isdir(self.temp):
                raise exceptions.TransportFailure(f"folder {self.root} was removed") from None
            return False
        except OSError as exc:
            raise exceptions.TransportFailure(
                f"cannot write to {self.root}: {exc.strerror or exc}"
            ) from exc
        return True

    def reject(self, path: str, queue: str, why: str) -> bool:
        """Put a file aside that cannot be delivered, and say so; False when it cannot be moved."""
        kept = f"{_files.unique()}-{queue}-{os.path.basename(path)}"
        kept = kept.encode("ascii", "replace").decode()[:_NAME_LIMIT]
        try:
            os.rename(path, f"{self.rejected}/{kept}")
        except FileNotFoundError:
            return True
        except OSError as exc:
            LOG.warning("queue %s: cannot put %r aside: %s", queue, path, exc)
            return False
        self._rejections += 1
        if self._rejections <= _LOG_LIMIT:
            LOG.warning(
                "queue %s: %r is not delivered, %s; kept as %s/%s%s",
                queue, os.path.basename(path), why, self.rejected, kept,
                "; further ones are not logged" if self._rejections == _LOG_LIMIT else "",
            )  # fmt: skip
        return True

    def _sweep_stale(self) -> None:
        if not _files.due(f"{self.root}/swept", _SWEEP_EVERY):
            return
        now = _files.clock(self.root)
        for queue in _names(self.queues):
            if _age(f"{self.queues}/{queue}", now) > STALE_AFTER:
                LOG.info("queue %s was not used for 7 days: removed", queue)
                self.delete_queue(queue)
        for exchange in _names(self.exchanges):
            folder = f"{self.exchanges}/{exchange}"
            if _age(folder, now) > STALE_AFTER and all(n.startswith("=") for n in _names(folder)):
                self.delete_exchange(exchange)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _age(path: str, now: float) -> float:
    try:
        return now - os.stat(path).st_mtime
    except OSError:
        return 0.0
