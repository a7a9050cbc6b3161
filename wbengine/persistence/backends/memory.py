"""Books kept in this process: for tests, and for engines that only need a place to read from."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from wbengine import _clock, _options, exceptions, states
from wbengine.persistence import base, changes, leases, listing, models
from wbengine.signals import Signal
from wbengine.types.outline import Outline

__all__ = ["MemoryBackend", "MemoryConnection"]

_K = TypeVar("_K")


class MemoryBackend(base.Backend):
    """Keeps copies of records in dictionaries.

    Option `deep_copy` (default True): copy result values too.  Without it values are shared with
    the engine: faster, and a caller that changes a value changes what is kept.  (`path` is accepted
    for compatibility: there are no folders here.)

    :raises ValueError: another option, or a value that an option cannot have.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"connection", "deep_copy", "path"})

    encodes = False

    def __init__(
        self, conf: Mapping[str, Any] | None = None, *, clock: _clock.Clock = _clock.SYSTEM
    ) -> None:
        super().__init__(conf)
        self.clock = clock
        _options.check_known("A memory backend", self._conf, self.OPTIONS)
        self.deep_copy = _options.flag("deep_copy", self._conf.get("deep_copy", True))
        self.lock = threading.Lock()
        self.books: dict[str, models.LogBook] = {}
        #: Every flow that is kept, by uuid (the books hold the same details).
        self.flows: dict[str, KeptFlow] = {}
        #: Every atom that is kept, with its flow, by uuid.
        self.atoms: dict[str, tuple[KeptFlow, models.AtomDetail]] = {}
        self.numbers = itertools.count(1)

    def get_connection(self) -> MemoryConnection:
        return MemoryConnection(self)

    def close(self) -> None:
        """Nothing is held open; the books stay readable."""


class KeptFlow:
    """A flow, and what is kept beside its record.

    Its writes are counted, and each change has the number of its write.  What changed last is last
    in its dict: so it is found first.
    """

    __slots__ = (
        "_atoms", "_chunks", "_items", "_name", "_turn", "book", "command", "detail", "lease",
        "logs", "number", "outline", "signals", "until", "updated",
    )  # fmt: skip

    def __init__(self, detail: models.FlowDetail, book: models.LogBook, number: int) -> None:
        self.detail: Final = detail
        self.book: Final = book
        #: Among all flows of the store, in the order of their making.
        self.number: Final = number
        #: The latest lease (None: it was given back, or there was none), and when its time is over.
        self.lease: leases.Lease | None = None
        self.until = 0.0
        self.command: base.FlowCommand | None = None
        self.outline: Outline | None = None
        #: What the atoms logged, with the place of each chunk in the order of the flow.
        self.logs: dict[str, list[tuple[int, models.LogChunk]]] = {}
        self._chunks = itertools.count()
        self.signals: dict[str, Signal] = {}
        self.updated = time.time()
        # What this store calls this flow in cursors.
        self._name = secrets.token_hex(6)
        self._turn = 0
        self._atoms: dict[str, int] = {}
        self._items: dict[tuple[str, int], int] = {}

    @property
    def place(self) -> listing.Place:
        created = self.detail.created
        return listing.Place(self.book.created if created is None else created, self.number)

    @property
    def cursor(self) -> str:
        """Where who has seen everything goes on."""
        return f"{self._name}.{self._turn}"

    def add_logs(self, chunks: Iterable[models.LogChunk]) -> None:
        """Keep what was logged, and nothing of attempts long before."""
        for chunk in chunks:
            kept = self.logs.setdefault(chunk.atom_uuid, [])
            oldest = chunk.attempt - base.LOGGED_ATTEMPTS
            if kept and kept[0][1].attempt <= oldest:
                kept[:] = [each for each in kept if each[1].attempt > oldest]
            kept.append((next(self._chunks), chunk))

    def since(self, cursor: str | None) -> int | None:
        """The turn that a cursor of this flow tells; None: it is no cursor of this flow."""
        return changes.turn_in(cursor, self._name, self._turn)

    def begin_turn(self) -> None:
        """What changes from now on is of the next turn."""
        self._turn += 1
        self.updated = time.time()

    def touch(self, atoms: Iterable[str], items: Iterable[tuple[str, int]] = ()) -> None:
        """The rows of these atoms have changed, and these items (of which atom, and the index)."""
        _put_last(self._atoms, atoms, self._turn)
        _put_last(self._items, items, self._turn)

    def atoms_since(self, turn: int) -> list[str]:
        """The uuids of the atoms that changed after a turn, in the order in which they did."""
        return _after(self._atoms, turn)

    def items_since(self, turn: int) -> list[tuple[str, int]]:
        """The items that changed after a turn."""
        return _after(self._items, turn)


