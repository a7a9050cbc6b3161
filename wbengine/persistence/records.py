"""The records of one run: found by name, changed, and written once a turn.

Threads: every public method may be called from any thread; those that change something hold `lock`
while they do.  The engine's own loop changes the records of atoms that begin and finish without it
(that is why a running atom's state, results and failures are the loop's to change).

Writing: a change marks its record; `flush` writes the marked ones in one step.  While an engine
runs it flushes once a turn (`batch`); at any other time each change is written at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import _codec, _names, exceptions, states
from wbengine import atom as atom_module
from wbengine import retry as retry_module
from wbengine.persistence import base, models, writing

__all__ = ["Records"]

Pairs = Mapping[str, Any] | Iterable[tuple[str, Any]]


class Records(writing.Writing):
    """The records of a flow and of its atoms.

    `backend` (or None) keeps them; a write that fails with `StorageFailure` is tried three times,
    the backend's `write_pause` apart.  (`scope_fetcher` is accepted for compatibility; the plan
    says what is visible.)
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
        super().__init__(flow_detail, backend)
        self._by_name: dict[str, models.AtomDetail] = _by_name(flow_detail)

    def _take_over(self, kept: models.FlowDetail) -> None:
        mine, self._by_name = self._by_name, _by_name(kept)
        self._flow_detail.become(kept)
        for name, record in mine.items():
            # Made here, and nobody else made one of that name so far.
            if name not in self._by_name and kept.find(record.uuid) is None:
                self._by_name[name] = record
                self._flow_detail.add(record)
                self._marked.append(record)

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
        with self._lock:
            uuids = self._ensure(wanted, kinds)
        self._written()
        return uuids

    def _ensure(
        self,
        wanted: list[atom_module.Atom],
        kinds: Mapping[type, type[models.AtomDetail]],
    ) -> list[str]:
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
        for atom in wanted if len(made) < len(wanted) else ():
            if not isinstance(known[atom.name], kinds[type(atom)]):
                raise exceptions.Duplicate(
                    f"Atom {atom.name!r} is stored as a {known[atom.name].kind}, and is now a"
                    f" {kinds[type(atom)].kind}"
                )
        if self._backend is not None and made:
            self._marked.extend(made)
        return [known[atom.name].uuid for atom in wanted]

    def ensure_atom(self, atom: atom_module.Atom) -> str:
        """Make sure `atom` has a record, and return its uuid."""
        return self.ensure_atoms([atom])[0]

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
        record = self.record(atom_name)
        record.state = states.check_known("state of an atom", state, states.ATOM_STATES)
        self.mark(record)

    def set_atom_version(self, atom_name: str, version: str) -> None:
        """Note of which version an atom is; written if that is news."""
        record = self.record(atom_name)
        if record.version != version:
            record.version = version
            self.mark(record)

    def get_atom_intention(self, atom_name: str) -> str:
        return self.record(atom_name).intention

    def set_atom_intention(self, atom_name: str, intention: str) -> None:
        """Note what is meant to be done with the atom.

        :raises ValueError: there is no such intention.
        """
        record = self.record(atom_name)
        record.intention = states.check_known("intention", intention, states.INTENTIONS)
        self.mark(record)

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
        record = self.record(atom_name)
        update = pairs_of("metadata", update_with) if update_with is not None else None
        if update:
            self.check(update, "metadata")
            self._was_given(writing.META, atom_name, update)
            with self._lock:
                record.meta.update(update)
            self.mark(record)

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
        record = self._task(task_name)
        if not isinstance(progress, int | float):
            raise TypeError(f"The progress of {task_name!r} must be a number, not {progress!r}")
        if not math.isfinite(progress):
            raise ValueError(f"The progress of {task_name!r} must be finite, not {progress!r}")
        told = None if details is None else pairs_of("details", details)
        if told:
            self.check(told, "details")
        with self._lock:
            record.progress = progress
            if told is not None:
                record.progress_details = (
                    {"at_progress": progress, "details": told} if told else None
                )
        self.mark(record)

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

    def get_flow_state(self) -> str:
        return self._flow_detail.state or states.PENDING

    def set_flow_state(self, state: str) -> None:
        """Enter `state`, whatever the state before (see `change_flow_state`).

        :raises ValueError: flows have no such state.
        """
        states.check_known("state of a flow", state, states.FLOW_STATES)
        self._flow_detail.enter(state, time.time())
        self._flow_changed()

    def change_flow_state(self, state: str) -> tuple[bool, str]:
        """Enter `state` if that is a change; return whether it was, and the state before.

        :raises InvalidState: the transition is not legal.
        """
        return self.move_flow(state, time.time())

    def move_flow(self, state: str, at: float, why: str | None = None) -> tuple[bool, str]:
        """`change_flow_state`, at a moment (unix seconds), for a reason: the history tells both.

        :raises InvalidState: the transition is not legal.
        """
        with self._lock:
            old = self.get_flow_state()
            if not states.check_flow_transition(old, state):
                return False, old
            self._flow_detail.enter(state, at, why)
        self._flow_changed()
        return True, old

    def update_flow_metadata(self, update_with: Pairs) -> None:
        """Add to the flow's `meta`; keys that are there already get the new values.

        :raises TypeError: neither a dict nor pairs.
        :raises NotEncodable: the store cannot keep a value; nothing is changed then.
        """
        update = pairs_of("metadata", update_with)
        if update:
            self.check(update, "metadata")
            self._was_given(writing.FLOW_META, None, update)
            with self._lock:
                self._flow_detail.meta.update(update)
            self._flow_changed()

    # -- writing --------------------------------------------------------------------------------

    def check(self, value: Any, where: str) -> None:
        """Refuse what the store cannot keep; `where` begins the path in the error.

        :raises NotEncodable: `types.codec` does not take it, and the store takes nothing else.
        """
        if self.encodes:
            _codec.pack(value, where)


def pairs_of(what: str, pairs: Pairs) -> dict[Any, Any]:
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
    """The records by name: of several (two engines made them at a time) the one that was used."""
    found: dict[str, models.AtomDetail] = {}
    for record in flow_detail:
        known = found.get(record.name)
        if known is None or _use(record) > _use(known):
            found[record.name] = record
    return found


def _use(record: models.AtomDetail) -> tuple[int, bool]:
    """How much was done with a record: what was ignored had no attempt."""
    return record.attempt, record.state not in (None, states.PENDING)
