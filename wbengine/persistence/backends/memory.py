"""Books kept in this process: for tests, and for engines that only need a place to read from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from wbengine import _clock, _options, exceptions
from wbengine.persistence import base, leases, models

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

    encodes: ClassVar[bool] = False

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
            for kept in (self._backend.books, self._backend.flows, self._backend.atoms):
                kept.clear()
            self._backend.homes.clear()
            self._backend.leases.clear()

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
                store.flows.pop(flow.uuid, None)
                store.leases.pop(flow.uuid, None)
                for atom in flow:
                    store.atoms.pop(atom.uuid, None)
                    store.homes.pop(atom.uuid, None)

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
        as_of: int | None = None,
    ) -> None:
        with self._backend.lock:
            if lease is not None:
                self._check(lease)
            kept = self._found(flow.uuid)
            if lease is None:
                self._refuse_if_busy(flow.uuid)
                if as_of not in (None, kept.epoch):
                    raise leases.busy(leases.Lease(flow.uuid, "", kept.epoch), 0.0)
            self._backend.writes += 1
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

    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        with self._backend.lock:
            self._found(flow_uuid)
            return self._holder(flow_uuid)

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
            kept.update_row(self._copied(atom_detail))
            self._put_items(kept.uuid, atom_detail.items or ())
            return kept.copy()

    def _put_atoms(self, flow: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> None:
        for atom in atoms:
            kept = self._backend.atoms.get(atom.uuid)
            copied = self._copied(atom)
            if kept is None:
                self._backend.atoms[atom.uuid] = copied
                self._backend.homes[atom.uuid] = flow.uuid
                flow.add(copied)
            else:
                kept.update_row(copied)

    def _put_items(self, uuid: str, items: Iterable[models.ItemDetail]) -> None:
        kept = self._backend.atoms[uuid].items
        if kept is not None:
            for item in items:
                kept.put(item.copy(self._backend.deep_copy))
                self._backend.items_written += 1

    def _copied(self, atom: models.AtomDetail) -> models.AtomDetail:
        if self._backend.deep_copy:
            return atom.copy(retain_contents=False)
        return type(atom)(atom.name, atom.uuid).update_row(atom)

    def _read(self, what: str, kept: Mapping[str, _K], uuid: str, copied: Callable[[_K], _R]) -> _R:
        with self._backend.lock:
            if uuid not in kept:
                raise exceptions.NotFound(f"No {what} {uuid} is kept in memory")
            return copied(kept[uuid])
