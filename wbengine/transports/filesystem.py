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

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

from wbengine import _names
from wbengine.transports import _base, _claims, _envelope, _files
from wbengine.transports._arrivals import Arrivals, View
from wbengine.transports._claims import FolderClaims
from wbengine.transports._store import Store, Taken
from wbengine.transports._tree import LOG, Tree

#: Seconds between two searches for dead consumers, should nobody have noticed their end.
_DEAD_SWEEP: Final = 2.0
#: Seconds between two marks that a queue has a consumer; unused ones are looked for less often.
_TOUCH_EVERY: Final = 1800.0
_ORPHAN_AGE: Final = 60.0


class FileStore(Store):
    """One connection's view of its folders."""

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

    def declare_exchange(self, name: str, kind: str) -> None:
        self._in.declare_exchange(name, kind)
        if self._out is not self._in:
            self._out.declare_exchange(name, kind)

    def exchange_kind(self, name: str) -> str | None:
        kind = self._in.exchange_kind(name)
        if kind is not None and self._out is not self._in:
            return self._out.exchange_kind(name)
        return kind

    def delete_exchange(self, name: str) -> None:
        self._in.delete_exchange(name)
        if self._out is not self._in:
            self._out.delete_exchange(name)

    def declare_queue(self, queue: str) -> None:
        self._in.declare_queue(queue)

    def own(self, queue: str) -> None:
        self._become_holder()
        _files.touch(f"{self._folder}/{queue}=")
        self._owned.add(queue)

    def has_queue(self, queue: str) -> bool:
        return self._in.has_queue(queue)

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

    def route(self, exchange: str, key: str) -> Sequence[str]:
        return self._out.route(exchange, key)

    def put(self, queue: str, priority: int, data: bytes) -> bool:
        return self._out.put(queue, priority, data)

    def publish_many(self, messages: Sequence[tuple[str, str, int, bytes]]) -> Iterator[bool]:
        # Of the bindings, one look at a time is enough.
        routes: dict[tuple[str, str], Sequence[str]] = {}
        return (self._publish(message, routes) > 0 for message in messages)

    def _publish(
        self, message: tuple[str, str, int, bytes], routes: dict[tuple[str, str], Sequence[str]]
    ) -> int:
        exchange, key, priority, data = message
        queues = routes.get((exchange, key))
        if queues is None:
            queues = self.route(exchange, key) if exchange else (key,)
            routes[exchange, key] = queues
        put = self._out.put
        return sum([put(queue, priority, data) for queue in queues])

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int, bytes], Taken, tuple[str, str, int, bytes]]],
        order: None = None,
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
            self.settle(taken)
            taken.token = None
        return counts, ()

    def label(self, data: bytes, row: tuple[str, int, str]) -> bytes:
        return _claims.label(data, row)

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

    def take(self, queue: str) -> Taken | None:
        found = self._take(queue)
        return None if found is None else found[0]

    def _take(self, queue: str) -> tuple[Taken, bytes] | None:
        """The first message, and its label."""
        view = self._arrivals.views.get(queue)
        if view is None:  # basic_get, without a consumer
            view = View(queue, f"{self._in.queues}/{queue}")
            view.list(0.0, twice=True)
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
                data = _files.read(claim, _envelope.LIMIT + _claims.LABEL_LIMIT)
            except FileNotFoundError:
                continue
            except _files.Unreadable as exc:
                self._in.reject(claim, queue, str(exc))
                continue
            if claim == path:
                self._held.add(path)
            label, body = _claims.split(data)
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

    def settle(self, taken: Taken) -> bool:
        if taken.token is None:  # it was ended, see `end_many`
            return False
        claim, _, size, *_ = taken.token
        try:
            self._in.spares.give(claim, size)
        except FileNotFoundError:
            LOG.warning("queue %s: acknowledged %r, which is not ours", taken.queue, claim)
            return False
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


class Transport(_base.Transport):
    """kombu transport over folders."""

    driver_type = "filesystem"
    driver_name = "wbengine-filesystem"
    known_options = ("data_folder_in", "data_folder_out", "polling_interval", "inotify")

    def open_store(self) -> FileStore:
        """Open the folders.

        :raises TransportFailure: they cannot be used.
        """
        options = self.client.transport_options
        folder_in, folder_out = folders(self.client.hostname, options)
        return FileStore(
            folder_in,
            folder_out,
            options.get("polling_interval"),
            options.get("inotify", True),
            options.get("claims"),
        )


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
