"""What changed of one flow's records, and how it reaches the store.

While an engine runs the flow it holds the flow's lease: each write carries it, and is refused when
somebody else took the flow over.  Without a lease a change is written at once if nobody runs the
flow, and nobody did since the records were read; after somebody did they are read again first.
While somebody does, it waits here for the next run of this engine.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import _lock, base, leases, mending, models, owners
from wbengine.types.outline import Outline

__all__ = ["EPOCHS_PER_RUN", "FLOW_META", "INJECTED", "META", "Given", "Writing"]

LOG: Final = logging.getLogger(__name__)

_WRITE_TRIES: Final = 3

#: So many times at most a run publishes the same request.
EPOCHS_PER_RUN: Final = 1024

#: What was given from outside: values for the flow or an atom, metadata of an atom, or of the flow.
INJECTED: Final = "injected"
META: Final = "meta"
FLOW_META: Final = "flow meta"

_T = TypeVar("_T")


class Given(NamedTuple):
    """Something from outside; it has no part in the run of anybody else, and is never dropped."""

    kind: str
    #: The name of the atom; None: the flow.
    atom: str | None
    values: dict[Any, Any]


class Writing:
    """The part of `Records` that writes."""

    def __init__(self, flow_detail: models.FlowDetail, backend: base.Backend | None) -> None:
        self._flow_detail = flow_detail
        self._backend = backend
        #: Whether the store can keep only what `types.codec` takes.
        self.encodes = backend is not None and backend.encodes
        self._lock = _lock.Lock()
        self._writing = threading.RLock()
        # A deque, because appending from any thread needs no lock; `flush` removes doubles.
        self._marked: deque[models.AtomDetail] = deque()
        self._marked_items: deque[tuple[str, models.ItemDetail]] = deque()
        self._flow_marked = False
        self._batching = False
        # What came from outside since the last write, while no engine here ran the flow.
        self._given: deque[Given] = deque()
        #: The right to write while an engine runs the flow; None while none does, or none is kept.
        self.lease: leases.Lease | None = None
        #: After which lease the store was as the records here are, but for what is marked.  None:
        #: it is not known, because somebody may have run the flow since they were read.
        self.as_of: int | None = None if flow_detail.epoch else 0
        #: How often the records were read again: then those of before are not used any more.
        self.readings = 0
        # A write failed often enough for this run.
        self._failing = False

    # -- what it is -----------------------------------------------------------------------------

    @property
    def lock(self) -> _lock.Lock:
        """Whoever holds it is the only one to change anything through the methods of this class."""
        return self._lock

    @property
    def backend(self) -> base.Backend | None:
        return self._backend

    @property
    def fence(self) -> int:
        """The number under which this run publishes again what an earlier one may have published.

        Higher than any number of an earlier run, although those that rose since were not saved.
        """
        return 1 if self.lease is None else self.lease.epoch * EPOCHS_PER_RUN

    @property
    def waiting(self) -> bool:
        """Whether something changed that is not written yet."""
        return bool(self._marked or self._marked_items or self._flow_marked)

    @property
    def failing(self) -> bool:
        """Whether the store could not be written when it was tried last."""
        return self._failing

    @property
    def flow_name(self) -> str:
        return self._flow_detail.name

    @property
    def flow_uuid(self) -> str:
        return self._flow_detail.uuid

    @property
    def flow_meta(self) -> dict[str, Any]:
        return self._flow_detail.meta

    @property
    def flow_detail(self) -> models.FlowDetail:
        return self._flow_detail

    # -- whose it is ----------------------------------------------------------------------------

    def own(self, lease: leases.Lease) -> None:
        """Write under `lease` from now on; before that, read again what others may have changed.

        :raises StorageFailure: it could not be read.
        """
        with self._writing:
            self._failing = False
            if self.as_of != lease.epoch - 1:
                self.as_of = None
                self.tried(self._reread)
            self.lease = lease
            self._flow_detail.epoch = self.as_of = lease.epoch

    def disown(self) -> None:
        """The lease is not ours any more, or soon will not be."""
        with self._writing:
            self.lease = None

    def forsake(self) -> None:
        """Never write what is marked: others go on from what is stored, and so do we later."""
        with self._writing:
            self._forget_marks()
            self.as_of = None

    def _forget_marks(self) -> None:
        self._marked.clear()
        self._marked_items.clear()
        self._flow_marked = False

    def _reread(self, connection: base.Connection) -> None:
        """Read the records anew, and give them what was given and not written."""
        kept = connection.get_flow_details(self.flow_uuid)
        self._forget_marks()
        outer, self._batching = self._batching, True
        try:
            with self._lock:
                self._take_over(kept)
                self.readings += 1
            for _ in range(len(self._given)):
                self._give(self._given.popleft())
        finally:
            self._batching = outer

    def _take_over(self, kept: models.FlowDetail) -> None:
        """Replace all records by those that are kept; `Records` does it."""
        raise NotImplementedError

    def _give(self, given: Given) -> None:
        """Do again what was done to records that are replaced; `Storage` does it."""
        raise NotImplementedError

    # -- what changed ---------------------------------------------------------------------------

    def keep_outline(self, outline: Outline) -> None:
        """Have the structure of the flow kept, unless it is already; without, a run goes on.

        :raises LeaseLost: somebody else took the flow over.
        """
        digest = outline.digest
        if self._backend is None or self._flow_detail.outlined == digest:
            return
        try:
            with contextlib.closing(self._backend.get_connection()) as connection:
                connection.save_outline(self.flow_uuid, outline, lease=self.lease)
        except (exceptions.StorageFailure, exceptions.NotEncodable) as error:
            LOG.warning("The outline of flow %r is not kept: %s", self.flow_name, error)
        else:
            self._flow_detail.outlined = digest
            self._flow_changed()

    def mark(self, record: models.AtomDetail) -> None:
        """Note that `record` changed; from any thread."""
        if self._backend is not None:
            self._marked.append(record)
            self._written()

    def mark_items(self, record: models.AtomDetail, items: Iterable[models.ItemDetail]) -> None:
        """Note that items of `record` are new or changed; only the engine's thread does."""
        if self._backend is not None:
            self._marked_items.extend((record.uuid, item) for item in items)
            self._written()

    def _flow_changed(self) -> None:
        if self._backend is not None:
            self._flow_marked = True
            self._written()

    def _was_given(self, kind: str, atom: str | None, values: dict[Any, Any]) -> None:
        """Remember what came from outside until it is written; before it is marked."""
        if self._backend is not None and self.lease is None:
            self._given.append(Given(kind, atom, values))

    def _written(self) -> None:
        if not self._batching:
            self.flush()

    # -- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """While inside, changes are written by `flush` only; leaving writes what is left.

        After an error it is the error that passes through, also if nothing could be written.
        """
        outer, self._batching = self._batching, True
        try:
            yield
        except BaseException:
            self._batching = outer
            if not outer:
                self.try_flush()
            raise
        self._batching = outer
        if not outer:
            self.flush()

    def try_flush(self) -> None:
        """`flush`, where a failure of the store is known already, or can only be logged."""
        try:
            self.flush()
        except (exceptions.StorageFailure, exceptions.LeaseLost) as error:
            LOG.warning("Not all of flow %r could be written: %s", self.flow_name, error)

    def flush(self) -> bool:
        """Write everything marked, in one step; return whether anything was.

        A record that changes while it is being written stays marked for the next time.

        :raises StorageFailure: it could not be, three times; the next flush tries once.
        :raises LeaseLost: somebody else took the flow over, and nothing was written.
        """
        if self._backend is None or not self.waiting:
            return False
        with self._writing:  # or of two threads the one with the older picture may write last
            if self.lease is not None:
                return self.tried(self._flush)
            try:
                return self.tried(self._flush_for_nobody)
            except (exceptions.FlowBusy, exceptions.LeaseLost) as error:
                LOG.info(
                    "What changed of flow %r waits for the next run: %s", self.flow_name, error
                )
                return False

    def tried(self, do: Callable[[base.Connection], _T]) -> _T:
        """`do` something with a connection, three times if the store fails.

        Once, after it has been failing already.  What is damaged does not get any better.
        """
        assert self._backend is not None
        for left in reversed(range(1 if self._failing else _WRITE_TRIES)):
            try:
                with contextlib.closing(self._backend.get_connection()) as connection:
                    found = do(connection)
                self._failing = False
                return found
            except exceptions.CorruptRecord:
                raise
            except exceptions.StorageFailure:
                if not left:
                    self._failing = True
                    raise
                time.sleep(self._backend.write_pause)
        raise AssertionError

    def _flush_for_nobody(self, connection: base.Connection) -> bool:
        """Write although no engine here runs the flow: as long as no other one does."""
        if self.as_of is not None:
            with contextlib.suppress(exceptions.FlowBusy):
                return self._flush(connection, self.as_of)
        owner = owners.new()
        try:
            lease = connection.take_lease(self.flow_uuid, str(owner), leases.LEASE_SECONDS)
            try:
                self._reread(connection)
                self.lease = lease
                self._flush(connection)
                self._flow_detail.epoch = self.as_of = lease.epoch
            finally:
                self.lease = None
                connection.give_back_lease(lease)
        finally:
            owner.let_go()
        return True

    def _flush(self, connection: base.Connection, as_of: int | None = None) -> bool:
        given = len(self._given)
        take = self._marked.popleft
        changed = dict.fromkeys([take() for _ in range(len(self._marked))])
        take_item = self._marked_items.popleft
        items = dict.fromkeys([take_item() for _ in range(len(self._marked_items))])
        flow_row = self._flow_marked
        if flow_row:  # only then: another thread may be setting it right now
            self._flow_marked = False
        if not (changed or items or flow_row):
            return False
        by_atom: dict[str, list[models.ItemDetail]] = {}
        for uuid, item in items:
            by_atom.setdefault(uuid, []).append(item)
        crashpoint("storage.before-save")
        save = functools.partial(
            connection.save_changes, self._flow_detail, list(changed), flow_row=flow_row,
            items=by_atom, lease=self.lease, as_of=as_of,
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
            self._flow_marked = self._flow_marked or flow_row
            raise
        crashpoint("storage.after-save")
        for _ in range(given):
            self._given.popleft()
        return True
