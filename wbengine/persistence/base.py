"""Where records are kept: the contract of every persistence backend."""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from wbengine import _names, exceptions, states
from wbengine.persistence import leases, listing, models, owners
from wbengine.persistence.changes import Changes
from wbengine.persistence.commands import FlowCommand
from wbengine.persistence.listing import FlowRow, Page
from wbengine.signals import Signal
from wbengine.types.outline import Outline

__all__ = [
    "Backend",
    "Changes",
    "Connection",
    "LOGGED_ATTEMPTS",
    "FlowRow",
    "NO_ITEMS",
    "Page",
    "FlowCommand",
    "create_flow_detail",
    "keep_flow_detail",
    "items_of",
    "readable",
    "temporary_flow_detail",
    "temporary_log_book",
    "unfinished_flows",
]

LOG: Final = logging.getLogger(__name__)

_R = TypeVar("_R")

#: Changed items, by the uuid of the atom they belong to.
ItemChanges = Mapping[str, Sequence[models.ItemDetail]]
NO_ITEMS: Final[ItemChanges] = {}

#: Of so many attempts at an atom what they logged is kept.
LOGGED_ATTEMPTS: Final = 20


class Backend(abc.ABC):
    """A place that keeps log books.  Thread-safe; each thread takes its own connection."""

    #: Whether values leave this process: then only those can be kept that `types.codec` takes.
    encodes: bool = True

    #: Seconds that an engine waits before it tries a write again that failed.
    write_pause: float = 5.0

    def __init__(self, conf: Mapping[str, Any] | None = None) -> None:
        if conf is not None and not isinstance(conf, Mapping):
            raise TypeError(
                f"The configuration of a backend is a dict, not {conf!r};"
                " `persistence.backends.fetch` takes URIs too"
            )
        self._conf: dict[str, Any] = dict(conf or {})

    @property
    def conf(self) -> dict[str, Any]:
        """The options the backend was made with."""
        return self._conf

    @abc.abstractmethod
    def get_connection(self) -> Connection:
        """Open a connection; close it (or use it as a context manager)."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the backend holds; idempotent."""


