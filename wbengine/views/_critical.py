"""The slowest atoms and the critical path of a flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wbengine.views._atoms import AtomView
from wbengine.views._structure import Structure
from wbengine.views.flow_status import FlowView

__all__ = ["path", "slowest"]


def slowest(view: FlowView, limit: int = 20) -> tuple[AtomView, ...]:
    """Return the atoms with the longest latest attempt, slowest first."""
    timed_atoms = [atom for atom in view.atoms if atom.runtime is not None]
    return tuple(sorted(timed_atoms, key=lambda atom: (-(atom.runtime or 0.0), atom.node))[:limit])


def path(view: FlowView) -> tuple[AtomView, ...]:
    """Return the critical path: the chain of atoms whose last one ended last of all.

    Each atom of the path waited for the previous one. So the flow becomes faster only if atoms of
    this path do. Cost: O(atoms + edges).
    """
    executed = {
        atom.node: atom
        for atom in view.atoms
        if atom.ended is not None and atom.action == "execute"
    }
    last = _last_ended(executed.values())
    if last is None:
        return ()
    structure = Structure(view.outline)
    # Node -> the atom in it that ended last.
    latest = [executed.get(node) for node in range(len(structure))]
    for node in reversed(range(1, len(structure))):
        parent, inside = structure.parents[node], latest[node]
        if inside is not None:
            latest[parent] = _last_ended((latest[parent], inside))
    chain, visited = [last], {last.node}
    while previous := _last_ended(
        latest[node] for node in _predecessors(structure, chain[-1].node)
    ):
        if previous.node in visited:
            break
        chain.append(previous)
        visited.add(previous.node)
    return tuple(reversed(chain))


def _last_ended(atoms: Iterable[AtomView | None]) -> AtomView | None:
    """Return the atom that ended last."""
    present_atoms = [atom for atom in atoms if atom is not None]
    return max(present_atoms, key=lambda atom: atom.ended or 0.0, default=None)


def _predecessors(structure: Structure, node: int) -> Iterator[int]:
    """Yield the nodes for which `node` waited."""
    yield from structure.before[node]
    for flow in structure.flows_around(node):
        retry = structure.retry[flow]
        if retry >= 0 and retry != node:
            yield retry
        yield from structure.before[flow]
