"""Transport through plain folders, for processes of one host: `filesystem:///PATH`.

Transport options: `data_folder_in`, `data_folder_out` (publish into `out`, consume from `in`; one
folder when only one is given), `polling_interval` (seconds; see `_arrivals`), `inotify` (False:
poll).

A message is written to a private file and renamed into its queue; it is taken by renaming it into
the folder of its consumer (from a queue of its own: by remembering it), and settled by renaming it
away.  A consumer that dies, even by kill -9, is noticed by its unlocked file, and what it had taken
goes back to the queue in its old place.  Requests are claimed in the ledger as they are taken.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from wbengine import _names, exceptions
from wbengine.transports import _envelope, _files, _routing
from wbengine.transports._arrivals import Arrivals, View
from wbengine.transports.broker import Broker, LaidOut, Taken

__all__ = ["FileBroker", "folders", "path_of"]

LOG = logging.getLogger("wbengine.transports.filesystem")

#: A queue that nobody consumes or publishes to for so long is removed with all it holds.
STALE_AFTER: Final = 7 * 24 * 3600.0

_SWEEP_EVERY: Final = 3600.0
#: A folder that changed less than this ago may change again within the same tick of its clock.
_SETTLE: Final = 0.05
_NAME_LIMIT: Final = 250
_LOG_LIMIT: Final = 100
#: Seconds between two searches for dead consumers, should nobody have noticed their end.
_DEAD_SWEEP: Final = 2.0
#: Seconds between two marks that a queue has a consumer; unused ones are looked for less often.
_TOUCH_EVERY: Final = 1800.0
_ORPHAN_AGE: Final = 60.0


class _Cached:
    """The bindings of an exchange as last read, and whether the folder's time can be trusted."""

    __slots__ = ("names", "seen", "settled", "stamp", "table")

    def __init__(self, stamp: tuple[int, int], seen: float) -> None:
        self.stamp = stamp
        self.seen = seen
        self.settled = False
        self.names: list[str] = []
        self.table = _routing.Table(())


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
            _files.make_folder(folder, private=True)
        for folder in (self.exchanges, self.queues, self.claims):
            _files.check_folders(folder)
        self.spares = _files.spares(spare, self.temp)
        _files.sweep_temp(self.temp)
        self._sweep_stale()

    def close(self) -> None:
        """Nothing more is published or taken."""
        self.spares.release()

    # -- exchanges

    def declare_exchange(self, name: str) -> None:
        """Make the exchange when it is not there."""
        folder = f"{self.exchanges}/{_label('exchange', name)}"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _files.touch(f"{folder}/=topic")

    def delete_exchange(self, name: str) -> None:
        """Forget it with its bindings."""
        _files.remove_tree(f"{self.exchanges}/{_label('exchange', name)}")

    def bind(self, exchange: str, key: str, queue: str) -> None:
        """Add a binding; ValueError when the names are too long for a file."""
        name = f"{queue}={quote(key, safe='*#')}"
        if len(name) > _NAME_LIMIT:
            raise ValueError(f"routing key {key[:100]!r} is too long for a binding of {queue}")
        _files.touch(f"{self.exchanges}/{exchange}/{name}")

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        """Remove a binding."""
        _files.remove(f"{self.exchanges}/{exchange}/{queue}={quote(key, safe='*#')}")

    def bindings(self) -> Iterator[tuple[str, str, str]]:
        """All (queue, exchange, key)."""
        for exchange in sorted(os.listdir(self.exchanges)):
            for name in sorted(_files.names(f"{self.exchanges}/{exchange}")):
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
        names = sorted(_files.names(folder))
        if known is not None and known.names == names:
            found.table = known.table
        else:
            split = [name.partition("=") for name in names]
            pairs = [(unquote(key), queue) for queue, mark, key in split if mark and queue]
            found.table = _routing.Table(pairs)
        found.names = names
        found.settled = now - found.seen > _SETTLE
        self._cache[exchange] = found
        return found

    # -- queues

    def path(self, queue: str) -> str:
        """The folder of a queue.

        :raises ValueError: no queue is called so.
        """
        return f"{self.queues}/{_label('queue', queue)}"

    def declare_queue(self, queue: str) -> None:
        """Make the queue when it is not there."""
        os.makedirs(self.path(queue), mode=0o700, exist_ok=True)

    def has_queue(self, queue: str) -> bool:
        """Whether it is there."""
        return os.path.isdir(self.path(queue))

    def delete_queue(self, queue: str) -> int:
        """Remove bindings, then the queue with its messages; how many messages went."""
        prefix = f"{queue}="
        for exchange in os.listdir(self.exchanges):
            folder = f"{self.exchanges}/{exchange}"
            for name in _files.names(folder):
                if name.startswith(prefix):
                    _files.remove(f"{folder}/{name}")
        gone = f"{self.temp}/{_files.unique()}"
        try:
            os.rename(self.path(queue), gone)
        except FileNotFoundError:
            return 0
        return _files.remove_tree(gone)

    def purge(self, queue: str) -> int:
        """Remove the waiting messages; how many."""
        folder = self.path(queue)
        return sum(_files.remove(f"{folder}/{name}") for name in _files.names(folder))

    def size(self, queue: str) -> int:
        """How many messages wait."""
        return len(_files.names(self.path(queue)))

    def put(self, queue: str, priority: int, data: bytes) -> bool:
        """Append a message; False when there is no such queue.

        :raises TransportFailure: it cannot be written (no space, no permission).
        """
        target = f"{self.path(queue)}/{9 - priority}{_files.ordered()}"
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
        for queue in _files.names(self.queues):
            if _age(f"{self.queues}/{queue}", now) > STALE_AFTER:
                LOG.info("queue %s was not used for 7 days: removed", queue)
                self.delete_queue(queue)
        for exchange in _files.names(self.exchanges):
            folder = f"{self.exchanges}/{exchange}"
            if _age(folder, now) > STALE_AFTER and all(
                n.startswith("=") for n in _files.names(folder)
            ):
                self.delete_exchange(exchange)


