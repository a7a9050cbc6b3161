"""The interface of persistence backends."""

from __future__ import annotations

import abc
import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from wbengine import _payloads, exceptions, states
from wbengine._introspection import object_names
from wbengine.persistence import _leases, _listing, _owners, models
from wbengine.persistence._access_keys import AccessKey
from wbengine.persistence._changes import Changes
from wbengine.persistence._codes import Code, missing_counts
from wbengine.persistence._commands import FlowCommand
from wbengine.persistence._listing import EndedFlow, FlowRow, Page, Removable
from wbengine.persistence._pauses import QueuePause, TaskPause
from wbengine.signals import Signal
from wbengine.types import _tags
from wbengine.types._outline import Outline, OutlineNode

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads
    from wbengine.persistence._bulk_records import BulkStore

__all__ = [
    "Backend",
    "Changes",
    "Connection",
    "LOGGED_ATTEMPTS",
    "EndedFlow",
    "FlowRow",
    "NO_ITEMS",
    "Outline",
    "OutlineNode",
    "Page",
    "FlowCommand",
    "Removable",
    "create_flow_detail",
    "add_flow_detail",
    "items_of",
    "readable",
    "temporary_flow_detail",
    "temporary_log_book",
    "unfinished_flows",
]

LOG: Final = logging.getLogger(__name__)

_R = TypeVar("_R")

#: Changed items by the uuid of their atom.
ItemChanges = Mapping[str, Sequence[models.ItemDetail]]
NO_ITEMS: Final[ItemChanges] = {}

#: Number of attempts of an atom, counted from the latest, whose logs are kept.
LOGGED_ATTEMPTS: Final = 20

#: Number of flows that the default implementation of `Connection.backlog` reads at a time.
_BACKLOG_PAGE: Final = 1000


class NewFork(NamedTuple):
    """A new flow for `Connection.save_fork`.

    :ivar book: its logbook, which contains only this flow.
    :ivar outline: its structure, that of the original flow.
    :ivar signals: the signals that it has received already.
    :ivar moves_keys: whether it gets the unique keys of the original flow.
    :ivar revert: a command to revert the original flow, or None.
    """

    book: models.LogBook
    flow: models.FlowDetail
    outline: Outline | None
    signals: Sequence[Signal]
    moves_keys: bool = False
    revert: FlowCommand | None = None


class Backend(abc.ABC):
    """A store of logbooks. Thread-safe; each thread opens its own connection."""

    #: Whether the store encodes values, so that it accepts only values that `types.codec` supports.
    encodes: bool = True

    #: Whether limits that engines share are stored in tables of this backend.
    stores_limits: bool = False

    #: Seconds between two attempts of an engine to write.
    write_pause: float = 5.0

    #: Where large values of the flows are, as for `_payloads.opened`. `backends.fetch` sets it.
    payloads_location: str | None = None

    def __init__(self, conf: Mapping[str, Any] | None = None) -> None:
        if conf is not None and not isinstance(conf, Mapping):
            raise TypeError(
                f"conf must be a dict, got {conf!r}; `persistence.backends.fetch` also accepts URIs"
            )
        self._conf: dict[str, Any] = dict(conf or {})

    @property
    def conf(self) -> dict[str, Any]:
        """The options of the backend."""
        return self._conf

    @property
    def payloads(self) -> Payloads | None:
        """The folder or bucket of large values; None if all values are in the records."""
        return _payloads.opened(self.payloads_location) if self.encodes else None

    @abc.abstractmethod
    def get_connection(self) -> Connection:
        """Open a connection. Close it, or use it as a context manager."""

    def check_identity(self) -> None:  # noqa: B027  (a default, not a stub)
        """Check that the store is the one that this process opened. This does not read the store.

        :raises StorageFailure: if its file was deleted or replaced.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources of the backend; idempotent."""


