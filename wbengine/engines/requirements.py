"""Values that a flow requires and nothing provides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wbengine import arguments as arguments_module
from wbengine import exceptions
from wbengine import storage as storage_module
from wbengine.runtime import plan as plan_module

__all__ = ["missing"]

_MAX_CAUSES: Final = 50

_MAX_REQUIRING_ATOMS: Final = 3


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
