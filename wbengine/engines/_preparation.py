"""Preparation of the records of a flow for a run or a reset, and checks of its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import atom as atom_module
from wbengine import exceptions, states, task
from wbengine import storage as storage_module
from wbengine._introspection import binding
from wbengine._runtime import plan as plan_module
from wbengine._tasks import arguments as arguments_module
from wbengine.engines import _compilation, _differences
from wbengine.persistence import base as persistence
from wbengine.persistence import models
from wbengine.types import codec

__all__ = [
    "Preparation", "atoms_in_order", "check_retriable",
    "check_steps", "failed_nodes", "nodes_not_owned", "missing",
    "nodes_to_retry", "saved_states", "workflow_defaults",
]  # fmt: skip

_MAX_CAUSES: Final = 50

_MAX_REQUIRING_ATOMS: Final = 3


class Preparation:
    """Prepares the records of one flow: `compare`, `create`, `finish`.

    :param migrate: decides about differences between the flow and its records.
    :param inject_transient: do not store the values that atoms inject.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        *,
        migrate: _differences.Migrate | None,
        inject_transient: bool,
    ) -> None:
        self._storage = storage
        self._migrate = migrate
        self._inject_transient = inject_transient
        #: Values that the next preparation injects.
        self.inputs: Mapping[str, Any] = {}
        self._difference: _differences.Difference | None = None
        # Values of `storage.readings` when the records were prepared, and when the outline was
        # saved.
        self._prepared_at = self._outline_saved_at = -1

    @property
    def is_finished(self) -> bool:
        """Whether the records are prepared and were not read again since then."""
        return self._prepared_at == self._storage.readings

    def difference(self, plan: plan_module.Plan | None) -> _differences.Difference | None:
        """Return the differences between the flow and the records of an earlier run, or None."""
        if self.is_finished or self._difference is not None or plan is None:
            return self._difference
        if not self._storage.has_atoms:
            return None
        return _differences.compare(self._storage, list(atoms_in_order(plan)))

    def compare(self, atoms: Sequence[atom_module.Atom]) -> None:
        """Report differences, and apply the decisions of the option `migrate`."""
        if self._storage.has_atoms:
            self._difference = _differences.apply_migration(
                self._storage, atoms, self._migrate, self._difference
            )

    def create(self, plan: plan_module.Plan, atoms: Sequence[atom_module.Atom]) -> None:
        """Create missing records, inject values and bind the records to the plan."""
        self._storage.ensure_atoms(atoms)
        if self.inputs:
            self._storage.inject(self.inputs)
            self.inputs = {}
        for atom in atoms:
            if atom.inject:
                self._storage.inject_atom_args(
                    atom.name, atom.inject, transient=self._inject_transient
                )
        self._storage.bind(plan, len(plan))

    def finish(self) -> None:
        self._prepared_at = self._storage.readings

    def save_outline(self, compiled: _compilation.Compilation) -> None:
        """Store the structure of the flow, unless it is stored since the preparation."""
        if self._storage.backend is not None and self._outline_saved_at != self._prepared_at:
            self._storage.writer.save_outline(compiled.outline)
            self._outline_saved_at = self._prepared_at


def atoms_in_order(plan: plan_module.Plan) -> Iterator[Any]:
    """Yield the atoms in the order of their records; a retry follows the members of its flow.

    This is also the order of the values of a name with several providers.
    """
    for kind, item in zip(plan.kinds, plan.items, strict=True):
        if kind == plan_module.TASK:
            yield item
        elif kind == plan_module.FLOW_END and item.retry is not None:  # type: ignore[union-attr]
            yield item.retry  # type: ignore[union-attr]


def saved_states(storage: storage_module.Storage) -> dict[int, tuple[str | None, str]]:
    """Return state and intention of the nodes whose atoms are not untouched."""
    return {
        node: (record.state, record.intention)
        for node, record in enumerate(storage.records)
        if record is not None
        and (record.state != states.PENDING or record.intention != states.EXECUTE)
    }


