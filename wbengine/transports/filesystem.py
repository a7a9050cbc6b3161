"""Transport through a folder, for processes of one host: `filesystem:///PATH`.

Transport options: `data_folder_in`, `data_folder_out` (publish into `out`, consume from `in`; one
folder when only one is given), `polling_interval` (seconds between two looks at an idle queue: 1
unless told), `inotify` (False: use no FIFOs, and look after 1 ms, 2 ms, ... up to `interval`, or
0.1 s).

Queues and the ledger of requests are in one file (`_folder`).  Messages are taken under a number of
the connection, together with the rows of their requests; from a queue of its own they are only
read, and remembered.  A consumer that dies, even by kill -9, is noticed by its unlocked file, and
what it had taken goes back to the queue in its old place.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote

from wbengine import _names, exceptions
from wbengine.transports import _bells, _envelope, _files, _folder, _routing
from wbengine.transports._folder import FREE, TURNS
from wbengine.transports.broker import Broker, LaidOut, Taken

__all__ = ["FileBroker", "folders", "path_of"]

LOG = logging.getLogger("wbengine.transports.filesystem")

_T = TypeVar("_T")

#: Epoch, state, holder and result of a request; None: it has no row.
Row = tuple[int, int, str | None, bytes | None] | None

#: A queue that nobody consumes or publishes to for so long is removed with all it holds.
STALE_AFTER: Final = 7 * 24 * 3600.0

_SWEEP_EVERY: Final = 3600.0
_KEY_LIMIT: Final = 250
#: Seconds between two searches for dead consumers.
_DEAD_SWEEP: Final = 2.0
#: Seconds between two marks that a queue has a consumer.
_TOUCH_EVERY: Final = 1800.0
#: So many messages are handed out at once.
_MOST: Final = 1000
#: So many messages, and about so many bytes, are published by one statement.
_TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 4 * 1024 * 1024

_LOOK: Final = f"SELECT 1 FROM message WHERE taken = {FREE} AND queue = ? LIMIT 1"
_TAKE: Final = (
    "UPDATE message SET taken = ?, at = ? WHERE n IN (SELECT n FROM message"
    f" WHERE taken = {FREE} AND queue = ? ORDER BY place, n LIMIT ?)"
)
#: Of an answer whose row has it, as long as that is there.
_DATA: Final = "coalesce(data, (SELECT r.result FROM request r WHERE r.id = result_of))"
_TAKEN: Final = (
    f"SELECT n, again, {_DATA}, message.id, message.epoch, request.epoch, state, holder, result,"
    " request.taken = message.taken AND request.message = n"
    " FROM message LEFT JOIN request ON request.id = message.id"
    " WHERE message.taken = ? ORDER BY place, n"
)
_READ: Final = (
    f"SELECT n, again, {_DATA} FROM message WHERE taken = {FREE} AND queue = ?"
    " AND n NOT IN (SELECT value FROM json_each(?)) ORDER BY place, n LIMIT ?"
)
#: Of a request that was claimed as the message of this number was taken.
_UNCLAIM: Final = (
    "UPDATE request SET state = 0, holder = NULL, changed = ?"
    " WHERE id = ? AND state = 1 AND taken = ? AND message = ?"
)


class FolderClaims(Protocol):
    """For whom requests are claimed, by the ledger in the same file."""

    holder: str
    digest: str

    def tell(
        self, taken: Taken, began: float, id: str, epoch: int, row: Row, granted: bool
    ) -> None:
        """Say what became of a request that was taken in a step that began then, by its row and
        whether that was claimed with it."""


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
        self._lock = threading.Lock()
        self._in = _folder.open_folder(folder_in)
        self._out = _folder.open_folder(folder_out)
        for name in ("holders", "bells"):
            _files.make_folder(f"{self._in.root}/{name}", private=True)
        self._holders = f"{self._in.root}/holders"
        self._bells = _bells.Bells(f"{self._in.root}/bells", interval, inotify)
        self._routes = _Routes(self._out)
        self._claims = claims
        self._holder: _files.Holder | None = None
        self._base = 0
        self._turns = itertools.count()
        self._watched: dict[str, int] = {}
        # Queues of this process, and the numbers of what was read in them and is not settled.
        self._owned: set[str] = set()
        self._read: set[int] = set()
        # Watched queues in which there may be something that is not known here.
        self._filled: set[str] = set()
        self._sweep_at = 0.0
        self._touch_at = 0.0
        self._look_at = 0.0
        self._closed = False
        self._sweep_dead()
        self._sweep_stale()

    # -- exchanges and queues: publishing looks into `out`, all else belongs to `in`

    def declare_exchange(self, name: str) -> None:
        _names.check_label("exchange", name)  # it is there as soon as a queue is bound to it

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        _names.check_label("queue", queue)
        owner = None
        if owned:
            owner = self._become_holder()
            self._owned.add(queue)
        self._in.write(
            "INSERT INTO queue VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
            " SET used = excluded.used, owner = COALESCE(excluded.owner, owner)",
            (queue, owner, _folder.now()),
        )

    def delete_queue(self, queue: str) -> int:
        count = self.purge(queue)
        self._in.write("DELETE FROM queue WHERE name = ?", (queue,))
        _bells.remove(f"{self._in.root}/bells", queue)
        return count

    def purge(self, queue: str) -> int:
        _names.check_label("queue", queue)
        return self._in.write(f"DELETE FROM message WHERE taken = {FREE} AND queue = ?", (queue,))

    def size(self, queue: str) -> int:
        ((count,),) = self._in.read(
            f"SELECT COUNT(*) FROM message WHERE taken = {FREE} AND queue = ?", (queue,)
        )
        return int(count)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        if len(key) > _KEY_LIMIT:
            raise ValueError(f"routing key {key[:100]!r} is too long for a binding of {queue}")
        self._in.write("INSERT OR IGNORE INTO binding VALUES (?, ?, ?)", (exchange, key, queue))

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        self._in.write(
            "DELETE FROM binding WHERE exchange = ? AND key = ? AND queue = ?",
            (exchange, key, queue),
        )

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return [
            (queue, exchange, key)
            for queue, exchange, key in self._in.read(
                "SELECT queue, exchange, key FROM binding ORDER BY exchange, queue, key"
            )
        ]

    # -- publishing

    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        if any(message[3][:1] == b"!" for message in messages):  # requests
            self._out.check_room(exceptions.TransportFailure)
        for some in _portions(messages, lambda message: message):
            yield from self._publish(some)

    def _publish(self, messages: Sequence[LaidOut]) -> list[bool]:
        now = _folder.now()
        while True:
            known = self._routes
            routes = [known.find(*laid_out[:2]) for laid_out in messages]
            values: list[Any] = []
            for (_, _, priority, head, body), queues in zip(messages, routes, strict=True):
                label, head = _envelope.split(head)
                row = _envelope.row_of(label, self._out.digest) if label else None
                for queue in queues:
                    values += (queue, 9 - priority, now, *(row or (None, None)), head + body)
            count = len(values) // 6
            places = ", ".join(["(?, ?, ?, ?, ?, ?)"] * count)
            done = count and self._out.write(
                "INSERT INTO message(queue, place, at, id, epoch, data) SELECT * FROM"
                f" (VALUES {places}) WHERE (SELECT routes FROM about) = ?",
                (*values, known.version),
            )
            if (done < count or not all(routes)) and self._is_changed(known) and not done:
                continue
            self._ring(routes)
            return [bool(queues) for queues in routes]

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int], Taken, LaidOut]],
        told: None = None,
    ) -> tuple[Sequence[int], Sequence[Taken]]:
        # An attempt that failed was done with those before it.
        left = [one for one in ended if one[1].token is not None]
        counts = [1] * (len(ended) - len(left))
        for some in _portions(left, lambda one: one[2]):
            counts += self._end(some)
        return counts, ()

    def _end(self, ended: Sequence[tuple[tuple[str, int], Taken, LaidOut]]) -> list[int]:
        assert self._claims is not None
        now = _folder.now()
        places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(ended))
        done = 0
        while not done:
            known = self._routes
            routes = [known.find(*laid_out[:2]) for _, _, laid_out in ended]
            if not all(routes) and self._is_changed(known):
                continue
            values: list[Any] = []
            for (row, taken, (_, _, priority, head, body)), queues in zip(
                ended, routes, strict=True
            ):
                values += (*row, self._claims.holder, *taken.token[:2], known.version)
                values += (json.dumps(queues), 9 - priority, now, head + body)
            done = self._out.write_through(f"INSERT INTO ended VALUES {places}", values)
            if not done and not self._is_changed(known):
                break
        self._ring(routes)
        for _, taken, _ in ended:
            taken.token = None
        counts = [len(queues) for queues in routes]
        # Each stores its result, comes into its queues, and its request goes.
        if done < sum(counts) + 2 * len(counts):
            others = self._others([row for row, _, _ in ended])
            counts = [
                -1 if row in others else count
                for (row, _, _), count in zip(ended, counts, strict=True)
            ]
        return counts

    def _others(self, ended: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
        """Of these (id, epoch) those whose row is somebody else's.

        Whoever removed a row has no use for the answer; if it was lost, its engine may wait for it.
        """
        return {
            (id, epoch)
            for id, epoch in self._in.read(
                "SELECT request.id, json_extract(value, '$[1]') AS told"
                " FROM json_each(?) JOIN request ON request.id = json_extract(value, '$[0]')"
                " WHERE request.epoch <> told OR state <> 2",
                (json.dumps(ended),),
            )
        }

    def _is_changed(self, known: _Routes) -> bool:
        """Whether others changed where messages go; it is read again then."""
        ((version,),) = self._out.read("SELECT routes FROM about")
        if version == known.version:
            return False
        self._routes = _Routes(self._out)
        return True

    def _ring(self, routes: Iterable[Iterable[str]]) -> None:
        for queue in {queue for queues in routes for queue in queues}:
            _bells.ring(f"{self._out.root}/bells", queue)

    # -- taking

    def watch(self, queue: str) -> None:
        self._watched[queue] = self._watched.get(queue, 0) + 1
        if self._watched[queue] == 1:
            self._bells.hear(queue)
        self._filled.add(queue)
        self._touch_at = 0.0

    def unwatch(self, queue: str) -> None:
        self._watched[queue] -= 1
        if not self._watched[queue]:
            del self._watched[queue]
            self._filled.discard(queue)
            self._bells.forget(queue)

    def refresh(self) -> int:
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep_dead()
        if now >= self._touch_at:
            self._touch_at = now + _TOUCH_EVERY
            self._in.write(
                "UPDATE queue SET used = ? WHERE name IN (SELECT value FROM json_each(?))",
                (_folder.now(), json.dumps([*self._watched])),
            )
        if now >= self._look_at:
            self._filled |= {queue for queue in self._watched if self._in.read(_LOOK, (queue,))}
            if self._filled:
                self._bells.came()
            self._look_at = now + self._bells.pause()
        return _MOST if self._filled or self._bells.is_ringing() else 0

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        found: list[tuple[int, Taken]] = []
        for group, (most, queues) in enumerate(groups):
            for queue in queues:
                if most > 0 and (self._bells.answer(queue) or queue in self._filled):
                    self._filled.discard(queue)  # before: who gives back meanwhile adds it again
                    some = (self._look if queue in self._owned else self._take)(queue, most)
                    found += [(group, taken) for taken in some]
                    if len(some) == most:  # there may be more
                        self._filled.add(queue)
                    most -= len(some)
        return found

    def _look(self, queue: str, most: int) -> list[Taken]:
        """What is in a queue of this process, from which nobody else takes."""
        found = []
        for n, again, data in self._in.read(_READ, (queue, json.dumps([*self._read]), most)):
            self._read.add(n)
            found.append(Taken(queue, (n, FREE, None), data, bool(again)))
        return found

    def _take(self, queue: str, most: int) -> list[Taken]:
        began = time.monotonic()
        turn = self._become_holder() + next(self._turns) % TURNS
        if not self._in.write(_TAKE, (turn, _folder.now(), queue, most)):
            return []
        try:
            rows = self._in.read(_TAKEN, (turn,))
        except BaseException:
            self._take_back(turn)
            raise
        found = []
        for n, again, data, id, epoch, *row, granted in rows:
            taken = Taken(queue, (n, turn, id), data, bool(again))
            if id is not None and self._claims is not None:
                there = None if row[0] is None else (row[0], row[1], row[2], row[3])
                taken.label = b"!%b %d " % (id.encode(), epoch)
                self._claims.tell(taken, began, id, epoch, there, bool(granted))
            found.append(taken)
        if len(found) == most:  # there may be more, for somebody else
            _bells.ring(f"{self._in.root}/bells", queue)
        return found

    def _take_back(self, turn: int) -> None:
        """Nobody knows what was taken with this number."""
        try:
            self._in.write(
                "UPDATE request SET state = 0, holder = NULL WHERE state = 1 AND taken = ?1"
                " AND id IN (SELECT id FROM message WHERE taken = ?1)",
                (turn,),
            )
            self._in.write(f"UPDATE message SET taken = {FREE} WHERE taken = ?", (turn,))
        except exceptions.TransportFailure as error:
            LOG.warning("messages go back when their connection is closed: %s", error)

    def settle_many(self, taken: Sequence[Taken]) -> bool:
        ours = [each for each in taken if each.token is not None]
        numbers = [each.token[0] for each in ours]
        done = self._in.write(
            "DELETE FROM message WHERE n IN (SELECT value FROM json_each(?))"
            f" AND (taken = {FREE} OR taken BETWEEN ? AND ?)",
            (json.dumps(numbers), self._base, self._base + TURNS - 1),
        )
        for each in ours:
            self._forget(each)
        return done == len(taken)

    def _forget(self, taken: Taken) -> None:
        """It is done with; another message may have its number from now on."""
        (n, turn, _), taken.token = taken.token, None
        if turn == FREE:
            self._read.discard(n)
            self.nudge()

    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        if taken.token is None:
            return
        n, turn, _ = taken.token
        if not delivered:
            self._unclaim(taken)
        self._in.write(
            f"UPDATE message SET taken = {FREE}, again = MAX(again, ?) WHERE n = ? AND taken = ?",
            (int(delivered), n, turn),
        )
        self._forget(taken)
        self._filled.add(taken.queue)
        _bells.ring(f"{self._in.root}/bells", taken.queue)

    def _unclaim(self, taken: Taken) -> None:
        """What was claimed was given to nobody: whoever gets it may claim it."""
        n, turn, id = taken.token
        claim, taken.claim = taken.claim, None
        if claim is not None and claim.granted:
            self._in.write(_UNCLAIM, (_folder.now(), id, turn, n))

    def refuse(self, taken: Taken) -> None:
        if taken.token is not None:
            self._unclaim(taken)
        self.settle_many((taken,))

    def discard(self, taken: Taken, why: str) -> None:
        kept = f"{self._in.root}/rejected/{secrets.token_hex(6)}-{taken.queue}"
        try:
            _files.make_folder(os.path.dirname(kept), private=True)
            _files.write_new(kept, taken.data or b"")
        except (OSError, exceptions.TransportFailure) as error:
            kept = f"not kept ({error})"
        self._unclaim(taken)
        self.settle_many([taken])
        self.discards.tell(
            taken.queue,
            "queue %s: a message is not delivered, %s; kept as %s",
            taken.queue, why, kept,
        )  # fmt: skip

    # -- who takes, and who died

    def _become_holder(self) -> int:
        """The number from which this connection takes; others see by a file that it lives."""
        if not self._base:
            with self._lock:
                if not self._base:
                    base = (1 << 61) + secrets.randbits(39) * TURNS
                    self._holder = _files.Holder(self._holders, f"{base:x}")
                    worker = None if self._claims is None else self._claims.holder
                    self._in.write("INSERT INTO connection VALUES (?, ?)", (base, worker))
                    self._base = base
        return self._base

    def _sweep_dead(self) -> None:
        """Give back what dead consumers had taken, and remove their own queues."""
        self._sweep_at = time.monotonic() + _DEAD_SWEEP
        # Before those are read who connected: a file is there first.
        names = os.listdir(self._holders)
        bases = {f"{base:x}": base for (base,) in self._in.read("SELECT base FROM connection")}
        for name in {*names, *bases} - {f"{self._base:x}"}:
            if name.endswith("-new") or _files.alive(self._holders, name):
                continue
            if name in bases:
                self._recover(bases[name])
            _files.remove(f"{self._holders}/{name}")

    def _recover(self, base: int) -> None:
        held = self._in.read(
            "SELECT queue, COUNT(*) FROM message WHERE taken BETWEEN ? AND ? GROUP BY queue",
            (base, base + TURNS - 1),
        )
        owned = self._in.read("SELECT name FROM queue WHERE owner = ?", (base,))
        if self._in.write("DELETE FROM connection WHERE base = ?", (base,)) and held:
            count = sum(count for _, count in held)
            LOG.warning("a consumer died: %d messages went back to their queues", count)
        for queue, _ in held:
            _bells.ring(f"{self._in.root}/bells", queue)
        for (queue,) in owned:
            _bells.remove(f"{self._in.root}/bells", queue)

    def _sweep_stale(self) -> None:
        now = _folder.now()
        due = "UPDATE about SET queues_swept = ? WHERE queues_swept <= ?"
        if self._in.write(due, (now, now - _SWEEP_EVERY)):
            for (queue,) in self._in.read(
                "SELECT name FROM queue WHERE used <= ?1 AND NOT EXISTS"
                " (SELECT 1 FROM message WHERE queue = name AND at > ?1)",
                (now - STALE_AFTER,),
            ):
                LOG.info("queue %s was not used for 7 days: removed", queue)
                self.delete_queue(queue)

    # -- waiting

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        if self._filled.isdisjoint(queues):
            left = min(self._sweep_at, self._look_at) - time.monotonic()
            left = left if timeout is None else min(timeout, left)
            self._filled.update(self._bells.wait(left, queues))

    def nudge(self) -> None:
        self._bells.nudge()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._bells.close()
        if self._holder is not None and self._holder.held:
            try:
                self._in.write("UPDATE queue SET owner = NULL WHERE owner = ?", (self._base,))
                self._in.write("DELETE FROM connection WHERE base = ?", (self._base,))
                self._holder.release()
            except exceptions.TransportFailure:
                self._holder.abandon()
        self._in.release()
        self._out.release()

    def __del__(self) -> None:
        # A connection that was dropped without `release()`; half-made ones have no `_closed`.
        if hasattr(self, "_closed"):
            self.close()


class _Routes:
    """Which queues there are in a folder, and which messages they get: one `version` of that."""

    def __init__(self, folder: _folder.Folder) -> None:
        ((self.version,),) = folder.read("SELECT routes FROM about")
        bindings: dict[str, list[tuple[str, str]]] = {}
        for exchange, key, queue in folder.read("SELECT exchange, key, queue FROM binding"):
            bindings.setdefault(exchange, []).append((key, queue))
        self._queues = frozenset(name for (name,) in folder.read("SELECT name FROM queue"))
        self._tables = {name: _routing.Table(pairs) for name, pairs in bindings.items()}

    def find(self, exchange: str, key: str) -> Sequence[str]:
        """The queues that get a message."""
        if not exchange:
            return (key,) if key in self._queues else ()
        table = self._tables.get(exchange)
        if table is None:
            return ()
        return [queue for queue in table.route(key) if queue in self._queues]


def _portions(items: Sequence[_T], laid_out: Callable[[_T], LaidOut]) -> Iterator[list[_T]]:
    """As many at a time as one statement takes."""
    some: list[_T] = []
    size = 0
    for item in items:
        some.append(item)
        size += sum(map(len, laid_out(item)[3:]))
        if len(some) == _TOGETHER or size >= _TOGETHER_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


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