class Connection(abc.ABC):
    """A connection that reads and writes records. Records that it returns are copies.

    A write stores everything or raises `StorageFailure`. Reading a missing record raises
    `NotFound`.

    Items: an atom is returned with the items of the attempt in its row (`AtomDetail.items`), in the
    order of their index. A backend may delete items of other attempts at any time. It deletes all
    items with their atom.

    Leases: an engine that runs a flow owns its lease (`acquire_lease`). Reading needs no lease.
    While an engine runs the flow, a write without a lease raises `FlowBusy` and changes nothing.
    `FlowDetail.epoch` is the epoch of the latest lease, or 0. If two reads return the same epoch,
    no engine started the flow between them.

    Damaged records: reading one raises `CorruptRecord` and changes nothing. A method that returns
    several records returns all readable ones before it raises the error (see `readable`).
    """

    @property
    @abc.abstractmethod
    def backend(self) -> Backend:
        """The backend of this connection."""

    @property
    def excludes_writers(self) -> bool:
        """Whether other processes cannot write before the transaction of the caller ends."""
        return False

    def upgrade(self) -> None:  # noqa: B027  (a default, not a stub)
        """Convert the store to the current layout; idempotent."""

    def validate(self) -> None:  # noqa: B027
        """Raise an error if this release cannot use the layout of the store."""

    @abc.abstractmethod
    def clear_all(self) -> None:
        """Delete all logbooks with their contents."""

    @abc.abstractmethod
    def save_logbook(self, book: models.LogBook) -> models.LogBook:
        """Create or update `book` with its flows, atoms and items. Return the stored logbook.

        An update sets `updated_at` and keeps `created_at`. It skips each flow that an engine runs,
        or has run since the flow was read (its `epoch` is older). A new flow is stored with its
        `epoch`, because workers identify the requests of its runs by it.
        """

    @abc.abstractmethod
    def destroy_logbook(self, book_uuid: str, *, unused_only: bool = False) -> None:
        """Delete a logbook with its flows and their jobs. Engines that run them lose their leases.

        :param unused_only: delete it only if it was created for one flow and contains none.
        """

    @abc.abstractmethod
    def destroy_flow(self, flow_uuid: str, only: Removable | None = None) -> None:
        """Delete a flow with its contents, and its job if the store contains it.

        An engine that runs it loses its lease.

        :param only: conditions, which the write checks; default: delete it in any case.
        :raises FlowBusy: if `only` is given and an engine runs the flow.
        :raises InvalidState: if the flow does not meet the other conditions.
        """

    def dependents(self, rows: Iterable[FlowRow]) -> dict[str, set[str]]:
        """Return the flows whose reversion may need one of these flows, by uuid of the latter.

        These are its parent and the forks that own its results, if the store contains them. Flows
        that no other flow needs are omitted.
        """
        dependents = {
            uuid: {fork["flow"] for fork in flow.forks if fork.get("own")}
            | ({flow.parent} if flow.parent is not None else set())
            for uuid, flow in self.flow_records([row.uuid for row in rows]).items()
        }
        stored = set(self.marks(set[str]().union(*dependents.values())))
        return {uuid: found for uuid, flows in dependents.items() if (found := flows & stored)}

    def ended_flows(
        self, before: Mapping[str, float], limit: int, since: float = 0.0
    ) -> list[EndedFlow]:
        """Return ended flows that were last written before a time, the earliest end first.

        The end of a flow in SUCCESS is the time until which it can be undone, if it has such a
        limit. Flows with a command, flows that an engine runs, and flows with `dependents` are left
        out.

        :param before: Unix seconds by state, for the states of which flows are returned.
        :param since: Unix seconds; flows that ended earlier are left out.

        Cost: SQL stores read an index, from `since` on: about `limit` flows, and those that are
        kept for their dependents.
        """
        page = self.list_flows(states=before, newest_first=False, limit=sys.maxsize).flows
        needed = self.dependents(page)
        flows = [
            (end, EndedFlow(row.uuid, row.state, row.book_uuid, end))
            for row in page
            if since <= (end := max(row.updated or 0.0, row.undo_until or 0.0)) < before[row.state]
            and not (row.command or row.lease or row.uuid in needed)
        ]
        return [flow for _, flow in sorted(flows)[:limit]]

    def destroy_flows(self, flows: Mapping[EndedFlow, Removable]) -> list[str]:
        """Delete flows that meet their conditions, as `destroy_flow` does, in one transaction.

        Logbooks that were created for one of them only are deleted, too.

        :returns: the uuids of the deleted flows.
        """
        deleted = []
        for flow, only in flows.items():
            with contextlib.suppress(
                exceptions.FlowBusy, exceptions.InvalidState, exceptions.NotFound
            ):
                self.destroy_flow(flow.uuid, only)
                deleted.append(flow.uuid)
                self.destroy_logbook(flow.book_uuid, unused_only=True)
        return deleted

    def count_flows(self) -> int:
        """Return the number of flows."""
        return len(self.list_flows(limit=sys.maxsize).flows)

    def oldest_flow(self) -> float | None:
        """Return the creation time of the oldest flow in Unix seconds, or None."""
        flows = self.list_flows(newest_first=False, limit=1).flows
        return flows[0].created if flows else None

    def claim_duty(self, name: str, owner: str, seconds: float) -> bool:
        """Claim work that one process at a time does for all, or renew the claim.

        The claim ends after a number of seconds, or with `end_duty`. Return False if another owner
        has a claim, or if the work ended and is not due again. By default, no other process opens
        the store.
        """
        return True

    def end_duty(  # noqa: B027  (a default, not a stub)
        self, name: str, owner: str, seconds: float, note: Mapping[str, Any]
    ) -> None:
        """End a claim with a note about the work, which is due again after a number of seconds."""

    def duty_note(self, name: str) -> Mapping[str, Any]:
        """Return the note of the latest `end_duty`."""
        return {}

    @abc.abstractmethod
    def get_logbook(self, book_uuid: str, lazy: bool = False) -> models.LogBook:
        """Return a logbook; with `lazy`, without its flows."""

    @abc.abstractmethod
    def get_logbooks(self, lazy: bool = False) -> Iterator[models.LogBook]:
        """Return all logbooks; with `lazy`, without their flows."""

    def get_flows_for_book(self, book_uuid: str, lazy: bool = False) -> Iterator[models.FlowDetail]:
        """Return the flows of a logbook; with `lazy`, without their atoms."""
        flows = self.get_logbook(book_uuid)
        return iter([flow.copy(retain_contents=False) for flow in flows] if lazy else flows)

    @abc.abstractmethod
    def get_flow_details(self, fd_uuid: str, lazy: bool = False) -> models.FlowDetail:
        """Return a flow; with `lazy`, without its atoms.

        With `lazy`, values that classes of this process cannot decode stay encoded, such as
        arguments of the factory. Otherwise they raise `CorruptRecord`.
        """

    def flow_records(self, flow_uuids: Collection[str]) -> Mapping[str, models.FlowDetail]:
        """Return the records of these flows without their atoms, by uuid, with one read.

        Missing and damaged flows are omitted.
        """
        records = {}
        for uuid in flow_uuids:
            with contextlib.suppress(exceptions.NotFound, exceptions.CorruptRecord):
                records[uuid] = self.get_flow_details(uuid, lazy=True)
        return records

    @abc.abstractmethod
    def get_changes(self, flow_uuid: str, since: str | None = None) -> Changes:
        """Return the changes of a flow since a cursor.

        The result contains all writes that completed before the call. A call with the returned
        cursor returns all later writes.

        :param since: the cursor of an earlier call, also from another process. If it is None,
            unknown or too old, the result contains everything.

        Cost: proportional to the changes. If items of a `Map` changed, all of its items are
        examined.
        """

    @abc.abstractmethod
    def marks(self, flow_uuids: Collection[str]) -> Mapping[str, str]:
        """Return a mark for each of these flows, by uuid, with one read. Missing flows are omitted.

        A flow's mark changes whenever `get_changes` has new changes.
        """

    def get_row(self, flow_uuid: str) -> FlowRow:
        """Return the row of a flow, as `list_flows` does.

        :raises NotFound: if the flow is not stored.
        """
        for row in self.find_flows(_listing.Query(flow=flow_uuid)).flows:
            if row.uuid == flow_uuid:  # MySQL ignores spaces at the end.
                return row
        raise exceptions.NotFound(f"Unknown flow {flow_uuid!r:.80}")

    def list_flows(
        self,
        *,
        states: Collection[str] | None = None,
        name: str | None = None,
        since: float | None = None,
        book: str | None = None,
        uuid: str | None = None,
        newest_first: bool = True,
        limit: int = _listing.LIMIT,
        after: str | None = None,
        text: str | None = None,
        tags: _tags.Selection | None = None,
        commanded: bool = False,
        error: str | None = None,
        resent: bool = False,
        engine: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        roots: bool = False,
        code: str | None = None,
    ) -> Page:
        """Return a page of flows in the order of their creation.

        :param states: only flows in one of these states. PENDING includes flows that never ran.
        :param name: only flows whose name contains this text, in upper or lower case.
        :param since: only flows created at or after this time, in Unix seconds.
        :param book: only flows of the logbook with this uuid.
        :param uuid: only flows whose uuid starts with this text.
        :param after: the value of `after` on the previous page.
        :param text: only flows whose name contains this text, in upper or lower case, or whose uuid
            starts with it.
        :param tags: only flows with all of these tags: values by key, or conditions such as
            "amount>100", "paid=true" or "due<2026-12-01". Values are equal if their texts are.
        :param commanded: only flows with a command.
        :param error: only flows in FAILURE or REVERTED whose error (`FlowRow.error`) contains this
            text, in upper or lower case. This reads the rows of all such flows that match the
            other conditions, until the page is full, and none of their atoms.
        :param resent: only flows of which a task was resent.
        :param engine: only flows with this kind of engine, according to their records. A flow whose
            record contains no kind is "serial", which has the second name "default". "workers" and
            "worker-based" are the same kind.
        :param queue: only flows that were submitted to this queue, also after they ended.
        :param parent: only child flows of the flow with this uuid.
        :param roots: only flows that are no child flows.
        :param code: only flows whose latest task or step was executed by this version of the code
            ("v43" of any app, or "shop:v43").
        :raises ValueError: if a state, a tag, `limit`, `after` or `engine` is invalid.
        """
        place = None if after is None else _listing.Position.parse(after)
        texts = (each.text for each in self.codes() if each.version == code) if code else ()
        conditions = _tags.conditions_of(tags)
        if parent is not None:
            conditions = (_tags.Condition.child_of(parent), *conditions)
        return self.find_flows(
            _listing.Query(
                states,
                name,
                since,
                book,
                uuid,
                newest_first,
                limit,
                place,
                text,
                conditions,
                commanded,
                error,
                resent,
                engine,
                None if queue is None else (queue,),
                roots,
                None if code is None else (code, *texts),
            )
        )

    def count_children(self, flow_uuid: str) -> Mapping[str, int]:
        """Return the number of child flows of a flow by state."""
        counts, after = Counter[str](), None
        while True:
            page = self.list_flows(parent=flow_uuid, after=after, limit=1000)
            counts.update(row.state for row in page.flows)
            after = page.after
            if after is None:
                return dict(counts)

    @abc.abstractmethod
    def find_flows(self, query: _listing.Query) -> Page:
        """Return the page of flows for a validated query (see `list_flows`)."""

    @abc.abstractmethod
    def position(self, flow_uuid: str) -> _listing.Position:
        """Return the position of a flow in the order of creation.

        :raises NotFound: if the flow does not exist.
        """

    def backlog(self) -> _listing.Backlog:
        """Return the number and the age of the flows that no engine has started."""
        count, oldest, after = 0, None, None
        while True:
            page = self.list_flows(
                states=(states.PENDING,), newest_first=False, limit=_BACKLOG_PAGE, after=after
            )
            oldest = page.flows[0].created if page.flows and not count else oldest
            count, after = count + len(page.flows), page.after
            if after is None:
                return _listing.Backlog(count, oldest)

    @abc.abstractmethod
    def get_atom_details(self, ad_uuid: str) -> models.AtomDetail:
        """Return an atom."""

    @abc.abstractmethod
    def flow_of_atom(self, ad_uuid: str) -> str:
        """Return the uuid of the flow of an atom."""

    def get_atoms_for_flow(self, fd_uuid: str) -> Iterator[models.AtomDetail]:
        """Return the atoms of a flow."""
        return iter(self.get_flow_details(fd_uuid))

    def get_logs(
        self, flow_uuid: str, atom_uuid: str | None = None, limit: int | None = None
    ) -> list[models.LogChunk]:
        """Return logs of a flow, or of one of its atoms, in the order in which they were written.

        :param limit: maximum number of chunks; the latest ones are returned.
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
        lease: _leases.Lease | None = None,
        settled: FlowCommand | None = None,
        dropped: Collection[str] = (),
    ) -> None:
        """Write changed atoms, items and logs of `flow`, and its own row, in one atomic step.

        The written data survives a crash of the process and of the host. The end of a child flow is
        also reported to its parent, and a reverted flow lets conductors run the forks that wait for
        it.

        :param atoms: atoms to insert or update. Only their rows are written, not their items.
        :param flow_row: False if the flow's own row did not change.
        :param items: new or changed items, each complete and at most once. Their atoms are stored
            or are in `atoms`. An item replaces the earlier one of the same atom, attempt and index.
            The first write of an attempt contains all of its items.
        :param logs: log chunks to add. Their atoms are stored or are in `atoms`. Logs of an atom
            that are more than `LOGGED_ATTEMPTS` attempts old are deleted.
        :param settled: the command that this write carries out, with `lease`.
        :param dropped: uuids of atoms to delete, with their items and logs.
        :raises InvalidState: if the flow has another command than `settled`; nothing is written.
        :raises LeaseLost: if `lease` is not the latest lease of the flow, or the flow was deleted.
        :raises FlowBusy: if an engine runs the flow and no lease was given.
        :raises NotFound: if the flow does not exist and no lease was given.

        Cost: proportional to the arguments, independent of the size of the flow.
        """

    @abc.abstractmethod
    def save_fork(
        self,
        fork: NewFork,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        lease: _leases.Lease,
    ) -> None:
        """Store a new flow, and changes of the flow from which it was forked, in one step.

        A fork that was submitted to a board in this store also gets its job, unless it is held
        until the original flow is reverted.

        :param flow: the original flow, of which only its own row is written, and `atoms`.
        :param lease: the lease of the original flow.
        :raises LeaseLost: if the lease is no longer valid; then nothing is stored.
        :raises NotEncodable: if a value cannot be encoded; then nothing is stored.
        """

    @abc.abstractmethod
    def acquire_lease(
        self, flow_uuid: str, owner: str, seconds: float, *, dead: int | None = None
    ) -> _leases.Lease:
        """Acquire the lease of a flow for a number of seconds from now.

        The latest lease must be released or expired on the clock of the store, or have the epoch
        `dead`: then the caller has verified that its owner is dead.

        The lease survives a crash of the host only after something was written under it. Until
        then, the caller must not publish the epoch, for example in a request.

        :returns: the lease, with the command of the flow. If the flow has ended, a command that
            does not run it again is deleted.
        :raises FlowBusy: if another owner has the lease; the error names the owner.
        """

    def now(self) -> float:
        """Return the time of the store, in Unix seconds: by default, that of this host."""
        return time.time()

    @abc.abstractmethod
    def renew_lease(self, lease: _leases.Lease, seconds: float) -> None:
        """Renew a lease for a number of seconds from now, even if it has expired.

        :raises LeaseLost: if another lease was acquired, this one was released, or the flow was
            deleted.
        """

    @abc.abstractmethod
    def release_lease(self, lease: _leases.Lease) -> None:
        """Release the lease. The command of the flow stays stored. A lost lease is ignored."""

    @abc.abstractmethod
    def end_lease(
        self, lease: _leases.Lease, handled: FlowCommand | None, *, keep: bool = False
    ) -> FlowCommand | None:
        """Release the lease, unless the flow has another command than `handled`.

        :param keep: whether `handled` stays stored for the next engine; otherwise it is deleted.
        :returns: the other command: the lease is not released. None: the lease is released or was
            lost.
        """

    @abc.abstractmethod
    def get_lease(self, flow_uuid: str) -> _leases.Lease | None:
        """Return the current lease of a flow, or None."""

    def send_command(self, flow_uuid: str, command: FlowCommand) -> FlowCommand | None:
        """Store a command for the engine of a flow. The command replaces an earlier one.

        The engine that runs the flow polls for commands each second. If no engine runs the flow,
        the next one reads the command at its start. If the store contains the job of the flow, the
        job is due now. A missing job of a flow that was submitted to a board in this store is
        posted, unless the command suspends the flow.

        The store keeps the command until an engine has carried it out: until a suspended flow is
        suspended, a cancelled flow has ended, or a flow that runs again has been prepared. If the
        flow ends in another way, the engine deletes the command and logs this.

        :returns: the command that the flow has now: `command`, or the one that `commands.accepted`
            prefers; None if this withdrew an earlier command.
        :raises InvalidState: if the state of the flow does not allow the command; or if an engine
            has not yet recorded an earlier command to cancel.
        :raises NotFound: if the flow does not exist.
        :raises ValueError: if the command is not one of `commands.COMMANDS`.
        """
        command.check()
        return self.put_command(flow_uuid, command)

    @abc.abstractmethod
    def put_command(self, flow_uuid: str, command: FlowCommand) -> FlowCommand | None:
        """Store a valid command as `send_command` does, in one step (`commands.accepted`)."""

    def _fork_refusal(self, flow: models.FlowDetail, what: str) -> str | None:
        """Return why a command must not run this flow because of its forks, or None."""
        if not flow.forks and flow.forked_from is None:
            return None
        # Loaded here, because few flows have forks.
        refusal = object_names.load("wbengine.persistence._living_forks:refusal")
        reason: str | None = refusal(self, flow, what)
        return reason

    @abc.abstractmethod
    def commands(self, flow_uuids: Collection[str]) -> Mapping[str, FlowCommand]:
        """Return the commands of these flows, by uuid, with one read.

        Commands to suspend or cancel flows that have ended are omitted.
        """

    def drop_job(self, flow_uuid: str) -> None:  # noqa: B027  (a default, not a stub)
        """Delete the job of a flow, if the store contains it, so that no conductor continues it."""

    def awaited_signals(self, flow_uuid: str) -> list[str]:
        """Return the signals for which tasks of a flow wait now or will wait.

        The later waits of workflows are unknown, and so are all waits of a flow that never ran. A
        wait for one of several signals is one text, such as 'paid or cancelled'. This reads all
        records of the flow.

        :raises NotFound: if the flow does not exist.
        """
        # Loaded here, because most processes send no signals.
        awaited = object_names.load("wbengine.persistence._sent_signals:awaited")
        names: list[str] = awaited(self, flow_uuid)
        return names

    def send_signal(
        self,
        flow_uuid: str,
        signal: Signal,
        known: Collection[str] | None = None,
        *,
        any_name: bool = False,
    ) -> Signal:
        """Store a signal for tasks of a flow that wait for it (`task.WaitFor`), now or later.

        While a task waits, the engine polls for signals each second.

        A flow with a workflow accepts signals of all names, and several of each name: the signal is
        stored with the next number of its name. This reads all signals of the flow.

        :param known: names of the signals that the flow's tasks wait for; default: the names in its
            outline. If the flow never ran, it has no outline, and accepts signals as if it had a
            workflow. If it has none, its tasks use the first signal of each name.
        :param any_name: whether the flow contains a workflow; without `known`, its outline decides.
        :returns: the stored signal, with its number.
        :raises NotFound: if the flow does not exist, or no task waits for this signal.
        :raises InvalidState: if the flow has ended.
        :raises ValueError: if the flow waits for this signal, and the value does not fit the type
            that its task expects.
        :raises Duplicate: if the flow has already received a signal of this name.
        :raises ValueError: if the name is too long for the number, or ends with a space, and the
            flow contains a workflow.
        :raises StorageFailure: if other senders took each number that was tried.
        """
        # Loaded here, because most processes send no signals.
        send = object_names.load("wbengine.persistence._sent_signals:send")
        stored: Signal = send(self, flow_uuid, signal, known, any_name=any_name)
        return stored

    @abc.abstractmethod
    def put_signal(self, flow_uuid: str, signal: Signal) -> bool:
        """Store a signal of a flow, also while an engine runs it. Idempotent.

        Return False if a different signal with this name and number is stored; it is not replaced.
        """

    @abc.abstractmethod
    def signals(self, flow_uuids: Collection[str]) -> Mapping[str, Sequence[Signal]]:
        """Return the signals of these flows, by uuid, oldest first, with one read."""

    @abc.abstractmethod
    def put_pause(self, pause: TaskPause) -> None:
        """Pause the task types that match a pattern; replaces a pause with the same pattern.

        Engines that run flows of this store read pauses each second.
        """

    @abc.abstractmethod
    def remove_pause(self, pattern: str, *, ended: bool = False) -> bool:
        """Remove a pause. Return False if there is none with this pattern.

        :param ended: remove it only if it is over.
        """

    @abc.abstractmethod
    def pauses(self) -> Sequence[TaskPause]:
        """Return all pauses, by pattern, including those that are over."""

    def queue_pause(self, flow_uuid: str) -> QueuePause | None:
        """Return the pause of a queue that holds back a flow whose job is in this store, or None.

        A pause holds back flows that have not begun.
        """
        return None

    @abc.abstractmethod
    def add_access_key(self, key: AccessKey) -> None:
        """Store a new access key.

        :raises Duplicate: if there is one with this id.
        """

    @abc.abstractmethod
    def end_access_key(self, key_id: str, at: float, *, revoke: bool) -> bool:
        """Revoke an access key at a time, or let it expire then, if it does not expire earlier.

        Return whether this changed the key. An end is never postponed.
        """

    @abc.abstractmethod
    def note_use_of_access_key(self, key_id: str, at: float) -> None:
        """Store the time of the latest use of an access key."""

    @abc.abstractmethod
    def access_keys(self) -> Sequence[AccessKey]:
        """Return all access keys, by name and time of creation."""

    @abc.abstractmethod
    def access_key(self, key_id: str) -> AccessKey | None:
        """Return the access key with this id, or None."""

    def add_codes(self, version: str, apps: Iterable[str], earlier: Iterable[str] = ()) -> None:
        """Add a version to the stored order of these apps, unless it is there, and report it.

        :param earlier: versions that are added before it.
        :raises StorageFailure: if the store does not keep versions.
        """
        raise exceptions.StorageFailure(f"{self.backend} does not keep versions of code")

    def report_code(self, version: str) -> None:  # noqa: B027  (a default, not a stub)
        """Report that a conductor with this version runs."""

    def withdraw_code(self, version: str) -> None:  # noqa: B027  (a default, not a stub)
        """Report that a conductor with this version ended. Others report the version again."""

    def codes(self) -> Sequence[Code]:
        """Return all versions of code in the order of their first appearance."""
        return ()

    def flows_by_code(self) -> Mapping[str, int]:
        """Return the number of flows by code that have not ended and that no engine runs."""
        return {}

    def flows_waiting_for_code(self) -> Mapping[str, int]:
        """Return the number of flows by the code that they wait for and no conductor has."""
        return missing_counts(self.codes(), self.flows_by_code())

    def assign_code(self, old: str, new: str) -> int:
        """Assign another code to the flows of `flows_by_code`, and make their jobs due.

        Return their number.
        """
        return 0

    @property
    def bulks(self) -> BulkStore:
        """The operations on many flows.

        :raises StorageFailure: if the store does not keep them.
        """
        raise exceptions.StorageFailure(f"{self.backend} does not keep operations on many flows")

    def delete_expired_keys(self) -> None:  # noqa: B027  (a default, not a stub)
        """Delete unique keys of submissions that have expired and whose flows are deleted."""

    @abc.abstractmethod
    def get_outline(self, flow_uuid: str) -> Outline | None:
        """Return the structure of a flow, or None if it was never saved."""

    @abc.abstractmethod
    def save_outline(
        self, flow_uuid: str, outline: Outline, *, lease: _leases.Lease | None = None
    ) -> None:
        """Save or replace the structure of a flow.

        :raises LeaseLost: if `lease` is not the latest lease of the flow, or the flow was deleted.
        :raises NotFound: if the flow does not exist and no lease was given.
        """

    def update_flow_details(self, flow_detail: models.FlowDetail) -> models.FlowDetail:
        """Write a stored flow with all its atoms and their items. Return the stored flow."""
        self.save_changes(flow_detail, flow_detail, items=items_of(flow_detail))
        return self.get_flow_details(flow_detail.uuid)

    def update_atom_details(self, atom_detail: models.AtomDetail) -> models.AtomDetail:
        """Write a stored atom with its items. Return the stored atom."""
        flow = models.FlowDetail("", self.flow_of_atom(atom_detail.uuid))
        items = items_of([atom_detail])
        self.save_changes(flow, [atom_detail], flow_row=False, items=items)
        return self.get_atom_details(atom_detail.uuid)

    def close(self) -> None:  # noqa: B027
        """Release all resources of the connection; idempotent."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def items_of(atoms: Iterable[models.AtomDetail]) -> ItemChanges:
    """Return all items of these atoms."""
    return {atom.uuid: list(atom.items) for atom in atoms if atom.items is not None}


