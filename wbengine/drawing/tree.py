"""A flow as a tree on a terminal: whole, or as much of it as there is room for.

In so many rows there is what failed and what runs, the flows around that, and as much of the rest
as there is room for.  What is drawn is a `Source`: a run of this process, or (`FlowTree`) a flow of
a store, or one that was not run yet.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from wbengine import states
from wbengine._terminal import visible
from wbengine.drawing import labels, styles
from wbengine.types import outline as outlines
from wbengine.views import formatting, structure
from wbengine.views.atoms import AtomView
from wbengine.views.flow import QUEUED, FlowView
from wbengine.views.structure import Structure

__all__ = ["BUSY", "WRONG", "FlowTree", "Source", "clean", "figures", "flow_tree", "text", "tree"]

#: Atoms in these are shown before all others.
WRONG: Final = (states.FAILURE, states.REVERT_FAILURE)
BUSY: Final = (states.RUNNING, states.RETRYING, states.REVERTING)

_SETTLED: Final = (states.SUCCESS, states.IGNORE)
_UNDONE: Final = (*WRONG, states.REVERTING, states.REVERTED)
#: Where room is limited, flows in these show their names only.
_FOLDED: Final = (*_SETTLED, states.PENDING)
#: Of atoms in these the icon says enough.
_SILENT: Final = (states.SUCCESS, states.PENDING, states.RUNNING)

#: Of a chain of flows around what is shown, so many outer and inner ones are shown.
_OUTER: Final = 2
_INNER: Final = 4
_BAR: Final = 24

#: Rows of a text, where a flow has too many atoms for all.
_ROWS: Final = 200
#: So many names are told of what an atom comes after.
_NAMED: Final = 3


class Source(Protocol):
    """A flow to be drawn.  Its nodes are numbers; `root` is the flow itself, or the only task."""

    root: int = 0
    #: The state of the flow; None: only what it consists of is known.
    state: str | None
    #: By node; the parent of an inner node is the flow around it.
    names: Sequence[str]
    parents: Sequence[int | None]

    @property
    def duration(self) -> float | None:
        """Seconds that it has run for; None: it has not begun."""

    def shown_counts(self) -> Mapping[str, int]:
        """How many tasks are in which state; those that are queued apart, where that is known."""
        return self.counts(self.root)

    def remarks(self) -> Iterable[str]:
        """What the headline says besides how many tasks are in which state."""
        return ()

    def is_flow(self, node: int) -> bool:
        """Whether it is no atom."""

    def members(self, flow: int) -> Iterable[int]:
        """What is directly in a flow, in ascending order."""

    def counts(self, node: int) -> Mapping[str, int]:
        """How many of the tasks in it, or of the one that it is, are in which state."""

    def state_of(self, node: int) -> str:
        """The state of an atom, or of what an inner flow consists of."""

    def word_of(self, node: int) -> str:
        """The word for the state of an atom."""
        return styles.word(self.state_of(node))

    def wrong(self, most: int) -> Sequence[int]:
        """Atoms that failed, at most so many."""

    def busy(self, most: int) -> Sequence[int]:
        """Atoms that run, are reverted or wait to run again, at most so many."""

    def progress(self, node: int) -> float | None:
        """How far a running atom says it is (0 to 1)."""

    def details(self, node: int) -> Iterable[str]:
        """What is to be said of an atom besides its name and state."""


def tree(
    source: Source, console: Console, rows: int | None = None, mask: Callable[[str], str] = str
) -> Tree:
    """The flow as a tree of about so many rows at most (None: all of it)."""
    pen = _Pen(source, console, mask)
    root = Tree(pen.headline())
    if not source.is_flow(source.root):
        root.add(pen.row(source.root))
        return root
    shown = _Choice(source, rows)
    drawn = {source.root: root}
    waiting = deque(drawn)
    while waiting:
        flow = waiting.popleft()
        branch, rest = drawn[flow], Counter(source.counts(flow) if flow in shown.cut else ())
        for node in sorted(shown.open[flow]):
            skipped = shown.skipped.get(node)
            around = branch.add(Text(f"... {skipped:,} flows around", "dim")) if skipped else branch
            drawn[node] = around.add(pen.row(node))
            if node in shown.open:
                waiting.append(node)
            if rest:
                rest -= Counter(source.counts(node))  # never below zero, if it runs meanwhile
        if rest:
            more = formatting.count(rest.total(), "more task")
            by_state = f": {', '.join(_counted(rest, styles.STATES))}" if source.state else ""
            branch.add(Text(f"... {more}{by_state}", "dim"))
    return root


def text(
    outline: outlines.Outline, view: FlowView | None, *, root: int = 0, max_atoms: int = 2000
) -> str:
    """The flow as plain text, a row for each flow and atom."""
    source = FlowTree(outline, view, root)
    width = 1000 + 4 * source.depth
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        rows = None if source.size <= max_atoms else _ROWS
        console.print(tree(source, console, rows))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def flow_tree(view: FlowView, console: Console, rows: int | None = None) -> Tree:
    """A flow of a store as a tree, of about so many rows at most (None: of as many as it takes)."""
    fits = rows is None or len(view.outline.nodes) <= rows
    return tree(FlowTree(view.outline, view), console, None if fits else rows)


def figures(source: Source) -> str:
    """How many tasks are in which state, in a line."""
    counts = source.shown_counts()
    total = formatting.count(sum(counts.values()), "task")
    parts = [f"{_settled(counts):,} of {total} done"]
    parts += _counted(counts, (*BUSY, QUEUED, *WRONG, states.REVERTED, states.IGNORE))
    return ", ".join([*parts, *source.remarks()])


def clean(text: str, console: Console, mask: Callable[[str], str] = str) -> str:
    """`text` without secrets, and what a console could take for an order, or cannot show."""
    encoding = console.encoding
    return visible(mask(text)).encode(encoding, "replace").decode(encoding, "replace")


def _settled(counts: Mapping[str, int]) -> int:
    return sum(counts.get(state, 0) for state in _SETTLED)


def _counted(counts: Mapping[str, int], wanted: Iterable[str]) -> list[str]:
    return [f"{counts[state]:,} {styles.word(state)}" for state in wanted if counts.get(state)]


class _Pen:
    """Draws rows for one console."""

    def __init__(self, source: Source, console: Console, mask: Callable[[str], str]) -> None:
        self._source = source
        self._console = console
        self._mask = mask

    def headline(self) -> RenderableType:
        """The flow in a row: its name, state, counts and time, on a terminal with a bar."""
        source = self._source
        counts = source.counts(source.root)
        name, state = self._clean(source.names[source.root]), source.state
        if state is None:
            return Text.assemble((name, "bold"), "  ", *source.remarks())
        cells: list[RenderableType] = [
            Text.assemble((name, "bold"), "  ", (state, styles.style_of(state).style)),
            Text(figures(source)),
            Text("" if source.duration is None else formatting.seconds(source.duration), "dim"),
        ]
        if self._console.is_terminal:
            style = "red" if any(counts.get(state) for state in _UNDONE) else "green"
            cells.insert(1, self._bar(_settled(counts), sum(counts.values()), style))
        return _grid(cells)

    def row(self, node: int) -> RenderableType:
        """A flow or an atom."""
        source = self._source
        state, name = source.state_of(node), self._clean(source.names[node])
        style = styles.style_of(state)
        icon = style.plain if self._console.options.ascii_only else style.icon
        is_known = source.state is not None
        text = Text.assemble((f"{icon} ", style.style)) if is_known else Text()
        text.no_wrap, text.overflow = self._console.is_terminal, "ellipsis"
        if source.is_flow(node) and is_known:
            counts = source.counts(node)
            text.append(name, "bold")
            text.append(f"  {_settled(counts):,}/{sum(counts.values()):,}", "dim")
        else:
            text.append(name)
        silent = source.is_flow(node) or state in _SILENT or not is_known
        for part in (*(() if silent else (source.word_of(node),)), *source.details(node)):
            text.append(f"  {self._clean(part)}", "dim")
        progress = source.progress(node)
        if progress is None:
            return text
        return _grid([text, self._bar(progress, 1.0, "cyan"), Text(f"{progress:.0%}")])

    def _clean(self, text: str) -> str:
        return clean(text, self._console, self._mask)

    def _bar(self, completed: float, total: float, style: str) -> ProgressBar:
        width = min(_BAR, self._console.width // 6)
        return ProgressBar(total or 1.0, completed, width, complete_style=style)


def _grid(cells: Iterable[RenderableType]) -> Table:
    line = Table.grid(padding=(0, 2), pad_edge=False)
    line.add_row(*cells)
    return line


class _Choice:
    """Which nodes are shown; what it costs depends on the rows, not on the size of the flow."""

    def __init__(self, source: Source, rows: int | None) -> None:
        self._source = source
        self._whole = rows is None
        self._left: float = math.inf if rows is None else max(rows, 4)
        #: Flows that are open, and their members that are shown.
        self.open: dict[int, set[int]] = {source.root: set()}
        #: Open flows of which not all is shown.
        self.cut: set[int] = set()
        #: Shown node -> how many flows between it and the one it is shown in are left out.
        self.skipped: dict[int, int] = {}
        #: The outermost ones of those that are left out.
        self._passed: set[int] = set()
        if rows is not None:
            for node in self._first(int(self._left) // 2):
                if self._left > 0:
                    self._place(node)
        #: Flows with more members than there is room for.
        large: list[int] = []
        waiting = deque(self.open)
        while waiting:
            waiting.extend(self._fill(waiting.popleft(), large))
        for place, flow in enumerate(large):
            self._fill_partly(flow, int(self._left) // (len(large) - place))

    def _first(self, most: int) -> list[int]:
        wrong = list(self._source.wrong(max(1, most // 2)))
        busy = [node for node in self._source.busy(most) if node not in wrong]
        return wrong + busy[: most - len(wrong)]

    def _place(self, node: int) -> None:
        """Show an atom, and enough of the flows around it to know where it is."""
        chain = [node]
        while chain[-1] not in self.open:
            chain.append(self._source.parents[chain[-1]] or self._source.root)
        chain.reverse()
        if len(chain) > _OUTER + _INNER + 1:
            outer, out, inner = chain[: _OUTER + 1], chain[_OUTER + 1 : -_INNER], chain[-_INNER:]
            self.skipped[inner[0]] = len(out)
            self._passed.add(out[0])
            self.cut.add(outer[-1])
            chain = outer + inner
        self._left -= len(chain) - 1
        for flow, member in itertools.pairwise(chain):
            self.open.setdefault(flow, set()).add(member)

    def _fill(self, flow: int, large: list[int]) -> list[int]:
        """Show the other members of a flow, if there is room for all of them; return those of them
        that are to be opened, too.  A flow without room for all of them is added to `large`."""
        shown = self.open[flow]
        others: list[int] = []
        for node in self._source.members(flow):
            if node not in shown and node not in self._passed:
                others.append(node)
            if len(others) > self._left:
                break
        else:
            self._left -= len(others)
            shown.update(others)
            opened = [node for node in others if self._source.is_flow(node) and self._opens(node)]
            self.open.update((node, set()) for node in opened)
            return opened
        large.append(flow)
        if shown or flow == self._source.root:
            self._left -= 1
            self.cut.add(flow)
        return []

    def _fill_partly(self, flow: int, room: int) -> None:
        """Show the first of the other members of a flow, in so many rows."""
        shown = self.open[flow]
        if flow not in self.cut:  # as yet it has no row that counts what is left out
            room -= 1
            if room < 1:
                del self.open[flow]
                return
            self._left -= 1
            self.cut.add(flow)
        others = (
            node
            for node in self._source.members(flow)
            if node not in shown and node not in self._passed
        )
        more = list(itertools.islice(others, max(0, room)))
        self._left -= len(more)
        shown.update(more)

    def _opens(self, flow: int) -> bool:
        known = self._source.state is not None
        return self._whole or not known or self._source.state_of(flow) not in _FOLDED


class FlowTree(Source):
    """What is known of a flow: what it consists of, and with a view its states."""

    def __init__(
        self, outline: outlines.Outline, view: FlowView | None = None, root: int = 0
    ) -> None:
        self.root = root
        self._view = view
        self._structure = Structure(outline)
        self.names = [node.name for node in outline.nodes]
        self.parents = [node.parent for node in outline.nodes]
        whole_tree = structure.grow(outline, ()) if view is None else view.tree
        self._nodes = {each.node: each for each in whole_tree.walk()}
        #: Member -> the one right above it.
        self._above = {
            below.node: above.node
            for flow in self._nodes.values()
            for above, below in itertools.pairwise(flow.children)
        }
        whole = self._nodes[root].state if root else None
        self.state = None if view is None else whole or view.shown_state

    @property
    def size(self) -> int:
        """How many atoms it has."""
        return self._nodes[self.root].size

    @property
    def depth(self) -> int:
        """How deep flows are nested."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent is None else found[parent] + 1)
        return max(found)

    @property
    def duration(self) -> float | None:
        return None if self._view is None or self.root else self._view.duration

    def remarks(self) -> Iterable[str]:
        if self._view is None:
            return [formatting.count(self.size, "atom")]
        return ()

    def shown_counts(self) -> Mapping[str, int]:
        whole = self._view is not None and not self.root
        return self._view.shown_counts if whole and self._view else self.counts(self.root)

    def is_flow(self, node: int) -> bool:
        return self._nodes[node].kind == outlines.FLOW

    def members(self, flow: int) -> Iterator[int]:
        return (node.node for node in self._nodes[flow].children)

    def counts(self, node: int) -> Mapping[str, int]:
        return self._nodes[node].counts

    def state_of(self, node: int) -> str:
        return self._nodes[node].state

    def word_of(self, node: int) -> str:
        atom = self._nodes[node].atom
        return styles.word(self.state_of(node)) if atom is None else labels.state_of(atom)

    def wrong(self, most: int) -> list[int]:
        return self._in(WRONG, most)

    def busy(self, most: int) -> list[int]:
        return self._in(BUSY, most)

    def _in(self, wanted: tuple[str, ...], most: int) -> list[int]:
        atoms = () if self._view is None or self.root else self._view.atoms
        return [atom.node for atom in atoms if atom.state in wanted][:most]

    def progress(self, node: int) -> float | None:
        atom = self._nodes[node].atom
        return atom.progress if atom is not None and atom.state == states.RUNNING else None

    def details(self, node: int) -> Iterator[str]:
        kind, atom = self._nodes[node].kind, self._nodes[node].atom
        if kind not in (outlines.FLOW, outlines.TASK):
            yield f"({kind})"
        if atom is not None and self._view is not None:
            yield from self._known(atom, self._view.now)
        yield from self._place(node)

    def _known(self, atom: AtomView, now: float) -> Iterator[str]:
        if formatting.nth(atom) > 1:
            yield f"attempt {formatting.nth(atom)}"
        if atom.queued:
            yield "queued"
        elif atom.state in BUSY and atom.started is not None:
            yield formatting.seconds(max(0.0, now - atom.started))
        elif atom.runtime is not None:
            yield formatting.seconds(atom.runtime)
        if atom.worker not in (None, "local"):
            yield f"on {atom.worker}"
        if atom.items:
            yield labels.counted(atom.items)
        failure = atom.revert_failure or atom.failure
        if failure is not None:
            yield labels.shortened(failure.line, 160)
        elif atom.waiting is not None and atom.state in (states.RETRYING, states.RUNNING):
            yield atom.waiting

    def _place(self, node: int) -> Iterator[str]:
        """What it comes after, unless that is the member right above it; and the flow's remarks."""
        before = self._structure.before[node]
        if before and list(before) != [self._above.get(node)]:
            named = [labels.shortened(self.names[other], 60) for other in before[:_NAMED]]
            more = len(before) - len(named)
            yield f"after {', '.join(named)}" + (f" and {more:,} more" if more else "")
        notes = self._nodes[node].notes
        if notes:
            yield f"[{labels.shortened(notes, 200)}]"
