"""A flow of the store as a tree on a terminal: whole, or as much of it as there is room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from wbengine import states
from wbengine._terminal import visible
from wbengine.drawing import marks
from wbengine.views import words

if TYPE_CHECKING:
    from wbengine.views.atoms import AtomView
    from wbengine.views.flow import FlowView
    from wbengine.views.trees import NodeView

__all__ = ["headline", "tree"]

_BAR: Final = 24
_FLOW: Final = "flow"

_STYLES: Final = {
    states.PENDING: "dim",
    states.RUNNING: "cyan",
    states.SUCCESS: "green",
    states.IGNORE: "dim",
    states.FAILURE: "bold red",
    states.REVERT_FAILURE: "bold red",
    states.RETRYING: "yellow",
    states.REVERTING: "yellow",
    states.REVERTED: "yellow",
    states.SUSPENDING: "yellow",
    states.SUSPENDED: "yellow",
}
#: Atoms in these are shown before all others.
_WRONG: Final = (states.FAILURE, states.REVERT_FAILURE)
_BUSY: Final = (states.RUNNING, states.RETRYING, states.REVERTING)
_SETTLED: Final = (states.SUCCESS, states.IGNORE)


def tree(view: FlowView, console: Console, rows: int | None = None) -> Tree:
    """The flow as a tree, of about so many rows at most (None: of as many as it takes)."""
    root = Tree(headline(view, console.is_terminal))
    chosen = _Choice(view, rows)
    drawn = {view.tree.node: root}
    waiting = deque([view.tree])
    while waiting:
        flow = waiting.popleft()
        branch, left = drawn[flow.node], 0
        for node in flow.children:
            if node.node in chosen.shown:
                drawn[node.node] = branch.add(_row(node, view.now, console))
                if node.kind == _FLOW and node.node in chosen.opened:
                    waiting.append(node)
            else:
                left += sum(node.counts.values())
        if left:
            branch.add(Text(f"... {words.count(left, 'more task')}", "dim"))
    return root


def headline(view: FlowView, bar: bool = True) -> RenderableType:
    """The flow in a line: its name, state, counts and time; with a bar, if it is one for eyes."""
    done = sum(view.counts.get(state, 0) for state in _SETTLED)
    line = Table.grid(padding=(0, 2), pad_edge=False)
    parts = [f"{done:,} of {words.count(view.total, 'task')} done"]
    parts += [
        f"{view.counts[state]:,} {marks.word(state)}"
        for state in (*_BUSY, *_WRONG, states.REVERTED)
        if view.counts.get(state)
    ]
    wrong = any(view.counts.get(state) for state in (*_WRONG, states.REVERTING, states.REVERTED))
    cells: list[RenderableType] = [
        Text.assemble(
            (visible(view.name), "bold"), "  ", (view.state, _STYLES.get(view.state, ""))
        ),
        Text(", ".join(parts)),
        Text("" if view.duration is None else words.seconds(view.duration), "dim"),
    ]
    if bar:
        cells.insert(1, _bar(done, view.total, "red" if wrong else "green"))
    line.add_row(*cells)
    return line


def _row(node: NodeView, now: float, console: Console) -> RenderableType:
    style = _STYLES.get(node.state, "")
    text = Text.assemble((f"{_icon(node.state, console)} ", style))
    text.no_wrap, text.overflow = console.is_terminal, "ellipsis"
    if node.atom is None:
        total = sum(node.counts.values())
        done = sum(node.counts[state] for state in _SETTLED)
        text.append(visible(node.name), "bold")
        if node.kind == _FLOW:
            text.append(f"  {done:,}/{total:,}", "dim")
        return text
    atom = node.atom
    text.append(visible(node.name))
    for part in _more(atom, now):
        text.append(f"  {visible(part)}", "dim")
    if atom.progress is None or atom.state != states.RUNNING:
        return text
    line = Table.grid(padding=(0, 2), pad_edge=False)
    line.add_row(text, _bar(atom.progress, 1.0, "cyan"), Text(f"{atom.progress:.0%}"))
    return line


def _more(atom: AtomView, now: float) -> Iterator[str]:
    """What is to be said of an atom besides its name and its icon."""
    if atom.state not in (states.SUCCESS, states.PENDING, states.RUNNING):
        yield marks.word(atom.state)
    if words.nth(atom) > 1:
        yield f"attempt {words.nth(atom)}"
    if atom.state in _BUSY and atom.started is not None:
        yield words.seconds(max(0.0, now - atom.started))
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


def _icon(state: str, console: Console) -> str:
    return marks.icon(state) if console.encoding.lower().startswith("utf") else state[:1]


def _bar(completed: float, total: float, style: str) -> ProgressBar:
    return ProgressBar(total=total or 1.0, completed=completed, width=_BAR, complete_style=style)


class _Choice:
    """Which nodes are shown, and which flows are shown with what is in them."""

    def __init__(self, view: FlowView, rows: int | None) -> None:
        self._parents = [node.parent for node in view.outline.nodes]
        self.shown: set[int] = {0}
        self.opened: set[int] = {0}
        self._left = len(self._parents) if rows is None else max(rows, 4)
        self._limited = self._left < len(self._parents)
        for atom in self._loudest(view):
            self._place(atom.node)
        self._fill(view.tree)

    def _loudest(self, view: FlowView) -> list[AtomView]:
        if not self._limited:
            return []
        most = self._left // 2
        wrong = [atom for atom in view.atoms if atom.state in _WRONG][: max(1, most // 2)]
        busy = [atom for atom in view.atoms if atom.state in _BUSY]
        return [*wrong, *busy[: most - len(wrong)]]

    def _place(self, node: int) -> None:
        """Show an atom, and the flows around it."""
        chain: list[int] = []
        at: int | None = node
        while at is not None and at not in self.shown:
            chain.append(at)
            at = self._parents[at]
        if len(chain) > self._left:
            return
        self._left -= len(chain)
        self.shown.update(chain)
        self.opened.update(chain[1:])
        if at is not None:
            self.opened.add(at)

    def _fill(self, root: NodeView) -> None:
        """Show what else there is room for, the outer flows first."""
        waiting = deque([root])
        while waiting:
            flow = waiting.popleft()
            hidden = [child.node for child in flow.children if child.node not in self.shown]
            if len(hidden) > self._left:
                continue
            self._left -= len(hidden)
            self.shown.update(hidden)
            self.opened.add(flow.node)
            for child in flow.children:
                folded = self._limited and child.state in (states.SUCCESS, states.PENDING)
                if child.kind == _FLOW and (child.node in self.opened or not folded):
                    waiting.append(child)
