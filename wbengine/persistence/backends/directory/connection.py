"""Reading and writing of a directory backend."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import base, leases, models
from wbengine.persistence import listing as queries
from wbengine.persistence.backends.directory import (
    aside,
    books,
    commands,
    contents,
    files,
    following,
    head,
    library,
    lines,
    listing,
    opened,
    store,
)
from wbengine.types.outline import Outline

__all__ = ["DirectoryConnection"]

LOG = logging.getLogger(__name__)

_K = TypeVar("_K")
_R = TypeVar("_R")

#: Leases are not longer: what is later is no time that every system knows.
_LONGEST: Final = 1e9


class DirectoryConnection(base.Connection):
    """One user's view of a `DirectoryBackend`; holds nothing."""

    def __init__(
        self,
        backend: base.Backend,
        of: store.Store,
        of_books: library.Library,
        lister: listing.Lister,
        now: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._store = of
        self._library = of_books
        self._lister = lister
        self._now = now

    @property
    def backend(self) -> base.Backend:
        return self._backend

    def upgrade(self) -> None:
        """Make the folder, and tidy up what dead processes left in it."""
        self._library.make_folders()
        self._library.tidy()

    def validate(self) -> None:
        """:raises StorageFailure: the folder was not made yet, or is another one."""
        for name in library.FOLDERS:
            path = os.path.join(self._store.root, name)
            if not os.path.isdir(path):
                raise exceptions.StorageFailure(
                    f"{path} is missing: upgrade() makes the folder of a directory backend"
                )

    # -- books ----------------------------------------------------------------------------------

    def clear_all(self) -> None:
        self._library.clear()

    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        self._library.save(book)
        return self.get_logbook(book.uuid)

    def destroy_logbook(self, book_uuid: str) -> None:
        self._library.destroy(book_uuid)

    def destroy_flow(self, flow_uuid: str) -> None:
        self._library.destroy_flow(flow_uuid)

    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        """Read one book; one damaged flow keeps it from being read unless it is `lazy`."""
        kept = self._library.books.read(book_uuid)
        return kept.row if lazy else self._filled(kept)

    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        """Read all books, in the order they were created in."""
        shelf = self._library.books
        found: list[books.KeptBook] = []
        damaged: list[exceptions.CorruptRecord] = []
        for each in _attempts(shelf.names(), shelf.read_file):
            if isinstance(each, books.KeptBook):
                found.append(each)
            else:
                damaged.append(each)
        found.sort(key=lambda kept: kept.row.created)
        read = _attempts(found, lambda kept: kept.row if lazy else self._filled(kept))
        return base.readable(itertools.chain(read, damaged))

    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        kept = self._library.books.read(book_uuid)
        return base.readable(_attempts(kept.flows, lambda uuid: self._member(kept, uuid, lazy)))

    def _filled(self, kept: books.KeptBook) -> models.LogBook:
        for uuid in kept.flows:
            kept.row.add(self._member(kept, uuid))
        return kept.row

    def _member(self, kept: books.KeptBook, uuid: str, lazy: bool = False) -> models.FlowDetail:
        try:
            return self.get_flow_details(uuid, lazy)
        except exceptions.NotFound:
            self._library.books.read(kept.row.uuid)  # or the book is gone too, and nothing wrong
            path = self._store.folder_for(uuid).path
            raise exceptions.CorruptRecord(
                f"{path}, of flow {uuid}, is missing: restore it from a copy, or destroy the"
                f" log book {kept.row.uuid}",
                path=path,
                flow=uuid,
            ) from None

    # -- flows and atoms ------------------------------------------------------------------------

    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        where = self._store.folder_for(fd_uuid)
        return where.detail(where.read(), lazy=lazy)

    def get_changes(self, flow_uuid: str, since: str | None = None) -> base.Changes:
        return following.changes(self._store.folder_for(flow_uuid), since)

    def find_flows(self, query: queries.Query) -> base.Page:
        return self._lister.page(query, self._now())

    def get_outline(self, flow_uuid: str) -> Outline | None:
        where = self._store.folder_for(flow_uuid)
        try:
            return Outline.from_bytes(files.read(where.outline_path))
        except FileNotFoundError:
            where.read_head()  # or it is not kept
            return None
        except exceptions.InvalidFormat as error:
            raise where.damaged(where.outline_path, str(error)) from error

    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: leases.Lease | None = None
    ) -> None:
        data = outline.to_bytes()
        with self._written(flow_uuid, lease) as kept:
            path = kept.folder.outline_path
            crashpoint("dir.before-outline")
            files.write_new(f"{path}.new", [data])
            crashpoint("dir.after-outline-write")
            files.rename(f"{path}.new", path)
            crashpoint("dir.after-outline")

    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        where = self._store.flow_of(ad_uuid)
        found = where.atom(where.read(), lines.key_of(ad_uuid))
        if found is None:  # gone since it was found
            raise exceptions.NotFound(f"No atom detail {ad_uuid} is kept in {where.path}")
        return found

    def get_atoms_for_flow(self, fd_uuid: str) -> Iterator[models.AtomDetail]:
        return iter(self.get_flow_details(fd_uuid))

    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: base.ItemChanges = base.NO_ITEMS,
        lease: leases.Lease | None = None,
    ) -> None:
        found = [contents.flow_line(flow)] if flow_row else []
        found += map(contents.atom_line, atoms)
        for uuid, changed in items.items():
            key = lines.key_of(uuid)
            found += [contents.item_line(key, item) for item in changed]
        self._append(flow.uuid, found, lease, flow if flow_row else None)

    def update_atom_details(self, atom_detail: models.AtomDetail) -> models.AtomDetail:
        where = self._store.flow_of(atom_detail.uuid)
        key = lines.key_of(atom_detail.uuid)
        found = [contents.atom_line(atom_detail)]
        found += [contents.item_line(key, item) for item in atom_detail.items or ()]
        self._append(where.uuid, found, None)
        return self.get_atom_details(atom_detail.uuid)

    def _append(
        self,
        flow_uuid: str,
        found: list[bytes],
        lease: leases.Lease | None,
        flow: models.FlowDetail | None = None,
    ) -> None:
        with self._written(flow_uuid, lease) as kept:
            if lease is None:
                self._refuse_if_busy(kept)
            if found:
                kept.append(found, flow)
                if kept.is_long():
                    self._fold(kept)

    @contextlib.contextmanager
    def _written(self, flow_uuid: str, lease: leases.Lease | None) -> Iterator[opened.OpenFlow]:
        """The files of a flow, to be written under a lease (None: without one)."""
        try:
            with self._store.writing(flow_uuid, keep=lease is not None) as kept:
                if lease is not None:
                    _check(kept, lease)
                yield kept
        except exceptions.NotFound:
            if lease is None:
                raise
            raise leases.lost(lease, kept=False) from None

    def _fold(self, kept: opened.OpenFlow) -> None:
        """Fold, if that is possible: what is in the journal is safe there too."""
        try:
            kept.fold()
        except exceptions.StorageFailure as error:
            if isinstance(error, exceptions.CorruptRecord):
                aside.put_aside(self._store.root, error)
            LOG.warning("Flow %s is folded another time: %s", kept.folder.uuid, error)

    # -- leases ---------------------------------------------------------------------------------

    def take_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> leases.Lease:
        """Become the one who runs a flow (see `base.Connection`); its records are checked first."""
        with self._store.writing(flow_uuid, keep=True) as kept:
            self._refuse_if_busy(kept, dead)
            picture = kept.look()
            epoch = picture.epoch + 1
            kept.open_journal()
            crashpoint("dir.before-lease")
            holder = head.Holder(epoch, owner, self._until(seconds), True)
            kept.write_head(holder, row=kept.tell_row(picture), sync=True)
            crashpoint("dir.after-lease")
            return leases.Lease(flow_uuid, owner, epoch)

    def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
        try:
            with self._store.writing(lease.flow, keep=True) as kept:
                _check(kept, lease)
                crashpoint("dir.before-renew")
                kept.write_head(kept.holder._replace(until=self._until(seconds)))
                crashpoint("dir.after-renew")
        except exceptions.NotFound:
            raise leases.lost(lease, kept=False) from None

    def give_back_lease(self, lease: leases.Lease) -> None:
        """Let others run the flow, after what was written is folded into one file."""
        try:
            with self._store.writing(lease.flow) as kept:
                if kept.holder.is_of(lease):
                    if kept.mark.length:
                        self._fold(kept)
                    crashpoint("dir.before-give-back")
                    kept.write_head(kept.holder._replace(held=False))
                    crashpoint("dir.after-give-back")
        except exceptions.NotFound:
            return

    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        holder = self._store.folder_for(flow_uuid).read_head().holder
        if not holder.runs(self._now()):
            return None
        return leases.Lease(flow_uuid, holder.owner, holder.epoch)

    # -- commands -------------------------------------------------------------------------------

    def put_command(self, lease: leases.Lease, command: base.FlowCommand) -> bool:
        with self._store.writing(lease.flow) as kept:
            if not (kept.holder.is_of(lease) and kept.holder.runs(self._now())):
                return False
            commands.put(self._store, lease, command)
            return True

    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, base.FlowCommand]:
        return dict(commands.read_all(self._store, flow_uuids))

    def clear_command(self, lease: leases.Lease, command: base.FlowCommand) -> None:
        try:
            with self._store.writing(lease.flow, keep=True) as kept:
                said = commands.read(self._store.root, lease.flow)
                if kept.holder.is_of(lease) and said == command._replace(epoch=lease.epoch):
                    crashpoint("dir.before-wish-cleared")
                    commands.forget(self._store.root, lease.flow)
                    crashpoint("dir.after-wish-cleared")
        except exceptions.NotFound:
            return

    # -------------------------------------------------------------------------------------------

    def _until(self, seconds: float) -> float:
        return self._now() + min(seconds, _LONGEST)

    def _refuse_if_busy(self, kept: opened.OpenFlow, dead: int | None = None) -> None:
        holder, now = kept.holder, self._now()
        if holder.runs(now) and holder.epoch != dead:
            raise _busy(kept, holder.until - now)


def _busy(kept: opened.OpenFlow, seconds: float) -> exceptions.FlowBusy:
    holder = kept.holder
    return leases.busy(leases.Lease(kept.folder.uuid, holder.owner, holder.epoch), seconds)


def _check(kept: opened.OpenFlow, lease: leases.Lease) -> None:
    holder = kept.holder
    if not holder.is_of(lease):
        raise leases.lost(lease, holder.owner if holder.epoch > lease.epoch else None)


def _attempts(
    keys: Iterable[_K], read: Callable[[_K], _R]
) -> Iterator[_R | exceptions.CorruptRecord]:
    """What is there, or what is wrong with it."""
    for key in keys:
        try:
            yield read(key)
        except (exceptions.NotFound, FileNotFoundError):
            continue  # destroyed meanwhile
        except exceptions.CorruptRecord as error:
            yield error
