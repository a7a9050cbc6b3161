"""What a flow asks for and nothing provides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wbengine import exceptions
from wbengine import storage as storage_module
from wbengine.runtime import plan as plan_module

__all__ = ["missing"]

#: After so many atoms that lack something, the chain of causes does not get longer.
_MAX_CAUSES: Final = 50

#: So many atoms that lack something are named in the first line of the error.
_MAX_ASKERS: Final = 3


def missing(
    flow: Any, plan: plan_module.Plan, storage: storage_module.Storage
) -> exceptions.MissingDependencies | None:
    """The error that names what is missing, who asks for it and as what; None if nothing is."""
    names: dict[str, None] = {}
    cause: exceptions.MissingDependencies | None = None
    askers: list[str] = []
    lacking_atoms = 0
    for node in plan.atoms():
        bound = plan.firsts.get(node)
        if bound is None or None not in bound.values():
            continue  # all that it binds is provided
        atom: Any = plan.items[node]
        arguments: dict[str, None] = {}
        for method, lacking in _lacking(atom, storage):
            names.update(dict.fromkeys(lacking.values()))
            arguments.update(dict.fromkeys(lacking))
            if lacking_atoms < _MAX_CAUSES:
                wanted = sorted(set(lacking.values()))
                cause = exceptions.MissingDependencies(
                    _who(atom, lacking), wanted, cause=cause, method=method
                )
        if arguments:
            lacking_atoms += 1
            if lacking_atoms <= _MAX_ASKERS:
                askers.append(f"{', '.join(map(repr, arguments))} of {atom.name!r}")
    if not names:
        return None
    if lacking_atoms > _MAX_ASKERS:
        askers.append(f"{lacking_atoms - _MAX_ASKERS} more")
    return exceptions.MissingDependencies(
        flow, sorted(names), cause=cause, available=storage.known_names(), askers=askers
    )


def _lacking(atom: Any, storage: storage_module.Storage) -> Iterator[tuple[str, dict[str, str]]]:
    """`(method, {argument: stored name})` for each method that lacks arguments."""
    for method, rebind, optional in (
        ("execute", atom.rebind, atom.optional),
        ("revert", atom.revert_rebind, atom.revert_optional),
    ):
        if rebind:
            found = storage.unsatisfied(atom.name, rebind, optional_args=optional)
            if found:
                yield method, found


def _who(atom: Any, lacking: dict[str, str]) -> str:
    renamed = [f"{argument} from {name}" for argument, name in lacking.items() if argument != name]
    return f"{atom}" + (f" ({', '.join(renamed)})" if renamed else "")
