"""Transport through a folder, for processes of one host: `filesystem:///PATH`.

Options: :ref:`transport-options`. If only one of `data_folder_in` and `data_folder_out` is
given, it is used for both.

Queues and the ledger are in one file (`folder_tables`). A connection takes messages under its own
numbers, and claims the rows of their requests in the same step. In an owned queue, it only reads
the first messages and remembers their numbers. If a consumer dies, even by kill -9, its lock file
is unlocked, and its messages are requeued in their old place.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.transports import _encoding, _routing
from wbengine.transports._broker import (
    MAX_BATCH_BYTES,
    MAX_READY,
    Broker,
    Delivery,
    Finish,
    Frame,
)
from wbengine.transports._folder import fifos, files, folder_tables
from wbengine.transports._folder.folder_tables import FREE, MAX_TAKES
from wbengine.transports._ledger import Opening, RowAccess

__all__ = ["FileBroker"]

LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Time after which an unused queue is deleted with its messages.
STALE_AFTER_SECONDS: Final = 7 * 24 * 3600.0

_STALE_SWEEP_SECONDS: Final = 3600.0
_MAX_KEY_LENGTH: Final = 250
#: Number of unacknowledged messages of owned queues from which further ones are taken. Each read
#: searches for the first message that was not read.
_MAX_READ: Final = 128
#: Interval of the search for dead consumers.
_DEAD_SWEEP_SECONDS: Final = 2.0
#: Interval at which consumed queues are marked as used.
_TOUCH_SECONDS: Final = 1800.0
#: Token that identifies no message: the request of a requeued message is finished without it.
_REQUEUED: Final = (0, 0)

_HAS_MESSAGE: Final = f"SELECT 1 FROM message WHERE taken = {FREE} AND queue = ? LIMIT 1"
#: Data of a message. A reply is stored in the row of its request while the row exists.
_DATA: Final = "coalesce(data, (SELECT r.result FROM request r WHERE r.id = result_of))"
#: Size of the data in bytes. SQLite can return it without reading the data.
_SIZE: Final = (
    "coalesce(length(data), (SELECT length(r.result) FROM request r WHERE r.id = result_of), 0)"
)
#: Numbers of the next messages of a queue, and whether each fits into a batch with the preceding.
_NEXT: Final = (
    f"(SELECT n, total <= {MAX_BATCH_BYTES} OR total = size AS fits FROM"
    " (SELECT n, size, sum(size) OVER (ORDER BY place, n ROWS UNBOUNDED PRECEDING) AS total FROM"
    f" (SELECT n, place, {_SIZE} AS size FROM message WHERE taken = {FREE} AND queue = ? %s"
    " ORDER BY place, n LIMIT ?)))"
)
_UNREAD: Final = "AND n NOT IN (SELECT value FROM json_each(?))"
_TAKE: Final = (
    f"UPDATE message SET taken = ?, at = ? WHERE n IN (SELECT n FROM {_NEXT % _UNREAD} WHERE fits)"
)
_TAKEN: Final = (
    f"SELECT n, again, {_DATA}, message.id, message.epoch, request.epoch, state, holder, result,"
    " request.taken = message.taken AND request.message = n,"
    f" EXISTS (SELECT 1 FROM message AS left WHERE left.taken = {FREE} AND left.queue = ?)"
    " FROM message LEFT JOIN request ON request.id = message.id"
    " WHERE message.taken = ? ORDER BY place, n"
)
_READ: Final = (
    f"SELECT n, again, fits, iif(fits, {_DATA}, NULL)"
    f" FROM {_NEXT % _UNREAD} JOIN message USING (n) ORDER BY place, n"
)
#: Undoes the claim that was made when the message with this number was taken.
_UNCLAIM: Final = (
    "UPDATE request SET state = 0, holder = NULL, changed = ?"
    " WHERE id = ? AND state = 1 AND taken = ? AND message = ?"
)


class FileBroker(Broker):
    batch = 64
    labels = True

    def __init__(
        self,
        folder_in: str,
        folder_out: str,
        interval: float | None,
        inotify: bool,
        rows: RowAccess,
    ) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._in = folder_tables.open_folder(folder_in)
        self._out = folder_tables.open_folder(folder_out)
        for name in ("holders", "bells"):
            files.make_folder(f"{self._in.root}/{name}", private=True)
        self._holders = f"{self._in.root}/holders"
        self._fifos = fifos.QueueFifos(f"{self._in.root}/bells", interval, inotify)
        self._routes = _read_routes(self._out)
        self._rows = rows
        self._liveness_file: files.LivenessFile | None = None
        self._base = 0
        self._take_numbers = itertools.count()
        self._watched_queues: dict[str, int] = {}
        # Owned queues, and the numbers of unacknowledged messages that were read from them.
        self._owned: set[str] = set()
        self._read: set[int] = set()
        # Watched queues that may contain messages that this connection has not read.
        self._nonempty: set[str] = set()
        self._next_sweep_at = 0.0
        self._next_touch_at = 0.0
        self._next_poll_at = 0.0
        self._closed = False
        self._sweep_dead()
        self._sweep_stale()

    # Exchanges and queues. Publishing uses the folder `out`, everything else `in`.

    def declare_exchange(self, name: str) -> None:
        object_names.check_label("exchange", name)  # Binding a queue creates it.

    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        object_names.check_label("queue", queue)
        owner = None
        if owned:
            owner = self._register()
            self._owned.add(queue)
        self._in.write(
            "INSERT INTO queue VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
            " SET used = excluded.used, owner = COALESCE(excluded.owner, owner)",
            (queue, owner, folder_tables.now()),
        )

    def delete_queue(self, queue: str) -> int:
        count = self.purge(queue)
        self._in.write("DELETE FROM queue WHERE name = ?", (queue,))
        files.remove(f"{self._in.root}/bells/{queue}")
        return count

    def purge(self, queue: str) -> int:
        object_names.check_label("queue", queue)
        return self._in.write(f"DELETE FROM message WHERE taken = {FREE} AND queue = ?", (queue,))

    def size(self, queue: str) -> int:
        ((count,),) = self._in.read(
            f"SELECT COUNT(*) FROM message WHERE taken = {FREE} AND queue = ?", (queue,)
        )
        return int(count)

    def bind(self, exchange: str, key: str, queue: str) -> None:
        if len(key) > _MAX_KEY_LENGTH:
            raise ValueError(
                f"A routing key in a binding of {queue} must have at most {_MAX_KEY_LENGTH}"
                f" characters, got {key[:100]!r}"
            )
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

    def publish_many(self, frames: Sequence[Frame]) -> Iterator[bool]:
        if any(frame.head[:1] == b"!" for frame in frames):
            self._out.check_room()
        now = folder_tables.now()
        while True:
            routing = self._routes
            routes = [routing.find(frame.exchange, frame.routing_key) for frame in frames]
            values: list[Any] = []
            for frame, queues in zip(frames, routes, strict=True):
                label, head = _encoding.split(frame.head)
                row = _encoding.row_of(label, self._out.digest) if label else None
                place, data = 9 - frame.priority, head + frame.body
                for queue in queues:
                    values += (queue, place, now, *(row or (None, None)), data)
            count = len(values) // 6
            places = ", ".join(["(?, ?, ?, ?, ?, ?)"] * count)
            inserted = count and self._out.write(
                "INSERT INTO message(queue, place, at, id, epoch, data) SELECT * FROM"
                f" (VALUES {places}) WHERE (SELECT routes FROM about) = ?",
                (*values, routing.version),
            )
            if (inserted < count or not all(routes)) and self._is_changed(routing) and not inserted:
                continue
            self._notify(routes)
            return map(bool, routes)

    def open_and_publish(self, rows: Sequence[Opening], frames: Sequence[Frame]) -> list[int]:
        self._out.check_room()
        _, routes = self._insert(
            "opened", [(row.id, row.epoch, *row.fence) for row in rows], frames
        )
        return [len(queues) for queues in routes]

    def _finish(
        self, batch: Sequence[Finish], take_order: None
    ) -> tuple[Sequence[bool], Sequence[Delivery]]:
        if self._in is not self._out:
            return self._finish_in_two_folders(batch), ()
        ends = [
            (each.id, each.epoch, self._rows.holder, *(each.delivery.token or _REQUEUED)[:2])
            for each in batch
        ]
        changed_rows, routes = self._insert("ended", ends, [each.reply for each in batch])
        for each in batch:
            each.delivery.token = None
        # Each reply changes its row, adds a message to each queue, and deletes its request.
        if changed_rows >= sum(map(len, routes)) + 2 * len(routes):
            return [True] * len(batch), ()
        return self._own_rows(batch), ()

    def _insert(
        self, view: str, rows: Sequence[tuple[Any, ...]], frames: Sequence[Frame]
    ) -> tuple[int, list[Sequence[str]]]:
        """Insert rows with messages into a view. Its trigger changes requests, and publishes.

        :returns: the number of changed rows, and the queues of each message.
        """
        now, changed_rows = folder_tables.now(), 0
        while not changed_rows:
            routing = self._routes
            routes = [routing.find(frame.exchange, frame.routing_key) for frame in frames]
            if not all(routes) and self._is_changed(routing):
                continue
            values: list[Any] = []
            for row, frame, queues in zip(rows, frames, routes, strict=True):
                data = _encoding.split(frame.head)[1] + frame.body
                values += (*row, routing.version, json.dumps(queues), 9 - frame.priority, now, data)
            place = f"({', '.join('?' * (len(values) // len(rows)))})"
            statement = f"INSERT INTO {view} VALUES {', '.join([place] * len(rows))}"
            changed_rows = self._out.write_through(statement, values)
            if not changed_rows and not self._is_changed(routing):
                break
        self._notify(routes)
        return changed_rows, routes

    def _finish_in_two_folders(self, batch: Sequence[Finish]) -> list[bool]:
        """Store the results in the folder of the requests, then publish in the other one."""
        for id, epoch, _, frame in batch:
            self._in.write(
                "UPDATE request SET state = 2, holder = NULL, result = ?, changed = ?"
                " WHERE id = ? AND epoch = ? AND state = 1 AND holder = ?",
                (frame.head + frame.body, folder_tables.now(), id, epoch, self._rows.holder),
            )
        is_own = self._own_rows(batch)
        replies = [each.reply for each, own in zip(batch, is_own, strict=True) if own]
        for _ in self.publish_many(replies):
            pass
        self.settle_many([each.delivery for each in batch])
        return is_own

    def _own_rows(self, batch: Sequence[Finish]) -> list[bool]:
        """Return for each request whether no other process owns its row.

        This includes missing rows. If the engine deleted the row, it ignores the reply; if the row
        was lost, the engine may wait for the reply.
        A row that was opened again since its result was stored is excluded: its engine has received
        the result.
        """
        foreign_rows = self._in.read(
            "SELECT request.id, json_extract(value, '$[1]') AS told"
            " FROM json_each(?) JOIN request ON request.id = json_extract(value, '$[0]')"
            " WHERE request.epoch <> told OR state <> 2",
            (json.dumps([(each.id, each.epoch) for each in batch]),),
        )
        return [(each.id, each.epoch) not in foreign_rows for each in batch]

    def _is_changed(self, routing: _routing.Routes) -> bool:
        """Return whether another process changed the routing."""
        ((version,),) = self._out.read("SELECT routes FROM about")
        if version == routing.version:
            return False
        self._routes = _read_routes(self._out)
        return True

    def _notify(self, routes: Iterable[Iterable[str]]) -> None:
        for queue in {queue for queues in routes for queue in queues}:
            fifos.notify(f"{self._out.root}/bells", queue)

    def watch(self, queue: str) -> None:
        self._watched_queues[queue] = self._watched_queues.get(queue, 0) + 1
        if self._watched_queues[queue] == 1:
            self._fifos.add(queue)
        self._nonempty.add(queue)
        self._next_touch_at = 0.0

    def unwatch(self, queue: str) -> None:
        self._watched_queues[queue] -= 1
        if not self._watched_queues[queue]:
            del self._watched_queues[queue]
            self._nonempty.discard(queue)
            self._fifos.discard(queue)

    def refresh(self) -> int:
        now = time.monotonic()
        if now >= self._next_sweep_at:
            self._sweep_dead()
        if now >= self._next_touch_at:
            self._next_touch_at = now + _TOUCH_SECONDS
            self._in.write(
                "UPDATE queue SET used = ? WHERE name IN (SELECT value FROM json_each(?))",
                (folder_tables.now(), json.dumps([*self._watched_queues])),
            )
        if now >= self._next_poll_at:
            self._nonempty |= {
                queue for queue in self._watched_queues if self._in.read(_HAS_MESSAGE, (queue,))
            }
            if self._nonempty:
                self._fifos.reset_pause()
            self._next_poll_at = now + self._fifos.pause()
        return MAX_READY if self._nonempty or self._fifos.is_notified() else 0

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Delivery]]:
        """Take messages from the first queue that has any."""
        for group, (max_messages, queues) in enumerate(groups):
            for queue in queues:
                if max_messages > 0 and (self._fifos.consume(queue) or queue in self._nonempty):
                    # Before reading, because a concurrent requeue adds the queue again.
                    self._nonempty.discard(queue)
                    reads = queue in self._owned and len(self._read) < _MAX_READ
                    messages = (self._read_owned if reads else self._take)(queue, max_messages)
                    if messages:
                        return [(group, delivery) for delivery in messages]
        return []

    def _read_owned(self, queue: str, max_messages: int) -> list[Delivery]:
        """Read messages of an owned queue. No other process consumes from it."""
        rows = self._in.read(_READ, (queue, json.dumps([*self._read]), max_messages))
        messages = []
        for n, redelivered, fits, data in rows:
            if fits:
                self._read.add(n)
                messages.append(Delivery(queue, (n, FREE, None), data, bool(redelivered)))
        # More messages may be available.
        if len(rows) == max_messages or len(messages) < len(rows):
            self._nonempty.add(queue)
        return messages

    def _take(self, queue: str, max_messages: int) -> list[Delivery]:
        """Take messages, and claim the rows of their requests.

        The rows are claimed in one statement, and read in the next one. If a row was dropped in
        between, the claim is that of the second statement, and the request is not run.
        """
        began = time.monotonic()
        take_number = self._register() + next(self._take_numbers) % MAX_TAKES
        read = json.dumps([*self._read] if queue in self._owned else [])
        if not self._in.write(_TAKE, (take_number, folder_tables.now(), queue, read, max_messages)):
            return []
        try:
            rows = self._in.read(_TAKEN, (queue, take_number))
        except BaseException:
            self._undo_take(take_number)
            raise
        messages = []
        for n, redelivered, data, id, epoch, *row, granted, _ in rows:
            delivery = Delivery(queue, (n, take_number, id), data, bool(redelivered))
            if id is not None and self._rows.holder:
                delivery.label = b"!%b %d " % (id.encode(), epoch)
                delivery.taken_at = began
                delivery.claim = self._rows.claim(id, epoch, row, bool(granted))
            messages.append(delivery)
        if rows and rows[0][-1]:  # More messages wait; another consumer may have capacity.
            self._nonempty.add(queue)
            fifos.notify(f"{self._in.root}/bells", queue)
        return messages

    def _undo_take(self, take_number: int) -> None:
        """Requeue the messages of a take whose result was lost."""
        try:
            self._in.write(
                "UPDATE request SET state = 0, holder = NULL WHERE state = 1 AND taken = ?"
                " AND id IN (SELECT id FROM message WHERE taken = ?)",
                (take_number, take_number),
            )
            self._in.write(f"UPDATE message SET taken = {FREE} WHERE taken = ?", (take_number,))
        except exceptions.TransportFailure as error:
            LOG.warning(
                "messages return to their queue only when the connection is closed: %s", error
            )

    def settle_many(self, deliveries: Sequence[Delivery]) -> bool:
        unsettled = [each for each in deliveries if each.token is not None]
        numbers = [each.token[0] for each in unsettled]
        deleted = self._in.write(
            "DELETE FROM message WHERE n IN (SELECT value FROM json_each(?))"
            f" AND (taken = {FREE} OR taken BETWEEN ? AND ?)",
            (json.dumps(numbers), self._base, self._base + MAX_TAKES - 1),
        )
        for each in unsettled:
            self._forget(each)
        return deleted == len(deliveries)

    def _forget(self, delivery: Delivery) -> None:
        """Forget an acknowledged message, because its number may be used again."""
        (n, take_number, _), delivery.token = delivery.token, None
        if take_number == FREE:
            self._read.discard(n)
            self.nudge()

    def requeue(self, delivery: Delivery, *, delivered: bool = True) -> None:
        if delivery.token is None:
            return
        n, take_number, _ = delivery.token
        if not delivered:
            self._unclaim(delivery)
        self._in.write(
            f"UPDATE message SET taken = {FREE}, again = MAX(again, ?) WHERE n = ? AND taken = ?",
            (int(delivered), n, take_number),
        )
        self._forget(delivery)
        self._nonempty.add(delivery.queue)
        fifos.notify(f"{self._in.root}/bells", delivery.queue)

    def _unclaim(self, delivery: Delivery) -> None:
        """Undo the claim of an undelivered message, so that its next consumer can claim the row."""
        n, take_number, id = delivery.token
        claim, delivery.claim = delivery.claim, None
        if claim is not None and claim.granted:
            self._in.write(_UNCLAIM, (folder_tables.now(), id, take_number, n))

    def refuse(self, delivery: Delivery) -> None:
        if delivery.token is not None:
            self._unclaim(delivery)
        self.settle_many((delivery,))

    def discard(self, delivery: Delivery, why: str) -> None:
        location = f"{self._in.root}/rejected/{secrets.token_hex(6)}-{delivery.queue}"
        try:
            files.make_folder(os.path.dirname(location), private=True)
            files.write_new(location, delivery.data or b"")
        except (OSError, exceptions.TransportFailure) as error:
            location = f"none ({error})"
        super().discard(delivery, f"{why}; copy: {location}")

    def _register(self) -> int:
        """Return the base number of the connection. The first call registers the connection."""
        if not self._base:
            with self._lock:
                if not self._base:
                    base = (1 << 61) + secrets.randbits(39) * MAX_TAKES
                    self._liveness_file = files.LivenessFile(self._holders, f"{base:x}")
                    worker = self._rows.holder or None
                    self._in.write("INSERT INTO connection VALUES (?, ?)", (base, worker))
                    self._base = base
        return self._base

    def _sweep_dead(self) -> None:
        """Requeue the messages of dead consumers and delete their owned queues."""
        self._next_sweep_at = time.monotonic() + _DEAD_SWEEP_SECONDS
        # List the files before reading the table: a consumer creates its file before its row.
        names = os.listdir(self._holders)
        bases = {f"{base:x}": base for (base,) in self._in.read("SELECT base FROM connection")}
        for name in {*names, *bases} - {f"{self._base:x}"}:
            if name.endswith("-new") or files.is_alive(self._holders, name):
                continue
            if name in bases:
                self._recover(bases[name])
            files.remove(f"{self._holders}/{name}")

    def _recover(self, base: int) -> None:
        held = self._in.read(
            "SELECT queue, COUNT(*) FROM message WHERE taken BETWEEN ? AND ? GROUP BY queue",
            (base, base + MAX_TAKES - 1),
        )
        owned = self._in.read("SELECT name FROM queue WHERE owner = ?", (base,))
        if self._in.write("DELETE FROM connection WHERE base = ?", (base,)) and held:
            count = sum(count for _, count in held)
            LOG.warning("a consumer died: %d messages were requeued", count)
        for queue, _ in held:
            fifos.notify(f"{self._in.root}/bells", queue)
        for (queue,) in owned:
            files.remove(f"{self._in.root}/bells/{queue}")

    def _sweep_stale(self) -> None:
        now = folder_tables.now()
        oldest = now - STALE_AFTER_SECONDS
        statement = "UPDATE about SET queues_swept = ? WHERE queues_swept <= ?"
        if self._in.write(statement, (now, now - _STALE_SWEEP_SECONDS)):
            for (queue,) in self._in.read(
                "SELECT name FROM queue WHERE used <= ? AND NOT EXISTS"
                " (SELECT 1 FROM message WHERE queue = name AND at > ?)",
                (oldest, oldest),
            ):
                LOG.info("queue %s was unused for 7 days: deleted", queue)
                self.delete_queue(queue)

    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        if self._nonempty.isdisjoint(queues):
            remaining = min(self._next_sweep_at, self._next_poll_at) - time.monotonic()
            remaining = remaining if timeout is None else min(timeout, remaining)
            self._nonempty.update(self._fifos.wait(remaining, queues))

    def nudge(self) -> None:
        self._fifos.nudge()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._fifos.close()
        if self._liveness_file is not None and self._liveness_file.is_held:
            try:
                self._in.write("UPDATE queue SET owner = NULL WHERE owner = ?", (self._base,))
                self._in.write("DELETE FROM connection WHERE base = ?", (self._base,))
                self._liveness_file.release()
            except exceptions.TransportFailure:
                self._liveness_file.abandon()
        self._in.release()
        self._out.release()

    def __del__(self) -> None:
        # Closes a connection that was not released. Partly initialized objects have no `_closed`.
        if hasattr(self, "_closed"):
            self.close()


def _read_routes(folder: folder_tables.Folder) -> _routing.Routes:
    ((version,),) = folder.read("SELECT routes FROM about")
    bindings: Any = folder.read("SELECT queue, exchange, key FROM binding")
    queues = [name for (name,) in folder.read("SELECT name FROM queue")]
    return _routing.Routes(version, queues, bindings)
