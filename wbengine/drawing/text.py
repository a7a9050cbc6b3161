"""A flow as a tree, for terminals and plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from wbengine.drawing import captions, marks
from wbengine.types import outline as outlines
from wbengine.views import trees, words
from wbengine.views.atoms import AtomView
from wbengine.views.flow import FlowView
from wbengine.views.structure import Structure

__all__ = ["render"]

#: In a flow of too many atoms, so many members of each flow are shown.
_SHOWN: Final = 12
_NAMED: Final = 3


def render(
    outline: outlines.Outline, view: FlowView | None = None, *, root: int = 0, most: int = 2000
) -> str:
    """One line for each flow and atom; what is not directly behind the one above says `after`."""
    return "\n".join(_Tree(outline, view, most).lines(root)) + "\n"


class _Tree:
    def __init__(self, outline: outlines.Outline, view: FlowView | None, most: int) -> None:
        self._structure = Structure(outline)
        self._view = view
        self._atoms: Mapping[int, AtomView] = (
            {} if view is None else {atom.node: atom for atom in view.atoms}
        )
        self._counts = self._counted(outline)
        self._few = sum(map(sum, map(Counter.values, [self._counts[0]]))) > most

    def _counted(self, outline: outlines.Outline) -> list[Counter[str]]:
        found: list[Counter[str]] = [Counter() for _ in outline.nodes]
        for number in range(len(found) - 1, -1, -1):
            node = outline.nodes[number]
            if node.kind != outlines.FLOW:
                atom = self._atoms.get(number)
                found[number][atom.state if atom is not None else "PENDING"] = 1
            if node.parent is not None:
                found[node.parent].update(found[number])
        return found

    def lines(self, root: int) -> Iterator[str]:
        # What is still to be told: a node, what is before its line, and before those in it.
        pending: list[tuple[int, str, str]] = [(root, "", "")]
        while pending:
            node, head, margin = pending.pop()
            if node < 0:
                yield head
                continue
            yield head + self._line(node, root)
            members = self._structure.children[node]
            hidden = members[_SHOWN:] if self._few and len(members) > _SHOWN + 1 else ()
            shown = members[: len(members) - len(hidden)]
            inside = [
                (
                    member,
                    f"{margin}{'├─ ' if member != members[-1] else '└─ '}",
                    f"{margin}{'│  ' if member != members[-1] else '   '}",
                )
                for member in shown
            ]
            if hidden:
                inside.append((-1, f"{margin}└─ … {self._rest(hidden)}", ""))
            pending += reversed(inside)

    def _rest(self, hidden: Sequence[int]) -> str:
        counts: Counter[str] = Counter()
        for member in hidden:
            counts.update(self._counts[member])
        told = f"{len(hidden):,} more"
        if sum(counts.values()) != len(hidden):
            told += f", {words.count(sum(counts.values()), 'atom')}"
        return told if self._view is None else f"{told}: {captions.counted(counts)}"

    def _line(self, node: int, root: int) -> str:
        name, kind, _, _, notes = self._structure.outline.nodes[node]
        name = captions.shortened(name, 200)
        if kind == outlines.FLOW:
            told = self._flow(node, name, root)
        else:
            atom = self._atoms.get(node)
            told = name if self._view is None else f"{marks.icon(_state(atom))} {name}"
            kind = kind if atom is None else atom.kind
            if kind != outlines.TASK:
                told += f" ({kind})"
            if atom is not None:
                told += _said(atom)
        after = self._after(node)
        told += f"  after {after}" if after else ""
        return told + (f"  [{captions.shortened(notes, 200)}]" if notes else "")

    def _flow(self, node: int, name: str, root: int) -> str:
        counts = self._counts[node]
        total = sum(counts.values())
        if self._view is None:
            return f"{name}  {words.count(total, 'atom')}" if node == root else f"{name}:"
        state = self._view.state if node == 0 else trees.state_of(counts)
        done = counts["SUCCESS"] + counts["IGNORE"]
        return f"{marks.icon(state)} {name}  {marks.word(state)}, {done:,}/{total:,}"

    def _after(self, node: int) -> str:
        """What it comes after, unless that is the member right above it."""
        structure = self._structure
        before = structure.before[node]
        parent = structure.parents[node]
        if not before or parent < 0:
            return ""
        place = _place(structure.children[parent], node)
        if list(before) == [structure.children[parent][place - 1]] and place > 0:
            return ""
        named = [captions.shortened(structure.name(other), 60) for other in before[:_NAMED]]
        more = len(before) - len(named)
        return ", ".join(named) + (f" and {more:,} more" if more else "")


def _place(members: Sequence[int], node: int) -> int:
    """Where a node is among the members of its flow, which ascend."""
    low, high = 0, len(members)
    while low < high:
        middle = (low + high) // 2
        if members[middle] < node:
            low = middle + 1
        else:
            high = middle
    return low


def _state(atom: AtomView | None) -> str:
    return "PENDING" if atom is None else atom.state


def _said(atom: AtomView) -> str:
    found = [marks.word(atom.state)] if atom.state not in ("PENDING", "SUCCESS") else []
    if atom.runtime is not None:
        found.append(words.seconds(atom.runtime))
    if atom.state == "RUNNING" and atom.progress:
        found.append(f"{atom.progress:.0%}")
    if words.nth(atom) > 1:
        found.append(f"attempt {words.nth(atom)}")
    if atom.worker not in (None, "local"):
        found.append(f"on {atom.worker}")
    failure = atom.revert_failure or atom.failure
    if failure is not None:
        found.append(captions.shortened(failure.line, 160))
    elif atom.state in ("RUNNING", "RETRYING") and atom.waiting:
        found.append(atom.waiting)
    return f"  {', '.join(found)}" if found else ""
