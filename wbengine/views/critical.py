"""What a flow took its time for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wbengine.views.atoms import AtomView
from wbengine.views.flow import FlowView
from wbengine.views.structure import Structure

__all__ = ["path", "slowest"]


def slowest(view: FlowView, most: int = 20) -> tuple[AtomView, ...]:
    """The atoms whose latest attempt took longest, the slowest first."""
    known = [atom for atom in view.atoms if atom.runtime is not None]
    return tuple(sorted(known, key=lambda atom: (-(atom.runtime or 0.0), atom.node))[:most])


def path(view: FlowView) -> tuple[AtomView, ...]:
    """From the first atom to the one that ended last: each waited for the one before it.

    Only these have to be faster for the flow to be; O(atoms + edges).
    """
    executed = {
        atom.node: atom
        for atom in view.atoms
        if atom.ended is not None and atom.action == "execute"
    }
    last = _last(executed.values())
    if last is None:
        return ()
    structure = Structure(view.outline)
    # By node: of what is in it, what ended last.
    latest = [executed.get(node) for node in range(len(structure))]
    for node in reversed(range(1, len(structure))):
        parent, inside = structure.parents[node], latest[node]
        if inside is not None:
            latest[parent] = _last((latest[parent], inside))
    found, seen = [last], {last.node}
    while before := _last(latest[node] for node in _before(structure, found[-1].node)):
        if before.node in seen:
            break
        found.append(before)
        seen.add(before.node)
    return tuple(reversed(found))


def _last(atoms: Iterable[AtomView | None]) -> AtomView | None:
    """The one that ended last."""
    known = [atom for atom in atoms if atom is not None]
    return max(known, key=lambda atom: atom.ended or 0.0, default=None)


def _before(structure: Structure, node: int) -> Iterator[int]:
    """What `node` waited for."""
    yield from structure.before[node]
    for flow in structure.flows_around(node):
        retry = structure.retry[flow]
        if retry >= 0 and retry != node:
            yield retry
        yield from structure.before[flow]
