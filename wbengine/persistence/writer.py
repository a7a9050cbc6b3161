"""What changed of one flow's records, and how it reaches the store: under the lease of the flow.

A run holds the lease from its beginning to its end, any other change holds it for a moment.  Each
write carries it, and is refused when somebody else took the flow over.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import base, leases, mending, models, owners
from wbengine.types.outline import Outline

__all__ = ["EPOCHS_PER_RUN", "RecordWriter"]

LOG: Final = logging.getLogger(__name__)

_WRITE_TRIES: Final = 3

#: So many times at most a run publishes the same request.
EPOCHS_PER_RUN: Final = 1024

_T = TypeVar("_T")


class RecordWriter:
    """Writes the records of one flow that are marked; without a `backend` there is none to write.

    Threads: records may be marked by any thread.  The lease is taken, and given back, by one that
    holds `mutex`.  A write that fails with `StorageFailure` is tried three times, the backend's
    `write_pause` apart.
    """

    def __init__(self, flow_detail: models.FlowDetail, backend: base.Backend | None) -> None:
        self.flow_detail: Final = flow_detail
        self.backend: Final = backend
        #: Whether the store can keep only what `types.codec` takes.
        self.encodes: Final = backend is not None and backend.encodes
        #: Who holds it is the only one to change records, besides the loop of a run.
        self.mutex: Final = threading.RLock()
        #: The right to write; None: it is not held, or there is no store.
        self.lease: leases.Lease | None = None
        self._writing = threading.RLock()
        # A deque, because appending from any thread needs no lock; `flush` removes doubles.
        self._marked: deque[models.AtomDetail] = deque()
        self._marked_items: deque[tuple[str, models.ItemDetail]] = deque()
        self._marked_logs: deque[models.LogChunk] = deque()
        self._flow_marked = False
        self._batches = 0
        # The lease after which the store was as the records here are, but for what is marked.
        # None: that is not known, because somebody may have run the flow since they were read.
        self._known_epoch: int | None = None if flow_detail.epoch else 0
        # A write failed often enough for this run.
        self._failing = False

    @property
    def first_epoch(self) -> int:
        """The epoch under which this run publishes again what an earlier one may have published.

        Higher than any number of an earlier run, although those that rose since were not saved.
        """
        return 1 if self.lease is None else self.lease.epoch * EPOCHS_PER_RUN

    @property
    def pending(self) -> bool:
        """Whether something changed that is not written yet."""
        return bool(self._marked or self._marked_items or self._marked_logs or self._flow_marked)

    @property
    def batching(self) -> bool:
        """Whether a batch is open, at whose end all that is marked is written."""
        return self._batches > 0

    @property
    def failing(self) -> bool:
        """Whether the store could not be written when it was tried last."""
        return self._failing

    # -- the lease ------------------------------------------------------------------------------

    def take_lease(
        self, owner: str, seconds: float
    ) -> tuple[leases.Lease, models.FlowDetail | None]:
        """Become the one who writes, for so many seconds; of who is dead the flow is taken over.

        Returns also the flow as it is kept, if somebody else may have changed it since it was read:
        then nothing that was marked before is written any more.

        :raises FlowBusy: somebody else runs or changes the flow; the text says who.
        :raises NotFound: it is not kept any more.
        :raises StorageFailure: the store could not be asked, or read.
        """
        uuid, kept = self.flow_detail.uuid, None

        def take(connection: base.Connection) -> leases.Lease:
            try:
                return connection.take_lease(uuid, owner, seconds)
            except exceptions.FlowBusy as busy:
                # Ours: the store had written it when it failed to say so.
                if busy.owner != owner and not owners.died(busy.owner):
                    raise self._worded(busy) from None
                LOG.info("Flow %s is taken over from %s", uuid, owners.in_words(busy.owner))
                return connection.take_lease(uuid, owner, seconds, dead=busy.epoch)

        crashpoint("lease.before-take")
        lease = self.attempt(take)
        crashpoint("lease.after-take")
        if self._known_epoch != lease.epoch - 1:
            try:
                kept = self.attempt(lambda connection: connection.get_flow_details(uuid))
            except BaseException:
                self.give_back_lease(lease)
                raise
            self.drop_pending()
        self.attach_lease(lease)
        return lease, kept

    def attach_lease(self, lease: leases.Lease) -> None:
        """Write under `lease` from now on; the records are as they are kept."""
        self.lease = lease
        self.flow_detail.epoch = self._known_epoch = lease.epoch

    def detach_lease(self) -> None:
        """Write nothing more: the lease is not ours any more, or soon will not be."""
        with self.mutex, self._writing:
            self.lease = None

    def give_back_lease(self, lease: leases.Lease) -> None:
        """Let others run the flow; where the store fails the lease ends by itself."""
        assert self.backend is not None
        try:
            crashpoint("lease.before-give-back")
            with contextlib.closing(self.backend.get_connection()) as connection:
                connection.give_back_lease(lease)
            crashpoint("lease.after-give-back")
        except exceptions.StorageFailure as error:
            LOG.warning("The lease of flow %s ends by itself: %s", lease.flow, error)

    def _worded(self, busy: exceptions.FlowBusy) -> exceptions.FlowBusy:
        who, ends = owners.in_words(busy.owner), f"ends {math.ceil(busy.seconds)} s from now"
        if owners.is_momentary(busy.owner):
            told = f"changed by {who}; its lease {ends} if that died"
        else:
            told = f"run by {who}; its lease is renewed as long as that lives, and {ends} otherwise"
        return exceptions.FlowBusy(
            f"Flow {self.flow_detail.name!r} is {told}",
            owner=busy.owner,
            epoch=busy.epoch,
            seconds=busy.seconds,
        )

    # -- what changed ---------------------------------------------------------------------------

    def mark(self, record: models.AtomDetail) -> None:
        """Note that `record` changed; from any thread."""
        if self.backend is not None:
            self._marked.append(record)

    def mark_all(self, records: Iterable[models.AtomDetail]) -> None:
        """`mark` each of them."""
        if self.backend is not None:
            self._marked.extend(records)

    def mark_items(self, record: models.AtomDetail, items: Iterable[models.ItemDetail]) -> None:
        """Note that items of `record` are new or changed; only the engine's thread does."""
        if self.backend is not None:
            self._marked_items.extend((record.uuid, item) for item in items)

    def mark_log(self, chunk: models.LogChunk) -> None:
        """Note what an execution logged; from any thread."""
        if self.backend is not None:
            self._marked_logs.append(chunk)

    def mark_flow(self) -> None:
        """Note that the flow changed, without its atoms; from any thread."""
        self._flow_marked = self.backend is not None

    def drop_pending(self) -> None:
        """Never write what is marked: others go on from what is stored, and so do we later."""
        with self._writing:
            self._marked.clear()
            self._marked_items.clear()
            self._marked_logs.clear()
            self._flow_marked = False
            self._known_epoch = None

    # -- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """While inside, changes are written by `flush` only; leaving writes what is left.

        After an error it is the error that passes through, also if nothing could be written.
        """
        with self.mutex:
            self._batches += 1
        try:
            yield
        except BaseException:
            self._leave(self.try_flush)
            raise
        self._leave(self.flush)

    def _leave(self, write: Callable[[], object]) -> None:
        with self.mutex:
            self._batches -= 1
            last = not self._batches
        if last:
            write()

    def try_flush(self) -> None:
        """`flush`, where a failure of the store is known already, or can only be logged."""
        try:
            self.flush()
        except (exceptions.StorageFailure, exceptions.LeaseLost) as error:
            LOG.warning("Not all of flow %r could be written: %s", self.flow_detail.name, error)

    def flush(self) -> bool:
        """Write everything marked, in one step; return whether anything was.

        A record that changes while it is being written stays marked for the next time.  What is
        marked while the lease is not held waits for it.

        :raises StorageFailure: it could not be, three times; the next flush tries once.
        :raises LeaseLost: somebody else took the flow over, and nothing was written.
        """
        if self.lease is None or not self.pending:
            return False
        with self._writing:  # or of two threads the one with the older picture may write last
            return self.attempt(self._flush)

    def attempt(self, do: Callable[[base.Connection], _T]) -> _T:
        """`do` something with a connection, three times if the store fails.

        Once, after it has been failing already.  What is damaged does not get any better.
        """
        assert self.backend is not None
        for left in reversed(range(1 if self._failing else _WRITE_TRIES)):
            try:
                with contextlib.closing(self.backend.get_connection()) as connection:
                    found = do(connection)
                self._failing = False
                return found
            except exceptions.CorruptRecord:
                raise
            except exceptions.StorageFailure:
                if not left:
                    self._failing = True
                    raise
                time.sleep(self.backend.write_pause)
        raise AssertionError

    def _flush(self, connection: base.Connection) -> bool:
        take = self._marked.popleft
        changed = dict.fromkeys([take() for _ in range(len(self._marked))])
        take_item = self._marked_items.popleft
        items = dict.fromkeys([take_item() for _ in range(len(self._marked_items))])
        logs = [self._marked_logs.popleft() for _ in range(len(self._marked_logs))]
        flow_row = self._flow_marked
        if flow_row:  # only then: another thread may be setting it right now
            self._flow_marked = False
        if not (changed or items or logs or flow_row):
            return False
        by_atom: dict[str, list[models.ItemDetail]] = {}
        for uuid, item in items:
            by_atom.setdefault(uuid, []).append(item)
        crashpoint("storage.before-save")
        save = functools.partial(
            connection.save_changes, self.flow_detail, list(changed), flow_row=flow_row,
            items=by_atom, logs=logs, lease=self.lease,
        )  # fmt: skip
        try:
            try:
                save()
            except exceptions.NotEncodable:
                if not mending.mend(connection, changed, by_atom):
                    raise
                save()
        except BaseException:
            self._marked.extendleft(reversed(changed))
            self._marked_items.extendleft(reversed(items))
            self._marked_logs.extendleft(reversed(logs))
            self._flow_marked = self._flow_marked or flow_row
            raise
        crashpoint("storage.after-save")
        return True

    def save_outline(self, outline: Outline) -> None:
        """Have the structure of the flow kept, unless it is already; without, a run goes on.

        :raises LeaseLost: somebody else took the flow over.
        """
        digest = outline.digest
        if self.backend is None or self.flow_detail.outlined == digest:
            return
        try:
            with contextlib.closing(self.backend.get_connection()) as connection:
                connection.save_outline(self.flow_detail.uuid, outline, lease=self.lease)
        except (exceptions.StorageFailure, exceptions.NotEncodable) as error:
            LOG.warning("The outline of flow %r is not kept: %s", self.flow_detail.name, error)
        else:
            self.flow_detail.outlined = digest
            self.mark_flow()
