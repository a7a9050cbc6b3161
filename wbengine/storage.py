"""The data of one run of a flow, and the source of the arguments of atoms.

A `Storage` combines the records of the flow, a `RecordWriter` that writes them to the store, and
the `Bindings` of a compiled plan, which define the values that each atom can use.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine import _payloads, exceptions, states
from wbengine import atom as atom_module
from wbengine import retry as retry_module
from wbengine._introspection import object_names
from wbengine._tasks import arguments
from wbengine.persistence import _leases, _macs, _owners, base, models
from wbengine.persistence import _writer as writer
from wbengine.running import LOCAL
from wbengine.types import codec
from wbengine.types import failure as ft
from wbengine.types._references import Reference

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = [
    "META_INJECTED",
    "META_PROGRESS",
    "META_PROGRESS_DETAILS",
    "STATES_WITH_RESULTS",
    "Storage",
    "add_injected",
    "values_by_name",
]

META_INJECTED: Final = models.META_INJECTED
META_PROGRESS: Final = models.META_PROGRESS
META_PROGRESS_DETAILS: Final = models.META_PROGRESS_DETAILS

#: States of an atom in which `get` returns a result or failure.
STATES_WITH_RESULTS: Final = (
    states.FAILURE,
    states.REVERTED,
    states.REVERTING,
    states.REVERT_FAILURE,
    states.SUCCESS,
)

#: Interval between two attempts to acquire a lease that another process uses for one change.
_LEASE_RETRY_SECONDS: Final = 0.01

_NOTHING: Final[Mapping[str, Any]] = {}

_FAILED: Final = frozenset({states.FAILURE, states.REVERT_FAILURE})
_WITH_REVERT_RESULT: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})

Pairs = Mapping[str, Any] | Iterable[tuple[str, Any]]

#: Function that selects or combines the values of a name with several providers.
ManyHandler = Callable[[list[Any]], Any]


class Lock:
    """A reentrant lock with the interface of TaskFlow's.

    `with`, `read_lock()` and `write_lock()` are equivalent.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock

    def __enter__(self) -> Lock:
        self._lock.acquire()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def read_lock(self) -> Iterator[Lock]:
        with self:
            yield self

    write_lock = read_lock