def nodes_not_owned(storage: storage_module.Storage) -> set[int]:
    """Return the nodes whose results another flow reverts."""
    flow = storage.flow_detail
    if flow.forked_from is None and not flow.forks:
        return set()
    return {
        node
        for node, record in enumerate(storage.records)
        if record is not None and record.has_other_owner
    }


def nodes_to_retry(plan: plan_module.Plan, storage: storage_module.Storage) -> list[int]:
    """Return the nodes to reset: the failed ones, or in a reverted flow, all of them.

    :raises InvalidState: as `failed_nodes` and `check_steps`.
    """
    if storage.get_flow_state() != states.REVERTED:
        return failed_nodes(storage)
    nodes = list(plan.atoms())
    _check_steps_of(nodes, storage)
    return nodes


def check_steps(
    flow_uuid: str,
    records: Iterable[models.AtomDetail],
    retried: Iterable[models.AtomDetail | None],
    backend: persistence.Backend | None,
) -> None:
    """Check that workflows which call all of their steps again repeat no effect.

    :param records: all records of the flow.
    :param retried: records of the atoms that run again.
    :param backend: the store of child flows, or None.
    :raises InvalidState: if a complete step has a `revert` that nothing would call any more, if
        another flow reverts it, or if a failed child flow has complete tasks.
    """
    failed_children: list[tuple[str, models.AtomDetail]] = []
    workflows = {
        record.uuid: record
        for record in retried
        if record is not None and not record.has_other_owner
    }
    for step in records:
        if not step.is_step:
            continue
        note = step.meta[models.STEP]
        workflow = workflows.get(note["workflow"])
        child = step.meta_value(models.CHILD)
        if workflow is not None and child is not None and step.state == states.FAILURE:
            failed_children.append((child, step))
        has_effect = step.state == states.SUCCESS and note.get("arguments") is not None
        if workflow is None or not (has_effect or step.has_other_owner):
            continue
        owner = step.meta_value(models.RESULT_OWNER)
        why = (
            f"whose result belongs to flow {owner}. Fork"
            if owner is not None
            else "which is complete and would never be undone. Revert the flow first, or fork"
        )
        raise exceptions.InvalidState(
            f"Workflow {workflow.name!r} cannot be retried: it would repeat step {step.name!r},"
            f" {why} the flow instead: wbengine flow fork {flow_uuid} --from failed"
        )
    if backend is not None and failed_children:
        _check_children(failed_children, backend)