@lru_cache(maxsize=4096)
def _label(kind: str, name: str) -> str:
    """`_names.check_label`, remembered: the same few names are used again and again."""
    return _names.check_label(kind, name)


def _age(path: str, now: float) -> float:
    try:
        return now - os.stat(path).st_mtime
    except OSError:
        return 0.0


class FolderClaims(Protocol):
    """For whom requests are claimed, by the ledger of the same folders."""

    def take(self, labelled: Sequence[tuple[Taken, bytes]], began: float) -> None:
        """Claim what depends on rows of the ledger, by the labels, in one step that began then.

        Of what has no claim afterwards nothing is known: the worker has to ask.
        """

    def give_back(self, taken: Taken) -> None:
        """What was claimed was given to no worker: others may claim it."""

    def end(self, rows: Sequence[tuple[str, int, bytes]]) -> list[bool]:
        """Store each of these (id, epoch, result); whether its engine is to be answered."""


class FileBroker(Broker):
    """One connection to folders."""

    batch = 64
    labels = True

    def __init__(
        self,
        folder_in: str,
        folder_out: str,
        interval: float | None,
        inotify: bool = True,
        claims: FolderClaims | None = None,
    ) -> None:
        super().__init__()
        self._in = Tree(folder_in)
        same = os.path.realpath(folder_in) == os.path.realpath(folder_out)
        self._out = self._in if same else Tree(folder_out)
        self._arrivals = Arrivals(self._in.queues, self._in.holders, interval, inotify)
        self._holder: _files.Holder | None = None
        self._folder = ""
        self._claims = claims
        # Queues of this process, and what was taken of them: that stays where it is, for nobody
        # else takes from there, and what is left of it goes with the queue.
        self._owned: set[str] = set()
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._sweep_at = 0.0
        self._touch_at = 0.0
        self._closed = False
        self._sweep_dead()

    # -- exchanges and queues: publishing looks into `out`, all else belongs to `in`

    def declare_exchange(self, name: str) -> None:
        self._in.declare_exchange(name)
        if self._out is not self._in:
            self._out.declare_exchange(name)

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        if owned:  # first: a process that dies in between leaves no queue that nobody deletes
            self._become_holder()
            _files.touch(f"{self._folder}/{queue}=")
            self._owned.add(queue)
        self._in.declare_queue(queue)

    def delete_queue(self, queue: str) -> int:
        return self._in.delete_queue(queue)

    def purge(self, queue: str) -> int:
        return self._in.purge(queue)

    def size(self, queue: str) -> int:
        return self._in.size(queue)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        self._in.bind(exchange, key, queue)

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        self._in.unbind(exchange, key, queue)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return self._in.bindings()

    # -- publishing

    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        # Of the bindings, one look at a time is enough.
        routes: dict[tuple[str, str], Sequence[str]] = {}
        return (self._publish(message, routes) > 0 for message in messages)

    def _publish(self, message: LaidOut, routes: dict[tuple[str, str], Sequence[str]]) -> int:
        exchange, key, priority, data = message
        queues = routes.get((exchange, key))
        if queues is None:
            try:
                queues = self._out.route(exchange, key) if exchange else (key,)
            except OSError as exc:
                raise exceptions.TransportFailure(
                    f"cannot read {self._out.root}: {exc.strerror or exc}"
                ) from exc
            routes[exchange, key] = queues
        put = self._out.put
        return sum([put(queue, priority, data) for queue in queues])

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int, bytes], Taken, LaidOut]],
        told: None = None,
    ) -> tuple[Sequence[int], Sequence[Taken]]:
        """Not one step, but each is done before the next: whoever is killed in between leaves a
        request that is taken again, of which its row tells what came."""
        assert self._claims is not None
        # An attempt that failed at one of them was done with those before it.
        left = [one for one in ended if one[1].token is not None]
        routes: dict[tuple[str, str], Sequence[str]] = {}
        counts = [1] * (len(ended) - len(left))
        wanted = self._claims.end([row for row, _, _ in left])
        for (_, taken, message), good in zip(left, wanted, strict=True):
            counts.append(self._publish(message, routes) if good else -1)
            self._settle(taken)
            taken.token = None
        return counts, ()

    # -- taking

    def watch(self, queue: str) -> None:
        self._arrivals.watch(queue)
        self._touch_at = 0.0

    def unwatch(self, queue: str) -> None:
        self._arrivals.unwatch(queue)

    def refresh(self) -> int:
        now = time.monotonic()
        if now >= self._sweep_at or self._arrivals.holder_ended:
            self._sweep_dead()
        if now >= self._touch_at:
            self._touch_at = now + _TOUCH_EVERY
            for view in self._arrivals.views.values():
                try:
                    os.utime(view.path)
                except OSError:
                    pass
        known = self._arrivals.refresh()
        for view in self._arrivals.views.values():
            if view.foreign:
                self._put_foreign_aside(view)
        return known

    def _put_foreign_aside(self, view: View) -> None:
        names, view.foreign = view.foreign, []
        for name in names:
            why = "its name is not that of a message"
            if not self._in.reject(f"{view.path}/{name}", view.queue, why):
                view.ignored.add(name)

    def _take(self, queue: str) -> tuple[Taken, bytes] | None:
        """The first message, and its label."""
        view = self._arrivals.views[queue]
        self._become_holder()
        while (name := view.pop()) is not None:
            path = f"{view.path}/{name}"
            if queue in self._owned:
                if path in self._held:
                    continue
                claim = path
            else:
                claim = f"{self._folder}/{queue}={name}"
                try:
                    os.rename(path, claim)
                except FileNotFoundError:
                    continue  # somebody else took it
                except OSError as exc:
                    LOG.warning("queue %s: cannot take %r: %s", queue, name, exc)
                    view.ignored.add(name)
                    continue
            try:
                data = _files.read(claim, _envelope.LIMIT + _envelope.LABEL_LIMIT)
            except FileNotFoundError:
                continue
            except _files.Unreadable as exc:
                self._in.reject(claim, queue, str(exc))
                continue
            except OSError:
                if claim != path:
                    self._return(claim, queue, name, delivered=False)
                raise
            if claim == path:
                self._held.add(path)
            label, body = _envelope.split(data)
            return Taken(queue, (claim, name, len(data)), body, name.endswith(".r")), label
        return None

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        found: list[tuple[int, Taken]] = []
        labelled: list[tuple[Taken, bytes]] = []
        began = time.monotonic()
        for group, (most, queues) in enumerate(groups):
            for queue in queues:
                while most > 0 and (one := self._take(queue)) is not None:
                    found.append((group, one[0]))
                    most -= 1
                    if one[1]:
                        labelled.append(one)
        if labelled and self._claims is not None:
            self._claims.take(labelled, began)
        return found

    def settle_many(self, taken: Sequence[Taken]) -> bool:
        return sum(map(self._settle, taken)) == len(taken)

    def _settle(self, taken: Taken) -> bool:
        if taken.token is None:  # it was ended, see `end_many`
            return False
        claim, _, size, *_ = taken.token
        try:
            self._in.spares.give(claim, size)
        except FileNotFoundError:
            LOG.warning("queue %s: acknowledged %r, which is not ours", taken.queue, claim)
            return False
        except OSError as exc:
            raise exceptions.TransportFailure(
                f"cannot write to {self._in.root}: {exc.strerror or exc}"
            ) from exc
        finally:
            self._held.discard(claim)
        return True

    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        if taken.token is None:
            return
        claim, name, *_ = taken.token
        if self._claims is not None and not delivered:
            self._claims.give_back(taken)
        if claim in self._held:
            # Away with it, so that it comes again.
            away = f"{self._in.temp}/{_files.unique()}"
            try:
                os.rename(claim, away)
            except FileNotFoundError:
                return
            finally:
                self._held.discard(claim)
            claim = away
        self._return(claim, taken.queue, name, delivered)

    def refuse(self, taken: Taken) -> None:
        if self._claims is not None:
            self._claims.give_back(taken)
        self.settle_many((taken,))

    def discard(self, taken: Taken, why: str) -> None:
        if self._claims is not None:
            self._claims.give_back(taken)
        self._in.reject(taken.token[0], taken.queue, why)
        self._held.discard(taken.token[0])

    def _return(self, claim: str, queue: str, name: str, delivered: bool = True) -> bool:
        again = f"{name}.r" if delivered and not name.endswith(".r") else name
        try:
            os.rename(claim, f"{self._in.queues}/{queue}/{again}")
        except FileNotFoundError:
            if not self._in.has_queue(queue):
                _files.remove(claim)
            return False
        return True

    # -- holders

    def _become_holder(self) -> None:
        if self._folder:
            return
        with self._lock:
            if self._folder:
                return
            name = _files.unique()
            claims = f"{self._in.claims}/{name}"
            os.mkdir(claims, 0o700)
            self._holder = _files.Holder(self._in.holders, self._in.temp, name)
            # Made again should a sweep have taken it for a leftover before the holder was there.
            os.makedirs(claims, mode=0o700, exist_ok=True)
            self._folder = claims

    def _sweep_dead(self) -> None:
        self._arrivals.holder_ended = False
        self._sweep_at = time.monotonic() + _DEAD_SWEEP
        tree = self._in
        holders = set(os.listdir(tree.holders))
        mine = self._holder.name if self._holder is not None else ""
        for name in os.listdir(tree.claims):
            if name not in holders:
                try:
                    made = os.stat(f"{tree.claims}/{name}").st_mtime
                    if _files.clock(tree.claims) - made > _ORPHAN_AGE:
                        self._recover(name)
                except FileNotFoundError:
                    pass
        for name in holders:
            if name != mine and not _files.alive(tree.holders, name):
                self._recover(name)
                _files.remove(f"{tree.holders}/{name}")

    def _recover(self, holder: str) -> None:
        folder = f"{self._in.claims}/{holder}"
        try:
            claims = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        returned = 0
        for claim in sorted(claims):  # a queue goes before what came out of it
            queue, mark, name = claim.partition("=")
            if name:
                returned += self._return(f"{folder}/{claim}", queue, name)
            elif _files.remove(f"{folder}/{claim}") and mark and _names.is_label(queue):
                self._in.delete_queue(queue)  # done by one of those who noticed
        if returned:
            LOG.warning("a consumer died: %d messages went back to their queues", returned)
        try:
            os.rmdir(folder)
        except OSError:
            pass

    # -- waiting

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        left = max(0.0, self._sweep_at - time.monotonic())
        self._arrivals.wait(left if timeout is None else min(timeout, left))

    def nudge(self) -> None:
        self._arrivals.nudge()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._arrivals.close()
        for tree in {self._in, self._out}:
            tree.close()
        if self._holder is not None and self._holder.held:
            try:
                for claim in os.listdir(self._folder):
                    if claim.endswith("="):
                        os.unlink(f"{self._folder}/{claim}")
                os.rmdir(self._folder)
                self._holder.release()
            except OSError:
                self._holder.abandon()

    def __del__(self) -> None:
        # A connection that was dropped without `release()`; half-made stores have no `_closed`.
        if hasattr(self, "_closed"):
            try:
                self.close()
            except OSError:
                pass


def folders(url: str | None, options: dict[str, Any]) -> tuple[str, str]:
    """(in, out) as the options say, else the folder of the URL; ValueError when there is none."""
    folder_in = options.get("data_folder_in") or options.get("data_folder_out")
    folder_out = options.get("data_folder_out") or folder_in
    if not folder_in:
        folder_in = folder_out = path_of(url or "")
    if not folder_in or not folder_out:
        raise ValueError(
            f"no folder: {url or 'no URL'!r} names none, and there is no `data_folder_in` in the "
            "transport options"
        )
    return os.path.abspath(folder_in), os.path.abspath(folder_out)


def path_of(url: str) -> str:
    """The folder of `filesystem://PATH`, or ''."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme != "filesystem" or rest.strip("/") in ("", "localhost"):
        return ""
    return unquote(rest)
