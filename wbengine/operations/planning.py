"""What would happen to a kept flow, before it does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from wbengine import exceptions, states
from wbengine.persistence import base, models

__all__ = ["RESUME", "RETRY", "REVERT", "Plan", "plan"]

RESUME: Final = "resume"
RETRY: Final = "retry"
REVERT: Final = "revert"

#: Atoms in these have done something that can be undone.
_DONE: Final = (states.RUNNING, states.SUCCESS, states.FAILURE, states.REVERTING, states.RETRYING)
#: These are what `revert` undoes: what could not be undone is tried again.
_UNDONE_BY_REVERT: Final = (*_DONE, states.REVERT_FAILURE)
#: In these, they are not run again.
_SETTLED: Final = (states.SUCCESS, states.IGNORE)


class Plan(NamedTuple):
    """The names of atoms that would run, and would be reverted, in the order of the flow.

    What fails, what retries decide, and what deciders ignore is not foreseen.
    """

    run: tuple[str, ...]
    revert: tuple[str, ...]


def plan(backend: base.Backend, uuid: str, operation: str) -> Plan:
    """What `resume`, `retry` or `revert` would do, by the flow's records.

    :raises NotFound: there is no such flow.
    :raises InvalidState: it cannot be done to a flow in this state.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        outline = connection.get_outline(uuid)
    atoms = [atom for atom in detail if atom.name != models.INJECTOR]
    names = [node.name for node in outline.nodes if node.kind != "flow"] if outline else []
    order = {name: place for place, name in enumerate(names)}
    atoms.sort(key=lambda atom: order.get(atom.name, len(order)))
    recorded = {atom.name for atom in atoms}
    new = [name for name in names if name not in recorded]
    _check(detail, operation)
    if operation == REVERT:
        return Plan((), _named(atom for atom in atoms if atom.state in _UNDONE_BY_REVERT))
    if operation == RETRY and detail.state == states.REVERTED:
        return Plan((*_named(atoms), *new), ())
    if operation == RESUME and _part_reverted(detail, atoms):
        return Plan((), ())
    if operation == RESUME and any(_fails(atom) for atom in atoms):
        return Plan((), _named(atom for atom in atoms if atom.state in _DONE))
    return Plan((*_named(atom for atom in atoms if atom.state not in _SETTLED), *new), ())


def _fails(atom: models.AtomDetail) -> bool:
    """Whether it makes its flow be reverted."""
    return atom.intention == states.REVERT or atom.state in (states.FAILURE, states.REVERTING)


def _part_reverted(detail: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> bool:
    """Whether all is reverted that was to be, and something else is left done."""
    ended = (*_SETTLED, states.PENDING, states.REVERTED)
    return detail.state == states.FAILURE and all(atom.state in ended for atom in atoms)


def _named(atoms: Iterable[models.AtomDetail]) -> tuple[str, ...]:
    return tuple(atom.name for atom in atoms)


def _check(detail: models.FlowDetail, operation: str) -> None:
    state = detail.state or states.PENDING
    impossible = {
        RESUME: (states.SUCCESS, states.REVERTED),
        RETRY: (states.SUCCESS, states.PENDING, states.RUNNING),
        REVERT: (states.SUCCESS, states.REVERTED, states.PENDING),
    }
    if state in impossible[operation]:
        raise exceptions.InvalidState(f"Flow {detail.uuid} is in {state}: it cannot {operation}")