def _check_children(
    failed: Iterable[tuple[str, models.AtomDetail]], backend: persistence.Backend
) -> None:
    """Check that failed child flows, which new ones replace, have no complete task.

    :param failed: uuids of child flows, with their steps.
    :raises InvalidState: if one has.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        for uuid, step in failed:
            try:
                with codec.unknown_classes_as_text():
                    child = connection.get_flow_details(uuid)
            except exceptions.NotFound:
                continue
            if child.state == states.FAILURE and any(map(_has_effect, child)):
                raise exceptions.InvalidState(
                    f"Child flow {uuid} of step {step.name!r} failed with complete tasks, which a"
                    " retry would repeat in a new child flow. Revert the child first: wbengine"
                    f" flow revert {uuid}"
                )


def _has_effect(record: models.AtomDetail) -> bool:
    """Return whether a task or step is complete and may have a `revert`."""
    if record.state != states.SUCCESS or record.kind == "retry":
        return False
    if record.is_step:
        return record.meta[models.STEP].get("arguments") is not None
    return record.name != models.INJECTOR and record.meta_value(models.WORKFLOW) is None


def failed_nodes(storage: storage_module.Storage) -> list[int]:
    """Return the nodes of the atoms that failed.

    :raises InvalidState: if an atom is being reverted or retried, or is to be; or as `check_steps`.
    """
    check_retriable(storage.flow_name, filter(None, storage.records))
    nodes = [
        node
        for node, record in enumerate(storage.records)
        if record is not None and record.state == states.FAILURE
    ]
    _check_steps_of(nodes, storage)
    return nodes


def _check_steps_of(nodes: Iterable[int], storage: storage_module.Storage) -> None:
    retried = [storage.records[node] for node in nodes]
    check_steps(storage.flow_uuid, storage.flow_detail, retried, storage.backend)


def check_retriable(flow_name: str, records: Iterable[models.AtomDetail]) -> None:
    """Check that the failed atoms of a flow with these records can run again.

    :raises InvalidState: if an atom is being reverted or retried, or is to be.
    """
    for record in records:
        if record.intention in (states.REVERT, states.RETRY):
            raise exceptions.InvalidState(
                f"reset(failed_only=True) is allowed only if no atom of flow"
                f" {flow_name!r} is to be reverted or retried, got atom {record.name!r}"
                f" in state {record.state} with intention {record.intention}. Finish the"
                " reversion with `wbengine flow revert`, or reset all atoms with reset()"
            )


def missing(
    flow: Any, plan: plan_module.Plan, storage: storage_module.Storage
) -> exceptions.MissingDependencies | None:
    """Return an error with the missing values, and the arguments that require them, or None.

    The atoms of a new flow need no records for this check.
    """
    names: dict[str, None] = {}
    cause: exceptions.MissingDependencies | None = None
    askers: list[str] = []
    lacking_atoms = 0
    for node in plan.atoms():
        providers = plan.firsts.get(node)
        if providers is None or None not in providers.values():
            continue  # all bound values are provided
        atom: Any = plan.items[node]
        arguments: dict[str, None] = {}
        for method, lacking in _missing_arguments(node, atom, plan, storage):
            names.update(dict.fromkeys(lacking.values()))
            arguments.update(dict.fromkeys(lacking))
            if lacking_atoms < _MAX_CAUSES:
                missing_names = sorted(set(lacking.values()))
                cause = exceptions.MissingDependencies(
                    _describe_atom(atom, lacking), missing_names, cause=cause, method=method
                )
        if arguments:
            lacking_atoms += 1
            if lacking_atoms <= _MAX_REQUIRING_ATOMS:
                askers.append(f"{', '.join(map(repr, arguments))} of {atom.name!r}")
    if not names:
        return None
    if lacking_atoms > _MAX_REQUIRING_ATOMS:
        askers.append(f"{lacking_atoms - _MAX_REQUIRING_ATOMS} more")
    available = {*plan.provided_names, *storage.inputs()}
    return exceptions.MissingDependencies(
        flow, sorted(names), cause=cause, available=available, askers=askers
    )


def workflow_defaults(plan: plan_module.Plan) -> dict[str, dict[str, Any]]:
    """Return the defaults of the parameters of workflows, by name of the atom and parameter.

    Values that cannot be encoded are omitted.
    """
    defaults: dict[str, dict[str, Any]] = {}
    for workflow in plan.items:
        if isinstance(workflow, task.Workflow):
            signature = binding.signature_of(workflow.execute)
            for name in signature.optional:
                value = signature.inspected.parameters[name].default
                with contextlib.suppress(exceptions.NotEncodable):
                    codec.pack(value)
                    defaults.setdefault(workflow.name, {})[name] = value
    return defaults


def _missing_arguments(
    node: int, atom: Any, plan: plan_module.Plan, storage: storage_module.Storage
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield `(method, {argument: stored name})` for each method that lacks arguments."""
    sources = [atom.inject or {}, *storage.injected_for(atom.name)]
    for method, rebind, optional in (
        ("execute", atom.rebind, atom.optional),
        ("revert", atom.revert_rebind, atom.revert_optional),
    ):
        if rebind:
            unsatisfied = arguments_module.unsatisfied(rebind, optional, sources, plan, node)
            if unsatisfied:
                yield method, unsatisfied


def _describe_atom(atom: Any, lacking: dict[str, str]) -> str:
    renamed = [f"{argument} from {name}" for argument, name in lacking.items() if argument != name]
    return f"{atom}" + (f" ({', '.join(renamed)})" if renamed else "")