class Connection(abc.ABC):
    """Reads and writes records.  What is read is a copy: changing it changes nothing that is kept.

    A method that writes either writes all it was given or raises `StorageFailure`.  Looking up what
    is not there raises `NotFound`.

    An atom that is read comes with its items (`AtomDetail.items`), in the order of their index: the
    latest of each index that was written for the attempt that the atom's row names.  Those of any
    other attempt are never read, and may be forgotten at any time; with the atom they have to be.

    Whoever runs a flow holds its lease (`take_lease`); there is at most one holder.  Reading needs
    none.  A write without one is for flows that nobody runs: to those that somebody runs it raises
    `FlowBusy`, and changes nothing.  `FlowDetail.epoch` of what is read is that of the flow's
    latest lease (0: there was none): who reads the same number twice knows that nobody ran the flow
    in between.

    What is damaged raises `CorruptRecord` when it is read, and does not keep anything else from
    being read: who reads several gets all that can be read, and then the error (see `readable`).
    Reading changes nothing.
    """

    @property
    @abc.abstractmethod
    def backend(self) -> Backend:
        """Whose connection this is."""

    def upgrade(self) -> None:  # noqa: B027  (a default, not a stub)
        """Bring what is kept to the current layout; idempotent."""

    def validate(self) -> None:  # noqa: B027
        """Raise if the layout of what is kept is not the current one."""

    @abc.abstractmethod
    def clear_all(self) -> None:
        """Forget every book with all that is in it."""

    @abc.abstractmethod
    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        """Create or update `book` with its flows, atoms and items; return what is now kept.

        One that is kept already has a new `updated_at` then, and its `created_at` stays.

        Flows that somebody runs, or ran since these were read (their `epoch` is an older one), are
        left as they are.  A flow that was not kept gets its latest `epoch` back: workers know the
        requests of its runs by that.
        """

    @abc.abstractmethod
    def destroy_logbook(self, book_uuid: str) -> None:
        """Forget a book, its flows, their atoms and the items of these.

        Whoever runs one of the flows has lost its lease.
        """

    @abc.abstractmethod
    def destroy_flow(self, flow_uuid: str) -> None:
        """Forget a flow, with all that is in it; its book stays.

        Whoever runs it has lost its lease.

        :raises NotFound: it is not kept.
        """

    @abc.abstractmethod
    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        """Read one book; `lazy` leaves out what is in it."""

    @abc.abstractmethod
    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        """Read all books."""

    @abc.abstractmethod
    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        """Read the flows of a book; `lazy` leaves out their atoms."""

    @abc.abstractmethod
    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        """Read one flow; `lazy` leaves out its atoms."""

    @abc.abstractmethod
    def get_changes(self, flow_uuid: str, since: str | None = None) -> Changes:
        """What changed of a flow since a cursor (None: everything).

        A cursor is a text that an earlier call told, in this process or in another one.  One that
        the store does not know, or not any more, is as None.  What was written before the call is
        in the answer, and what is written after it is in that to the cursor told here.

        Cost: that of what changed (and, of a `Map` whose items changed, a look at all of them).

        :raises NotFound: the flow is not kept.
        """

    @abc.abstractmethod
    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        """A mark of each of these flows, by its uuid: another one once `get_changes` finds more.

        One read for all of them, to look only where it is worth it.  What is not kept (any more) is
        left out.
        """

    def list_flows(
        self,
        *,
        states: Collection[str] | None = None,
        name: str | None = None,
        since: float | None = None,
        book: str | None = None,
        uuid: str | None = None,
        newest_first: bool = True,
        limit: int = listing.LIMIT,
        after: str | None = None,
        text: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Page:
        """A page of flows, in the order of their creation.

        :param states: only those in one of these states (PENDING: also those never run).
        :param name: only those with this in their name.
        :param since: only those created from then on (unix seconds).
        :param book: only those of the book with this uuid.
        :param uuid: only those whose uuid begins like this.
        :param limit: so many at most.
        :param after: where to go on: what the page before told.
        :param text: only those with this in their name, or whose uuid begins like this.
        :param tags: only those with all of these tags.
        :raises ValueError: there is no such state or tag, `limit` is no number from 1 on, or
            `after` is not what a page told.
        """
        place = None if after is None else listing.Place.parse(after)
        return self.find_flows(
            listing.Query(states, name, since, book, uuid, newest_first, limit, place, text, tags)
        )

    @abc.abstractmethod
    def find_flows(self, query: listing.Query) -> Page:
        """`list_flows`, of what was checked."""

    @abc.abstractmethod
    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        """Read one atom."""

    @abc.abstractmethod
    def flow_of_atom(self, ad_uuid: str) -> str:
        """The uuid of the flow that an atom belongs to.

        :raises NotFound: the atom is not kept.
        """

    @abc.abstractmethod
    def get_atoms_for_flow(self, fd_uuid: str) -> Iterator[models.AtomDetail]:
        """Read the atoms of a flow."""

    def get_logs(
        self, flow_uuid: str, atom_uuid: str | None = None, limit: int | None = None
    ) -> list[models.LogChunk]:
        """What the atoms of a flow logged, or one of them, in the order in which it was written:
        all of it, or the latest `limit` chunks.

        :raises NotFound: the flow is not kept.
        """
        return []

    @abc.abstractmethod
    def save_changes(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        *,
        flow_row: bool = True,
        items: ItemChanges = NO_ITEMS,
        logs: Sequence[models.LogChunk] = (),
        lease: leases.Lease | None = None,
    ) -> None:
        """Write a turn of an engine, in one step: these atoms and items of `flow`, and its own row.

        When it returns, what was written survives the end of this process and of the host.  Who
        reads meanwhile sees all of it, or nothing.

        Atoms that are not kept yet are added.  Of an atom its row is written, and none of the items
        it holds.  With `flow_row=False` the flow's own row did not change.

        `items` are those that are new or have changed since they were written last, each complete,
        at most once; their atoms are kept already, or among `atoms`, whose rows come first.  An
        item counts instead of what was written before under the same atom, attempt and index: it
        may be appended to a log of which the last entry counts.  The first write of an attempt has
        all its items; so an index is never written before those below it.

        `logs` are added to those of their atoms, which are kept already, or among `atoms`; those of
        more than `LOGGED_ATTEMPTS` attempts before are forgotten.

        Cost: proportional to what is given, whatever the size of the flow or the number of items.

        :raises LeaseLost: `lease` is not the flow's latest one (any more), or the flow is gone.
        :raises FlowBusy: without a lease, and somebody runs the flow.
        :raises NotFound: without a lease, and the flow is not kept.
        """

    @abc.abstractmethod
    def take_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> leases.Lease:
        """Become the one who runs a flow, for so many seconds from now on.

        Works when nobody holds a lease: none was taken, the latest one was given back, or its time
        is over, or it is that of epoch `dead`, whose owner is known not to live any more.  Time is
        told by the clock of the store, and by no other.

        It survives the end of the host as soon as something is written under it; nobody else is
        to be told of it (by the epoch of a request, say) before that.

        :raises FlowBusy: somebody does; the error says who.
        :raises NotFound: the flow is not kept.
        """

    @abc.abstractmethod
    def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
        """Keep a lease for so many seconds from now on; also when its time is over but nobody took
        another one since.

        :raises LeaseLost: somebody did, or it was given back, or the flow is gone.
        """

    @abc.abstractmethod
    def give_back_lease(self, lease: leases.Lease) -> None:
        """Let others run the flow; without effect when the lease is lost."""

    @abc.abstractmethod
    def get_lease(self, flow_uuid: str) -> leases.Lease | None:
        """Who runs a flow, if anybody does.

        :raises NotFound: the flow is not kept.
        """

    def send_command(self, flow_uuid: str, command: FlowCommand) -> None:
        """Leave a command for the engine that runs a flow; one before that is forgotten.

        The engine looks each second.

        :raises NotFound: the flow is not kept.
        :raises InvalidState: no engine runs it.
        :raises ValueError: it is none of `commands.COMMANDS`.
        """
        command.check()
        lease = self.get_lease(flow_uuid)
        if lease is None or owners.died(lease.owner) or not self.put_command(lease, command):
            raise exceptions.InvalidState(
                f"Nobody runs flow {flow_uuid}: there is nothing to {command.what}"
            )

    @abc.abstractmethod
    def put_command(self, lease: leases.Lease, command: FlowCommand) -> bool:
        """Keep a command about the run of this lease; False: that one is over."""

    @abc.abstractmethod
    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, FlowCommand]:
        """The commands about the present runs of these flows, by their uuids.

        One read for all of them, which costs next to nothing when there is none.  What is not kept
        any more is left out.
        """

    @abc.abstractmethod
    def clear_command(self, lease: leases.Lease, command: FlowCommand) -> None:
        """Forget a command about the run of this lease, unless another one came since."""

    def drop_job(self, flow_uuid: str) -> None:  # noqa: B027  (a default, not a stub)
        """Remove the job of a flow, if it is kept beside the flow: no conductor goes on with it."""

    def hasten_job(self, flow_uuid: str) -> None:  # noqa: B027
        """Let the job of a flow, if it is kept beside the flow, wait for its time no longer."""

    def send_signal(
        self, flow_uuid: str, signal: Signal, known: Collection[str] | None = None
    ) -> None:
        """Leave a signal for the tasks of a flow that wait for it (`task.WaitFor`), now or later.

        The engine that runs it looks each second while one waits.

        :param known: what its tasks wait for; None: as its outline says.  Of a flow without one,
            which was not begun yet, that is not known, and any name is taken.
        :raises NotFound: the flow is not kept, or none of its tasks waits for such a signal.
        :raises InvalidState: it has ended.
        :raises Duplicate: it was given this signal before.
        """
        flow = self.get_flow_details(flow_uuid, lazy=True)
        if known is None and (outline := self.get_outline(flow_uuid)) is not None:
            known = outline.signals
        if known is not None and signal.name not in known:
            raise exceptions.NotFound(
                f"No task of flow {flow.name!r} waits for a signal {signal.name!r}"
                f"{_names.hint(signal.name, known)}"
            )
        if flow.state in states.FLOW_ENDED:
            raise exceptions.InvalidState(
                f"Flow {flow_uuid} has ended in {flow.state}: signal {signal.name!r} comes too late"
            )
        if not self.put_signal(flow_uuid, signal):
            raise exceptions.Duplicate(
                f"Flow {flow_uuid} was given signal {signal.name!r} before, and that one counts"
            )

    @abc.abstractmethod
    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        """Keep a signal with its flow, whoever runs that; False: there is one of its name, which
        stays.  May be repeated with the same signal.

        :raises NotFound: the flow is not kept.
        """

    @abc.abstractmethod
    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        """What was signalled to these flows, by their uuids, the earliest first.

        One read for all of them.  Flows without any are left out, and what is not kept any more.
        """

    @abc.abstractmethod
    def get_outline(self, flow_uuid: str) -> Outline | None:
        """The structure of a flow; None: whoever made it did not keep it (it never ran, say).

        :raises NotFound: the flow is not kept.
        """

    @abc.abstractmethod
    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: leases.Lease | None = None
    ) -> None:
        """Keep the structure of a flow, in place of what was kept of that before.

        :raises LeaseLost: `lease` is not the flow's latest one (any more), or the flow is gone.
        :raises NotFound: without a lease, and the flow is not kept.
        """

    def update_flow_details(self, flow_detail: models.FlowDetail) -> models.FlowDetail:
        """Write a flow that is kept already, with all its atoms and their items.

        Returns what is now kept.
        """
        self.save_changes(flow_detail, flow_detail, items=items_of(flow_detail))
        return self.get_flow_details(flow_detail.uuid)

    def update_atom_details(self, atom_detail: models.AtomDetail) -> models.AtomDetail:
        """Write one atom that is kept already, with its items; return what is now kept."""
        flow = models.FlowDetail("", self.flow_of_atom(atom_detail.uuid))
        items = items_of([atom_detail])
        self.save_changes(flow, [atom_detail], flow_row=False, items=items)
        return self.get_atom_details(atom_detail.uuid)

    def close(self) -> None:  # noqa: B027
        """Give back what the connection holds; idempotent."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def items_of(atoms: Iterable[models.AtomDetail]) -> ItemChanges:
    """All items of some atoms."""
    return {atom.uuid: list(atom.items) for atom in atoms if atom.items is not None}


def create_flow_detail(
    flow: Any,
    book: models.LogBook | None = None,
    backend: Backend | None = None,
    meta: Mapping[str, Any] | None = None,
) -> models.FlowDetail:
    """Make the record of `flow`, in `book` (or a new one), kept by `backend` if there is one."""
    detail = models.FlowDetail(flow.name)
    detail.meta.update(meta or {})
    keep_flow_detail(detail, book, backend)
    return detail


def keep_flow_detail(
    detail: models.FlowDetail,
    book: models.LogBook | None = None,
    backend: Backend | None = None,
) -> None:
    """Put a new record of a flow in `book` (or a new one), and in `backend` if there is one."""
    if book is None:
        book = models.LogBook(f"{detail.name} book")
        book.meta[models.MADE_BY] = "wbengine"
    book.add(detail)
    _save(book, backend)


def temporary_log_book(backend: Backend | None = None) -> models.LogBook:
    """Make a log book for a run nobody wants to find again."""
    book = models.LogBook("tmp")
    _save(book, backend)
    return book


def temporary_flow_detail(
    backend: Backend | None = None, meta: Mapping[str, Any] | None = None
) -> tuple[models.LogBook, models.FlowDetail]:
    """Make a flow detail (and its book) for a run nobody wants to find again."""
    book, detail = temporary_log_book(), models.FlowDetail("tmp-flow-detail")
    detail.meta.update(meta or {})
    keep_flow_detail(detail, book, backend)
    return book, detail


def unfinished_flows(backend: Backend) -> Iterator[models.FlowDetail]:
    """The flows that did not come to an end, and that nobody runs: after a crash, what is left.

    With their atoms, ready for `engines.load_from_detail`.  Those that never began are among them.
    What is damaged is left out, with a line in the log.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        for book in _logged(connection.get_logbooks(lazy=True)):
            for flow in _flows_of(connection, book):
                if flow.state in states.FLOW_ENDED:
                    continue
                try:
                    lease = connection.get_lease(flow.uuid)
                    if lease is None or owners.died(lease.owner):
                        yield connection.get_flow_details(flow.uuid)
                except exceptions.NotFound:  # destroyed since
                    continue
                except exceptions.CorruptRecord as error:
                    LOG.warning("Flow %r (%s) is left out: %s", flow.name, flow.uuid, error)


def _flows_of(connection: Connection, book: models.LogBook) -> Iterator[models.FlowDetail]:
    try:
        found = connection.get_flows_for_book(book.uuid, lazy=True)
    except exceptions.NotFound:  # destroyed since
        return iter(())
    return _logged(found)


def _logged(found: Iterator[_R]) -> Iterator[_R]:
    try:
        yield from found
    except exceptions.CorruptRecord as error:
        LOG.warning("It is left out: %s", error)


def readable(found: Iterable[_R | exceptions.CorruptRecord]) -> Iterator[_R]:
    """For backends: of several records, each with its error where it is damaged, those that are
    not; after them the first error is raised, and any other one logged.
    """
    errors: list[exceptions.CorruptRecord] = []
    for each in found:
        if isinstance(each, exceptions.CorruptRecord):
            errors.append(each)
        else:
            yield each
    for other in errors[1:]:
        LOG.warning("It is left out: %s", other)
    if errors:
        raise errors[0]


def _save(book: models.LogBook, backend: Backend | None) -> None:
    if backend is not None:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.save_logbook(book)
