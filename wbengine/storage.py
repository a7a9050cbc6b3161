"""What an engine knows of one run of a flow, and where atoms get their arguments from.

Storage never calls upward: who may see whose results is passed in (`bind`).  How records are
changed and written, and from which threads, is told in `persistence.records`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import _names, arguments, exceptions, states
from wbengine import atom as atom_module
from wbengine import invocation as calls
from wbengine.persistence import atom_details, base, leases, models, records, results, writing
from wbengine.types import failure as ft

__all__ = ["META_INJECTED", "META_PROGRESS", "META_PROGRESS_DETAILS", "Storage", "values_by_name"]

#: Keys of an atom's `meta`: what was injected for it to stay, and how far it is.
META_INJECTED: Final = "injected"
META_PROGRESS: Final = atom_details.META_PROGRESS
META_PROGRESS_DETAILS: Final = atom_details.META_PROGRESS_DETAILS

_NOTHING: Final[Mapping[str, Any]] = {}

_FAILED: Final = frozenset({states.FAILURE, states.REVERT_FAILURE})

#: Chooses or combines the values of a name that several providers made.
ManyHandler = Callable[[list[Any]], Any]


class Storage(results.Results):
    """The results, states, failures and injected values of one flow: all of it."""

    def __init__(
        self,
        flow_detail: models.FlowDetail,
        backend: base.Backend | None = None,
        scope_fetcher: Any = None,
    ) -> None:
        super().__init__(flow_detail, backend, scope_fetcher)
        self._savers: dict[str, Mapping[str, Any]] = {}
        self._transient: dict[str, Any] = {}
        self._transient_args: dict[str, Mapping[str, Any]] = {}
        self._injector: models.AtomDetail | None = self._by_name.get(self.injector_name)
        self._bindings: arguments.Bindings | None = None
        #: The records by plan node (None where the node is no atom); set by `bind`.
        self.records: Sequence[models.AtomDetail | None] = ()

    def ensure_atoms(self, atoms: Iterable[atom_module.Atom]) -> list[str]:
        wanted = list(atoms)
        uuids = super().ensure_atoms(wanted)
        savers = [(atom.name, atom.save_as) for atom in wanted if atom.save_as]
        # A new dict: other threads may be going through the old one.
        self._savers = {**self._savers, **dict(savers)}
        return uuids

    def bind(self, bindings: arguments.Bindings, size: int) -> None:
        """Learn the plan: who sees whose results.  Its atoms must have been ensured."""
        by_node: list[models.AtomDetail | None] = [None] * size
        for name, node in bindings.by_name.items():
            by_node[node] = self._by_name[name]
        self._bindings = bindings
        self.records = by_node

    def own(self, lease: leases.Lease) -> None:
        super().own(lease)
        if lease.epoch == 1 and self._injector is not None:
            # Whoever else loaded the flow before it ran may have stored other values.
            self._marked.append(self._injector)

    def _take_over(self, kept: models.FlowDetail) -> None:
        super()._take_over(kept)
        self._injector = self._by_name.get(self.injector_name)
        self._savers = {name: to for name, to in self._savers.items() if name in self._by_name}
        if self._bindings is not None:
            # What is missing here has been renamed; `prepare` sees to that.
            by_node: list[models.AtomDetail | None] = [None] * len(self.records)
            for name, node in self._bindings.by_name.items():
                by_node[node] = self._by_name.get(name)
            self.records = by_node

    def _give(self, given: writing.Given) -> None:
        kind, name, values = given
        if kind == writing.FLOW_META:
            self.update_flow_metadata(values)
        elif name is None:
            self.inject(values)
        elif name in self._by_name and kind == writing.META:
            self.update_atom_metadata(name, values)
        elif name in self._by_name:
            self.inject_atom_args(name, values, transient=False)

    # -- results and failures -------------------------------------------------------------------

    def save(self, atom_name: str, result: Any, state: str = states.SUCCESS) -> None:
        """Store what an atom came to: a value, or a failure when `state` is a failed one.

        :raises ValueError: atoms have no such state.
        :raises TypeError: the state is a failed one, and `result` is no `Failure`.
        :raises NotEncodable: the store cannot keep `result`; nothing is changed then.
        """
        record = self.record(atom_name)
        states.check_known("state of an atom", state, states.ATOM_STATES)
        if state in _FAILED and not isinstance(result, ft.Failure):
            raise TypeError(f"With state {state} a Failure is saved, not {result!r}")
        self.check(result, "result")
        with self._lock:
            self._put(record, state, result)
        self.mark(record)

    def put(self, record: models.AtomDetail, state: str, result: Any) -> None:
        """`save` for the engine's loop, which holds the record and is not checked."""
        self._put(record, state, result)
        if self._backend is not None:
            self.mark(record)

    def _put(self, record: models.AtomDetail, state: str, result: Any) -> None:
        record.put(state, result)
        if state == states.FAILURE:
            self._failed[record.name] = result
            self._failed_view = None
        elif self._failed and state == states.SUCCESS:
            self._forget_failure(record.name)

    def keepable(self, outcome: Any) -> Any:
        """The value of an `Outcome`, or what its atom fails with because that cannot be kept.

        What came from a worker came through the codec already.
        """
        value = outcome.value
        if self.encodes and outcome.worker == calls.LOCAL and not isinstance(value, ft.Failure):
            try:
                self.check(value, "result")
            except Exception as error:  # whatever a result does, nobody but its atom is hurt
                outcome.value = value = ft.Failure.from_exception(error)
        return value

    def clear(self, record: models.AtomDetail) -> None:
        """Forget the failure of an earlier attempt, because a new one begins."""
        record.failure = None
        self._forget_failure(record.name)

    # -- arguments ------------------------------------------------------------------------------

    def inject(self, pairs: records.Pairs, transient: bool = False) -> list[str]:
        """Provide values to every atom of the flow, at any time; `transient` ones are not written.

        They win over what atoms provide, the transient ones over the others.

        :raises TypeError: neither a dict nor pairs, or a name is not a string.
        :raises NotEncodable: the store cannot keep a value, which could be transient; nothing is
            changed then.
        """
        given = values_by_name(pairs)
        if not transient:
            self.check(given, "injected values")
        with self._lock:
            if transient:
                self._transient.update(given)
                return list(given)
            self._was_given(writing.INJECTED, None, given)
            if self._injector is None:
                self._injector = models.TaskDetail(self.injector_name, self._injector_uuid())
                self._injector.state = states.SUCCESS
                self._by_name[self.injector_name] = self._injector
                self._flow_detail.add(self._injector)
            # A new dict: the old one may just be being written.
            self._injector.results = {**(self._injector.results or {}), **given}
        self.mark(self._injector)
        return list(given)

    def _injector_uuid(self) -> str:
        """Always the same, so that engines that load the flow at a time share one record."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.flow_uuid} {self.injector_name}"))

    def inject_atom_args(
        self, atom_name: str, pairs: records.Pairs, transient: bool = True
    ) -> None:
        """Provide values to one atom; they win over every other source.

        :raises NotFound: there is no such atom (before `prepare` there is none).
        :raises TypeError: neither a dict nor pairs, or a name is not a string.
        :raises NotEncodable: the store cannot keep a value, which could be transient; nothing is
            changed then.
        """
        record = self.record(atom_name)
        given = values_by_name(pairs)
        if not transient:
            self.check(given, f"what is injected for {atom_name!r}")
        with self._lock:
            if transient:
                mine = self._transient_args.get(atom_name)
                self._transient_args[atom_name] = {**mine, **given} if mine else given
                return
            self._was_given(writing.INJECTED, atom_name, given)
            record.meta[META_INJECTED] = {**record.meta.get(META_INJECTED, _NOTHING), **given}
        self.mark(record)

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
            self.mark(self._injector)
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
        self.mark(record)

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


def values_by_name(pairs: records.Pairs) -> dict[str, Any]:
    """A new dict of values that are to be injected.

    :raises TypeError: neither a dict nor pairs, or a name is not a string.
    """
    given = records.pairs_of("injected values", pairs)
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"The name of an injected value is a str, not {name!r}")
    return given


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
