"""Records in the memory of this process, for tests and for runs that need no durable store."""

from __future__ import annotations

import itertools
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from wbengine import exceptions, states
from wbengine._concurrency import clocks
from wbengine._configuration import named_options
from wbengine.persistence import (
    _bulk_records,
    _changes,
    _child_ends,
    _leases,
    _listing,
    base,
    models,
)
from wbengine.persistence import _commands as commands
from wbengine.persistence._access_keys import AccessKey
from wbengine.persistence._codes import Code
from wbengine.persistence._pauses import TaskPause
from wbengine.persistence._step_notes import StepNote
from wbengine.persistence.backends import _memory_bulks
from wbengine.signals import Signal, oldest_first
from wbengine.types._outline import Outline

__all__ = ["MemoryBackend", "MemoryConnection"]

_K = TypeVar("_K")


class MemoryBackend(base.Backend):
    """A store that keeps copies of records in dictionaries.

    Option `deep_copy` (default True): copy result values too. Without it, the store shares values
    with the engine, which is faster; but a caller that modifies a value modifies the stored value.
    TaskFlow's option `path` has no effect.

    :raises ValueError: if an option is unknown or invalid.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"connection", "deep_copy", "path"})

    encodes = False

    def __init__(
        self, conf: Mapping[str, Any] | None = None, *, clock: clocks.Clock = clocks.SYSTEM
    ) -> None:
        super().__init__(conf)
        self.clock = clock
        named_options.check_known("A memory backend", self._conf, self.OPTIONS)
        self.deep_copy = named_options.flag("deep_copy", self._conf.get("deep_copy", True))
        self.lock = threading.Lock()
        self.books: dict[str, models.LogBook] = {}
        #: All flows by uuid. The logbooks contain the same objects.
        self.flows: dict[str, StoredFlow] = {}
        #: All atoms with their flows, by uuid.
        self.atoms: dict[str, tuple[StoredFlow, models.AtomDetail]] = {}
        self.flow_numbers = itertools.count(1)
        self.pauses: dict[str, TaskPause] = {}
        self.access_keys: dict[str, AccessKey] = {}
        #: Times of the latest reports of code versions, by app and version, in order.
        self.codes: dict[tuple[str, str], float] = {}
        self.bulks: Final = _memory_bulks.MemoryBulkStore(self, clock, self._state_of)

    def get_connection(self) -> MemoryConnection:
        return MemoryConnection(self)

    def _state_of(self, flow_uuid: str) -> str | None:
        with self.lock:
            flow = self.flows.get(flow_uuid)
            return None if flow is None else flow.detail.state or states.PENDING

    def close(self) -> None:
        """Do nothing; the logbooks stay readable."""


class StoredFlow:
    """A flow, and the data about it that is not part of its record.

    Each write is a batch with a number. `_atoms` and `_items` contain the number of the batch that
    last changed each key, ordered by change: readers find the newest changes at the end.
    """

    __slots__ = (
        "_atoms",
        "_batch",
        "_chunks",
        "_items",
        "_secret",
        "book",
        "command",
        "detail",
        "lease",
        "logs",
        "number",
        "outline",
        "signals",
        "until",
        "updated",
    )  # fmt: skip

    def __init__(self, detail: models.FlowDetail, book: models.LogBook, number: int) -> None:
        self.detail: Final = detail
        self.book: Final = book
        #: Position in the creation order of the store's flows.
        self.number: Final = number
        #: The latest lease (None if released or never acquired). `until` is its time of expiry.
        self.lease: _leases.Lease | None = None
        self.until = 0.0
        self.command: base.FlowCommand | None = None
        self.outline: Outline | None = None
        #: Logs by atom; each chunk has its position in the order of the flow's logs.
        self.logs: dict[str, list[tuple[int, models.LogChunk]]] = {}
        self._chunks = itertools.count()
        self.signals: dict[str, Signal] = {}
        self.updated = time.time()
        # Random, so that cursors of a deleted flow with the same uuid are rejected.
        self._secret = secrets.token_hex(16)
        self._batch = 0
        self._atoms: dict[str, int] = {}
        self._items: dict[tuple[str, int], int] = {}

    @property
    def pending_command(self) -> base.FlowCommand | None:
        """The command, if an engine can carry it out in the state of the flow."""
        command = self.command
        return command if command and command.applies_to(self.detail.state) else None

    @property
    def place(self) -> _listing.Position:
        created = self.detail.created
        return _listing.Position(self.book.created if created is None else created, self.number)

    @property
    def cursor(self) -> str:
        """The cursor of the latest batch."""
        return _changes.cursor_of(self._secret, self._batch)

    def add_logs(self, chunks: Iterable[models.LogChunk]) -> None:
        """Add logs and delete logs of attempts that are too old."""
        for chunk in chunks:
            chunks_of_atom = self.logs.setdefault(chunk.atom_uuid, [])
            oldest = chunk.attempt - base.LOGGED_ATTEMPTS
            if chunks_of_atom and chunks_of_atom[0][1].attempt <= oldest:
                chunks_of_atom[:] = [each for each in chunks_of_atom if each[1].attempt > oldest]
            chunks_of_atom.append((next(self._chunks), chunk))

    def since(self, cursor: str | None) -> int | None:
        """Return the batch number in a cursor, or None if the cursor is not valid for this flow."""
        return _changes.batch_in_cursor(cursor, self._secret, self._batch)

    def begin_batch(self) -> None:
        self._batch += 1
        self.updated = time.time()

    def discard(self, uuid: str) -> None:
        """Delete an atom, with its items and logs. Idempotent."""
        atom = self.detail.find(uuid)
        for item in () if atom is None or atom.items is None else atom.items:
            self._items.pop((uuid, item.index), None)
        self._atoms.pop(uuid, None)
        self.logs.pop(uuid, None)
        self.detail.discard(uuid)

    def mark_changed(self, atoms: Iterable[str], items: Iterable[tuple[str, int]] = ()) -> None:
        """Store the current batch number for changed atoms and items (uuid of the atom, index)."""
        _move_to_end(self._atoms, atoms, self._batch)
        _move_to_end(self._items, items, self._batch)

    def atoms_since(self, batch: int) -> list[str]:
        """Return the uuids of atoms that changed after a batch, in order of their latest change."""
        return _keys_after(self._atoms, batch)

    def items_since(self, batch: int) -> list[tuple[str, int]]:
        return _keys_after(self._items, batch)


def _move_to_end(batches: dict[_K, int], keys: Iterable[_K], batch: int) -> None:
    for key in keys:
        batches.pop(key, None)
        batches[key] = batch


def _keys_after(batches: dict[_K, int], batch: int) -> list[_K]:
    return list(itertools.takewhile(lambda key: batches[key] > batch, reversed(batches)))[::-1]


class MemoryConnection(base.Connection):
    """A connection to a `MemoryBackend`."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    @property
    def backend(self) -> MemoryBackend:
        return self._backend

    def clear_all(self) -> None:
        with self._backend.lock:
            for records in (self._backend.books, self._backend.flows, self._backend.atoms):
                records.clear()

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        with self._backend.lock:
            return self._put_book(book).copy()

    def _put_book(self, book: models.LogBook) -> models.LogBook:
        store = self._backend
        stored_book = store.books.get(book.uuid)
        if stored_book is None:
            stored_book = store.books[book.uuid] = book.copy(retain_contents=False)
        else:
            stored_book.merge(book.copy(retain_contents=False))
        for flow in book:
            stored_flow = store.flows.get(flow.uuid)
            if stored_flow is None:
                detail = flow.copy(retain_contents=False)
                stored_flow = store.flows[flow.uuid] = StoredFlow(
                    detail, stored_book, next(store.flow_numbers)
                )
            elif (
                self._current_lease(stored_flow) is not None
                or flow.epoch != stored_flow.detail.epoch
            ):
                continue
            else:
                stored_flow.detail.merge(flow.copy(retain_contents=False))
            stored_book.add(stored_flow.detail)
            stored_flow.begin_batch()
            self._put_atoms(stored_flow, flow)
            for atom in flow:
                self._put_items(atom.uuid, atom.items or ())
        return stored_book

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        logs: Sequence[models.LogChunk] = (),
        lease: _leases.Lease | None = None,
        settled: commands.FlowCommand | None = None,
        dropped: Collection[str] = (),
    ) -> None:
        with self._backend.lock:
            stored_flow = self._flow(flow.uuid, lease)
            if lease is None:
                self._check_not_busy(stored_flow)
            stored_forks = map(self._backend.flows.get, flow.forks_to_start if flow_row else ())
            forks = [each for each in stored_forks if each and each.detail.awaits_reversion]
            if any(map(self._current_lease, forks)):
                raise exceptions.StorageFailure(f"A fork of flow {flow.uuid} is being changed")
            if settled is not None:
                if stored_flow.command != settled:
                    raise settled.withdrawn_error(flow.uuid)
                stored_flow.command = None
            stored_flow.begin_batch()
            if flow_row:
                stored_flow.detail.update(flow.copy(retain_contents=False))
            self._put_atoms(stored_flow, atoms)
            for uuid, changed in items.items():
                self._put_items(uuid, changed)
            stored_flow.add_logs(logs)
            for uuid in dropped:
                self._backend.atoms.pop(uuid, None)
                stored_flow.discard(uuid)
            if flow_row:
                self._report_end(_child_ends.end_of(stored_flow.detail))
                for fork in forks:
                    fork.detail.meta.pop(models.AWAITS_REVERSION, None)

    def _report_end(self, end: _child_ends.ChildEnd | None) -> None:
        parent = None if end is None else self._backend.flows.get(end.parent)
        if end is not None and parent is not None:
            parent.signals.setdefault(end.signal.stored_name, end.signal)

    def save_fork(
        self,
        fork: base.NewFork,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        lease: _leases.Lease,
    ) -> None:
        with self._backend.lock:
            original = self._flow(flow.uuid, lease)
            self._put_book(fork.book)
            stored_fork = self._flow(fork.flow.uuid)
            stored_fork.outline = fork.outline
            stored_fork.signals.update((each.stored_name, each) for each in fork.signals)
            original.begin_batch()
            original.detail.update(flow.copy(retain_contents=False))
            self._put_atoms(original, atoms)
            if fork.revert is not None:
                original.command = commands.accepted(
                    fork.revert,
                    flow.uuid,
                    flow.state,
                    is_cancelled=flow.is_cancelled,
                    stored=original.command,
                )

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: _leases.Lease | None = None
    ) -> None:
        with self._backend.lock:
            self._flow(flow_uuid, lease).outline = outline

    def destroy_logbook(self, book_uuid: str, *, unused_only: bool = False) -> None:
        with self._backend.lock:
            book = self._book(book_uuid)
            if unused_only and (len(book) or book.meta_value(models.MADE_BY) is None):
                return
            for flow in book:
                self._delete_flow(flow.uuid)
            del self._backend.books[book_uuid]

    def destroy_flow(self, flow_uuid: str, only: base.Removable | None = None) -> None:
        with self._backend.lock:
            flow = self._flow(flow_uuid)
            if only is not None:
                self._check_not_busy(flow, only.dead)
                state = flow.detail.state or states.PENDING
                has_command = flow.pending_command is not None
                if state not in only.states or flow.updated >= only.before or has_command:
                    raise only.refusal(flow_uuid)
            flow.book.discard(flow_uuid)
            self._delete_flow(flow_uuid)

    def _delete_flow(self, flow_uuid: str) -> None:
        detail = self._backend.flows.pop(flow_uuid).detail
        meta = detail.own_meta
        self._report_end(_child_ends.deletion_of(flow_uuid, detail.state, meta, detail.epoch))
        for atom in detail:
            self._backend.atoms.pop(atom.uuid, None)

    def _put_atoms(self, flow: StoredFlow, atoms: Iterable[models.AtomDetail]) -> None:
        # Copy first, so that a failed copy changes nothing.
        rows = [self._copy_of(atom) for atom in atoms]
        flow.mark_changed([row.uuid for row in rows])
        for row in rows:
            stored_atom = self._backend.atoms.get(row.uuid)
            if stored_atom is None:
                self._backend.atoms[row.uuid] = flow, row
                flow.detail.add(row)
            else:
                stored_atom[1].update_row(row)

    def _put_items(self, uuid: str, items: Iterable[models.ItemDetail]) -> None:
        stored_flow, atom = self._backend.atoms[uuid]
        if atom.items is None:
            return
        indexes = []
        for item in items:
            atom.items.put(item.copy(self._backend.deep_copy))
            indexes.append((uuid, item.index))
        if indexes:
            stored_flow.mark_changed((uuid,), indexes)

    def _copy_of(self, atom: models.AtomDetail) -> models.AtomDetail:
        if self._backend.deep_copy:
            return atom.copy(retain_contents=False)
        return type(atom)(atom.name, atom.uuid).update_row(atom)

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        with self._backend.lock:
            return self._book(book_uuid).copy(not lazy)

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        with self._backend.lock:
            return iter([book.copy(not lazy) for book in self._backend.books.values()])

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        with self._backend.lock:
            return self._flow(fd_uuid).detail.copy(not lazy)

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        with self._backend.lock:
            return self._atom(ad_uuid)[1].copy()

    def flow_of_atom(self, ad_uuid: str) -> str:
        with self._backend.lock:
            return self._atom(ad_uuid)[0].detail.uuid

    def get_logs(
        self, flow_uuid: str, atom_uuid: str | None = None, limit: int | None = None
    ) -> list[models.LogChunk]:
        with self._backend.lock:
            logs = self._flow(flow_uuid).logs
            selected = logs.values() if atom_uuid is None else [logs.get(atom_uuid, [])]
            chunks = [chunk for _, chunk in sorted(itertools.chain.from_iterable(selected))]
        return chunks if limit is None else chunks[-limit:]

    def get_outline(self, flow_uuid: str) -> Outline | None:
        with self._backend.lock:
            return self._flow(flow_uuid).outline

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        store = self._backend
        with store.lock:
            stored_flow = self._flow(flow_uuid)
            since_batch, lazy = (
                stored_flow.since(since),
                stored_flow.detail.copy(retain_contents=False),
            )
            if since_batch is None:
                atoms_of_flow = [atom.copy() for atom in stored_flow.detail]
                return base.Changes(stored_flow.cursor, True, lazy, atoms_of_flow)
            atoms = [
                store.atoms[uuid][1].copy(retain_contents=False)
                for uuid in stored_flow.atoms_since(since_batch)
            ]
            items: dict[str, list[models.ItemDetail]] = {}
            for uuid, index in stored_flow.items_since(since_batch):
                atom_items = store.atoms[uuid][1].items
                if atom_items is not None and index < len(atom_items):
                    items.setdefault(uuid, []).append(atom_items[index].copy())
            for changed in items.values():
                changed.sort(key=lambda item: item.index)
            return base.Changes(stored_flow.cursor, False, lazy, atoms, items)

    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        with self._backend.lock:
            stored_flows = ((uuid, self._backend.flows.get(uuid)) for uuid in flow_uuids)
            return {
                uuid: f"{flow.cursor} {flow.updated} {flow.command}"
                for uuid, flow in stored_flows
                if flow
            }

    def find_flows(self, query: _listing.Query) -> base.Page:
        with self._backend.lock:
            matching_flows = [
                flow
                for flow in self._backend.flows.values()
                if query.book in (None, flow.book.uuid)
                and query.matches(flow.detail.uuid, flow.detail.name, flow.detail.own_meta)
                and query.matches_state(flow.detail.state)
                and query.matches_position(flow.place)
                and (flow.pending_command is not None or not query.commanded)
                and query.matches_error(flow.detail.error)
                and (flow.detail.resent_at is not None or not query.resent)
                and query.matches_engine(flow.detail.meta_value(models.ENGINE))
                and query.matches_queue(flow.detail.meta_value(models.SUBMITTED))
                and (query.codes is None or flow.detail.code in query.codes)
            ]
            matching_flows.sort(key=lambda flow: flow.place, reverse=query.newest_first)
            page = matching_flows[: query.limit]
            after = str(page[-1].place) if len(matching_flows) > len(page) else None
            return base.Page([self._row(flow) for flow in page], after)

    def position(self, flow_uuid: str) -> _listing.Position:
        with self._backend.lock:
            return self._flow(flow_uuid).place

    def _row(self, stored_flow: StoredFlow) -> base.FlowRow:
        flow, lease = stored_flow.detail, self._current_lease(stored_flow)
        command = stored_flow.pending_command
        tasks, steps = list[models.AtomDetail](), list[models.AtomDetail]()
        for atom in flow:
            if isinstance(atom, models.TaskDetail) and atom.name != models.INJECTOR:
                (steps if atom.is_step else tasks).append(atom)
        notes = ((step, StepNote.of(step)) for step in steps)
        return base.FlowRow(
            flow.uuid,
            flow.name,
            stored_flow.book.uuid,
            stored_flow.book.name,
            flow.state or states.PENDING,
            stored_flow.place.created,
            stored_flow.updated,
            dict(Counter(task.state or states.PENDING for task in tasks)),
            None if lease is None else lease.owner,
            flow.error,
            flow.tags,
            flow.is_cancelled,
            None if command is None else command.what,
            flow.is_parked,
            flow.waits_for,
            flow.is_blocked,
            flow.code,
            _listing.latest_step_counts(
                (note.workflow, note.attempt, step.state or states.PENDING, 1)
                for step, note in notes
                if note is not None
            ),
            _listing.queue_of(flow.meta_value(models.SUBMITTED)),
            flow.paused_by,
            flow.parent,
            flow.undo_until,
            flow.forked_from is not None,
            bool(flow.forks),
        )

    def acquire_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> _leases.Lease:
        with self._backend.lock:
            flow = self._flow(flow_uuid)
            self._check_not_busy(flow, dead)
            flow.detail.epoch += 1
            flow.command = flow.pending_command
            flow.lease = _leases.Lease(flow_uuid, owner, flow.detail.epoch, flow.command)
            flow.until = self._backend.clock.monotonic() + seconds
            return flow.lease

    def renew_lease(self, lease: _leases.Lease, seconds: float) -> None:
        with self._backend.lock:
            self._flow(lease.flow, lease).until = self._backend.clock.monotonic() + seconds

    def release_lease(self, lease: _leases.Lease) -> None:
        with self._backend.lock:
            flow = self._backend.flows.get(lease.flow)
            if flow is not None and flow.lease == lease:
                flow.lease = None

    def end_lease(
        self, lease: _leases.Lease, handled: base.FlowCommand | None, *, keep: bool = False
    ) -> base.FlowCommand | None:
        with self._backend.lock:
            flow = self._backend.flows.get(lease.flow)
            if flow is None or flow.lease != lease:
                return None
            if flow.command not in (None, handled):
                return flow.command
            flow.lease = None
            if not keep:
                flow.command = None
            return None

    def get_lease(self, flow_uuid: str) -> _leases.Lease | None:
        with self._backend.lock:
            return self._current_lease(self._flow(flow_uuid))

    def put_command(self, flow_uuid: str, command: base.FlowCommand) -> base.FlowCommand | None:
        used_by_fork = self._fork_refusal(self.get_flow_details(flow_uuid, lazy=True), command.what)
        with self._backend.lock:
            flow = self._flow(flow_uuid)
            flow.command = commands.accepted(
                command,
                flow_uuid,
                flow.detail.state,
                is_cancelled=flow.detail.is_cancelled,
                stored=flow.command,
                used_by_fork=used_by_fork,
            )
            if flow.command is not None and flow.command.what == commands.CANCEL:
                flow.detail.meta.pop(models.AWAITS_REVERSION, None)
            return flow.command

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        with self._backend.lock:
            stored_flows = ((uuid, self._backend.flows.get(uuid)) for uuid in flow_uuids)
            return {
                uuid: command
                for uuid, flow in stored_flows
                if flow and (command := flow.pending_command)
            }

    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        with self._backend.lock:
            return self._flow(flow_uuid).signals.setdefault(signal.stored_name, signal) == signal

    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        with self._backend.lock:
            stored_flows = ((uuid, self._backend.flows.get(uuid)) for uuid in flow_uuids)
            signals_of_flows = {
                uuid: [*flow.signals.values()] for uuid, flow in stored_flows if flow is not None
            }
        return {
            uuid: oldest_first(signals) for uuid, signals in signals_of_flows.items() if signals
        }

    def put_pause(self, pause: TaskPause) -> None:
        pause.check()
        with self._backend.lock:
            self._backend.pauses[pause.pattern] = pause

    def remove_pause(self, pattern: str, *, ended: bool = False) -> bool:
        with self._backend.lock:
            pause = self._backend.pauses.get(pattern)
            if pause is None or (ended and not pause.is_over(self.now())):
                return False
            del self._backend.pauses[pattern]
            return True

    def pauses(self) -> Sequence[TaskPause]:
        with self._backend.lock:
            return sorted(self._backend.pauses.values())

    def add_access_key(self, key: AccessKey) -> None:
        with self._backend.lock:
            if self._backend.access_keys.setdefault(key.id, key) is not key:
                raise exceptions.Duplicate(f"Access key {key.id} already exists")

    def end_access_key(self, key_id: str, at: float, *, revoke: bool) -> bool:
        with self._backend.lock:
            key = self._backend.access_keys.get(key_id)
            end = None if key is None else key.revoked if revoke else key.expires
            if key is None or (end is not None and (revoke or end <= at)):
                return False
            ended = key._replace(revoked=at) if revoke else key._replace(expires=at)
            self._backend.access_keys[key_id] = ended
            return True

    def note_use_of_access_key(self, key_id: str, at: float) -> None:
        with self._backend.lock:
            key = self._backend.access_keys.get(key_id)
            if key is not None:
                self._backend.access_keys[key_id] = key._replace(used=at)

    def access_keys(self) -> Sequence[AccessKey]:
        with self._backend.lock:
            keys = list(self._backend.access_keys.values())
        return sorted(keys, key=lambda key: (key.name, key.created, key.id))

    def access_key(self, key_id: str) -> AccessKey | None:
        with self._backend.lock:
            return self._backend.access_keys.get(key_id)

    @property
    def bulks(self) -> _bulk_records.BulkStore:
        return self._backend.bulks

    def add_codes(self, version: str, apps: Iterable[str], earlier: Iterable[str] = ()) -> None:
        versions = (*earlier, version)
        with self._backend.lock:
            for app in apps:
                for each in versions:
                    self._backend.codes.setdefault((app, each), -math.inf)
        self.report_code(version)

    def report_code(self, version: str) -> None:
        self._set_time_of_code(version, self._backend.clock.monotonic())

    def withdraw_code(self, version: str) -> None:
        self._set_time_of_code(version, -math.inf)

    def _set_time_of_code(self, version: str, seen: float) -> None:
        with self._backend.lock:
            self._backend.codes.update(
                (key, seen) for key in self._backend.codes if key[1] == version
            )

    def codes(self) -> Sequence[Code]:
        with self._backend.lock:
            now = self._backend.clock.monotonic()
            return [
                Code(number, *key, now - seen)
                for number, (key, seen) in enumerate(self._backend.codes.items(), 1)
            ]

    def flows_by_code(self) -> Mapping[str, int]:
        with self._backend.lock:
            return Counter(str(flow.detail.code) for flow in self._idle_flows_with_code())

    def assign_code(self, old: str, new: str) -> int:
        with self._backend.lock:
            matching = [each for each in self._idle_flows_with_code() if each.detail.code == old]
            for flow in matching:
                flow.detail.code = new
            return len(matching)

    def _idle_flows_with_code(self) -> list[StoredFlow]:
        return [
            flow
            for flow in self._backend.flows.values()
            if flow.detail.code is not None
            and flow.detail.state not in states.FLOW_ENDED
            and self._current_lease(flow) is None
        ]

    def _current_lease(self, flow: StoredFlow) -> _leases.Lease | None:
        return flow.lease if flow.until > self._backend.clock.monotonic() else None

    def _check_not_busy(self, flow: StoredFlow, dead: int | None = None) -> None:
        lease = self._current_lease(flow)
        if lease is not None and lease.epoch != dead:
            raise _leases.busy_error(lease, flow.until - self._backend.clock.monotonic())

    def _flow(self, flow_uuid: str, lease: _leases.Lease | None = None) -> StoredFlow:
        """Return a flow. If `lease` is given, check that it is the flow's latest lease."""
        flow = self._backend.flows.get(flow_uuid)
        if lease is not None and (flow is None or flow.lease != lease):
            latest = None if flow is None else flow.lease
            raise _leases.lost_error(
                lease, None if latest is None else latest.owner, flow_exists=flow is not None
            )
        if flow is None:
            raise _missing("flow detail", flow_uuid)
        return flow

    def _book(self, uuid: str) -> models.LogBook:
        if uuid not in self._backend.books:
            raise _missing("logbook", uuid)
        return self._backend.books[uuid]

    def _atom(self, uuid: str) -> tuple[StoredFlow, models.AtomDetail]:
        if uuid not in self._backend.atoms:
            raise _missing("atom detail", uuid)
        return self._backend.atoms[uuid]


def _missing(what: str, uuid: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"No {what} {uuid} in this memory backend")
