"""The records of one run: found by name, changed, and written once a turn.

Threads: the engine's loop owns the records.  Reading is fine from any thread, and so are
`set_task_progress`, `update_atom_metadata` and `update_flow_metadata`.

Writing: a change marks its record; `flush` writes the marked ones in one step.  While an engine
runs it flushes once a turn (`batch`); at any other time each change is written at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from wbengine import _names, exceptions, states
from wbengine import atom as atom_module
from wbengine import retry as retry_module
from wbengine.persistence import base, models

__all__ = ["Records"]

_WRITE_TRIES: Final = 3


class Records:
    """The records of a flow and of its atoms.

    `backend` (or None) keeps them; a write that fails with `StorageFailure` is tried three times,
    `write_pause` seconds apart.
    """

    #: Name of the record that keeps what was injected for the whole flow.
    injector_name: Final = "_wbengine_injector"

    def __init__(
        self,
        flow_detail: models.FlowDetail,
        backend: base.Backend | None = None,
        write_pause: float = 5.0,
    ) -> None:
        self._flow_detail = flow_detail
        self._backend = backend
        self._write_pause = write_pause
        self._lock = threading.RLock()
        self._by_name: dict[str, models.AtomDetail] = {
            record.name: record for record in flow_detail
        }
        # A deque, because appending from any thread needs no lock; `flush` removes doubles.
        self._marked: deque[models.AtomDetail] = deque()
        self._flow_marked = False
        self._batching = False

    # -- what it is -----------------------------------------------------------------------------

    @property
    def lock(self) -> threading.RLock:
        """A lock for users who read several things that must belong together."""
        return self._lock

    @property
    def backend(self) -> base.Backend | None:
        return self._backend

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

    # -- atoms ----------------------------------------------------------------------------------

    def ensure_atoms(self, atoms: Iterable[atom_module.Atom]) -> list[str]:
        """Make sure every atom has a record, and return their uuids in the same order.

        One write for all that are new.  Raises `Duplicate` when an atom of another kind (task or
        retry) already uses the name.
        """
        wanted = list(atoms)
        known = self._by_name
        fresh = [atom for atom in wanted if atom.name not in known]
        made: list[models.AtomDetail] = []
        for atom, uuid in zip(fresh, models.new_uuids(len(fresh)), strict=True):
            if atom.name in known:
                continue
            kind = _detail_class(atom)
            record = kind(atom.name, uuid)
            record.state = states.PENDING
            record.version = atom.version
            known[atom.name] = record
            made.append(record)
        self._flow_detail.add_all(made)
        for atom in wanted:
            if not isinstance(known[atom.name], _detail_class(atom)):
                raise exceptions.Duplicate(
                    f"Atom {atom.name!r} is stored as a {known[atom.name].kind}, and is now a"
                    f" {_detail_class(atom).kind}"
                )
        if self._backend is not None and made:
            self._marked.extend(made)
            self._written()
        return [known[atom.name].uuid for atom in wanted]

    def ensure_atom(self, atom: atom_module.Atom) -> str:
        """Make sure `atom` has a record, and return its uuid."""
        return self.ensure_atoms([atom])[0]

    def record(self, atom_name: str) -> models.AtomDetail:
        """The record of an atom; raises `NotFound` with the nearest name."""
        found = self._by_name.get(atom_name)
        if found is None:
            raise exceptions.NotFound(
                f"Unknown atom name {atom_name!r}{_names.hint(str(atom_name), self._by_name)}"
            )
        return found

    def get_atom_uuid(self, atom_name: str) -> str:
        return self.record(atom_name).uuid

    def get_atom_state(self, atom_name: str) -> str | None:
        return self.record(atom_name).state

    def set_atom_state(self, atom_name: str, state: str) -> None:
        record = self.record(atom_name)
        record.state = state
        self.mark(record)

    def get_atom_intention(self, atom_name: str) -> str:
        return self.record(atom_name).intention

    def set_atom_intention(self, atom_name: str, intention: str) -> None:
        record = self.record(atom_name)
        record.intention = intention
        self.mark(record)

    def get_atoms_states(self, atom_names: Iterable[str]) -> dict[str, tuple[str | None, str]]:
        """`{name: (state, intention)}`."""
        found = {name: self.record(name) for name in atom_names}
        return {name: (record.state, record.intention) for name, record in found.items()}

    def get_attempt(self, atom_name: str) -> models.Attempt | None:
        """Who ran the atom last, and when; None before its first attempt."""
        return self.record(atom_name).last_attempt

    def update_atom_metadata(self, atom_name: str, update_with: Mapping[str, Any]) -> None:
        record = self.record(atom_name)
        if update_with:
            record.meta.update(update_with)
            self.mark(record)

    # -- progress -------------------------------------------------------------------------------

    def set_task_progress(
        self, task_name: str, progress: float, details: Mapping[str, Any] | None = None
    ) -> None:
        """Remember how far a task is (0..1), and what it said besides."""
        record = self.record(task_name)
        record.progress = progress
        record.progress_details = (
            {"at_progress": progress, "details": dict(details)} if details else None
        )
        self.mark(record)

    def get_task_progress(self, task_name: str) -> float:
        """How far a task is: what it last told, or else what its state says."""
        record = self.record(task_name)
        if record.progress is not None:
            return record.progress
        return 1.0 if record.state in (states.SUCCESS, states.REVERTED) else 0.0

    def get_task_progress_details(self, task_name: str) -> Any:
        return self.record(task_name).progress_details

    # -- the flow -------------------------------------------------------------------------------

    def get_flow_state(self) -> str:
        return self._flow_detail.state or states.PENDING

    def set_flow_state(self, state: str) -> None:
        self._flow_detail.state = state
        self._flow_changed()

    def change_flow_state(self, state: str) -> tuple[bool, str]:
        """Enter `state` if that is a change; return whether it was, and the state before.

        Raises `InvalidState` for a transition that is not legal.
        """
        old = self.get_flow_state()
        if not states.check_flow_transition(old, state):
            return False, old
        self.set_flow_state(state)
        return True, old

    def update_flow_metadata(self, update_with: Mapping[str, Any]) -> None:
        if update_with:
            self._flow_detail.meta.update(update_with)
            self._flow_changed()

    # -- writing --------------------------------------------------------------------------------

    def mark(self, record: models.AtomDetail) -> None:
        """Note that `record` changed; from any thread."""
        if self._backend is not None:
            self._marked.append(record)
            self._written()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """While inside, changes are written by `flush` only; leaving writes what is left."""
        outer, self._batching = self._batching, True
        try:
            yield
        finally:
            self._batching = outer
            if not outer:
                self.flush()

    def flush(self) -> bool:
        """Write everything marked, in one step; return whether anything was.

        A record that changes while it is being written stays marked for the next time.
        """
        if self._backend is None or not (self._marked or self._flow_marked):
            return False
        take = self._marked.popleft
        changed = dict.fromkeys([take() for _ in range(len(self._marked))])
        flow_row, self._flow_marked = self._flow_marked, False
        try:
            self._write(list(changed), flow_row)
        except BaseException:
            self._marked.extendleft(reversed(changed))
            self._flow_marked = self._flow_marked or flow_row
            raise
        return True

    def _write(self, changed: list[models.AtomDetail], flow_row: bool) -> None:
        assert self._backend is not None
        for left in reversed(range(_WRITE_TRIES)):
            try:
                with contextlib.closing(self._backend.get_connection()) as connection:
                    connection.save_changes(self._flow_detail, changed, flow_row=flow_row)
                return
            except exceptions.StorageFailure:
                if not left:
                    raise
                time.sleep(self._write_pause)

    def _written(self) -> None:
        if not self._batching:
            self.flush()

    def _flow_changed(self) -> None:
        if self._backend is not None:
            self._flow_marked = True
            self._written()


def _detail_class(atom: atom_module.Atom) -> type[models.AtomDetail]:
    return models.RetryDetail if isinstance(atom, retry_module.Retry) else models.TaskDetail
