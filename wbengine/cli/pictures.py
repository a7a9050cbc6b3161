"""A flow of the store as a tree on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wbengine import states
from wbengine.drawing import marks
from wbengine.drawing import tree as trees
from wbengine.types import outline as outlines
from wbengine.views import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console
    from rich.tree import Tree

    from wbengine.views.flow import FlowView
    from wbengine.views.trees import NodeView

__all__ = ["tree"]


def tree(view: FlowView, console: Console, rows: int | None = None) -> Tree:
    """The flow as a tree, of about so many rows at most (None: of as many as it takes)."""
    fits = rows is None or len(view.outline.nodes) <= rows
    return trees.tree(_Kept(view), console, None if fits else rows)


class _Kept(trees.Source):
    """A view as what can be drawn."""

    def __init__(self, view: FlowView) -> None:
        self._view = view
        self._nodes: dict[int, NodeView] = {}
        self.state, nodes = view.state, view.outline.nodes
        self.names = [node.name for node in nodes]
        self.parents = [node.parent for node in nodes]
        waiting = [view.tree]
        for node in waiting:
            self._nodes[node.node] = node
            waiting += node.children

    @property
    def duration(self) -> float | None:
        return self._view.duration

    def is_flow(self, node: int) -> bool:
        return self._nodes[node].kind == outlines.FLOW

    def members(self, flow: int) -> Iterator[int]:
        return (node.node for node in self._nodes[flow].children)

    def counts(self, node: int) -> Mapping[str, int]:
        return self._nodes[node].counts

    def state_of(self, node: int) -> str:
        return self._nodes[node].state

    def wrong(self, most: int) -> list[int]:
        return self._in(trees.WRONG, most)

    def busy(self, most: int) -> list[int]:
        return self._in(trees.BUSY, most)

    def _in(self, wanted: tuple[str, ...], most: int) -> list[int]:
        return [atom.node for atom in self._view.atoms if atom.state in wanted][:most]

    def progress(self, node: int) -> float | None:
        atom = self._nodes[node].atom
        return atom.progress if atom is not None and atom.state == states.RUNNING else None

    def details(self, node: int) -> Iterator[str]:
        atom = self._nodes[node].atom
        if atom is None:
            return
        if words.nth(atom) > 1:
            yield f"attempt {words.nth(atom)}"
        if atom.state in trees.BUSY and atom.started is not None:
            yield words.seconds(max(0.0, self._view.now - atom.started))
        elif atom.runtime is not None:
            yield words.seconds(atom.runtime)
        if atom.worker is not None:
            yield f"on {atom.worker}"
        if atom.items:
            yield ", ".join(f"{count:,} {marks.word(state)}" for state, count in atom.items.items())
        failure = atom.revert_failure or atom.failure
        if failure is not None:
            yield failure.line
        elif atom.waiting is not None and atom.state in (states.RETRYING, states.RUNNING):
            yield atom.waiting
