"""Books kept in this process: for tests, and for engines that only need a place to read from."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from wbengine import _clock, _options, exceptions, states
from wbengine.persistence import base, changes, leases, listing, models
from wbengine.types.outline import Outline

__all__ = ["MemoryBackend", "MemoryConnection"]

_K = TypeVar("_K")
_R = TypeVar("_R")


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
        #: Every flow and atom that is kept, by uuid (the books hold the same objects).
        self.flows: dict[str, models.FlowDetail] = {}
        self.atoms: dict[str, models.AtomDetail] = {}
        #: The flow of each atom, by uuid.
        self.homes: dict[str, str] = {}
        #: The latest lease of each flow, and when its time is over (0: it was given back).
        self.leases: dict[str, tuple[leases.Lease, float]] = {}
        #: What changed of each flow, and when.
        self.turns: dict[str, _Turns] = {}
        self.numbers = itertools.count(1)
        self.outlines: dict[str, Outline] = {}
        self.commands: dict[str, base.FlowCommand] = {}
        #: How many writes there were, and how many items they held.
        self.writes = 0
        self.items_written = 0

    def get_connection(self) -> MemoryConnection:
        return MemoryConnection(self)

    def close(self) -> None:
        """Nothing is held open; the books stay readable."""


class MemoryConnection(base.Connection):
    """One user's view of a `MemoryBackend`."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    @property
    def backend(self) -> MemoryBackend:
        return self._backend

    def clear_all(self) -> None:
        with self._backend.lock:
            self._backend.writes += 1
            self._backend.books.clear()
            for flow_uuid in list(self._backend.flows):
                self._forget(flow_uuid)

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        store = self._backend
        with store.lock:
            store.writes += 1
            kept = store.books.get(book.uuid)
            if kept is None:
                kept = store.books[book.uuid] = book.copy(retain_contents=False)
            else:
                kept.merge(book.copy(retain_contents=False))
            for flow in book:
                ours = store.flows.get(flow.uuid)
                if ours is None:
                    ours = store.flows[flow.uuid] = flow.copy(retain_contents=False)
                elif self._holder(flow.uuid) is not None or flow.epoch != ours.epoch:
                    continue
                else:
                    ours.merge(flow.copy(retain_contents=False))
                kept.add(ours)
                self._turn(flow.uuid)
                self._put_atoms(ours, flow)
                for atom in flow:
                    self._put_items(atom.uuid, atom.items or ())
            return kept.copy()

    def destroy_logbook(self, book_uuid: str) -> None:
        store = self._backend
        with store.lock:
            store.writes += 1
            book = store.books.pop(book_uuid, None)
            if book is None:
                raise exceptions.NotFound(f"No log book {book_uuid} is kept in memory")
            for flow in book:
                self._forget(flow.uuid)

    def destroy_flow(self, flow_uuid: str) -> None:
        store = self._backend
        with store.lock:
            self._found(flow_uuid)
            store.writes += 1
            self._forget(flow_uuid)
            for book in store.books.values():
                book.discard(flow_uuid)

    def _forget(self, flow_uuid: str) -> None:
        store = self._backend
        for atom in store.flows.pop(flow_uuid, ()):
            store.atoms.pop(atom.uuid, None)
            store.homes.pop(atom.uuid, None)
        store.leases.pop(flow_uuid, None)
        store.turns.pop(flow_uuid, None)
        store.outlines.pop(flow_uuid, None)
        store.commands.pop(flow_uuid, None)

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        return self._read(
            "log book", self._backend.books, book_uuid, lambda kept: kept.copy(not lazy)
        )

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        with self._backend.lock:
            books = [kept.copy(not lazy) for kept in self._backend.books.values()]
        return iter(books)

    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        def copied(book: models.LogBook) -> list[models.FlowDetail]:
            return [flow.copy(not lazy) for flow in book]

        return iter(self._read("log book", self._backend.books, book_uuid, copied))

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        return self._read(
            "flow detail", self._backend.flows, fd_uuid, lambda kept: kept.copy(not lazy)
        )

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        store = self._backend
        with store.lock:
            kept = self._found(flow_uuid)
            turns = store.turns[flow_uuid]
            after, lazy = turns.since(since), kept.copy(retain_contents=False)
            if after is None:
                return base.Changes(turns.cursor, True, lazy, [atom.copy() for atom in kept])
            atoms = [store.atoms[uuid].copy(retain_contents=False) for uuid in turns.atoms(after)]
            items: dict[str, list[models.ItemDetail]] = {}
            for uuid, index in turns.items(after):
                owned = store.atoms[uuid].items
                if owned is not None and index < len(owned):
                    items.setdefault(uuid, []).append(owned[index].copy())
            for changed in items.values():
                changed.sort(key=lambda item: item.index)
            return base.Changes(turns.cursor, False, lazy, atoms, items)

    def find_flows(self, query: listing.Query) -> base.Page:
        with self._backend.lock:
            found = []
            for book in self._backend.books.values():
                if query.book in (None, book.uuid):
                    found += [(self._place(book, flow), book, flow) for flow in book]
            found = [
                (place, book, flow)
                for place, book, flow in found
                if query.wants(flow.uuid, flow.name)
                and query.wants_state(flow.state)
                and query.wants_place(place)
            ]
            found.sort(key=lambda each: each[0], reverse=query.newest_first)
            page = found[: query.limit]
            after = str(page[-1][0]) if len(found) > len(page) else None
            return base.Page([self._row(book, flow) for _, book, flow in page], after)

    def _place(self, book: models.LogBook, flow: models.FlowDetail) -> listing.Place:
        created = flow.created
        if created is None:
            created = book.created
        return listing.Place(created, self._backend.turns[flow.uuid].number)

    def _row(self, book: models.LogBook, flow: models.FlowDetail) -> base.FlowRow:
        lease = self._holder(flow.uuid)
        tasks = (
            atom
            for atom in flow
            if isinstance(atom, models.TaskDetail) and atom.name != models.INJECTOR
        )
        return base.FlowRow(
            flow.uuid,
            flow.name,
            book.uuid,
            book.name,
            flow.state or states.PENDING,
            self._place(book, flow).created,
            self._backend.turns[flow.uuid].updated,
            dict(Counter(task.state or states.PENDING for task in tasks)),
            None if lease is None else lease.owner,
            flow.error,
        )

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        return self._read("atom detail", self._backend.atoms, ad_uuid, lambda kept: kept.copy())

    def get_atoms_for_flow(self, fd_uuid: str) -> Iterator[models.AtomDetail]:
        def copied(flow: models.FlowDetail) -> list[models.AtomDetail]:
            return [atom.copy() for atom in flow]

        return iter(self._read("flow detail", self._backend.flows, fd_uuid, copied))

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        lease: leases.Lease | None = None,
    ) -> None:
        with self._backend.lock:
            if lease is not None:
                self._check(lease)
            kept = self._found(flow.uuid)
            if lease is None:
                self._refuse_if_busy(flow.uuid)
            self._backend.writes += 1
            self._turn(flow.uuid)
            if flow_row:
                kept.update(flow.copy(retain_contents=False))
            self._put_atoms(kept, atoms)
            for uuid, changed in items.items():
                self._put_items(uuid, changed)

    # -- leases ---------------------------------------------------------------------------------

    def take_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> leases.Lease:
        with self._backend.lock:
            kept = self._found(flow_uuid)
            self._refuse_if_busy(flow_uuid, dead)
            kept.epoch += 1
            taken = leases.Lease(flow_uuid, owner, kept.epoch)
            self._backend.commands.pop(flow_uuid, None)
            self._backend.leases[flow_uuid] = taken, self._backend.clock.monotonic() + seconds
            return taken

    def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
        with self._backend.lock:
            self._check(lease)
            until = self._backend.clock.monotonic() + seconds
            self._backend.leases[lease.flow] = lease, until

    def give_back_lease(self, lease: leases.Lease) -> None:
        with self._backend.lock:
            held, _ = self._backend.leases.get(lease.flow, (None, 0.0))
            if held == lease:
                del self._backend.leases[lease.flow]
                self._backend.commands.pop(lease.flow, None)

    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        with self._backend.lock:
            self._found(flow_uuid)
            return self._holder(flow_uuid)

    # -- commands, outlines ---------------------------------------------------------------------

    def put_command(self, lease: leases.Lease, command: base.FlowCommand) -> bool:
        with self._backend.lock:
            if self._holder(lease.flow) != lease:
                return False
            self._backend.commands[lease.flow] = command._replace(epoch=lease.epoch)
            return True

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        with self._backend.lock:
            kept = self._backend.commands
            return {uuid: kept[uuid] for uuid in flow_uuids if uuid in kept} if kept else {}

    def clear_command(self, lease: leases.Lease, command: base.FlowCommand) -> None:
        with self._backend.lock:
            if self._backend.commands.get(lease.flow) == command._replace(epoch=lease.epoch):
                del self._backend.commands[lease.flow]

    def get_outline(self, flow_uuid: str) -> Outline | None:
        with self._backend.lock:
            self._found(flow_uuid)
            return self._backend.outlines.get(flow_uuid)

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: leases.Lease | None = None
    ) -> None:
        with self._backend.lock:
            if lease is not None:
                self._check(lease)
            self._found(flow_uuid)
            self._backend.outlines[flow_uuid] = outline

    # -------------------------------------------------------------------------------------------

    def _turn(self, flow_uuid: str) -> _Turns:
        """A write of this flow begins."""
        turns = self._backend.turns.get(flow_uuid)
        if turns is None:
            turns = self._backend.turns[flow_uuid] = _Turns(next(self._backend.numbers))
        turns.begin()
        return turns

    def _holder(self, flow_uuid: str) -> leases.Lease | None:
        lease, until = self._backend.leases.get(flow_uuid, (None, 0.0))
        return lease if until > self._backend.clock.monotonic() else None

    def _refuse_if_busy(self, flow_uuid: str, dead: int | None = None) -> None:
        held = self._holder(flow_uuid)
        if held is not None and held.epoch != dead:
            until = self._backend.leases[flow_uuid][1]
            raise leases.busy(held, until - self._backend.clock.monotonic())

    def _check(self, lease: leases.Lease) -> None:
        held, _ = self._backend.leases.get(lease.flow, (None, 0.0))
        if held != lease:
            raise leases.lost(lease, held.owner if held is not None else None)

    def _found(self, flow_uuid: str) -> models.FlowDetail:
        kept = self._backend.flows.get(flow_uuid)
        if kept is None:
            raise exceptions.NotFound(f"No flow detail {flow_uuid} is kept in memory")
        return kept

    def update_atom_details(self, atom_detail: models.AtomDetail) -> models.AtomDetail:
        with self._backend.lock:
            kept = self._backend.atoms.get(atom_detail.uuid)
            if kept is None:
                raise exceptions.NotFound(f"No atom detail {atom_detail.uuid} is kept in memory")
            self._refuse_if_busy(self._backend.homes[kept.uuid])
            self._backend.writes += 1
            self._turn(self._backend.homes[kept.uuid]).touch(kept.uuid)
            kept.update_row(self._copied(atom_detail))
            self._put_items(kept.uuid, atom_detail.items or ())
            return kept.copy()

    def _put_atoms(self, flow: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> None:
        rows = [self._copied(atom) for atom in atoms]  # all of them, or nothing changes
        self._backend.turns[flow.uuid].touch_rows([row.uuid for row in rows])
        for row in rows:
            kept = self._backend.atoms.get(row.uuid)
            if kept is None:
                self._backend.atoms[row.uuid] = row
                self._backend.homes[row.uuid] = flow.uuid
                flow.add(row)
            else:
                kept.update_row(row)

    def _put_items(self, uuid: str, items: Iterable[models.ItemDetail]) -> None:
        kept = self._backend.atoms[uuid].items
        if kept is None:
            return
        put = []
        for item in items:
            kept.put(item.copy(self._backend.deep_copy))
            self._backend.items_written += 1
            put.append(item.index)
        if put:
            self._backend.turns[self._backend.homes[uuid]].touch(uuid, put)

    def _copied(self, atom: models.AtomDetail) -> models.AtomDetail:
        if self._backend.deep_copy:
            return atom.copy(retain_contents=False)
        return type(atom)(atom.name, atom.uuid).update_row(atom)

    def _read(self, what: str, kept: Mapping[str, _K], uuid: str, copied: Callable[[_K], _R]) -> _R:
        with self._backend.lock:
            if uuid not in kept:
                raise exceptions.NotFound(f"No {what} {uuid} is kept in memory")
            return copied(kept[uuid])


class _Turns:
    """The writes of one flow.  What changed last is last in its dict: so it is found first."""

    __slots__ = ("_atoms", "_items", "_name", "count", "number", "updated")

    def __init__(self, number: int) -> None:
        #: Among all flows of the store, in the order of their making.
        self.number = number
        self.count = 0
        self.updated = time.time()
        # What this store calls this flow in cursors.
        self._name = secrets.token_hex(6)
        self._atoms: dict[str, int] = {}
        self._items: dict[tuple[str, int], int] = {}

    @property
    def cursor(self) -> str:
        """Where who has seen everything goes on."""
        return f"{self._name}.{self.count}"

    def since(self, cursor: str | None) -> int | None:
        """The turn that a cursor of this flow tells; None: it is no cursor of this flow."""
        name, _, count = (cursor or "").partition(".")
        if name != self._name or not changes.is_number(count) or int(count) > self.count:
            return None
        return int(count)

    def begin(self) -> None:
        """What changes from now on is of the next turn."""
        self.count += 1
        self.updated = time.time()

    def touch(self, atom_uuid: str, items: Iterable[int] = ()) -> None:
        """An atom's row has changed, or its items of these indexes have."""
        self.touch_rows((atom_uuid,))
        for index in items:
            self._items.pop((atom_uuid, index), None)
            self._items[atom_uuid, index] = self.count

    def touch_rows(self, atom_uuids: Iterable[str]) -> None:
        """The rows of these atoms have changed."""
        known, count = self._atoms, self.count
        for uuid in atom_uuids:
            known.pop(uuid, None)
            known[uuid] = count

    def atoms(self, since: int) -> list[str]:
        """The uuids of the atoms that changed after a turn, in the order in which they did."""
        return list(_after(self._atoms, since))[::-1]

    def items(self, since: int) -> list[tuple[str, int]]:
        """The items that changed after a turn: the uuid of the atom, and the index."""
        return list(_after(self._items, since))[::-1]


def _after(known: dict[_K, int], since: int) -> Iterator[_K]:
    for key in reversed(known):
        if known[key] <= since:
            return
        yield key