class Storage:
    """The results, states, failures and injected values of a flow.

    :param backend: the store, or None.
    :param scope_fetcher: accepted for compatibility. The plan defines visibility.

    Writing: while an engine in this process runs the flow, the run writes the changes with its next
    batch. Otherwise each change acquires the lease of the flow, reads the records again if another
    process may have changed them, writes, and releases the lease. If another process runs the flow,
    it raises `FlowBusy` and changes nothing. If another process makes a single change, it waits at
    most two seconds. If the store cannot be written, it raises `StorageFailure`.

    Thread safety: all public methods are thread-safe. Methods that change data hold `lock`. The
    loop of the engine does not hold it when it changes the records of atoms that start or finish,
    so only the loop may change the state, results and failures of a running atom.
    """

    injector_name: Final = models.INJECTOR

    def __init__(
        self,
        flow_detail: models.FlowDetail,
        backend: base.Backend | None = None,
        scope_fetcher: Any = None,
    ) -> None:
        if not isinstance(flow_detail, models.FlowDetail):
            raise TypeError(f"flow_detail must be a FlowDetail, got {flow_detail!r}")
        self._flow_detail = flow_detail
        self.writer: Final = writer.RecordWriter(flow_detail, backend)
        self._by_name: dict[str, models.AtomDetail] = _by_name(flow_detail)
        #: Code of this process, which `note_code` stores; None: unknown.
        self.code: str | None = None
        #: Folder or bucket of large values, to load them; None: they are in the records.
        self.payloads: Payloads | None = _payloads.opened() if backend is None else backend.payloads
        self._failed: dict[str, ft.Failure] = {}
        self._failed_view: Mapping[str, ft.Failure] | None = None
        self._find_failures()
        self._savers: dict[str, Mapping[str, Any]] = {}
        self._transient: dict[str, Any] = {}
        self._transient_args: dict[str, Mapping[str, Any]] = {}
        self._injector: models.AtomDetail | None = self._by_name.get(self.injector_name)
        self._bindings: arguments.Bindings | None = None
        #: Records by plan node (None if the node is not an atom). `bind` sets them.
        self.records: Sequence[models.AtomDetail | None] = ()
        #: How often the records were read again. Record objects from before are obsolete.
        self.readings = 0

    @property
    def lock(self) -> Lock:
        """A lock that excludes other changes through the methods of this class."""
        return Lock(self.writer.mutex)

    @property
    def has_atoms(self) -> bool:
        """Whether there is a record of an atom."""
        return any(name != self.injector_name for name in self._by_name)

    @property
    def backend(self) -> base.Backend | None:
        return self.writer.backend

    # Ownership.

    def acquire_lease(self, owner: str, seconds: float) -> _leases.Lease:
        """Acquire the lease of the flow. Read records again that other processes may have changed.

        `writer` releases the lease.

        :raises FlowBusy: if another process runs or changes the flow; the message names it.
        :raises StorageFailure: if the store could not be read.
        """
        with self.writer.mutex:
            lease, stored_flow = self.writer.acquire_lease(owner, seconds)
            if stored_flow is not None:
                self._take_over(stored_flow)
            return lease

    def _take_over(self, stored_flow: models.FlowDetail) -> None:
        self._flow_detail.replace_with(stored_flow)
        self._by_name = _by_name(stored_flow)
        self._find_failures()
        self._injector = self._by_name.get(self.injector_name)
        self._savers = {name: to for name, to in self._savers.items() if name in self._by_name}
        if self._bindings is not None:
            # Renamed or new atoms have no record yet. `prepare` creates them.
            self._find_records(self._bindings, len(self.records))
        self.readings += 1

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Group changes that are written in one step (see the class).

        The caller holds `writer.mutex`. If this method acquired it, an interrupt in `__exit__`
        (which is Python code) could leave it locked.
        """
        writer = self.writer
        if writer.backend is None or writer.is_batching:
            yield
            return
        owned = writer.lease is not None
        with contextlib.nullcontext() if owned else self._leased(), writer.batch():
            yield

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        owner = _owners.new(momentary=True)
        try:
            self._await_lease(str(owner))
            try:
                yield
            except exceptions.LeaseLost:
                self.writer.drop_pending()
                raise
        finally:
            try:
                self.writer.release_lease(str(owner))
            finally:
                owner.end_run()

    def _await_lease(self, owner: str) -> _leases.Lease:
        until = time.monotonic() + _leases.CHANGE_WAIT_SECONDS
        while True:
            try:
                return self.acquire_lease(owner, _leases.LEASE_SECONDS)
            except exceptions.FlowBusy as busy:
                if not _owners.is_momentary(busy.owner) or time.monotonic() >= until:
                    raise
                time.sleep(_LEASE_RETRY_SECONDS)

    def mark_all(self) -> None:
        """Mark the flow and all atoms that began, because an interrupt may have prevented a mark.

        Call this only in the thread of the run.
        """
        begun = (record for record in self._by_name.values() if record.state != states.PENDING)
        self.writer.mark_all(begun)
        self.writer.mark_flow()
        self._find_failures()

    # Atoms.

    def ensure_atoms(self, atoms: Iterable[atom_module.Atom]) -> list[str]:
        """Create missing records of atoms in one step. Return the uuids of all atoms in order.

        :raises TypeError: if one of them is not an atom.
        :raises ValueError: if an atom has no name.
        :raises Duplicate: if an atom of the other kind (task or retry controller) has the same
            name.
        """
        atom_list = list(atoms)
        kinds: dict[type, type[models.AtomDetail]] = {}
        for atom in atom_list:
            if type(atom) not in kinds:
                kinds[type(atom)] = _detail_class(atom)
            if not atom.name:
                raise ValueError(f"Atom must have a name, got {atom!r}")
        with self.writer.mutex, self.batch():
            self._add_records(atom_list, kinds)
            records = self._by_name
            savers = [(atom.name, atom.save_as) for atom in atom_list if atom.save_as]
            # A new dict, because other threads may iterate over the old one.
            self._savers = {**self._savers, **dict(savers)}
            return [records[atom.name].uuid for atom in atom_list]

    def _add_records(
        self,
        wanted: list[atom_module.Atom],
        kinds: Mapping[type, type[models.AtomDetail]],
    ) -> None:
        records = self._by_name
        fresh = [atom for atom in wanted if atom.name not in records]
        new_records: list[models.AtomDetail] = []
        for atom, uuid in zip(fresh, models.new_uuids(len(fresh)), strict=True):
            if atom.name in records:
                continue
            kind = kinds[type(atom)]
            record = kind(atom.name, uuid)
            record.state = states.PENDING
            record.version = atom.version_string
            # `isinstance` with an abstract class for each task is slow.
            controller: Any = atom
            if kind is models.RetryDetail and controller._of_task is not None:
                record.meta = {models.OF_TASK: controller._of_task}
            records[atom.name] = record
            new_records.append(record)
        self._flow_detail.add_all(new_records)
        self.writer.mark_all(new_records)
        for atom in wanted if len(new_records) < len(wanted) else ():
            if not isinstance(records[atom.name], kinds[type(atom)]):
                raise exceptions.Duplicate(
                    f"Atom {atom.name!r} is stored as a {records[atom.name].kind}, and is now a"
                    f" {kinds[type(atom)].kind}"
                )

    def add_step(self, record: models.TaskDetail) -> None:
        """Add the record of a new step of a workflow. For the loop of the engine."""
        self._by_name[record.name] = record
        self._flow_detail.add(record)
        self.writer.mark(record)

    def drop_step(self, record: models.AtomDetail) -> None:
        """Delete the record of a step of a workflow. For the loop of the engine."""
        self._by_name.pop(record.name, None)
        self.writer.drop(record)

    def ensure_atom(self, atom: atom_module.Atom) -> str:
        """Create the record of `atom` if it is missing. Return its uuid."""
        return self.ensure_atoms([atom])[0]

    def bind(self, bindings: arguments.Bindings, size: int) -> None:
        """Set the bindings of the plan. The atoms of the plan must have records."""
        self._bindings = bindings
        self._find_records(bindings, size)

    def _find_records(self, bindings: arguments.Bindings, size: int) -> None:
        by_node: list[models.AtomDetail | None] = [None] * size
        for name, node in bindings.by_name.items():
            by_node[node] = self._by_name.get(name)
        self.records = by_node

    def record(self, atom_name: str) -> models.AtomDetail:
        """Return the record of an atom.

        :raises NotFound: if there is none; the message contains the most similar name.
        """
        record = self._by_name.get(atom_name) if isinstance(atom_name, str) else None
        if record is None:
            records = self._by_name
            near = (
                object_names.hint(str(atom_name), records)
                if records
                else ": no atom is prepared yet"
            )
            raise exceptions.NotFound(f"Unknown atom name {atom_name!r}{near}")
        return record

    def get_atom_uuid(self, atom_name: str) -> str:
        return self.record(atom_name).uuid

    def get_atom_state(self, atom_name: str) -> str | None:
        return self.record(atom_name).state

    def set_atom_state(self, atom_name: str, state: str) -> None:
        """Set the state of an atom without checking the transition.

        :raises ValueError: if the state is unknown.
        """
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self.writer.mutex, self._changed(atom_name) as record:
            record.state = state

    def set_atom_version(self, atom_name: str, version: str) -> None:
        """Set the version of an atom."""
        with self.writer.mutex, self._changed(atom_name) as record:
            record.version = version

    def get_atom_intention(self, atom_name: str) -> str:
        return self.record(atom_name).intention

    def set_atom_intention(self, atom_name: str, intention: str) -> None:
        """Set the intention for an atom.

        :raises ValueError: if the intention is unknown.
        """
        states.check_known("intention", intention, states.INTENTIONS)
        with self.writer.mutex, self._changed(atom_name) as record:
            record.intention = intention

    def get_atoms_states(self, atom_names: Iterable[str]) -> dict[str, tuple[str | None, str]]:
        """Return `{name: (state, intention)}`."""
        records = {name: self.record(name) for name in atom_names}
        return {name: (record.state, record.intention) for name, record in records.items()}

    def get_attempt(self, atom_name: str) -> models.Attempt | None:
        """Return the latest attempt (worker, times), or None before the first attempt."""
        return self.record(atom_name).last_attempt

    def update_atom_metadata(self, atom_name: str, update_with: Pairs | None) -> None:
        """Merge values into an atom's `meta`. None and empty values change nothing.

        `progress` and `progress_details` of a task set its progress.

        :raises TypeError: if `update_with` is neither a dict nor pairs, or `progress` is not a
            number.
        :raises NotEncodable: if a value cannot be stored; then nothing is changed.
        """
        self.record(atom_name)
        update = _pairs_of("metadata", update_with) if update_with is not None else None
        if update:
            self.check(update, "metadata")
            with self.writer.mutex, self._changed(atom_name) as record:
                record.meta.update(update)

    def reset(self, atom_name: str, state: str = states.PENDING) -> None:
        """Delete the results and failures of an atom. Attempt numbers and injected values remain.

        :raises ValueError: if the state is unknown.
        """
        if atom_name == self.injector_name:
            return
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self.writer.mutex, self._changed(atom_name) as record:
            record.reset(state)
            self._forget_failure(atom_name)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename atoms in all records, including histories.

        :param names: new names by old name. No record may have a new name.
        :raises NotFound: if there is no record with an old name.
        """
        if not names:
            return
        with self.writer.mutex, self.batch():
            changed = [self.record(old) for old in names]
            for record in changed:
                del self._by_name[record.name]
                record.name = names[record.name]
                self._by_name[record.name] = record
            for old in names.keys() & self._failed.keys():
                self._failed[names[old]] = self._failed.pop(old)
            self._failed_view = None
            for record in self._by_name.values():
                if isinstance(record, models.RetryDetail):
                    matching_failures = [
                        failed for _, failed in record.results if names.keys() & failed.keys()
                    ]
                    for failed in matching_failures:
                        for old in names.keys() & failed.keys():
                            failed[names[old]] = failed.pop(old)
                    changed += [record] if matching_failures else []
            for record in changed:
                self.writer.mark(record)

    @contextlib.contextmanager
    def _changed(self, atom_name: str) -> Iterator[models.AtomDetail]:
        """Yield the record of an atom for a change; the caller holds `writer.mutex`."""
        with self.batch():
            record = self.record(atom_name)
            yield record
            self.writer.mark(record)

    # Progress.

    def set_task_progress(
        self, task_name: str, progress: float, details: Mapping[str, Any] | None = None
    ) -> None:
        """Store the progress of a task (0 to 1) with optional details.

        Without `details`, the earlier details remain. Empty details delete them.

        :raises TypeError: if `progress` is not a number, or the atom is not a task.
        :raises ValueError: if `progress` is infinite or NaN.
        :raises NotEncodable: if a detail cannot be stored; then nothing is changed.
        """
        progress = self._task(task_name).check_progress(progress)
        new_details = None if details is None else _pairs_of("details", details)
        if new_details:
            self.check(new_details, "details")
        with self.writer.mutex, self.batch():
            record = self._task(task_name)
            record.progress = progress
            if new_details is not None:
                record.progress_details = (
                    {"at_progress": progress, "details": new_details} if new_details else None
                )
            self.writer.mark(record)

    def get_task_progress(self, task_name: str) -> float:
        """Return the progress that a task reported, or the progress implied by its state.

        :raises TypeError: if the atom is not a task.
        """
        return self._task(task_name).effective_progress or 0.0

    def get_task_progress_details(self, task_name: str) -> Any:
        """Return `{'at_progress': ..., 'details': ...}`, or None.

        :raises TypeError: if the atom is not a task.
        """
        return self._task(task_name).progress_details

    def _task(self, task_name: str) -> models.TaskDetail:
        record = self.record(task_name)
        if not isinstance(record, models.TaskDetail):
            raise TypeError(f"Atom {task_name!r} must be a task, got a {record.kind}")
        return record

    # The flow.

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

    def get_flow_state(self) -> str:
        return self._flow_detail.state or states.PENDING

    def set_flow_state(self, state: str) -> None:
        """Set the state of the flow without checking the transition (see `change_flow_state`).

        :raises ValueError: if the state is unknown.
        """
        states.check_known("state of a flow", state, states.FLOW_STATES)
        with self.writer.mutex, self.batch():
            self._flow_detail.enter(state, time.time())
            self.writer.mark_flow()

    def change_flow_state(self, state: str) -> tuple[bool, str]:
        """Change the state of the flow. Return whether it changed, and the earlier state.

        :raises InvalidState: if the transition is not allowed.
        """
        return self.move_flow(state, time.time())

    def move_flow(
        self, state: str, at: float, why: str | None = None, errors: str | None = None
    ) -> tuple[bool, str]:
        """Change the state as `change_flow_state` does. Add time and reason to the history.

        :param errors: see `Change`.
        :raises InvalidState: if the transition is not allowed.
        """
        with self.writer.mutex, self.batch():
            old = self.get_flow_state()
            moves = states.check_flow_transition(old, state)
            if moves:
                self._flow_detail.enter(state, at, why, errors)
                self.writer.mark_flow()
            return moves, old

    def note_code(self) -> None:
        """Store `code` with the next write, because it executes a task or step."""
        if self._flow_detail.code != self.code:
            with self.writer.mutex:
                self._flow_detail.code = self.code
                self.writer.mark_flow()

    def explain_flow_state(self, at: float, why: str) -> None:
        """Add a reason for the current state to the history."""
        with self.writer.mutex, self.batch():
            self._flow_detail.enter(self.get_flow_state(), at, why)
            self.writer.mark_flow()

    def update_flow_metadata(self, update_with: Pairs) -> None:
        """Merge values into the flow's `meta`.

        :raises TypeError: if `update_with` is neither a dict nor pairs.
        :raises NotEncodable: if a value cannot be stored; then nothing is changed.
        """
        update = _pairs_of("metadata", update_with)
        if update:
            self.check(update, "metadata")
            with self.writer.mutex, self.batch():
                self._flow_detail.meta.update(update)
                self.writer.mark_flow()

    # Results and failures.

    def save(self, atom_name: str, result: Any, state: str = states.SUCCESS) -> None:
        """Store the result of an atom, or its failure if `state` is a failed state.

        :raises ValueError: if the state is unknown.
        :raises TypeError: if the state is a failed state and `result` is not a `Failure`.
        :raises NotEncodable: if `result` cannot be stored; then nothing is changed.
        """
        self.record(atom_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        if state in _FAILED and not isinstance(result, ft.Failure):
            raise TypeError(f"Result saved with state {state} must be a Failure, got {result!r}")
        result = self.kept(result, "result")
        with self.writer.mutex, self.batch():
            self.put(self.record(atom_name), state, result)

    def put(self, record: models.AtomDetail, state: str, result: Any) -> None:
        """Store a result without checks. For the loop of the engine, which has the record."""
        record.put(state, result)
        if state == states.FAILURE:
            self._failed[record.name] = result
            self._failed_view = None
        elif self._failed and state == states.SUCCESS:
            self._forget_failure(record.name)
        if self.writer.backend is not None:
            self.writer.mark(record)

    def keepable(self, outcome: Any) -> Any:
        """Return the value of an `Outcome` as it is stored, or a failure if it cannot be stored.

        Values from workers need no check, because the codec has encoded them.
        """
        value = outcome.value
        local = outcome.worker == LOCAL
        if self.writer.encodes and local and not isinstance(value, ft.Failure):
            try:
                outcome.value = value = self.kept(value, "result")
            except Exception as error:  # Encoding a value may raise any exception.
                outcome.value = value = ft.Failure.from_exception(error)
        return value

    def check(self, value: Any, where: str) -> None:
        """Check that the store can encode a value. `where` is the start of the path in the error.

        :raises NotEncodable: if it cannot.
        """
        if self.writer.encodes:
            codec.pack(value, where)

    @property
    def large_values(self) -> Payloads | None:
        """Where large values are stored out of line; None: they stay in the records."""
        return self.payloads if self.writer.encodes else None

    def kept(self, value: Any, where: str) -> Any:
        """Return a value as it is stored: references replace large parts of it.

        :raises NotEncodable: if the store cannot encode it.
        """
        if self.large_values is None:
            self.check(value, where)
            return value
        return self.large_values.store_large(value, where, self.flow_uuid)

    def kept_value(self, value: Any, where: str, limit: int) -> Any:
        """Return a value with at most `limit` bytes as JSON, if it can be stored out of line."""
        if self.large_values is None:
            return value
        return self.large_values.store_large(value, where, self.flow_uuid, limit)

    def kept_each(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the values by name as `kept` does."""
        if self.large_values is None:
            self.check(values, where)
            return dict(values)
        return self.large_values.store_each(values, where, self.flow_uuid)

    def kept_items(self, values: list[Any], where: str) -> list[Any]:
        """Return the items of a list as `kept` does."""
        if self.large_values is None:
            self.check(values, where)
            return values
        return [self.kept(value, f"{where}[{index}]") for index, value in enumerate(values)]

    def loaded(self, value: Any, where: str) -> Any:
        """Return a value with the large parts that are stored out of line.

        :raises PayloadUnavailable: if one is lost or damaged, or cannot be read by this process.
        """
        return _payloads.loaded(self.payloads, value, where)

    def save_retry_failure(
        self, retry_name: str, failed_atom_name: str, failure: ft.Failure
    ) -> None:
        """Add a failure to the latest entry in the history of a retry controller, if there is one.

        :raises TypeError: if the atom is not a retry controller, or `failure` is not a `Failure`.
        """
        self._retry(retry_name)
        if not isinstance(failure, ft.Failure):
            raise TypeError(f"Failure of a history must be a Failure, got {failure!r}")
        with self.writer.mutex, self.batch():
            record = self._retry(retry_name)
            if record.results:
                record.last_failures[failed_atom_name] = failure
                self.writer.mark(record)

    def cleanup_retry_history(self, retry_name: str, state: str) -> None:
        """Delete the history of a retry controller and set its state.

        :raises TypeError: if the atom is not a retry controller.
        :raises ValueError: if the state is unknown.
        """
        self._retry(retry_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self.writer.mutex, self._changed(retry_name) as record:
            record.state = state
            record.results = []
            record.failure = None
            self._forget_failure(retry_name)

    def get_execute_result(self, atom_name: str) -> Any:
        """Return the result of `execute`, or its failure, even after the atom was reverted.

        For a retry controller, the result is its whole history.

        :raises NotFound: if there is no result (not executed, reset, ignored, reverted).
        """
        record = self.record(atom_name)
        if record.failure is not None:
            return record.failure
        if isinstance(record, models.RetryDetail):
            if record.results and record.state != states.REVERT_FAILURE:
                return self._loaded_history(record)
        elif record.state in models.STATES_WITH_RESULT:
            return self.loaded(record.results, f"result of {atom_name!r}")
        raise exceptions.NotFound(f"Atom {atom_name!r} has no result (its state is {record.state})")

    get = get_execute_result

    def get_revert_result(self, atom_name: str) -> Any:
        """Return the result of `revert`, or its failure.

        :raises NotFound: if the atom was not reverted.
        """
        record = self.record(atom_name)
        if record.state in _WITH_REVERT_RESULT:
            return (
                record.revert_failure
                if record.revert_failure is not None
                else self.loaded(record.revert_results, f"revert result of {atom_name!r}")
            )
        raise exceptions.NotFound(
            f"Atom {atom_name!r} has no revert result (its state is {record.state})"
        )

    def get_execute_failures(self) -> Mapping[str, ft.Failure]:
        """Return `{atom name: Failure}` of the latest executions, as a shared snapshot."""
        view = self._failed_view
        if view is None:
            view = self._failed_view = dict(self._failed)
        return view

    get_failures = get_execute_failures

    def get_revert_failures(self) -> dict[str, ft.Failure]:
        """Return `{atom name: Failure}` of the latest reverts, without steps. O(atoms)."""
        return {
            name: record.revert_failure
            for name, record in self._by_name.copy().items()
            if record.revert_failure is not None and not record.is_step
        }

    def get_execute_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).failure

    def get_revert_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).revert_failure

    def has_failures(self) -> bool:
        """Return True if the latest execution or revert of any atom failed."""
        return bool(self._failed) or bool(self.get_revert_failures())

    def get_retry_history(self, retry_name: str, now: float | None = None) -> retry_module.History:
        """Return the provided values and failures of a retry controller.

        :param now: Unix seconds, for `History.elapsed`. None: the clock of the host.
        :raises TypeError: if the atom is not a retry controller.
        """
        record = self._retry(retry_name)
        first_start = record.first_start
        elapsed = (
            0.0
            if first_start is None
            else max(0.0, (time.time() if now is None else now) - first_start)
        )
        return retry_module.History(
            self._loaded_history(record), record.failure, elapsed=elapsed, dropped=record.dropped
        )

    def begin_retry_history(self, retry_name: str, first_start: float) -> None:
        """Store when the first attempt of a retry controller began, in Unix seconds."""
        with self.writer.mutex, self.batch():
            record = self._retry(retry_name)
            record.meta[models.FIRST_START] = first_start
            self.writer.mark(record)

    def limit_retry_history(self, retry_name: str, max_attempts: int) -> None:
        """Drop the oldest attempts of a retry controller."""
        with self.writer.mutex, self.batch():
            record = self._retry(retry_name)
            surplus = len(record.results) - max_attempts
            if surplus > 0:
                record.meta[models.DROPPED] = record.dropped + surplus
                record.results = record.results[surplus:]
                self.writer.mark(record)

    def get_retry_histories(self) -> list[tuple[str, retry_module.History]]:
        return [
            (name, self.get_retry_history(name))
            for name, record in self._by_name.copy().items()
            if isinstance(record, models.RetryDetail)
        ]

    def _loaded_history(self, record: models.RetryDetail) -> list[models.HistoryEntry]:
        where = f"history of {record.name!r}"
        return [(self.loaded(value, where), failures) for value, failures in record.results]

    def _retry(self, retry_name: str) -> models.RetryDetail:
        record = self.record(retry_name)
        if not isinstance(record, models.RetryDetail):
            raise TypeError(f"Atom {retry_name!r} must be a retry, got a {record.kind}")
        return record

    def _find_failures(self) -> None:
        self._failed_view = None
        self._failed = {
            name: record.failure
            for name, record in self._by_name.items()
            if record.failure is not None and not record.is_step
        }

    def _forget_failure(self, atom_name: str) -> None:
        if self._failed.pop(atom_name, None) is not None:
            self._failed_view = None

    # Values.

    def inject(self, pairs: Pairs, transient: bool = False) -> list[str]:
        """Provide values to all atoms of the flow. Return their names.

        `transient` values are not written. Injected values take precedence over values of atoms,
        and transient values over other injected values.

        :raises TypeError: if `pairs` is neither a dict nor pairs, or a name is not a string.
        :raises NotEncodable: if a value that is not transient cannot be stored; then nothing is
            changed.
        """
        values = values_by_name(pairs)
        if transient:
            with self.writer.mutex:
                self._transient.update(values)
            return list(values)
        values = self.kept_each(values, "injected values")
        with self.writer.mutex, self.batch():
            self._injector = add_injected(self._flow_detail, values, self._injector)
            self._by_name[self.injector_name] = self._injector
            _macs.sign_injected(self._flow_detail, self._injector)
            self.writer.mark(self._injector)
        return list(values)

    def replace_inputs(self, values: Mapping[str, Any]) -> None:
        """Replace values that were injected into the flow, and sign them if they were signed.

        :raises NotEncodable: if a value cannot be stored; then nothing is changed.
        """
        with self.writer.mutex, self.batch():
            self.inject(values)
            _macs.sign_again(self._flow_detail)
            self.writer.mark_flow()

    def replace_result(self, task_name: str, value: Any) -> None:
        """Replace the result of a task that has succeeded. Its attempts do not change.

        :raises NotEncodable: if the value cannot be stored; then nothing is changed.
        """
        value = self.kept(value, "result")
        with self.writer.mutex, self._changed(task_name) as record:
            record.results = value

    def _add_defaults(self, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        """Add defaults of parameters, by name of the atom, to a flow that is not stored yet."""
        if not defaults:
            return
        self._injector = add_injected(self._flow_detail, {}, self._injector)
        self._by_name[self.injector_name] = self._injector
        self._injector.meta[models.META_DEFAULTS] = defaults

    def _defaults_of(self, atom_name: str) -> Mapping[str, Any]:
        """Return the defaults that `_add_defaults` added for an atom."""
        injector = self._injector
        stored = None if injector is None else injector.meta_value(models.META_DEFAULTS)
        defaults: Mapping[str, Any] = (stored or _NOTHING).get(atom_name, _NOTHING)
        return defaults

    def inject_atom_args(self, atom_name: str, pairs: Pairs, transient: bool = True) -> None:
        """Provide values to one atom, with precedence over all other sources.

        :raises NotFound: if there is no such atom (`prepare` creates its record).
        :raises TypeError: if `pairs` is neither a dict nor pairs, or a name is not a string.
        :raises NotEncodable: if a value that is not transient cannot be stored; then nothing is
            changed.
        """
        self.record(atom_name)
        values = values_by_name(pairs)
        if transient:
            with self.writer.mutex:
                transient_args = self._transient_args.get(atom_name)
                self._transient_args[atom_name] = (
                    {**transient_args, **values} if transient_args else values
                )
            return
        values = self.kept_each(values, f"values injected for {atom_name!r}")
        with self.writer.mutex, self._changed(atom_name) as record:
            record.meta[META_INJECTED] = {**record.meta.get(META_INJECTED, _NOTHING), **values}
            _macs.sign_injected(self._flow_detail, record)

    def fetch(self, name: str, many_handler: ManyHandler | None = None) -> Any:
        """Return the first value of `name`, or the result of `many_handler` for all its values.

        If a provider failed and `name` stands for its whole result, the value is its failure.

        :raises NotFound: if no atom provides `name`, or none has provided it yet.
        :raises TypeError: if `name` is not a string.
        """
        if not isinstance(name, str):
            raise TypeError(f"Stored name must be a str, got {name!r}")
        values = [self.loaded(value, f"value {name!r}") for value in self._values(name)]
        if values:
            return many_handler(values) if many_handler is not None else values[0]
        known_names = self.known_names()
        if name not in known_names:
            raise exceptions.NotFound(
                f"No atom provides {name!r} in flow {self.flow_name!r}"
                f"{object_names.hint(name, known_names)}"
            )
        raise exceptions.NotFound(f"No atom has provided {name!r} yet")

    def fetch_all(self, many_handler: ManyHandler | None = None) -> dict[str, Any]:
        """Return all values by name. Several values of a name are a list (see `fetch_many`).

        Atoms without a result are skipped. O(providers).
        """
        combine = many_handler if many_handler is not None else _one_or_all
        return {name: combine(values) for name, values in self.fetch_many().items()}

    def fetch_many(self, *, load: bool = True) -> dict[str, list[Any]]:
        """Return lists of all values by name, in the order of `fetch`.

        :param load: False: return references to values that are stored out of line.
        """
        values: dict[str, list[Any]] = {}
        for source in self._flow_sources():
            for name, value in dict(source).items():  # A copy, as other threads may inject values.
                values.setdefault(name, []).append(value)
        for atom_name, save_as in self._savers.items():
            record = self._by_name[atom_name]
            for name, index in save_as.items():
                value = self._part_or_failure(record, index)
                if value is not arguments.MISSING:
                    values.setdefault(name, []).append(value)
        if not load:
            return values
        return {
            name: [self.loaded(value, f"value {name!r}") for value in each]
            for name, each in values.items()
        }

    def fetch_mapped_args(
        self,
        args_mapping: Mapping[str, str],
        atom_name: str | None = None,
        scope_walker: Any = None,
        optional_args: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return keyword arguments for `args_mapping` (argument to stored name).

        :param atom_name: the atom whose visible providers are used. None: use all providers.
        :param scope_walker: accepted for compatibility. The plan defines visibility.
        :raises NotFound: if a required argument has no value, or there is no such atom.
        :raises TypeError: if `args_mapping` is not a dict.
        """
        optional = optional_args if optional_args is not None else ()
        if not isinstance(args_mapping, Mapping):
            raise TypeError(
                f"args_mapping must be a dict of argument to name, got {args_mapping!r}"
            )
        if atom_name is None:
            return {
                argument: self.fetch(name)
                for argument, name in args_mapping.items()
                if argument not in optional or any(True for _ in self._values(name))
            }
        node = self._node(atom_name)
        if node < 0:
            self.record(atom_name)
        return {
            argument: self.loaded(value, f"argument {argument!r} of {atom_name!r}")
            for argument, value in self.gather(node, atom_name, args_mapping, optional).items()
        }

    def gather(
        self,
        node: int,
        atom_name: str,
        args_mapping: Mapping[str, str],
        optional_args: Collection[str],
        inputs: Mapping[str, Any] = _NOTHING,
    ) -> dict[str, Any]:
        """Do the same as `fetch_mapped_args`, but load no values that are stored out of line.

        For the loop of the engine, which has the node.

        :param inputs: values with precedence over those injected into the flow.
        """
        return arguments.gather(
            args_mapping,
            optional_args,
            self.injected_for(atom_name, inputs),
            self._bindings if node >= 0 else None,
            node,
            self._read,
        )

    def fetch_unsatisfied_args(
        self,
        atom_name: str,
        args_mapping: Mapping[str, str],
        scope_walker: Any = None,
        optional_args: Collection[str] | None = None,
    ) -> set[str]:
        """Return the arguments that nothing can ever provide to the atom.

        For an atom outside of the plan, these are the arguments that are not injected.

        :raises NotFound: if there is no such atom.
        """
        self.record(atom_name)
        return set(self.unsatisfied(atom_name, args_mapping, optional_args))

    def unsatisfied(
        self,
        atom_name: str,
        args_mapping: Mapping[str, str],
        optional_args: Collection[str] | None = None,
    ) -> dict[str, str]:
        """Return the result of `fetch_unsatisfied_args` as `{argument: stored name}`."""
        optional = optional_args if optional_args is not None else ()
        node = self._node(atom_name)
        bindings = self._bindings if node >= 0 else None
        sources = self.injected_for(atom_name)
        return arguments.unsatisfied(args_mapping, optional, sources, bindings, node)

    def replace(self, atom_name: str, name: str, old: Any, new: Any) -> None:
        """Replace the value `old` that `atom_name` received under `name` by `new`, for all readers.

        This is for values that can be read only once. Call it only in the thread of the engine.
        """
        transient_args = self._transient_args.get(atom_name)
        if transient_args and transient_args.get(name) is old:
            self._transient_args[atom_name] = {**transient_args, name: new}
            return
        if self._transient.get(name) is old:
            self._transient = {**self._transient, name: new}
            return
        if self._injector is not None and self._injector.results.get(name) is old:
            self._injector.results = {**self._injector.results, name: new}
            self.writer.mark(self._injector)
            return
        node = self._node(atom_name)
        if self._bindings is None or node < 0:
            return
        for provider in self._bindings.candidates(node, name):
            if self._read(provider.node, provider.index) is old:
                self._replace_part(provider, new)
                return

    def _replace_part(self, provider: arguments.Provider, new: Any) -> None:
        record, index = self.records[provider.node], provider.index
        if record is None or isinstance(record, models.RetryDetail):
            return
        if index is None:
            record.results = new
        elif isinstance(record.results, tuple):
            record.results = (*record.results[:index], new, *record.results[index + 1 :])
        else:
            record.results[index] = new
        self.writer.mark(record)

    # Reading.

    def _read(self, node: int, index: Any) -> Any:
        record = self.records[node]
        return arguments.MISSING if record is None else self._part(record, index)

    def _part(self, record: models.AtomDetail, index: Any) -> Any:
        if isinstance(record, models.RetryDetail):
            if not record.results or record.state == states.REVERT_FAILURE:
                return arguments.MISSING
            return self._element(record, record.last_results, index)
        if record.failure is not None or record.state not in models.STATES_WITH_RESULT:
            return arguments.MISSING
        return self._element(record, record.results, index)

    def _element(self, record: models.AtomDetail, value: Any, index: Any) -> Any:
        if index is not None and type(value) is Reference:  # Many small values together.
            value = self.loaded(value, f"result of {record.name!r}")
        return arguments.element(value, index)

    def _part_or_failure(self, record: models.AtomDetail, index: Any) -> Any:
        """Return the same as `_part`, but a failure replaces the whole result."""
        if record.failure is not None and index is None:
            return record.failure
        return self._part(record, index)

    def _flow_sources(self) -> list[Mapping[str, Any]]:
        sources: list[Mapping[str, Any]] = []
        if self._transient:
            sources.append(self._transient)
        if self._injector is not None:
            sources.append(self._injector.results)
        return sources

    def injected_for(
        self, atom_name: str, inputs: Mapping[str, Any] = _NOTHING
    ) -> list[Mapping[str, Any]]:
        """Return the mappings injected for an atom, in order of precedence.

        :param inputs: values with precedence over those injected into the flow.
        """
        sources: list[Mapping[str, Any]] = []
        transient_args = self._transient_args.get(atom_name)
        if transient_args:
            sources.append(transient_args)
        record = self._by_name.get(atom_name)
        stored_args = None if record is None else record.meta_value(META_INJECTED)
        if stored_args is not None:
            sources.append(stored_args)
        if inputs:
            sources.append(inputs)
        return sources + self._flow_sources()

    def _values(self, name: str) -> Iterator[Any]:
        for source in self._flow_sources():
            if name in source:
                yield source[name]
        for atom_name, save_as in self._savers.items():
            if name in save_as:
                value = self._part_or_failure(self._by_name[atom_name], save_as[name])
                if value is not arguments.MISSING:
                    yield value

    def inputs(self) -> dict[str, Any]:
        """Return the values injected for the flow, by name."""
        values: dict[str, Any] = {}
        for source in reversed(list(self._flow_sources())):
            values.update(source)
        return values

    def known_names(self) -> set[str]:
        """Return all names that are injected for the flow or provided by an atom."""
        names = {name for save_as in self._savers.values() for name in save_as}
        return names.union(*self._flow_sources())

    def _node(self, atom_name: str) -> int:
        return -1 if self._bindings is None else self._bindings.by_name.get(atom_name, -1)


def add_injected(
    flow: models.FlowDetail, values: Mapping[str, Any], injector: models.AtomDetail | None = None
) -> models.AtomDetail:
    """Inject values into a flow. Create the injector record if necessary."""
    if injector is None:
        injector = models.TaskDetail(models.INJECTOR)
        injector.state = states.SUCCESS
        flow.add(injector)
    # A new dict, because another thread may be writing the old one to the store.
    injector.results = {**(injector.results or {}), **values}
    return injector


def values_by_name(pairs: Pairs) -> dict[str, Any]:
    """Return a new dict of values to inject.

    :raises TypeError: if `pairs` is neither a dict nor pairs, or a name is not a string.
    :raises ValueError: if a name is too long.
    """
    values = _pairs_of("injected values", pairs)
    for name in values:
        if not isinstance(name, str):
            raise TypeError(
                f"Injected value names must be str, got {type(name).__name__}: {name!r}"
            )
        object_names.check_length("Value name", name)
    return values


def _pairs_of(what: str, pairs: Pairs) -> dict[Any, Any]:
    try:
        return dict(pairs)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a dict or pairs, got {pairs!r}") from None


def _detail_class(atom: atom_module.Atom) -> type[models.AtomDetail]:
    if not isinstance(atom, atom_module.Atom):
        raise TypeError(f"atom must be an Atom, got {atom!r}")
    return models.RetryDetail if isinstance(atom, retry_module.Retry) else models.TaskDetail


def _by_name(flow_detail: models.FlowDetail) -> dict[str, models.AtomDetail]:
    """Return the records by name. If two records have the same name, return the used one."""
    records: dict[str, models.AtomDetail] = {}
    for record in flow_detail:
        earlier_record = records.get(record.name)
        if earlier_record is None or _usage_key(record) > _usage_key(earlier_record):
            records[record.name] = record
    return records


def _usage_key(record: models.AtomDetail) -> tuple[int, bool]:
    """Return a sort key that is higher for used records. Ignored atoms have no attempt."""
    return record.attempt, record.state not in (None, states.PENDING)


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
