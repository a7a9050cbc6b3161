"""What a flow took its time for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    last = max(executed.values(), key=_ended, default=None)
    if last is None:
        return ()
    latest = _Latest(Structure(view.outline), executed)
    found, seen = [last], {last.node}
    while (before := latest.before(found[-1].node)) is not None and before.node not in seen:
        found.append(before)
        seen.add(before.node)
    return tuple(reversed(found))


def _ended(atom: AtomView) -> float:
    return atom.ended or 0.0


class _Latest:
    """Which atom of a flow ended last."""

    def __init__(self, structure: Structure, atoms: Mapping[int, AtomView]) -> None:
        self._structure = structure
        self._of: list[AtomView | None] = [None] * len(structure)
        for node in range(len(structure) - 1, -1, -1):
            self._offer(node, atoms.get(node))
            parent = structure.parents[node]
            if parent >= 0:
                self._offer(parent, self._of[node])

    def _offer(self, node: int, atom: AtomView | None) -> None:
        known = self._of[node]
        if atom is not None and (known is None or _ended(atom) > _ended(known)):
            self._of[node] = atom

    def before(self, node: int) -> AtomView | None:
        """What `node` waited for longest."""
        found = [self._of[other] for other in self._before(node)]
        return max((each for each in found if each is not None), key=_ended, default=None)

    def _before(self, node: int) -> Iterator[int]:
        structure = self._structure
        yield from structure.before[node]
        for flow in structure.flows_around(node):
            retry = structure.retry[flow]
            if retry >= 0 and retry != node:
                yield retry
            yield from structure.before[flow]
