"""A flow whose code changed since its records were made: what differs, and what becomes of it.

Atoms are matched with records by name.  Without further ado an atom that is new gets a record, the
record of one that is gone stays as it is, and a version whose first number is still the same is
noted.  A version whose first number is another one is refused, unless a `migrate` hook says what to
do with what was saved under the old one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import _names, exceptions, states
from wbengine import atom as atom_module
from wbengine import retry as retry_module
from wbengine import storage as storage_module
from wbengine.persistence import models
from wbengine.runtime.retries import Retries
from wbengine.types import failure as ft

__all__ = ["Change", "Difference", "Migrate", "compare", "hook", "apply_migration"]

LOG: Final = logging.getLogger(__name__)

#: So many names of a kind are told.
_MOST_NAMED: Final = 8
_KEEP: Final[Any] = object()
_VERSION: Final = re.compile(r"(\d+)(?:\.\w+)*", re.ASCII)


class Change(NamedTuple):
    """An atom of another version, or of another kind, than its record."""

    name: str
    stored: str | None
    present: str
    #: The kind of the record, if the atom is of the other one ('task', 'retry').
    stored_kind: str | None = None

    @property
    def compatible(self) -> bool:
        """Whether it resumes as it is: both are versions, with the same first number."""
        if self.stored_kind is not None or self.stored is None:
            return False
        old, new = _VERSION.fullmatch(self.stored), _VERSION.fullmatch(self.present)
        return old is not None and new is not None and int(old[1]) == int(new[1])

    def __str__(self) -> str:
        if self.stored_kind is not None:
            return f"{self.name!r} was a {self.stored_kind}"
        return f"{self.name!r} {self.stored} -> {self.present}"


class Difference:
    """What the atoms of a flow and the records of an earlier run do not agree on.

    `added`: the names of atoms without a record; `removed`: the names of records without an atom;
    `changed`: atoms of another version (see `Change`); `likely`: what looks like having been
    renamed, by the old name.  Nothing of that is decided by names that look alike: a renamed atom
    runs anew unless `rename` is called.

    A `migrate` hook is given one of these, and says what to do: `rename`, `accept`, `forget`.  All
    of it is done when the hook has returned and nothing is left that cannot be resumed; until then
    no record has changed.  It is not asked again about what was settled and written; but it is when
    the flow has to be read anew before that, and it is not asked about removed atoms alone, of
    which there is nothing to decide.
    """

    def __init__(
        self, storage: storage_module.Storage, atoms: Mapping[str, atom_module.Atom]
    ) -> None:
        self._storage = storage
        self._atoms = atoms
        self._records = {record.name: record for record in _records_of(storage)}
        self.flow: str = storage.flow_name
        self.added = tuple(name for name in atoms if name not in self._records)
        self.removed = tuple(name for name in self._records if name not in atoms)
        self._matching = {name: None for name in atoms if name in self._records}
        self.changed = tuple(self._changes(self._matching))
        #: New name -> old name.
        self._renamed: dict[str, str] = {}
        self._used: set[str] = set()
        self._accepted: dict[str, Any] = {}
        self._forgotten: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def covers(self, other: Difference) -> bool:
        """Whether this says all that `other` says."""
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
        """Old name -> new name of what was probably renamed."""
        found: dict[str, str] = {}
        for kind in ("task", "retry"):
            gone = [name for name in self.removed if self._records[name].kind == kind]
            come = [name for name in self.added if _kind(self._atoms[name]) == kind]
            found.update(_names.renamed(gone, come))
        return found

    def record(self, name: str) -> models.AtomDetail:
        """A copy of the record of that name, of whatever it says now.

        :raises ValueError: there is none.
        """
        return self._stored(name, self._records).copy()

    # -- what to do -----------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        """What is recorded of `old` is what is known of `new` from now on.

        Without effect when that was done before: there is nothing of `old`, and a record of `new`.

        :raises ValueError: `old` has an atom, or `new` a record, or they are of different kinds.
        """
        if old not in self._records and old not in self._atoms and new in self._matching:
            return
        if old not in self._records or old in self._atoms or old in self._used:
            near = _names.hint(str(old), self.removed)
            raise ValueError(f"{old!r} is not a record without an atom{near}")
        if new not in self._atoms or new in self._records or new in self._renamed:
            near = _names.hint(str(new), self.added)
            raise ValueError(f"{new!r} is not an atom without a record{near}")
        record, atom = self._records[old], self._atoms[new]
        if record.kind != _kind(atom):
            raise ValueError(f"{old!r} is recorded as a {record.kind}, {new!r} is a {_kind(atom)}")
        self._renamed[new] = old
        self._used.add(old)

    def accept(self, name: str, results: Any = _KEEP) -> None:
        """What was saved is good for the atom `name`, whatever the versions say.

        :param results: what to keep instead of what a task returned; of a retry, its history.  (The
            items of a `Map` stay what they are.)
        :raises ValueError: there is no such atom with a record of its kind, or it has no result.
        :raises NotEncodable: the store cannot keep `results`.
        """
        record = self._matched(name)
        if record.kind != _kind(self._atoms[name]):
            raise ValueError(f"{name!r} was a {record.kind}; that can be forgotten, not accepted")
        if results is not _KEEP:
            self._check_results(record, results)
        self._forgotten.pop(name, None)
        self._accepted[name] = results

    def _check_results(self, record: models.AtomDetail, results: Any) -> None:
        if isinstance(record, models.RetryDetail):
            if not _is_history(results):
                raise ValueError(
                    f"The history of a retry is a list of pairs of what it provided and a dict of"
                    f" failures, not {results!r}"
                )
        elif record.failure is not None or record.state not in models.WITH_RESULT:
            raise ValueError(f"{record.name!r} has no result to be replaced: it is {record.state}")
        self._storage.check(results, f"results of {record.name!r}")

    def forget(self, name: str) -> None:
        """What was saved of the atom `name` is worth nothing: it runs anew, as its next attempt.

        What it did is not undone, what comes after it and was done already is not done again, and
        what it is doing on a worker goes on.

        :raises ValueError: there is no such atom with a record.
        """
        self._matched(name)
        self._accepted.pop(name, None)
        self._forgotten[name] = None

    def _matched(self, name: str) -> models.AtomDetail:
        """The record of an atom, as things stand."""
        if name in self._renamed:
            return self._records[self._renamed[name]]
        return self._stored(name, self._matching)

    def _stored(self, name: str, choices: Iterable[str]) -> models.AtomDetail:
        if name not in choices:
            raise ValueError(
                f"No atom {name!r} has a record in flow {self.flow!r}{_names.hint(name, choices)}"
            )
        return self._records[name]

    # -- words ----------------------------------------------------------------------------------

    def __str__(self) -> str:
        """One line that says all of it."""
        told = []
        if self.added:
            told.append(f"added {_few(self.added, repr)}")
        if self.removed:
            told.append(f"removed {_few(self.removed, self._told_removed)}")
        if self.changed:
            told.append(f"changed {_few(self.changed)}")
        likely = self.likely
        if likely:
            pairs = [f"{old!r} to {new!r}" for old, new in likely.items()]
            told.append(f"probably renamed {_few(pairs)}")
        return "; ".join(told) or "nothing"

    def _told_removed(self, name: str) -> str:
        record = self._records[name]
        left = _LEFT.get(record.state or states.PENDING, record.state)
        if record.failure is not None:
            left = "its failure stays one of the flow's"
        return f"{name!r} ({left})" if left else repr(name)

    def __repr__(self) -> str:
        return f"<Difference of flow {self.flow!r}: {self}>"

    # -- doing it -------------------------------------------------------------------------------

    def _left(self) -> list[Change]:
        """What differs by more than can be resumed, and nothing was said about."""
        changed = list(self.changed)
        for new, old in self._renamed.items():
            changed += self._changes([new], of=old)
        decided = {*self._accepted, *self._forgotten}
        return [c for c in changed if not c.compatible and c.name not in decided]

    def _apply(self) -> None:
        storage = self._storage
        with storage.batch():
            storage.rename({old: new for new, old in self._renamed.items()})
            for name in self._forgotten:
                self._forget(name)
            for name, results in self._accepted.items():
                if results is not _KEEP:
                    record = storage.record(name)
                    record.results = results
                    storage.writer.mark(record)
            for name, atom in self._atoms.items():
                known = name in self._records or name in self._renamed
                if known and storage.record(name).version != atom.version_string:
                    storage.set_atom_version(name, atom.version_string)

    def _forget(self, name: str) -> None:
        storage, atom = self._storage, self._atoms[name]
        record = storage.record(name)
        if record.kind != _kind(atom):
            storage.rename({name: f"{name} (a {record.kind} until it became a {_kind(atom)})"})
            del self._records[name]
            return
        Retries.clear_backoff(record)
        storage.reset(name)


#: A hook that says what to do about a difference.
Migrate = Callable[[Difference], Any]


def hook(migrate: Any) -> Migrate | None:
    """The option `migrate`.

    :raises TypeError: it is no function.
    """
    if migrate is not None and not callable(migrate):
        raise TypeError(f"Option migrate takes a function of a Difference, not {migrate!r}")
    found: Migrate | None = migrate
    return found


def compare(
    storage: storage_module.Storage, atoms: Sequence[atom_module.Atom]
) -> Difference | None:
    """What differs between `atoms` and the records of an earlier run; None if nothing does, or
    there was none.  Changes nothing; O(atoms).
    """
    if next(_records_of(storage), None) is None:
        return None
    return Difference(storage, {atom.name: atom for atom in atoms}) or None


def apply_migration(
    storage: storage_module.Storage,
    atoms: Sequence[atom_module.Atom],
    migrate: Migrate | None = None,
    before: Difference | None = None,
) -> Difference | None:
    """`compare`, report what differs, let `migrate` decide, and do it, in one write.

    What the hook raises passes through, and nothing has changed.  `before` is what was reported
    already; it is returned if there is no more to it.

    :raises IncompatibleVersion: an atom cannot go on from what was saved under another version.
    :raises Duplicate: an atom was of the other kind (task or retry) when it was recorded.
    """
    found = compare(storage, atoms)
    if found is None:
        return before
    known = before is not None and before.covers(found)
    if not known:
        LOG.warning("Flow %r is not what its records were made by: %s", found.flow, found)
    if migrate is not None and (found.added or found.changed):
        migrate(found)
    left = found._left()
    if storage.get_flow_state() == states.REVERTED:  # it starts anew: what was saved is not used
        left = [change for change in left if change.stored_kind is not None]
    if left:
        raise _refusal(found.flow, left)
    found._apply()
    return before if known else found


def _refusal(flow: str, left: Sequence[Change]) -> exceptions.WbengineException:
    kinds = [change for change in left if change.stored_kind is not None]
    if kinds:
        return exceptions.Duplicate(
            f"Flow {flow!r} has records of another kind under the names of atoms:"
            f" {_few(kinds)}; give the new ones other names, or forget"
            " what was recorded (migrate=lambda difference: difference.forget(name))"
        )
    first = left[0]
    others = f" (and {len(left) - 1} more: {_few(left[1:])})" if left[1:] else ""
    why = "has another first number"
    unread = [repr(v) for v in (first.stored, first.present) if not _VERSION.fullmatch(v or "")]
    if unread:
        why = f"cannot be compared, for {' and '.join(unread)} is not like '1.0'"
    return exceptions.IncompatibleVersion(
        f"Atom {first.name!r} of flow {flow!r} is recorded with version {first.stored!r} and is"
        f" now of version {first.present!r}, which {why}{others}: run the flow to its end with the"
        " old code, or load it with migrate=, a hook that accepts or forgets what was recorded"
        " (migrate=lambda difference: difference.accept(name))"
    )


#: What is to be said of what is left of an atom that is gone, by its state.
_LEFT: Final[Mapping[str, str]] = {
    states.PENDING: "",
    states.IGNORE: "",
    states.REVERTED: "",
    states.RUNNING: "RUNNING: nobody waits for what it still does, or undoes it",
    states.REVERTING: "REVERTING: nobody waits for the end of that",
    states.SUCCESS: "SUCCESS: nobody is given its result, or undoes it",
}


def _records_of(storage: storage_module.Storage) -> Iterator[models.AtomDetail]:
    return (record for record in storage.flow_detail if record.name != storage.injector_name)


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


def _few(things: Sequence[Any], told: Callable[[Any], str] = str) -> str:
    more = len(things) - _MOST_NAMED
    return ", ".join(map(told, things[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
