"""Writer of changed records of one flow, under the flow's lease.

A run owns the lease from its start to its end. Any other change acquires it briefly. After another
owner acquired the lease, the store rejects writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from wbengine import exceptions, states
from wbengine._concurrency import scopes
from wbengine._concurrency.crash_points import crashpoint
from wbengine._text import json_text
from wbengine.persistence import _commands, _leases, _owners, _trees, base, models
from wbengine.persistence._stored_results import StoredResult
from wbengine.types import _tags, codec
from wbengine.types._outline import Outline

__all__ = ["EPOCHS_PER_RUN", "RecordWriter"]

LOG: Final = logging.getLogger(__name__)

_MAX_WRITE_ATTEMPTS: Final = 3

#: Maximum number of times that a run publishes a request.
EPOCHS_PER_RUN: Final = 1024

_ATOM_VALUE_FIELDS: Final = ("results", "progress_details", "_meta")

_T = TypeVar("_T")

#: Called after a run with a command, and with whether the run executed it. Returns False if the
#: command must stay stored for the next engine.
Settle = Callable[[base.FlowCommand, bool], bool]


class RecordWriter:
    """Collects and writes the changed records of one flow. Without a `backend`, it does nothing.

    Any thread may mark records as changed. Only a thread that holds `mutex` may acquire or release
    the lease. A write that fails with `StorageFailure` is attempted three times, with pauses of the
    backend's `write_pause`.
    """

    def __init__(self, flow_detail: models.FlowDetail, backend: base.Backend | None) -> None:
        self.flow_detail: Final = flow_detail
        self.backend: Final = backend
        self.encodes: Final = backend is not None and backend.encodes
        #: Must be held by each thread that changes records, except the loop of a run.
        self.mutex: Final = threading.RLock()
        self.lease: _leases.Lease | None = None
        self._writing = threading.RLock()
        # Deques, because appending needs no lock. `flush` removes duplicates.
        self._marked: deque[models.AtomDetail] = deque()
        self._marked_items: deque[tuple[str, models.ItemDetail]] = deque()
        self._marked_logs: deque[models.LogChunk] = deque()
        self._flow_marked = False
        # Records to delete, by uuid; None until one was deleted.
        self._dropped: dict[str, models.AtomDetail] | None = None
        # Marked records whose results leave the memory when they are written.
        self._to_release: set[models.TaskDetail] = set()
        # One object for each open batch. Adding and removing one is atomic, also for interrupts.
        self._batches: set[object] = set()
        # Epoch of the lease under which the stored records last matched these, except for marked
        # changes. None if unknown: another engine may have run the flow since the records were
        # read.
        self._known_epoch: int | None = None if flow_detail.epoch else 0
        self._failing = False

    @property
    def first_epoch(self) -> int:
        """The epoch for requests that an earlier run may have published.

        It is higher than all epochs of earlier runs, including unsaved ones, because each run
        publishes a request at most `EPOCHS_PER_RUN` times.
        """
        return 1 if self.lease is None else self.lease.epoch * EPOCHS_PER_RUN

    @property
    def has_pending(self) -> bool:
        return bool(
            self._marked
            or self._marked_items
            or self._marked_logs
            or self._flow_marked
            or self._dropped
        )

    @property
    def is_batching(self) -> bool:
        """Whether a batch is open. The end of the last open batch writes all marked changes."""
        return bool(self._batches)

    @property
    def is_failing(self) -> bool:
        """Whether the last access to the store failed."""
        return self._failing

    def acquire_lease(
        self, owner: str, seconds: float
    ) -> tuple[_leases.Lease, models.FlowDetail | None]:
        """Acquire the lease for a number of seconds, also from a dead owner.

        :returns: the lease, and the stored flow if another engine may have changed it since it was
            read. In that case all marked changes are discarded.
        :raises FlowBusy: if another owner has the lease; the message names the owner.
        :raises NotFound: if the flow was deleted.
        :raises StorageFailure: if the store could not be read or written.
        """
        uuid, stored_flow = self.flow_detail.uuid, None

        def acquire(connection: base.Connection) -> _leases.Lease:
            try:
                return connection.acquire_lease(uuid, owner, seconds)
            except exceptions.FlowBusy as busy:
                # This owner may have the lease: an earlier attempt stored it and then failed.
                if busy.owner != owner and not _owners.is_dead(busy.owner):
                    raise self._busy_error(busy) from None
                LOG.info("Flow %s is taken over from %s", uuid, _owners.describe(busy.owner))
                return connection.acquire_lease(uuid, owner, seconds, dead=busy.epoch)

        try:
            crashpoint("lease.before-take")
            lease = self.attempt(acquire)
            crashpoint("lease.after-take")
            if self._known_epoch != lease.epoch - 1:
                self._release_results_of_steps()
                try:
                    stored_flow = self.attempt(lambda connection: connection.get_flow_details(uuid))
                except BaseException:
                    self._release_stored_lease(lease)
                    raise
                self.drop_pending()
            self.attach_lease(lease)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._release_unseen_lease(owner)
            raise
        return lease, stored_flow

    def _release_unseen_lease(self, owner: str) -> None:
        """Release a lease that the store may have written shortly before an interrupt."""
        assert self.backend is not None
        with (
            contextlib.suppress(exceptions.NotFound, exceptions.StorageFailure),
            contextlib.closing(self.backend.get_connection()) as connection,
        ):
            lease = connection.get_lease(self.flow_detail.uuid)
            if lease is not None and lease.owner == owner:
                connection.release_lease(lease)

    def attach_lease(self, lease: _leases.Lease) -> None:
        """Use `lease` for all writes. The records must equal the stored ones."""
        self.lease = lease
        self.flow_detail.epoch = self._known_epoch = lease.epoch

    def release_lease(
        self,
        owner: str,
        *,
        is_lost: bool = False,
        command: base.FlowCommand | None = None,
        settle: Settle | None = None,
    ) -> None:
        """Stop all writes of `owner`, and release its lease in the store unless it `is_lost`.

        :param command: the latest command that the run of `owner` executed, if any.
        :param settle: handles commands before the lease of a run is released. None: there was no
            run, and commands stay stored.
        """
        with self.mutex, self._writing:  # Prevents writes between the two steps.
            lease = self.lease
            if lease is None or lease.owner != owner:
                return
            try:
                if not is_lost:
                    self._release_stored_lease(lease, command, settle)
            except Exception:
                self.lease = None
                raise
            self.lease = None  # Last, so that after an interrupt a later call releases the lease.

    def _release_stored_lease(
        self,
        lease: _leases.Lease,
        command: base.FlowCommand | None = None,
        settle: Settle | None = None,
    ) -> None:
        """Release the lease in the store. If this fails, the lease expires."""
        assert self.backend is not None
        try:
            crashpoint("lease.before-give-back")
            with contextlib.closing(self.backend.get_connection()) as connection:
                if settle is None:
                    connection.release_lease(lease)
                else:
                    self._end_lease(connection, lease, command, settle)
            crashpoint("lease.after-give-back")
        except (exceptions.StorageFailure, exceptions.LeaseLost) as error:
            LOG.warning(
                "The lease of flow %s was not released and remains until it expires: %s",
                lease.flow,
                error,
            )

    def _end_lease(
        self,
        connection: base.Connection,
        lease: _leases.Lease,
        command: base.FlowCommand | None,
        settle: Settle,
    ) -> None:
        """Release the lease of a run when all commands of the flow are settled."""
        is_settled = command is not None and settle(command, True)
        while True:
            # Without its last records, the next engine needs the command again.
            keep = not is_settled or self._failing or self.has_pending
            unread = connection.end_lease(lease, command, keep=keep)
            if unread is None:
                return
            crashpoint("lease.before-late-command")
            command, is_settled = unread, settle(unread, False)

    def _busy_error(self, busy: exceptions.FlowBusy) -> exceptions.FlowBusy:
        owner, expiry = _owners.describe(busy.owner), f"{math.ceil(busy.seconds)} s"
        if _owners.is_momentary(busy.owner):
            text = f"changed by {owner}; if that process dies, its lease expires in {expiry}"
        else:
            text = f"run by {owner}; if that process dies, its lease expires in {expiry}"
        return exceptions.FlowBusy(
            f"Flow {self.flow_detail.name!r} is {text}",
            owner=busy.owner,
            epoch=busy.epoch,
            seconds=busy.seconds,
        )

    def mark(self, record: models.AtomDetail) -> None:
        """Mark an atom as changed. Thread-safe."""
        if self.backend is not None:
            self._marked.append(record)

    def mark_all(self, records: Iterable[models.AtomDetail]) -> None:
        if self.backend is not None:
            self._marked.extend(records)

    def mark_items(self, record: models.AtomDetail, items: Iterable[models.ItemDetail]) -> None:
        """Mark items of `record` as new or changed. Call this only from the engine's thread."""
        if self.backend is not None:
            self._marked_items.extend((record.uuid, item) for item in items)

    def drop(self, record: models.AtomDetail) -> None:
        """Delete an atom from the flow, and from the store with the next write.

        Call this only from the engine's thread.
        """
        self.flow_detail.discard(record.uuid)
        if self.backend is not None:
            self._dropped = {**(self._dropped or {}), record.uuid: record}

    def mark_log(self, chunk: models.LogChunk) -> None:
        """Add logs of an execution. Thread-safe."""
        if self.backend is not None:
            self._marked_logs.append(chunk)

    def release_result(self, record: models.TaskDetail, *, is_marked: bool) -> None:
        """Keep the result of a task only in the store, after the next write if it is marked.

        A store that does not encode values may contain the same objects, so they stay. Call this
        only from the engine's thread, or while it waits for the caller.
        """
        if not self.encodes or record in self._to_release:
            return
        if is_marked or record in self._marked:
            self._to_release.add(record)
        else:
            self._release(record)

    def _release_results_of_steps(self) -> None:
        """Release the results of all steps before their records are read again."""
        for record in self.flow_detail if self.encodes else ():
            if isinstance(record, models.TaskDetail) and record.is_step:
                self._release(record)

    def _release(self, record: models.TaskDetail) -> None:
        record.held_results = StoredResult(self._stored_result, record.uuid)

    def _stored_result(self, uuid: str) -> Any:
        return self.attempt(lambda connection: connection.get_atom_details(uuid).results)

    def mark_flow(self) -> None:
        """Mark the flow's own row as changed. Thread-safe."""
        self._flow_marked = self.backend is not None

    def set_tags(self, tags: Mapping[str, _tags.Value], setter: str) -> bool:
        """Set tags of the flow, with the next write. Return whether any changed. Thread-safe.

        A tag that the submission set, or that is one too many, is ignored with a warning.

        :param setter: the task or workflow that sets them, for the log.
        """
        flow = self.flow_detail
        with self.mutex:
            earlier = changed = flow.meta_value(_tags.CHANGED) or {}
            for key, value in tags.items():
                try:
                    meta = {**flow.own_meta, _tags.CHANGED: changed}
                    changed = _tags.merged(meta, {key: value})
                except ValueError as error:
                    LOG.warning("Flow %r ignores a tag of %s: %s", flow.name, setter, error)
            if _tags.are_same(earlier, changed):
                return False
            # A new dict, because another thread may be writing the record.
            flow.set_meta_value(_tags.CHANGED, changed)
            self.mark_flow()
        return True

    def drop_pending(self) -> None:
        """Discard marked changes, because another engine continues from the stored records."""
        with self._writing:
            self._marked.clear()
            self._marked_items.clear()
            self._marked_logs.clear()
            self._flow_marked = False
            self._dropped = None
            self._to_release.clear()
            self._known_epoch = None

    @scopes.scope
    def batch(self) -> Iterator[None]:
        """Write changes inside the block only on `flush`. Write the remaining ones at its end.

        If the block raises an exception, this exception is raised even if the final write fails.
        """
        me = object()
        try:
            try:
                self._batches.add(me)
                yield
            finally:
                self._batches.discard(me)
        except BaseException:
            if not self._batches:
                self.try_flush()
            raise
        if self._batches:
            return
        try:
            self.flush()
        except BaseException as error:
            if not isinstance(error, Exception):  # An interrupt; the store still works.
                self.try_flush()
            raise

    def try_flush(self) -> None:
        """Write all marked changes, and log a failed write."""
        can_repeat = True
        while can_repeat:
            try:
                self.flush()
                return
            except (exceptions.StorageFailure, exceptions.LeaseLost) as error:
                LOG.warning(
                    "Flow %r could not be saved completely: %s", self.flow_detail.name, error
                )
                # The failed write unmarked one of the records.
                has_others = bool(self._marked or self._marked_items)
                can_repeat = isinstance(error, exceptions.RecordTooLarge) and has_others

    def flush(self) -> bool:
        """Write all marked changes in one step. Return True if there were any.

        A record that changes during the write stays marked. Without a lease, nothing is written.

        :raises StorageFailure: if three attempts failed. The next flush then makes one attempt.
        :raises RecordTooLarge: if a record is too large. The next flush writes the others.
        :raises LeaseLost: if another owner acquired the flow; nothing was written.
        """
        if self.lease is None or not self.has_pending:
            return False
        with self._writing:  # Otherwise a thread with older data might write last.
            return self.attempt(self._flush)

    def settle(self, settled: _commands.FlowCommand) -> None:
        """Write all marked changes and replace a command, in one step, without repetitions.

        :raises InvalidState: if the flow has another command; nothing was written.
        :raises StorageFailure: if the store failed; the changes may be written.
        :raises LeaseLost: as `flush` does.
        """
        assert self.backend is not None
        self.mark_flow()
        with self._writing, contextlib.closing(self.backend.get_connection()) as connection:
            self._flush(connection, settled)

    def attempt(self, do: Callable[[base.Connection], _T]) -> _T:
        """Call `do` with a connection, up to three times if the store fails.

        After a failed access, for a damaged or too large record, or if the store was deleted or
        replaced, it is called only once.
        """
        assert self.backend is not None
        for remaining in reversed(range(1 if self._failing else _MAX_WRITE_ATTEMPTS)):
            try:
                with contextlib.closing(self.backend.get_connection()) as connection:
                    result = do(connection)
                self._failing = False
                return result
            except (exceptions.CorruptRecord, exceptions.RecordTooLarge):
                raise
            except exceptions.StorageFailure:
                self._failing = True
                if not remaining:
                    raise
                self.backend.check_identity()
                time.sleep(self.backend.write_pause)
        raise AssertionError

    def _flush(
        self, connection: base.Connection, settled: _commands.FlowCommand | None = None
    ) -> bool:
        records: list[models.AtomDetail] = []
        marked_items: list[tuple[str, models.ItemDetail]] = []
        logs: list[models.LogChunk] = []
        flow_row = False
        dropped: dict[str, models.AtomDetail] | None = None
        try:
            _move(self._marked, records)
            _move(self._marked_items, marked_items)
            _move(self._marked_logs, logs)
            flow_row = self._flow_marked
            if flow_row:  # Otherwise clearing it could lose a mark that another thread sets now.
                self._flow_marked = False
            if self._dropped is not None:
                dropped, self._dropped = self._dropped, {}
                records = [each for each in records if self._contains(each.uuid)]
                marked_items = [pair for pair in marked_items if self._contains(pair[0])]
                logs = [chunk for chunk in logs if self._contains(chunk.atom_uuid)]
            changed, items = dict.fromkeys(records), dict.fromkeys(marked_items)
            if not (changed or items or logs or flow_row or dropped):
                return False
            by_atom: dict[str, list[models.ItemDetail]] = {}
            for uuid, item in items:
                by_atom.setdefault(uuid, []).append(item)
            crashpoint("storage.before-save")
            save = functools.partial(
                connection.save_changes, self.flow_detail, list(changed), flow_row=flow_row,
                items=by_atom, logs=logs, lease=self.lease,
            )  # fmt: skip
            if dropped:
                save = functools.partial(save, dropped=dropped)
            if settled is not None:
                save = functools.partial(save, settled=settled)
            try:
                save()
            except exceptions.NotEncodable:
                if not _mend(connection, changed, by_atom):
                    raise
                save()
        except BaseException as error:
            if isinstance(error, exceptions.RecordTooLarge):
                _remove_largest(records, marked_items)
            self._marked.extendleft(reversed(records))
            self._marked_items.extendleft(reversed(marked_items))
            self._marked_logs.extendleft(reversed(logs))
            self._flow_marked = self._flow_marked or flow_row
            if dropped:
                self._dropped = {**dropped, **(self._dropped or {})}
            raise
        crashpoint("storage.after-save")
        if dropped:
            self._to_release.difference_update(dropped.values())
        for record in self._to_release.intersection(changed) if self._to_release else ():
            self._to_release.discard(record)
            self._release(record)
        return True

    def _contains(self, uuid: str) -> bool:
        """Return whether the flow contains an atom: a late event may mark a deleted one."""
        return self.flow_detail.find(uuid) is not None

    def save_outline(self, outline: Outline) -> None:
        """Save the structure of the flow unless it is stored. Log a failure of the store.

        Complete tasks that had a `revert` in the code of an earlier run stay in `reverting`.

        :raises LeaseLost: if another owner acquired the flow.
        """
        if self.backend is None or self.flow_detail.outlined == outline.digest:
            return
        try:
            with contextlib.closing(self.backend.get_connection()) as connection:
                outline = self._with_earlier_reverts(outline, connection)
                digest = outline.digest
                if self.flow_detail.outlined == digest:
                    return
                connection.save_outline(self.flow_detail.uuid, outline, lease=self.lease)
        except (exceptions.StorageFailure, exceptions.NotEncodable) as error:
            LOG.warning(
                "The structure of flow %r could not be saved: %s. The run continues; the flow can"
                " be drawn from the store after a later run saves the structure",
                self.flow_detail.name,
                error,
            )
        else:
            self.flow_detail.outlined = digest
            self.mark_flow()

    def _with_earlier_reverts(self, outline: Outline, connection: base.Connection) -> Outline:
        flow = self.flow_detail
        if flow.outlined is None and flow.forked_from is None:
            return outline
        earlier = connection.get_outline(flow.uuid)
        names = set(() if earlier is None else earlier.reverting).difference(outline.reverting)
        missing = [
            atom.name for atom in flow if atom.name in names and atom.state == states.SUCCESS
        ]
        return dataclasses.replace(outline, reverting=(*outline.reverting, *missing))