def create_flow_detail(
    flow: Any,
    book: models.LogBook | None = None,
    backend: Backend | None = None,
    meta: Mapping[str, Any] | None = None,
) -> models.FlowDetail:
    """Create the record of `flow` in `book`, or in a new logbook. Save it if there is a backend."""
    detail = models.FlowDetail(flow.name)
    detail.meta.update(meta or {})
    add_flow_detail(detail, book, backend)
    return detail


def add_flow_detail(
    detail: models.FlowDetail,
    book: models.LogBook | None = None,
    backend: Backend | None = None,
) -> None:
    """Add a new flow record to `book`, or to a new logbook. Save it if there is a backend."""
    if book is None:
        book = models.LogBook(detail.name)
        book.meta[models.MADE_BY] = "wbengine"
    book.add(detail)
    _save(book, backend)


def temporary_log_book(backend: Backend | None = None) -> models.LogBook:
    """Create a logbook for a temporary run."""
    book = models.LogBook("tmp")
    _save(book, backend)
    return book


def temporary_flow_detail(
    backend: Backend | None = None, meta: Mapping[str, Any] | None = None
) -> tuple[models.LogBook, models.FlowDetail]:
    """Create a flow detail and its logbook for a temporary run."""
    book, detail = temporary_log_book(), models.FlowDetail("tmp-flow-detail")
    detail.meta.update(meta or {})
    add_flow_detail(detail, book, backend)
    return book, detail