def _put_last(known: dict[_K, int], keys: Iterable[_K], turn: int) -> None:
    for key in keys:
        known.pop(key, None)
        known[key] = turn


def _after(known: dict[_K, int], turn: int) -> list[_K]:
    return list(itertools.takewhile(lambda key: known[key] > turn, reversed(known)))[::-1]


class MemoryConnection(base.Connection):
    """One user's view of a `MemoryBackend`."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    @property
    def backend(self) -> MemoryBackend:
        return self._backend

    # -- writing --------------------------------------------------------------------------------

    def clear_all(self) -> None:
        with self._backend.lock:
            for kept in (self._backend.books, self._backend.flows, self._backend.atoms):
                kept.clear()

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        store = self._backend
        with store.lock:
            ours = store.books.get(book.uuid)
            if ours is None:
                ours = store.books[book.uuid] = book.copy(retain_contents=False)
            else:
                ours.merge(book.copy(retain_contents=False))
            for flow in book:
                kept = store.flows.get(flow.uuid)
                if kept is None:
                    detail = flow.copy(retain_contents=False)
                    kept = store.flows[flow.uuid] = KeptFlow(detail, ours, next(store.numbers))
                elif self._holder(kept) is not None or flow.epoch != kept.detail.epoch:
                    continue
                else:
                    kept.detail.merge(flow.copy(retain_contents=False))
                ours.add(kept.detail)
                kept.begin_turn()
                self._put_atoms(kept, flow)
                for atom in flow:
                    self._put_items(atom.uuid, atom.items or ())
            return ours.copy()

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        logs: Sequence[models.LogChunk] = (),
        lease: leases.Lease | None = None,
    ) -> None:
        with self._backend.lock:
            kept = self._of(flow.uuid, lease)
            if lease is None:
                self._refuse_if_busy(kept)
            kept.begin_turn()
            if flow_row:
                kept.detail.update(flow.copy(retain_contents=False))
            self._put_atoms(kept, atoms)
            for uuid, changed in items.items():
                self._put_items(uuid, changed)
            kept.add_logs(logs)

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: leases.Lease | None = None
    ) -> None:
        with self._backend.lock:
            self._of(flow_uuid, lease).outline = outline

    def destroy_logbook(self, book_uuid: str) -> None:
        with self._backend.lock:
            for flow in self._book(book_uuid):
                self._forget(flow.uuid)
            del self._backend.books[book_uuid]

    def destroy_flow(self, flow_uuid: str) -> None:
        with self._backend.lock:
            self._of(flow_uuid).book.discard(flow_uuid)
            self._forget(flow_uuid)

    def _forget(self, flow_uuid: str) -> None:
        for atom in self._backend.flows.pop(flow_uuid).detail:
            self._backend.atoms.pop(atom.uuid, None)

    def _put_atoms(self, kept: KeptFlow, atoms: Iterable[models.AtomDetail]) -> None:
        rows = [self._copied(atom) for atom in atoms]  # all of them, or nothing changes
        kept.touch([row.uuid for row in rows])
        for row in rows:
            known = self._backend.atoms.get(row.uuid)
            if known is None:
                self._backend.atoms[row.uuid] = kept, row
                kept.detail.add(row)
            else:
                known[1].update_row(row)

    def _put_items(self, uuid: str, items: Iterable[models.ItemDetail]) -> None:
        kept, atom = self._backend.atoms[uuid]
        if atom.items is None:
            return
        put = []
        for item in items:
            atom.items.put(item.copy(self._backend.deep_copy))
            put.append((uuid, item.index))
        if put:
            kept.touch((uuid,), put)

    def _copied(self, atom: models.AtomDetail) -> models.AtomDetail:
        if self._backend.deep_copy:
            return atom.copy(retain_contents=False)
        return type(atom)(atom.name, atom.uuid).update_row(atom)

    # -- reading --------------------------------------------------------------------------------

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        with self._backend.lock:
            return self._book(book_uuid).copy(not lazy)

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        with self._backend.lock:
            return iter([book.copy(not lazy) for book in self._backend.books.values()])

    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        with self._backend.lock:
            return iter([flow.copy(not lazy) for flow in self._book(book_uuid)])

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        with self._backend.lock:
            return self._of(fd_uuid).detail.copy(not lazy)

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        with self._backend.lock:
            return self._atom(ad_uuid)[1].copy()

    def flow_of_atom(self, ad_uuid: str) -> str:
        with self._backend.lock:
            return self._atom(ad_uuid)[0].detail.uuid

    def get_atoms_for_flow(self, fd_uuid: str) -> Iterator[models.AtomDetail]:
        with self._backend.lock:
            return iter([atom.copy() for atom in self._of(fd_uuid).detail])

    def get_logs(
        self, flow_uuid: str, atom_uuid: str | None = None, limit: int | None = None
    ) -> list[models.LogChunk]:
        with self._backend.lock:
            logs = self._of(flow_uuid).logs
            wanted = logs.values() if atom_uuid is None else [logs.get(atom_uuid, [])]
            found = [chunk for _, chunk in sorted(itertools.chain.from_iterable(wanted))]
        return found if limit is None else found[-limit:]

    def get_outline(self, flow_uuid: str) -> Outline | None:
        with self._backend.lock:
            return self._of(flow_uuid).outline

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        store = self._backend
        with store.lock:
            kept = self._of(flow_uuid)
            after, lazy = kept.since(since), kept.detail.copy(retain_contents=False)
            if after is None:
                every = [atom.copy() for atom in kept.detail]
                return base.Changes(kept.cursor, True, lazy, every)
            atoms = [
                store.atoms[uuid][1].copy(retain_contents=False) for uuid in kept.atoms_since(after)
            ]
            items: dict[str, list[models.ItemDetail]] = {}
            for uuid, index in kept.items_since(after):
                owned = store.atoms[uuid][1].items
                if owned is not None and index < len(owned):
                    items.setdefault(uuid, []).append(owned[index].copy())
            for changed in items.values():
                changed.sort(key=lambda item: item.index)
            return base.Changes(kept.cursor, False, lazy, atoms, items)

    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        with self._backend.lock:
            kept = ((uuid, self._backend.flows.get(uuid)) for uuid in flow_uuids)
            return {uuid: f"{flow.cursor} {flow.updated}" for uuid, flow in kept if flow}

    def find_flows(self, query: listing.Query) -> base.Page:
        with self._backend.lock:
            found = [
                kept
                for kept in self._backend.flows.values()
                if query.book in (None, kept.book.uuid)
                and query.wants(kept.detail.uuid, kept.detail.name, kept.detail.tags)
                and query.wants_state(kept.detail.state)
                and query.wants_place(kept.place)
            ]
            found.sort(key=lambda kept: kept.place, reverse=query.newest_first)
            page = found[: query.limit]
            after = str(page[-1].place) if len(found) > len(page) else None
            return base.Page([self._row(kept) for kept in page], after)

    def _row(self, kept: KeptFlow) -> base.FlowRow:
        flow, lease = kept.detail, self._holder(kept)
        tasks = (
            atom
            for atom in flow
            if isinstance(atom, models.TaskDetail) and atom.name != models.INJECTOR
        )
        return base.FlowRow(
            flow.uuid,
            flow.name,
            kept.book.uuid,
            kept.book.name,
            flow.state or states.PENDING,
            kept.place.created,
            kept.updated,
            dict(Counter(task.state or states.PENDING for task in tasks)),
            None if lease is None else lease.owner,
            flow.error,
            flow.tags,
        )

    # -- leases and commands --------------------------------------------------------------------

    def take_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> leases.Lease:
        with self._backend.lock:
            kept = self._of(flow_uuid)
            self._refuse_if_busy(kept, dead)
            kept.detail.epoch += 1
            kept.lease, kept.command = leases.Lease(flow_uuid, owner, kept.detail.epoch), None
            kept.until = self._backend.clock.monotonic() + seconds
            return kept.lease

    def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
        with self._backend.lock:
            self._of(lease.flow, lease).until = self._backend.clock.monotonic() + seconds

    def give_back_lease(self, lease: leases.Lease) -> None:
        with self._backend.lock:
            kept = self._backend.flows.get(lease.flow)
            if kept is not None and kept.lease == lease:
                kept.lease = kept.command = None

    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        with self._backend.lock:
            return self._holder(self._of(flow_uuid))

    def put_command(self, lease: leases.Lease, command: base.FlowCommand) -> bool:
        with self._backend.lock:
            kept = self._backend.flows.get(lease.flow)
            if kept is None or self._holder(kept) != lease:
                return False
            kept.command = command._replace(epoch=lease.epoch)
            return True

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        with self._backend.lock:
            kept = ((uuid, self._backend.flows.get(uuid)) for uuid in flow_uuids)
            return {uuid: flow.command for uuid, flow in kept if flow and flow.command}

    def clear_command(self, lease: leases.Lease, command: base.FlowCommand) -> None:
        with self._backend.lock:
            kept = self._backend.flows.get(lease.flow)
            if kept is not None and kept.command == command._replace(epoch=lease.epoch):
                kept.command = None

    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        with self._backend.lock:
            return self._of(flow_uuid).signals.setdefault(signal.name, signal) == signal

    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        with self._backend.lock:
            kept = ((uuid, self._backend.flows.get(uuid)) for uuid in flow_uuids)
            found = {uuid: [*flow.signals.values()] for uuid, flow in kept if flow is not None}
        return {
            uuid: sorted(signals, key=lambda one: (one.at, one.name))
            for uuid, signals in found.items()
            if signals
        }

    def _holder(self, kept: KeptFlow) -> leases.Lease | None:
        return kept.lease if kept.until > self._backend.clock.monotonic() else None

    def _refuse_if_busy(self, kept: KeptFlow, dead: int | None = None) -> None:
        held = self._holder(kept)
        if held is not None and held.epoch != dead:
            raise leases.busy(held, kept.until - self._backend.clock.monotonic())

    # -------------------------------------------------------------------------------------------

    def _of(self, flow_uuid: str, lease: leases.Lease | None = None) -> KeptFlow:
        """A flow; if `lease` is given, only under it."""
        kept = self._backend.flows.get(flow_uuid)
        if lease is not None and (kept is None or kept.lease != lease):
            held = None if kept is None else kept.lease
            raise leases.lost(lease, None if held is None else held.owner, kept=kept is not None)
        if kept is None:
            raise _missing("flow detail", flow_uuid)
        return kept

    def _book(self, uuid: str) -> models.LogBook:
        if uuid not in self._backend.books:
            raise _missing("log book", uuid)
        return self._backend.books[uuid]

    def _atom(self, uuid: str) -> tuple[KeptFlow, models.AtomDetail]:
        if uuid not in self._backend.atoms:
            raise _missing("atom detail", uuid)
        return self._backend.atoms[uuid]


def _missing(what: str, uuid: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"No {what} {uuid} is kept in memory")
