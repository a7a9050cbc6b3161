"""What an engine knows of one run of a flow, and where atoms get their arguments from.

Storage never calls upward: who may see whose results is passed in (`bind`).  How records are
changed and written, and from which threads, is told in `persistence.records`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import _names, arguments, exceptions, states
from wbengine import atom as atom_module
from wbengine import retry as retry_module
from wbengine.persistence import base, models, records
from wbengine.types import failure as ft

__all__ = ["Storage"]

_NOTHING: Final[Mapping[str, Any]] = {}
#: States in which the record of a task that did not fail holds the result of `execute`.
_WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})
_WITH_REVERT_RESULT: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})

#: Chooses or combines the values of a name that several providers made.
ManyHandler = Callable[[list[Any]], Any]


class Storage(records.Records):
    """The results, states, failures and injected values of one flow."""

    def __init__(
        self,
        flow_detail: models.FlowDetail,
        backend: base.Backend | None = None,
        write_pause: float = 5.0,
    ) -> None:
        super().__init__(flow_detail, backend, write_pause)
        self._savers: dict[str, Mapping[str, Any]] = {}
        self._transient: dict[str, Any] = {}
        self._transient_args: dict[str, Mapping[str, Any]] = {}
        self._injector: models.AtomDetail | None = self._by_name.get(self.injector_name)
        self._failed: dict[str, ft.Failure] = {
            record.name: record.failure for record in flow_detail if record.failure is not None
        }
        self._failed_view: Mapping[str, ft.Failure] | None = None
        self._bindings: arguments.Bindings | None = None
        #: The records by plan node (None where the node is no atom); set by `bind`.
        self.records: Sequence[models.AtomDetail | None] = ()

    def ensure_atoms(self, atoms: Iterable[atom_module.Atom]) -> list[str]:
        wanted = list(atoms)
        uuids = super().ensure_atoms(wanted)
        self._savers.update([(atom.name, atom.save_as) for atom in wanted if atom.save_as])
        return uuids

    def bind(self, bindings: arguments.Bindings, size: int) -> None:
        """Learn the plan: who sees whose results.  Its atoms must have been ensured."""
        by_node: list[models.AtomDetail | None] = [None] * size
        for name, node in bindings.by_name.items():
            by_node[node] = self._by_name[name]
        self._bindings = bindings
        self.records = by_node

    # -- results and failures -------------------------------------------------------------------

    def save(self, atom_name: str, result: Any, state: str = states.SUCCESS) -> None:
        """Store what an atom came to: a value, or a failure when `state` is a failed one."""
        self.put(self.record(atom_name), state, result)

    def put(self, record: models.AtomDetail, state: str, result: Any) -> None:
        """`save` for who holds the record."""
        record.put(state, result)
        if state == states.FAILURE:
            self._failed[record.name] = result
            self._failed_view = None
        elif self._failed and state == states.SUCCESS:
            self._forget_failure(record.name)
        if self._backend is not None:
            self.mark(record)

    def clear(self, record: models.AtomDetail) -> None:
        """Forget the failure of an earlier attempt, because a new one begins."""
        record.failure = None
        self._forget_failure(record.name)

    def reset(self, atom_name: str, state: str = states.PENDING) -> None:
        """Forget an atom's results and failures; its attempt number goes on rising."""
        record = self.record(atom_name)
        record.reset(state)
        self._forget_failure(atom_name)
        self.mark(record)

    def save_retry_failure(
        self, retry_name: str, failed_atom_name: str, failure: ft.Failure
    ) -> None:
        """Add to the history who failed while the retry's latest value was provided."""
        record = self._retry(retry_name)
        if record.results:
            record.last_failures[failed_atom_name] = failure
            self.mark(record)

    def cleanup_retry_history(self, retry_name: str, state: str) -> None:
        """Forget a retry's history and enter `state`."""
        record = self._retry(retry_name)
        record.state = state
        record.results = []
        record.failure = None
        self._forget_failure(retry_name)
        self.mark(record)

    def get_execute_result(self, atom_name: str) -> Any:
        """What `execute` returned, or its failure; a retry's whole history.

        Raises `NotFound` when there is neither (not executed, reset, reverted).
        """
        record = self.record(atom_name)
        if isinstance(record, models.RetryDetail) and record.state != states.FAILURE:
            if record.results:
                return record.results
        elif record.failure is not None:
            return record.failure
        elif record.state in _WITH_RESULT:
            return record.results
        raise exceptions.NotFound(
            f"The result of atom {atom_name!r} is not known (its state is {record.state})"
        )

    get = get_execute_result

    def get_revert_result(self, atom_name: str) -> Any:
        """What `revert` returned, or its failure; raises `NotFound` if it was not reverted."""
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
        if self._failed_view is None:
            self._failed_view = dict(self._failed)
        return self._failed_view

    get_failures = get_execute_failures

    def get_revert_failures(self) -> dict[str, ft.Failure]:
        return {
            name: record.revert_failure
            for name, record in self._by_name.items()
            if record.revert_failure is not None
        }

    def get_execute_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).failure

    def get_revert_failure(self, atom_name: str) -> ft.Failure | None:
        return self.record(atom_name).revert_failure

    def has_failures(self) -> bool:
        """Whether an atom's latest execution failed; O(1)."""
        return bool(self._failed)

    def get_retry_history(self, retry_name: str) -> retry_module.History:
        record = self._retry(retry_name)
        return retry_module.History(list(record.results), failure=record.failure)

    def get_retry_histories(self) -> list[tuple[str, retry_module.History]]:
        return [
            (name, self.get_retry_history(name))
            for name, record in self._by_name.items()
            if isinstance(record, models.RetryDetail)
        ]

    # -- arguments ------------------------------------------------------------------------------

    def inject(self, pairs: Mapping[str, Any], transient: bool = False) -> list[str]:
        """Provide values to every atom of the flow; `transient` ones are never written."""
        if transient:
            self._transient.update(pairs)
        else:
            if self._injector is None:
                self._injector = models.TaskDetail(self.injector_name)
                self._injector.state = states.SUCCESS
                self._by_name[self.injector_name] = self._injector
                self._flow_detail.add(self._injector)
            self._injector.results = {**(self._injector.results or {}), **pairs}
            self.mark(self._injector)
        return list(pairs)

    def inject_atom_args(
        self, atom_name: str, pairs: Mapping[str, Any], transient: bool = True
    ) -> None:
        """Provide values to one atom; they win over every other source."""
        record = self.record(atom_name)
        if transient:
            mine = self._transient_args.get(atom_name)
            self._transient_args[atom_name] = {**mine, **pairs} if mine else pairs
        else:
            record.meta["injected"] = {**record.meta.get("injected", _NOTHING), **pairs}
            self.mark(record)

    def fetch(self, name: str, many_handler: ManyHandler | None = None) -> Any:
        """The value of `name`: the first one, or what `many_handler` makes of all of them.

        Raises `NotFound` when nothing provides `name`, or nothing did so far.
        """
        values = list(self._values(name))
        if values:
            return many_handler(values) if many_handler is not None else values[0]
        if not isinstance(name, str):
            raise TypeError(f"A stored name is a str, not {name!r}")
        known = self.known_names()
        if name not in known:
            raise exceptions.NotFound(
                f"Name {name!r} is not provided by anything in flow {self.flow_name!r}"
                f"{_names.hint(name, known)}"
            )
        raise exceptions.NotFound(f"Nothing has provided {name!r} so far")

    def fetch_all(self, many_handler: ManyHandler | None = None) -> dict[str, Any]:
        """All values by name; a name with several values has the list of them.

        Atoms that have no result (yet) contribute nothing.  O(providers).
        """
        found: dict[str, list[Any]] = {}
        for source in self._flow_sources():
            for name, value in source.items():
                found.setdefault(name, []).append(value)
        for atom_name, save_as in self._savers.items():
            record = self._by_name[atom_name]
            for name, index in save_as.items():
                value = _part(record, index)
                if value is not arguments.MISSING:
                    found.setdefault(name, []).append(value)
        combine = many_handler if many_handler is not None else _one_or_all
        return {name: combine(values) for name, values in found.items()}

    def fetch_mapped_args(
        self,
        args_mapping: Mapping[str, str],
        atom_name: str | None = None,
        scope_walker: Any = None,
        optional_args: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Keyword arguments for `args_mapping` (argument -> stored name) as `atom_name` sees them.

        Raises `NotFound` for an argument without a value that is not optional.  (`scope_walker` is
        accepted for compatibility; the plan says what is visible.)
        """
        optional = optional_args if optional_args is not None else ()
        if atom_name is None:
            return {argument: self.fetch(name) for argument, name in args_mapping.items()}
        node = self._node(atom_name)
        return arguments.gather(
            args_mapping,
            optional,
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
    ) -> dict[str, str]:
        """The arguments nothing can provide to the atom, as `{argument: stored name}`."""
        optional = optional_args if optional_args is not None else ()
        node = self._node(atom_name)
        if self._bindings is None or node < 0:
            raise exceptions.InvalidState(
                "The storage knows no plan yet (prepare the engine first)"
            )
        sources = self._sources(atom_name)
        return arguments.unsatisfied(args_mapping, optional, sources, self._bindings, node)

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
        if record is not None and record.has_meta and "injected" in record.meta:
            found.append(record.meta["injected"])
        return found + self._flow_sources()

    def _values(self, name: str) -> Iterator[Any]:
        for source in self._flow_sources():
            if name in source:
                yield source[name]
        for atom_name, save_as in self._savers.items():
            if name in save_as:
                value = _part(self._by_name[atom_name], save_as[name])
                if value is not arguments.MISSING:
                    yield value

    def known_names(self) -> set[str]:
        """Every name that is injected for the flow, or that some atom provides."""
        names = {name for save_as in self._savers.values() for name in save_as}
        return names.union(*self._flow_sources())

    def _node(self, atom_name: str) -> int:
        return -1 if self._bindings is None else self._bindings.by_name.get(atom_name, -1)

    def _retry(self, retry_name: str) -> models.RetryDetail:
        record = self.record(retry_name)
        if not isinstance(record, models.RetryDetail):
            raise TypeError(f"Atom {retry_name!r} is a {record.kind}, not a retry")
        return record

    def _forget_failure(self, atom_name: str) -> None:
        if self._failed.pop(atom_name, None) is not None:
            self._failed_view = None


def _part(record: models.AtomDetail, index: Any) -> Any:
    if isinstance(record, models.RetryDetail):
        if not record.results or record.state == states.REVERT_FAILURE:
            return arguments.MISSING
        return arguments.element(record.last_results, index)
    if record.failure is not None or record.state not in _WITH_RESULT:
        return arguments.MISSING
    return arguments.element(record.results, index)


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