def unfinished_flows(backend: Backend) -> Iterator[models.FlowDetail]:
    """Yield flows that have not ended and that no engine runs, for example after a crash.

    These include flows that never started. Each flow is complete, as `engines.load_from_detail`
    needs it. Damaged records are logged and skipped.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        for book in _logged(connection.get_logbooks(lazy=True)):
            for flow in _flows_of(connection, book):
                if flow.state in states.FLOW_ENDED:
                    continue
                try:
                    lease = connection.get_lease(flow.uuid)
                    if lease is not None and not _owners.is_dead(lease.owner):
                        continue
                    detail = connection.get_flow_details(flow.uuid)
                    if detail.state not in states.FLOW_ENDED:  # an engine may have ended it since
                        yield detail
                except exceptions.NotFound:
                    continue
                except exceptions.CorruptRecord as error:
                    LOG.warning("Flow %r (%s) is skipped: %s", flow.name, flow.uuid, error)


def _flows_of(connection: Connection, book: models.LogBook) -> Iterator[models.FlowDetail]:
    try:
        flows = connection.get_flows_for_book(book.uuid, lazy=True)
    except exceptions.NotFound:
        return iter(())
    return _logged(flows)


def _logged(records: Iterator[_R]) -> Iterator[_R]:
    try:
        yield from records
    except exceptions.CorruptRecord as error:
        LOG.warning("A record is skipped: %s", error)


def readable(records: Iterable[_R | exceptions.CorruptRecord]) -> Iterator[_R]:
    """For backends: yield the readable records, then raise the first error and log the others."""
    errors: list[exceptions.CorruptRecord] = []
    for each in records:
        if isinstance(each, exceptions.CorruptRecord):
            errors.append(each)
        else:
            yield each
    for error in errors[1:]:
        LOG.warning("A record is skipped: %s", error)
    if errors:
        raise errors[0]


def _save(book: models.LogBook, backend: Backend | None) -> None:
    if backend is not None:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.save_logbook(book)
