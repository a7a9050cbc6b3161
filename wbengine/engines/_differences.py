"""Differences between a flow and its records, and their migration.

Atoms are matched with records by name. By default, a new atom gets a record, the record of a
removed atom stays unchanged, and a new version with the same major number is stored. A version
with another major number is rejected, unless a `migrate` hook decides what to do with the data
that was saved under the old version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import atom as atom_module
from wbengine import exceptions, states
from wbengine import retry as retry_module
from wbengine import storage as storage_module
from wbengine._introspection import object_names
from wbengine._runtime import retry_delays
from wbengine.persistence import models
from wbengine.types import failure as ft

__all__ = ["Change", "Difference", "Migrate", "compare", "hook", "apply_migration"]

LOG: Final = logging.getLogger(__name__)

_MAX_NAMES: Final = 8
_KEEP: Final[Any] = object()
_VERSION: Final = re.compile(r"(\d+)(?:\.\w+)*", re.ASCII)


class Change(NamedTuple):
    """An atom whose version or kind differs from its record."""

    name: str
    stored: str | None
    present: str
    #: Kind of the record ('task', 'retry') if it is not the kind of the atom.
    stored_kind: str | None = None

    @property
    def compatible(self) -> bool:
        """Whether the atom can use its record: both versions have the same major number."""
        if self.stored_kind is not None or self.stored is None:
            return False
        old, new = _VERSION.fullmatch(self.stored), _VERSION.fullmatch(self.present)
        return old is not None and new is not None and int(old[1]) == int(new[1])

    def __str__(self) -> str:
        if self.stored_kind is not None:
            return f"{self.name!r} was a {self.stored_kind}"
        return f"{self.name!r} {self.stored} -> {self.present}"


class Difference:
    """Differences between the atoms of a flow and the records of an earlier run.

    Similar names alone decide nothing: a renamed atom runs from the beginning unless `rename` is
    called.

    A `migrate` hook receives an instance and calls `rename`, `accept` and `forget`. All changes are
    applied when the hook has returned and every difference can be resumed; until then no record
    changes. The hook is called again if the flow must be read again before the write. It is not
    called if atoms were only removed, because these need no decision.
    """

    def __init__(
        self, storage: storage_module.Storage, atoms: Mapping[str, atom_module.Atom]
    ) -> None:
        self._storage = storage
        self._atoms = atoms
        self._records = {record.name: record for record in _records_of(storage)}
        self.flow: str = storage.flow_name
        #: Names of atoms without a record.
        self.added = tuple(name for name in atoms if name not in self._records)
        #: Names of records without an atom.
        self.removed = tuple(name for name in self._records if name not in atoms)
        self._matching = {name: None for name in atoms if name in self._records}
        #: Atoms with another version or kind than their record (see `Change`).
        self.changed = tuple(self._changes(self._matching))
        #: New name -> old name.
        self._renamed: dict[str, str] = {}
        self._used: set[str] = set()
        self._accepted: dict[str, Any] = {}
        self._forgotten: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def covers(self, other: Difference) -> bool:
        """Return whether this contains every difference of `other`."""
        return (
            set(self.added).issuperset(other.added)
            and set(self.removed).issuperset(other.removed)
            and set(self.changed).issuperset(other.changed)
        )

    def _changes(self, names: Iterable[str], *, of: str | None = None) -> Iterable[Change]:
        for name in names:
            atom, record = self._atoms[name], self._records[of or name]
            present = atom.version_string
            if record.kind != _kind(atom):
                yield Change(name, record.version, present, record.kind)
            elif record.version is not None and record.version != present:
                yield Change(name, record.version, present)

    @property
    def likely(self) -> dict[str, str]:
        """Probable renames: old name -> new name."""
        renames: dict[str, str] = {}
        for kind in ("task", "retry"):
            removed_names = [name for name in self.removed if self._records[name].kind == kind]
            added_names = [name for name in self.added if _kind(self._atoms[name]) == kind]
            renames.update(object_names.renamed(removed_names, added_names))
        return renames

    def record(self, name: str) -> models.AtomDetail:
        """Return a copy of the record of that name, with or without an atom.

        :raises ValueError: if no record has this name.
        """
        return self._stored_record(name, self._records).copy()

    def rename(self, old: str, new: str) -> None:
        """Use the record of `old` for the atom `new`. A repeated call has no effect.

        :raises ValueError: if `old` has an atom, or `new` a record, or their kinds differ.
        """
        if old not in self._records and old not in self._atoms and new in self._matching:
            return
        if old not in self._records or old in self._atoms or old in self._used:
            hint = object_names.hint(str(old), self.removed)
            raise ValueError(f"{old!r} must be a record that has no atom{hint}")
        if new not in self._atoms or new in self._records or new in self._renamed:
            hint = object_names.hint(str(new), self.added)
            raise ValueError(f"{new!r} must be an atom that has no record{hint}")
        record, atom = self._records[old], self._atoms[new]
        if record.kind != _kind(atom):
            raise ValueError(
                f"{old!r} is recorded as a {record.kind}, but {new!r} is a {_kind(atom)}"
            )
        self._renamed[new] = old
        self._used.add(old)

    def accept(self, name: str, results: Any = _KEEP) -> None:
        """Use the record of the atom `name`, of any version.

        :param results: replacement for the result of a task or the history of a retry. (The items
            of a `Map` do not change.)
        :raises ValueError: if no atom of this name has a record of its kind, or it has no result.
        :raises NotEncodable: if the store cannot encode `results`.
        """
        record = self._record_of_atom(name)
        if record.kind != _kind(self._atoms[name]):
            raise ValueError(f"{name!r} was a {record.kind}: it cannot be accepted, only forgotten")
        if results is not _KEEP:
            self._check_results(record, results)
        self._forgotten.pop(name, None)
        self._accepted[name] = results

    def _check_results(self, record: models.AtomDetail, results: Any) -> None:
        if isinstance(record, models.RetryDetail):
            if not _is_history(results):
                raise ValueError(
                    "The history of a retry must be a list of pairs (provided value, dict"
                    f" of failures), got {results!r}"
                )
        elif record.failure is not None or record.state not in models.STATES_WITH_RESULT:
            raise ValueError(
                f"{record.name!r} has no result that can be replaced: it is {record.state}"
            )
        self._storage.check(results, f"results of {record.name!r}")

    def forget(self, name: str) -> None:
        """Discard the data of the atom `name`: it runs from the beginning, as its next attempt.

        Its effects are not reverted, completed successors do not run again, and work that it
        started on a worker continues.

        :raises ValueError: if no atom of this name has a record.
        """
        self._record_of_atom(name)
        self._accepted.pop(name, None)
        self._forgotten[name] = None

    def _record_of_atom(self, name: str) -> models.AtomDetail:
        if name in self._renamed:
            return self._records[self._renamed[name]]
        return self._stored_record(name, self._matching)

    def _stored_record(self, name: str, choices: Iterable[str]) -> models.AtomDetail:
        if name not in choices:
            raise ValueError(
                f"Flow {self.flow!r} has no record of atom {name!r}"
                f"{object_names.hint(name, choices)}"
            )
        return self._records[name]

    def __str__(self) -> str:
        parts = []
        if self.added:
            parts.append(f"added {_join_first(self.added, repr)}")
        if self.removed:
            parts.append(f"removed {_join_first(self.removed, self._describe_removed)}")
        if self.changed:
            parts.append(f"changed {_join_first(self.changed)}")
        likely = self.likely
        if likely:
            pairs = [f"{old!r} to {new!r}" for old, new in likely.items()]
            parts.append(f"probably renamed {_join_first(pairs)}")
        return "; ".join(parts) or "nothing"

    def _describe_removed(self, name: str) -> str:
        record = self._records[name]
        note = _REMOVED_NOTES.get(record.state or states.PENDING, record.state)
        if record.failure is not None:
            note = "its failure remains a failure of the flow"
        return f"{name!r} ({note})" if note else repr(name)

    def __repr__(self) -> str:
        return f"<Difference of flow {self.flow!r}: {self}>"

    def _undecided_changes(self) -> list[Change]:
        changed = list(self.changed)
        for new, old in self._renamed.items():
            changed += self._changes([new], of=old)
        decided = {*self._accepted, *self._forgotten}
        return [c for c in changed if not c.compatible and c.name not in decided]

    def _apply(self) -> None:
        storage = self._storage
        with storage.writer.mutex, storage.batch():
            storage.rename({old: new for new, old in self._renamed.items()})
            for name in self._forgotten:
                self._forget(name)
            for name, results in self._accepted.items():
                if results is not _KEEP:
                    record = storage.record(name)
                    record.results = results
                    storage.writer.mark(record)
            for name, atom in self._atoms.items():
                has_record = name in self._records or name in self._renamed
                if has_record and storage.record(name).version != atom.version_string:
                    storage.set_atom_version(name, atom.version_string)

    def _forget(self, name: str) -> None:
        storage, atom = self._storage, self._atoms[name]
        record = storage.record(name)
        if record.kind != _kind(atom):
            was = f" (a {record.kind} until it became a {_kind(atom)})"
            storage.rename({name: name[: object_names.MAX_NAME_LENGTH - len(was)] + was})
            del self._records[name]
            return
        retry_delays.clear(record)
        storage.reset(name)


Migrate = Callable[[Difference], Any]


def hook(migrate: Any) -> Migrate | None:
    if migrate is not None and not callable(migrate):
        raise TypeError(f"migrate must be a function that takes a Difference, got {migrate!r}")
    checked: Migrate | None = migrate
    return checked


def compare(
    storage: storage_module.Storage, atoms: Sequence[atom_module.Atom]
) -> Difference | None:
    """Return the differences between `atoms` and the records of an earlier run, or None.

    This changes nothing. Cost: O(atoms).
    """
    return Difference(storage, {atom.name: atom for atom in atoms}) or None


def apply_migration(
    storage: storage_module.Storage,
    atoms: Sequence[atom_module.Atom],
    migrate: Migrate | None = None,
    before: Difference | None = None,
) -> Difference | None:
    """Compare, report the differences, call `migrate`, and apply its decisions in one write.

    Exceptions of the hook pass through, and nothing has changed. `before` is the difference that
    was reported earlier; it is returned if it contains all differences.

    :raises IncompatibleVersion: if an atom cannot use its record of another version.
    :raises Duplicate: if an atom was recorded as the other kind (task or retry).
    """
    difference = compare(storage, atoms)
    if difference is None:
        return before
    is_reported = before is not None and before.covers(difference)
    if not is_reported:
        LOG.warning("Flow %r differs from its records: %s", difference.flow, difference)
    if migrate is not None and (difference.added or difference.changed):
        migrate(difference)
    undecided = difference._undecided_changes()
    # it starts from the beginning, without saved data
    if storage.get_flow_state() == states.REVERTED:
        undecided = [change for change in undecided if change.stored_kind is not None]
    if undecided:
        raise _rejection(difference.flow, undecided)
    difference._apply()
    return before if is_reported else difference


def _rejection(flow: str, undecided: Sequence[Change]) -> exceptions.WbengineException:
    kinds = [change for change in undecided if change.stored_kind is not None]
    if kinds:
        return exceptions.Duplicate(
            f"Flow {flow!r} has records of another kind under the names of its atoms:"
            f" {_join_first(kinds)}; rename the new atoms, or forget the records (migrate=lambda"
            " difference: difference.forget(name))"
        )
    first = undecided[0]
    other_changes = (
        f" (and {len(undecided) - 1} more: {_join_first(undecided[1:])})" if undecided[1:] else ""
    )
    problem = "differs in its first number"
    unread = [repr(v) for v in (first.stored, first.present) if not _VERSION.fullmatch(v or "")]
    if unread:
        problem = f"cannot be compared: {' and '.join(unread)} must be like '1.0'"
    return exceptions.IncompatibleVersion(
        f"Atom {first.name!r} of flow {flow!r} is recorded with version {first.stored!r}"
        f" and now has version {first.present!r}, which {problem}{other_changes}: finish the flow"
        " with the old code, or load it with migrate=, a function that accepts or forgets"
        " the record (migrate=lambda difference: difference.accept(name))"
    )


#: Note about a removed atom, by the state of its record.
_REMOVED_NOTES: Final[Mapping[str, str]] = {
    states.PENDING: "",
    states.IGNORE: "",
    states.REVERTED: "",
    states.RUNNING: "RUNNING: its result is ignored, and it is not reverted",
    states.REVERTING: "REVERTING: the result of its reversion is ignored",
    states.SUCCESS: "SUCCESS: no atom receives its result, and it is not reverted",
}


def _records_of(storage: storage_module.Storage) -> Iterator[models.AtomDetail]:
    return (
        record
        for record in storage.flow_detail
        if record.name != storage.injector_name and not record.is_step
    )


def _kind(atom: atom_module.Atom) -> str:
    return "retry" if isinstance(atom, retry_module.Retry) else "task"


def _is_history(results: Any) -> bool:
    return isinstance(results, list) and all(
        isinstance(entry, tuple)
        and len(entry) == 2
        and isinstance(entry[1], dict)
        and all(isinstance(failure, ft.Failure) for failure in entry[1].values())
        for entry in results
    )


def _join_first(things: Sequence[Any], to_text: Callable[[Any], str] = str) -> str:
    omitted = len(things) - _MAX_NAMES
    return ", ".join(map(to_text, things[:_MAX_NAMES])) + (
        f" and {omitted} more" if omitted > 0 else ""
    )
