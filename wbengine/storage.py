"""What an engine knows of one run of a flow, and where atoms get their arguments from.

A `Storage` is composed of the records of the flow, of a `RecordWriter`, which brings them to the
store, and of the `Bindings` of a compiled plan, which say who sees whose results.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import _codec, _names, arguments, exceptions, states
from wbengine import atom as atom_module
from wbengine import invocation as calls
from wbengine import retry as retry_module
from wbengine.persistence import _lock, base, leases, macs, models, owners, writer
from wbengine.types import failure as ft

__all__ = [
    "META_INJECTED",
    "META_PROGRESS",
    "META_PROGRESS_DETAILS",
    "STATES_WITH_RESULTS",
    "Storage",
    "add_injected",
    "values_by_name",
]

#: Keys of an atom's `meta`: what was injected for it to stay, and how far it is.
META_INJECTED: Final = models.META_INJECTED
META_PROGRESS: Final = models.META_PROGRESS
META_PROGRESS_DETAILS: Final = models.META_PROGRESS_DETAILS

#: States of an atom in which there is something to `get`: a result or a failure.
STATES_WITH_RESULTS: Final = (
    states.FAILURE,
    states.REVERTED,
    states.REVERTING,
    states.REVERT_FAILURE,
    states.SUCCESS,
)

#: Seconds between two tries to take a lease that another holds for one change.
_PAUSE: Final = 0.01

_NOTHING: Final[Mapping[str, Any]] = {}

_FAILED: Final = frozenset({states.FAILURE, states.REVERT_FAILURE})
_WITH_REVERT_RESULT: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})

Pairs = Mapping[str, Any] | Iterable[tuple[str, Any]]

#: Chooses or combines the values of a name that several providers made.
ManyHandler = Callable[[list[Any]], Any]


class Storage:
    """The results, states, failures and injected values of one flow: all of it.

    `backend` (or None) keeps them.  (`scope_fetcher` is accepted for compatibility; the plan says
    what is visible.)

    Writing: while an engine here runs the flow, what changes is written with what the run writes
    next.  At any other time each change takes the flow's lease for a moment, reads the records
    again if somebody else may have changed them, is written, and gives the lease back; while
    somebody else runs the flow it raises `FlowBusy`, and changes nothing.  Another such change is
    waited for, two seconds at most.  It raises `StorageFailure` where the store cannot be written.

    Threads: every public method may be called from any thread; those that change something hold
    `lock` while they do.  The engine's own loop changes the records of atoms that begin and finish
    without it (that is why a running atom's state, results and failures are the loop's to change).
    """

    #: Name of the record that keeps what was injected for the whole flow.
    injector_name: Final = models.INJECTOR

    def __init__(
        self,
        flow_detail: models.FlowDetail,
        backend: base.Backend | None = None,
        scope_fetcher: Any = None,
    ) -> None:
        if not isinstance(flow_detail, models.FlowDetail):
            raise TypeError(f"flow_detail must be a FlowDetail, not {flow_detail!r}")
        self._flow_detail = flow_detail
        #: Writes what is marked there.
        self.writer: Final = writer.RecordWriter(flow_detail, backend)
        self._by_name: dict[str, models.AtomDetail] = _by_name(flow_detail)
        self._resumed = any(name != self.injector_name for name in self._by_name)
        self._failed: dict[str, ft.Failure] = {}
        self._failed_view: Mapping[str, ft.Failure] | None = None
        self._find_failures()
        self._savers: dict[str, Mapping[str, Any]] = {}
        self._transient: dict[str, Any] = {}
        self._transient_args: dict[str, Mapping[str, Any]] = {}
        self._injector: models.AtomDetail | None = self._by_name.get(self.injector_name)
        self._bindings: arguments.Bindings | None = None
        #: The records by plan node (None where the node is no atom); set by `bind`.
        self.records: Sequence[models.AtomDetail | None] = ()
        #: How often the records were read again: then those of before are not used any more.
        self.readings = 0

    @property
    def lock(self) -> _lock.Lock:
        """Who holds it is the only one to change anything through the methods of this class."""
        return _lock.Lock(self.writer.mutex)

    @property
    def backend(self) -> base.Backend | None:
        return self.writer.backend

    # -- whose it is ----------------------------------------------------------------------------

    def take_lease(self, owner: str, seconds: float) -> leases.Lease:
        """Become the one who changes the flow; read again what others may have changed.

        `writer` gives the lease back.

        :raises FlowBusy: somebody else runs or changes the flow; the text says who.
        :raises StorageFailure: the store could not be asked, or read.
        """
        with self.writer.mutex:
            lease, kept = self.writer.take_lease(owner, seconds)
            if kept is not None:
                self._take_over(kept)
            return lease

    def _take_over(self, kept: models.FlowDetail) -> None:
        """Replace all records by those that are kept."""
        self._flow_detail.become(kept)
        self._by_name = _by_name(kept)
        self._resumed = True
        self._find_failures()
        self._injector = self._by_name.get(self.injector_name)
        self._savers = {name: to for name, to in self._savers.items() if name in self._by_name}
        if self._bindings is not None:
            # What is missing here has been renamed, or is new; `prepare` sees to that.
            self._find_records(self._bindings, len(self.records))
        self.readings += 1

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Change several things, alone, which are written in one step (see the class)."""
        writer = self.writer
        with writer.mutex:
            if writer.backend is None or writer.batching:
                yield
                return
            owned = writer.lease is not None
            with contextlib.nullcontext() if owned else self._leased(), writer.batch():
                yield

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        """Hold the lease of the flow, which nobody here runs."""
        owner = owners.new(momentary=True)
        try:
            lease = self._await_lease(str(owner))
            try:
                yield
            except exceptions.LeaseLost:
                self.writer.drop_pending()
                raise
            finally:
                self.writer.detach_lease()
                self.writer.give_back_lease(lease)
        finally:
            owner.let_go()

    def _await_lease(self, owner: str) -> leases.Lease:
        """Take the lease; another's that is held for one change only is waited for."""
        until = time.monotonic() + leases.MOMENT
        while True:
            try:
                return self.take_lease(owner, leases.LEASE_SECONDS)
            except exceptions.FlowBusy as busy:
                if not owners.is_momentary(busy.owner) or time.monotonic() >= until:
                    raise
                time.sleep(_PAUSE)

    # -- atoms ----------------------------------------------------------------------------------

    def ensure_atoms(self, atoms: Iterable[atom_module.Atom]) -> list[str]:
        """Make sure every atom has a record, and return their uuids in the same order.

        One write for all that are new.

        :raises TypeError: something else than an atom is among them.
        :raises ValueError: an atom has no name.
        :raises Duplicate: an atom of another kind (task or retry) uses the name already.
        """
        wanted = list(atoms)
        kinds: dict[type, type[models.AtomDetail]] = {}
        for atom in wanted:
            if type(atom) not in kinds:
                kinds[type(atom)] = _detail_class(atom)
            if not atom.name:
                raise ValueError(f"An atom needs a name to have a record: {atom!r}")
        with self.batch():
            self._add_records(wanted, kinds)
            known = self._by_name
            savers = [(atom.name, atom.save_as) for atom in wanted if atom.save_as]
            # A new dict: other threads may be going through the old one.
            self._savers = {**self._savers, **dict(savers)}
            if self._resumed:
                self._claim_failures({atom.name: atom._home() for atom in wanted})
            return [known[atom.name].uuid for atom in wanted]

    def _add_records(
        self,
        wanted: list[atom_module.Atom],
        kinds: Mapping[type, type[models.AtomDetail]],
    ) -> None:
        known = self._by_name
        fresh = [atom for atom in wanted if atom.name not in known]
        made: list[models.AtomDetail] = []
        for atom, uuid in zip(fresh, models.new_uuids(len(fresh)), strict=True):
            if atom.name in known:
                continue
            record = kinds[type(atom)](atom.name, uuid)
            record.state = states.PENDING
            record.version = atom.version_string
            known[atom.name] = record
            made.append(record)
        self._flow_detail.add_all(made)
        self.writer.mark_all(made)
        for atom in wanted if len(made) < len(wanted) else ():
            if not isinstance(known[atom.name], kinds[type(atom)]):
                raise exceptions.Duplicate(
                    f"Atom {atom.name!r} is stored as a {known[atom.name].kind}, and is now a"
                    f" {kinds[type(atom)].kind}"
                )

    def _claim_failures(self, homes: Mapping[str, str]) -> None:
        """Tell failures that were read back which modules their atoms come from."""
        for name, home in homes.items():
            record = self._by_name[name]
            for part in (record, *(record.items or ())):
                for failure in (part.failure, part.revert_failure):
                    if failure is not None:
                        failure.belongs_to(home)
            if isinstance(record, models.RetryDetail):
                for _, failures in record.results:
                    for failed, failure in failures.items():
                        if failed in homes:
                            failure.belongs_to(homes[failed])

    def ensure_atom(self, atom: atom_module.Atom) -> str:
        """Make sure `atom` has a record, and return its uuid."""
        return self.ensure_atoms([atom])[0]

    def bind(self, bindings: arguments.Bindings, size: int) -> None:
        """Learn the plan: who sees whose results.  Its atoms must have been ensured."""
        self._bindings = bindings
        self._find_records(bindings, size)

    def _find_records(self, bindings: arguments.Bindings, size: int) -> None:
        by_node: list[models.AtomDetail | None] = [None] * size
        for name, node in bindings.by_name.items():
            by_node[node] = self._by_name.get(name)
        self.records = by_node

    def record(self, atom_name: str) -> models.AtomDetail:
        """The record of an atom.

        :raises NotFound: there is none of that name; the text has the nearest one.
        """
        found = self._by_name.get(atom_name) if isinstance(atom_name, str) else None
        if found is None:
            known = self._by_name
            near = _names.hint(str(atom_name), known) if known else ": no atom is prepared yet"
            raise exceptions.NotFound(f"Unknown atom name {atom_name!r}{near}")
        return found

    def get_atom_uuid(self, atom_name: str) -> str:
        return self.record(atom_name).uuid

    def get_atom_state(self, atom_name: str) -> str | None:
        return self.record(atom_name).state

    def set_atom_state(self, atom_name: str, state: str) -> None:
        """Enter `state`, whatever the state before.

        :raises ValueError: atoms have no such state.
        """
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self._changed(atom_name) as record:
            record.state = state

    def set_atom_version(self, atom_name: str, version: str) -> None:
        """Note of which version an atom is."""
        with self._changed(atom_name) as record:
            record.version = version

    def get_atom_intention(self, atom_name: str) -> str:
        return self.record(atom_name).intention

    def set_atom_intention(self, atom_name: str, intention: str) -> None:
        """Note what is meant to be done with the atom.

        :raises ValueError: there is no such intention.
        """
        states.check_known("intention", intention, states.INTENTIONS)
        with self._changed(atom_name) as record:
            record.intention = intention

    def get_atoms_states(self, atom_names: Iterable[str]) -> dict[str, tuple[str | None, str]]:
        """`{name: (state, intention)}`."""
        found = {name: self.record(name) for name in atom_names}
        return {name: (record.state, record.intention) for name, record in found.items()}

    def get_attempt(self, atom_name: str) -> models.Attempt | None:
        """Who ran the atom last, when, and for how long; None before its first attempt."""
        return self.record(atom_name).last_attempt

    def update_atom_metadata(self, atom_name: str, update_with: Pairs | None) -> None:
        """Add to an atom's `meta`; keys that are there already get the new values.

        None and nothing at all add nothing.

        :raises TypeError: neither a dict nor pairs.
        :raises NotEncodable: the store cannot keep a value; nothing is changed then.
        """
        self.record(atom_name)
        update = _pairs_of("metadata", update_with) if update_with is not None else None
        if update:
            self.check(update, "metadata")
            with self._changed(atom_name) as record:
                record.meta.update(update)

    def reset(self, atom_name: str, state: str = states.PENDING) -> None:
        """Forget an atom's results and failures; its attempt number goes on rising.

        What was injected for the flow stays.

        :raises ValueError: atoms have no such state.
        """
        if atom_name == self.injector_name:
            return
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self._changed(atom_name) as record:
            record.reset(state)
            self._forget_failure(atom_name)

    def rename(self, names: Mapping[str, str]) -> None:
        """Let what is recorded of atoms be what is known of others; also in histories.

        :param names: old name -> new name, which no record has.
        :raises NotFound: there is no record of an old name.
        """
        if not names:
            return
        with self.batch():
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
                    told = [failed for _, failed in record.results if names.keys() & failed.keys()]
                    for failed in told:
                        for old in names.keys() & failed.keys():
                            failed[names[old]] = failed.pop(old)
                    changed += [record] if told else []
            for record in changed:
                self.writer.mark(record)

    @contextlib.contextmanager
    def _changed(self, atom_name: str) -> Iterator[models.AtomDetail]:
        """The record of an atom, to be changed."""
        with self.batch():
            record = self.record(atom_name)
            yield record
            self.writer.mark(record)

    # -- progress -------------------------------------------------------------------------------

    def set_task_progress(
        self, task_name: str, progress: float, details: Mapping[str, Any] | None = None
    ) -> None:
        """Remember how far a task is (0..1), and what it said besides.

        Without `details` those told before stay; empty ones remove them.

        :raises TypeError: not a number, or not a task.
        :raises ValueError: the number is infinite or NaN.
        :raises NotEncodable: the store cannot keep a detail; nothing is changed then.
        """
        self._task(task_name)
        if not isinstance(progress, int | float):
            raise TypeError(f"The progress of {task_name!r} must be a number, not {progress!r}")
        if not math.isfinite(progress):
            raise ValueError(f"The progress of {task_name!r} must be finite, not {progress!r}")
        told = None if details is None else _pairs_of("details", details)
        if told:
            self.check(told, "details")
        with self.batch():
            record = self._task(task_name)
            record.progress = progress
            if told is not None:
                record.progress_details = (
                    {"at_progress": progress, "details": told} if told else None
                )
            self.writer.mark(record)

    def get_task_progress(self, task_name: str) -> float:
        """How far a task is: what it last told, or else what its state says.

        :raises TypeError: not a task.
        """
        return self._task(task_name).so_far or 0.0

    def get_task_progress_details(self, task_name: str) -> Any:
        """`{'at_progress': ..., 'details': ...}`, or None when nothing was said.

        :raises TypeError: not a task.
        """
        return self._task(task_name).progress_details

    def _task(self, task_name: str) -> models.TaskDetail:
        record = self.record(task_name)
        if not isinstance(record, models.TaskDetail):
            raise TypeError(f"Atom {task_name!r} is a {record.kind}, not a task")
        return record

    # -- the flow -------------------------------------------------------------------------------

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
        """Enter `state`, whatever the state before (see `change_flow_state`).

        :raises ValueError: flows have no such state.
        """
        states.check_known("state of a flow", state, states.FLOW_STATES)
        with self.batch():
            self._flow_detail.enter(state, time.time())
            self.writer.mark_flow()

    def change_flow_state(self, state: str) -> tuple[bool, str]:
        """Enter `state` if that is a change; return whether it was, and the state before.

        :raises InvalidState: the transition is not legal.
        """
        return self.move_flow(state, time.time())

    def move_flow(self, state: str, at: float, why: str | None = None) -> tuple[bool, str]:
        """`change_flow_state`, at a moment (unix seconds), for a reason: the history tells both.

        :raises InvalidState: the transition is not legal.
        """
        with self.batch():
            old = self.get_flow_state()
            moves = states.check_flow_transition(old, state)
            if moves:
                self._flow_detail.enter(state, at, why)
                self.writer.mark_flow()
            return moves, old

    def update_flow_metadata(self, update_with: Pairs) -> None:
        """Add to the flow's `meta`; keys that are there already get the new values.

        :raises TypeError: neither a dict nor pairs.
        :raises NotEncodable: the store cannot keep a value; nothing is changed then.
        """
        update = _pairs_of("metadata", update_with)
        if update:
            self.check(update, "metadata")
            with self.batch():
                self._flow_detail.meta.update(update)
                self.writer.mark_flow()

    # -- results and failures -------------------------------------------------------------------

    def save(self, atom_name: str, result: Any, state: str = states.SUCCESS) -> None:
        """Store what an atom came to: a value, or a failure when `state` is a failed one.

        :raises ValueError: atoms have no such state.
        :raises TypeError: the state is a failed one, and `result` is no `Failure`.
        :raises NotEncodable: the store cannot keep `result`; nothing is changed then.
        """
        self.record(atom_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        if state in _FAILED and not isinstance(result, ft.Failure):
            raise TypeError(f"With state {state} a Failure is saved, not {result!r}")
        self.check(result, "result")
        with self.batch():
            self.put(self.record(atom_name), state, result)

    def put(self, record: models.AtomDetail, state: str, result: Any) -> None:
        """`save` for the engine's loop, which holds the record and is not checked."""
        record.put(state, result)
        if state == states.FAILURE:
            self._failed[record.name] = result
            self._failed_view = None
        elif self._failed and state == states.SUCCESS:
            self._forget_failure(record.name)
        if self.writer.backend is not None:
            self.writer.mark(record)

    def keepable(self, outcome: Any) -> Any:
        """The value of an `Outcome`, or what its atom fails with because that cannot be kept.

        What came from a worker came through the codec already.
        """
        value = outcome.value
        local = outcome.worker == calls.LOCAL
        if self.writer.encodes and local and not isinstance(value, ft.Failure):
            try:
                self.check(value, "result")
            except Exception as error:  # whatever a result does, nobody but its atom is hurt
                outcome.value = value = ft.Failure.from_exception(error)
        return value

    def check(self, value: Any, where: str) -> None:
        """Refuse what the store cannot keep; `where` begins the path in the error.

        :raises NotEncodable: `types.codec` does not take it, and the store takes nothing else.
        """
        if self.writer.encodes:
            _codec.pack(value, where)

    def save_retry_failure(
        self, retry_name: str, failed_atom_name: str, failure: ft.Failure
    ) -> None:
        """Add to the history who failed while the retry's latest value was provided.

        Before it provided anything there is nothing to add to, and nothing is done.

        :raises TypeError: not a retry, or no `Failure`.
        """
        self._retry(retry_name)
        if not isinstance(failure, ft.Failure):
            raise TypeError(f"A history takes a Failure, not {failure!r}")
        with self.batch():
            record = self._retry(retry_name)
            if record.results:
                record.last_failures[failed_atom_name] = failure
                self.writer.mark(record)

    def cleanup_retry_history(self, retry_name: str, state: str) -> None:
        """Forget a retry's history and enter `state`.

        :raises TypeError: not a retry.
        :raises ValueError: atoms have no such state.
        """
        self._retry(retry_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        with self._changed(retry_name) as record:
            record.state = state
            record.results = []
            record.failure = None
            self._forget_failure(retry_name)

    def get_execute_result(self, atom_name: str) -> Any:
        """What `execute` returned, or its failure; a retry's whole history.

        A failure is there also when the atom was reverted after it.

        :raises NotFound: there is neither (not executed, reset, ignored, reverted).
        """
        record = self.record(atom_name)
        if record.failure is not None:
            return record.failure
        if isinstance(record, models.RetryDetail):
            if record.results and record.state != states.REVERT_FAILURE:
                return record.results
        elif record.state in models.WITH_RESULT:
            return record.results
        raise exceptions.NotFound(
            f"The result of atom {atom_name!r} is not known (its state is {record.state})"
        )

    get = get_execute_result

    def get_revert_result(self, atom_name: str) -> Any:
        """What `revert` returned, or its failure.

        :raises NotFound: it was not reverted.
        """
        record = self.record(atom_name)
        if record.state in _WITH_REVERT_RESULT:
            return (
                record.revert_failure
                if record.revert_failure is not None
                else record.revert_results
            )
        raise exceptions.NotFound(
            f"The result of reverting atom {atom_name!r} is not known (its state is {record.state})"
        )

    def get_execute_failures(self) -> Mapping[str, ft.Failure]:
        """`{atom name: Failure}` of the latest executions (a snapshot, shared by its readers)."""
        view = self._failed_view
        if view is None:
            view = self._failed_view = dict(self._failed)
        return view

    get_failures = get_execute_failures

    def get_revert_failures(self) -> dict[str, ft.Failure]:
        """`{atom name: Failure}` of the latest reversions; O(atoms)."""
        return {
            name: record.revert_failure
            for name, record in self._by_name.copy().items()
            if record.revert_failure is not None
        }

    def get_execute_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).failure

    def get_revert_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).revert_failure

    def has_failures(self) -> bool:
        """Whether an atom's latest execution or reversion failed."""
        return bool(self._failed) or bool(self.get_revert_failures())

    def get_retry_history(self, retry_name: str) -> retry_module.History:
        """What a retry provided so far, and what became of it.

        :raises TypeError: not a retry.
        """
        record = self._retry(retry_name)
        return retry_module.History(list(record.results), failure=record.failure)

    def get_retry_histories(self) -> list[tuple[str, retry_module.History]]:
        return [
            (name, self.get_retry_history(name))
            for name, record in self._by_name.copy().items()
            if isinstance(record, models.RetryDetail)
        ]

    def _retry(self, retry_name: str) -> models.RetryDetail:
        record = self.record(retry_name)
        if not isinstance(record, models.RetryDetail):
            raise TypeError(f"Atom {retry_name!r} is a {record.kind}, not a retry")
        return record

    def _find_failures(self) -> None:
        self._failed_view = None
        self._failed = {
            name: record.failure
            for name, record in self._by_name.items()
            if record.failure is not None
        }

    def _forget_failure(self, atom_name: str) -> None:
        if self._failed.pop(atom_name, None) is not None:
            self._failed_view = None

    # -- values ---------------------------------------------------------------------------------

    def inject(self, pairs: Pairs, transient: bool = False) -> list[str]:
        """Provide values to every atom of the flow, at any time; `transient` ones are not written.

        They win over what atoms provide, the transient ones over the others.

        :raises TypeError: neither a dict nor pairs, or a name is not a string.
        :raises NotEncodable: the store cannot keep a value, which could be transient; nothing is
            changed then.
        """
        given = values_by_name(pairs)
        if transient:
            with self.writer.mutex:
                self._transient.update(given)
            return list(given)
        self.check(given, "injected values")
        with self.batch():
            self._injector = add_injected(self._flow_detail, given, self._injector)
            self._by_name[self.injector_name] = self._injector
            macs.sign_injected(self._flow_detail, self._injector)
            self.writer.mark(self._injector)
        return list(given)

    def inject_atom_args(self, atom_name: str, pairs: Pairs, transient: bool = True) -> None:
        """Provide values to one atom; they win over every other source.

        :raises NotFound: there is no such atom (before `prepare` there is none).
        :raises TypeError: neither a dict nor pairs, or a name is not a string.
        :raises NotEncodable: the store cannot keep a value, which could be transient; nothing is
            changed then.
        """
        self.record(atom_name)
        given = values_by_name(pairs)
        if transient:
            with self.writer.mutex:
                mine = self._transient_args.get(atom_name)
                self._transient_args[atom_name] = {**mine, **given} if mine else given
            return
        self.check(given, f"what is injected for {atom_name!r}")
        with self._changed(atom_name) as record:
            record.meta[META_INJECTED] = {**record.meta.get(META_INJECTED, _NOTHING), **given}
            macs.sign_injected(self._flow_detail, record)

    def fetch(self, name: str, many_handler: ManyHandler | None = None) -> Any:
        """The value of `name`: the first one, or what `many_handler` makes of all of them.

        What a provider failed with is the value of a name that stands for its whole result.

        :raises NotFound: nothing provides `name`, or nothing did so far.
        :raises TypeError: `name` is no string.
        """
        if not isinstance(name, str):
            raise TypeError(f"A stored name is a str, not {name!r}")
        values = list(self._values(name))
        if values:
            return many_handler(values) if many_handler is not None else values[0]
        known = self.known_names()
        if name not in known:
            raise exceptions.NotFound(
                f"Name {name!r} is not provided by anything in flow {self.flow_name!r}"
                f"{_names.hint(name, known)}"
            )
        raise exceptions.NotFound(f"Nothing has provided {name!r} so far")

    def fetch_all(self, many_handler: ManyHandler | None = None) -> dict[str, Any]:
        """All values by name; a name with several values has the list of them (see `fetch_many`).

        Atoms that have no result (yet) contribute nothing; one that failed contributes its failure
        under a name that stands for its whole result.  O(providers).
        """
        combine = many_handler if many_handler is not None else _one_or_all
        return {name: combine(values) for name, values in self.fetch_many().items()}

    def fetch_many(self) -> dict[str, list[Any]]:
        """All values by name, always as a list: as many as there are, in the order of `fetch`."""
        found: dict[str, list[Any]] = {}
        for source in self._flow_sources():
            for name, value in dict(source).items():  # others may be injecting
                found.setdefault(name, []).append(value)
        for atom_name, save_as in self._savers.items():
            record = self._by_name[atom_name]
            for name, index in save_as.items():
                value = _told(record, index)
                if value is not arguments.MISSING:
                    found.setdefault(name, []).append(value)
        return found

    def fetch_mapped_args(
        self,
        args_mapping: Mapping[str, str],
        atom_name: str | None = None,
        scope_walker: Any = None,
        optional_args: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Keyword arguments for `args_mapping` (argument -> stored name) as `atom_name` sees them.

        Those in `optional_args` are left out when there is no value.  Without `atom_name`, every
        provider counts.  (`scope_walker` is accepted for compatibility; the plan says what is
        visible.)

        :raises NotFound: an argument that is not optional has no value; there is no such atom.
        :raises TypeError: `args_mapping` is no dict.
        """
        optional = optional_args if optional_args is not None else ()
        if not isinstance(args_mapping, Mapping):
            raise TypeError(f"args_mapping is a dict of argument to name, not {args_mapping!r}")
        if atom_name is None:
            return {
                argument: self.fetch(name)
                for argument, name in args_mapping.items()
                if argument not in optional or any(True for _ in self._values(name))
            }
        node = self._node(atom_name)
        if node < 0:
            self.record(atom_name)
        return self.gather(node, atom_name, args_mapping, optional)

    def gather(
        self,
        node: int,
        atom_name: str,
        args_mapping: Mapping[str, str],
        optional_args: Collection[str],
    ) -> dict[str, Any]:
        """`fetch_mapped_args` for the engine's loop, which knows the atom's node."""
        return arguments.gather(
            args_mapping,
            optional_args,
            self._sources(atom_name),
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
        """The arguments that nothing can provide to the atom, now or later.

        Of an atom that is in no plan (yet): those that are not injected.

        :raises NotFound: there is no such atom.
        """
        self.record(atom_name)
        return set(self.unsatisfied(atom_name, args_mapping, optional_args))

    def unsatisfied(
        self,
        atom_name: str,
        args_mapping: Mapping[str, str],
        optional_args: Collection[str] | None = None,
    ) -> dict[str, str]:
        """`fetch_unsatisfied_args` as `{argument: stored name}`."""
        optional = optional_args if optional_args is not None else ()
        node = self._node(atom_name)
        bindings = self._bindings if node >= 0 else None
        sources = self._sources(atom_name)
        return arguments.unsatisfied(args_mapping, optional, sources, bindings, node)

    def replace(self, atom_name: str, name: str, old: Any, new: Any) -> None:
        """Store `new` wherever `atom_name` was given `old` under `name`: others may want it, too.

        For what can be read only once.  Only the engine's thread does this.
        """
        mine = self._transient_args.get(atom_name)
        if mine and mine.get(name) is old:
            self._transient_args[atom_name] = {**mine, name: new}
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

    # -- reading --------------------------------------------------------------------------------

    def _read(self, node: int, index: Any) -> Any:
        record = self.records[node]
        return arguments.MISSING if record is None else _part(record, index)

    def _flow_sources(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        if self._transient:
            found.append(self._transient)
        if self._injector is not None:
            found.append(self._injector.results)
        return found

    def _sources(self, atom_name: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        mine = self._transient_args.get(atom_name)
        if mine:
            found.append(mine)
        record = self._by_name.get(atom_name)
        given = None if record is None else record.noted(META_INJECTED)
        if given is not None:
            found.append(given)
        return found + self._flow_sources()

    def _values(self, name: str) -> Iterator[Any]:
        for source in self._flow_sources():
            if name in source:
                yield source[name]
        for atom_name, save_as in self._savers.items():
            if name in save_as:
                value = _told(self._by_name[atom_name], save_as[name])
                if value is not arguments.MISSING:
                    yield value

    def inputs(self) -> dict[str, Any]:
        """What is injected for the flow, by name."""
        found: dict[str, Any] = {}
        for source in reversed(list(self._flow_sources())):
            found.update(source)
        return found

    def known_names(self) -> set[str]:
        """Every name that is injected for the flow, or that some atom provides."""
        names = {name for save_as in self._savers.values() for name in save_as}
        return names.union(*self._flow_sources())

    def _node(self, atom_name: str) -> int:
        return -1 if self._bindings is None else self._bindings.by_name.get(atom_name, -1)


def _part(record: models.AtomDetail, index: Any) -> Any:
    if isinstance(record, models.RetryDetail):
        if not record.results or record.state == states.REVERT_FAILURE:
            return arguments.MISSING
        return arguments.element(record.last_results, index)
    if record.failure is not None or record.state not in models.WITH_RESULT:
        return arguments.MISSING
    return arguments.element(record.results, index)


def _told(record: models.AtomDetail, index: Any) -> Any:
    """`_part`, for people: also what the atom failed with, in place of its whole result."""
    if record.failure is not None and index is None:
        return record.failure
    return _part(record, index)


def add_injected(
    flow: models.FlowDetail, values: Mapping[str, Any], injector: models.AtomDetail | None = None
) -> models.AtomDetail:
    """Inject values into a flow: into the record that has them already, or else into a new one."""
    if injector is None:
        injector = models.TaskDetail(models.INJECTOR)
        injector.state = states.SUCCESS
        flow.add(injector)
    # A new dict: the old one may just be being written.
    injector.results = {**(injector.results or {}), **values}
    return injector


def values_by_name(pairs: Pairs) -> dict[str, Any]:
    """A new dict of values that are to be injected.

    :raises TypeError: neither a dict nor pairs, or a name is not a string.
    """
    given = _pairs_of("injected values", pairs)
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"The name of an injected value is a str, not {name!r}")
    return given


def _pairs_of(what: str, pairs: Pairs) -> dict[Any, Any]:
    """`pairs` as a dict of its own.

    :raises TypeError: neither a dict nor pairs; the text says of what (`what`).
    """
    try:
        return dict(pairs)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a dict or pairs, not {pairs!r}") from None


def _detail_class(atom: atom_module.Atom) -> type[models.AtomDetail]:
    if not isinstance(atom, atom_module.Atom):
        raise TypeError(f"Only atoms have records, not {atom!r}")
    return models.RetryDetail if isinstance(atom, retry_module.Retry) else models.TaskDetail


def _by_name(flow_detail: models.FlowDetail) -> dict[str, models.AtomDetail]:
    """The records by name: of several, which two engines of before made, the one that was used."""
    found: dict[str, models.AtomDetail] = {}
    for record in flow_detail:
        known = found.get(record.name)
        if known is None or _use(record) > _use(known):
            found[record.name] = record
    return found


def _use(record: models.AtomDetail) -> tuple[int, bool]:
    """How much was done with a record: what was ignored had no attempt."""
    return record.attempt, record.state not in (None, states.PENDING)


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