def _move(source: deque[_T], target: list[_T]) -> None:
    """Move all items with a single call of C code, so that an interrupt loses none."""
    target.extend(itertools.starmap(source.popleft, itertools.repeat((), len(source))))


def _remove_largest(
    atoms: list[models.AtomDetail], items: list[tuple[str, models.ItemDetail]]
) -> None:
    """Remove the largest record. The store keeps its earlier state, so its task can run again."""
    records: list[models.AtomDetail | models.ItemDetail] = [*atoms, *(item for _, item in items)]
    if records:
        largest = max(records, key=lambda record: len(json_text.encode(_trees.tree_of(record))))
        atoms[:] = [atom for atom in atoms if atom is not largest]
        items[:] = [pair for pair in items if pair[1] is not largest]


def _mend(
    connection: base.Connection,
    atoms: Iterable[models.AtomDetail],
    items: Mapping[str, Sequence[models.ItemDetail]],
) -> bool:
    """Replace values that cannot be encoded by their stored values.

    Tasks in this process share the objects that other tasks returned. If a task modifies such an
    object, a record changes without a call of the engine. The stored value then takes precedence.

    Return True if a value was replaced.
    """
    mended = False
    for atom in atoms:
        wrong = [slot for slot in _ATOM_VALUE_FIELDS if not _is_encodable(getattr(atom, slot))]
        stored = _stored_atom(connection, atom.uuid) if wrong else None
        if stored is not None:
            if not _same_result(atom, stored):
                wrong = [slot for slot in wrong if slot != "results"]
            mended |= _restore(f"Atom {atom.name!r}", atom, stored, wrong)
    for uuid, changed in items.items():
        for item in changed:
            if not _is_encodable(item.value):
                stored_atom = _stored_atom(connection, uuid)
                stored_items = stored_atom.items if stored_atom is not None else None
                if (
                    stored_items is not None
                    and stored_items.attempt == item.attempt
                    and item.index < len(stored_items)
                ):
                    label = f"Item {item.index}"
                    mended |= _restore(label, item, stored_items[item.index], ["value"])
    return mended


def _same_result(atom: models.AtomDetail, stored: models.AtomDetail) -> bool:
    if isinstance(atom, models.RetryDetail) or stored.state not in models.STATES_WITH_RESULT:
        return False
    return atom.state != states.SUCCESS or atom.attempt == stored.attempt


def _stored_atom(connection: base.Connection, uuid: str) -> models.AtomDetail | None:
    try:
        return connection.get_atom_details(uuid)
    except exceptions.NotFound:
        return None


def _restore(label: str, record: Any, stored: Any, wrong: Iterable[str]) -> bool:
    mended = False
    for slot in wrong:
        value = getattr(stored, slot)
        if value is not None:
            LOG.warning(
                "%s: its %s has a new value that cannot be stored; the stored value remains",
                label,
                slot.strip("_"),
            )
            setattr(record, slot, value)
            mended = True
    return mended


def _is_encodable(value: Any) -> bool:
    try:
        codec.pack(value)
    except Exception:
        return False
    return True
