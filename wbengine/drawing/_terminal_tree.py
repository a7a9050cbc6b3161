"""A flow as a tree on a terminal: complete, or limited to a number of rows.

With a limit, failed and running atoms are shown first, with their enclosing flows, then as much of
the rest as fits. A `Source` provides the data: a run in this process or (`FlowTree`) a stored or
unstarted flow.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from wbengine import states
from wbengine._text.terminal_text import visible
from wbengine.drawing import _box_text, _styles
from wbengine.types import _outline as outlines
from wbengine.views import _formatting, _structure
from wbengine.views._atoms import QUEUED, AtomView, StepsView
from wbengine.views._structure import Structure
from wbengine.views.flow_status import FlowView

if TYPE_CHECKING:
    from wbengine.drawing._step_rows import Row

__all__ = [
    "RUNNING_STATES",
    "FAILED_STATES",
    "FlowTree",
    "Source",
    "can_redraw",
    "clean",
    "figures",
    "flow_tree",
    "text",
    "tree",
]

#: States of atoms that are shown before all others.
FAILED_STATES: Final = (states.FAILURE, states.REVERT_FAILURE)
RUNNING_STATES: Final = (states.RUNNING, states.RETRYING, states.REVERTING, states.WAITING)

_SETTLED: Final = (states.SUCCESS, states.IGNORE)
_UNSUCCESSFUL: Final = (*FAILED_STATES, states.REVERTING, states.REVERTED)
#: If rows are limited, nested flows in these states are not opened.
_CLOSED_STATES: Final = (*_SETTLED, states.PENDING)
#: States for which the icon is sufficient.
_STATES_WITHOUT_WORD: Final = (states.SUCCESS, states.PENDING, states.RUNNING)

#: Maximum numbers of outermost and innermost flows that are shown of a chain of enclosing flows.
_OUTER_FLOWS: Final = 2
_INNER_FLOWS: Final = 4
_BAR_COLUMNS: Final = 24
#: Width below which the name is truncated and the bar stays.
_MIN_BAR_COLUMNS: Final = 4
_MIN_NAME_COLUMNS: Final = 8

#: Minimum number of rows for the steps of a workflow: the latest one, and the number of the others.
_MIN_STEP_ROWS: Final = 2

#: Number of rows of a text if the flow has too many atoms.
_MAX_ROWS: Final = 200
_MAX_PREDECESSORS: Final = 3


class Source(Protocol):
    """A flow to be drawn. Nodes are numbers; `root` is the flow, or the only task."""

    root: int = 0
    #: State of the flow; None if only its structure is known.
    state: str | None
    #: By node. The parent of a node is the enclosing flow.
    names: Sequence[str]
    parents: Sequence[int | None]

    @property
    def duration(self) -> float | None:
        """Seconds in which the flow was run; None if it has not started."""

    def remarks(self) -> Iterable[str]:
        """Return additional texts for the headline."""
        return ()

    def is_flow(self, node: int) -> bool:
        """Return True for a flow, False for an atom."""

    def members(self, flow: int) -> Iterable[int]:
        """Return the direct members of a flow in ascending order."""

    def counts(self, node: int) -> Mapping[str, int]:
        """Return the number of tasks in this node, or of this task, by state."""

    def state_of(self, node: int) -> str:
        """Return the state of an atom or nested flow."""

    def word_of(self, node: int) -> str:
        """Return the word for the state of an atom."""
        return _styles.word(self.state_of(node))

    def failed_atoms(self, limit: int) -> Sequence[int]:
        """Return at most `limit` failed atoms."""

    def running_atoms(self, limit: int) -> Sequence[int]:
        """Return at most `limit` atoms that run, are reverted or wait for another attempt."""

    def progress(self, node: int) -> float | None:
        """Return the reported progress of a running atom, from 0.0 to 1.0."""

    def details(self, node: int) -> Iterable[str]:
        """Return additional texts for an atom."""

    def steps(self, node: int) -> StepsView | None:
        """Return the steps of a workflow."""
        return None


def tree(
    source: Source, console: Console, rows: int | None = None, mask: Callable[[str], str] = str
) -> Tree:
    """Return the flow as a tree of about `rows` rows (None: complete)."""
    renderer = _RowRenderer(source, console, mask)
    root = Tree(renderer.headline())
    selection = _Selection(source, rows)
    if not source.is_flow(source.root):
        row = root.add(renderer.row(source.root))
        renderer.add_steps(row, selection.steps.get(source.root, ()))
        return root
    drawn = {source.root: root}
    waiting = deque(drawn)
    while waiting:
        flow = waiting.popleft()
        branch, omitted_counts = (
            drawn[flow],
            Counter(source.counts(flow) if flow in selection.cut else ()),
        )
        for node in sorted(selection.open[flow]):
            skipped = selection.skipped.get(node)
            parent = (
                branch.add(Text(f"... {skipped:,} enclosing flows", "dim")) if skipped else branch
            )
            drawn[node] = parent.add(renderer.row(node))
            if node in selection.open:
                waiting.append(node)
            renderer.add_steps(drawn[node], selection.steps.get(node, ()))
            if omitted_counts:
                # A running flow can change between the calls: counts stay positive.
                omitted_counts -= Counter(source.counts(node))
        if omitted_counts:
            label = _formatting.count(omitted_counts.total(), "more task")
            by_state = (
                f": {', '.join(_counted(omitted_counts, _styles.STATES))}" if source.state else ""
            )
            branch.add(Text(f"... {label}{by_state}", "dim"))
    return root


def text(
    outline: outlines.Outline, view: FlowView | None, *, root: int = 0, max_atoms: int = 2000
) -> str:
    """Return the flow as plain text with one row for each flow and atom."""
    source = FlowTree(outline, view, root)
    width = 1000 + 4 * source.depth
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        rows = None if source.size <= max_atoms else _MAX_ROWS
        console.print(tree(source, console, rows))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def flow_tree(
    view: FlowView, console: Console, rows: int | None = None, *, shows_types: bool = False
) -> Tree:
    """Return the view of a flow as a tree of about `rows` rows (None: complete).

    :param shows_types: show the dotted names of the tasks' classes and functions.
    """
    step_count = sum(len(atom.steps.shown) for atom in view.atoms if atom.steps is not None)
    fits = rows is None or len(view.outline.nodes) + 2 * step_count <= rows
    source = FlowTree(view.outline, view, shows_types=shows_types)
    return tree(source, console, None if fits else rows)


def can_redraw(console: Console) -> bool:
    """Return True if the console can replace text: a terminal with colours."""
    return console.is_terminal and not console.is_dumb_terminal and not console.no_color


def figures(source: Source) -> str:
    """Return the number of tasks by state in one line; for a workflow, that of its steps."""
    counts, noun = source.counts(source.root), "task"
    steps = None if source.is_flow(source.root) else source.steps(source.root)
    if steps is not None:
        counts, noun = steps.shown_counts, "step"
    total = _formatting.count(sum(counts.values()), noun)
    parts = [f"{_settled(counts):,} of {total} done"]
    parts += _counted(
        counts, (*RUNNING_STATES, QUEUED, *FAILED_STATES, states.REVERTED, states.IGNORE)
    )
    return ", ".join([*parts, *source.remarks()])


def clean(text: str, console: Console, mask: Callable[[str], str] = str) -> str:
    """Mask secrets; replace control characters and characters that the console cannot encode."""
    encoding = console.encoding
    return visible(mask(text)).encode(encoding, "replace").decode(encoding, "replace")


def _settled(counts: Mapping[str, int]) -> int:
    return sum(counts.get(state, 0) for state in _SETTLED)


def _counted(counts: Mapping[str, int], listed_states: Iterable[str]) -> list[str]:
    return [
        f"{counts[state]:,} {_styles.word(state)}" for state in listed_states if counts.get(state)
    ]


class _RowRenderer:
    def __init__(self, source: Source, console: Console, mask: Callable[[str], str]) -> None:
        self._source = source
        self._console = console
        self._mask = mask

    def headline(self) -> RenderableType:
        """Return the row of the flow: name, state, counts and duration; on a terminal with a bar.

        If the line is too narrow, the bar becomes shorter, then the name is truncated.
        """
        source = self._source
        counts = source.counts(source.root)
        name, state = Text(self._clean(source.names[source.root]), "bold"), source.state
        if state is None:
            return Text.assemble(name, "  ", *source.remarks())
        duration = "" if source.duration is None else _formatting.seconds(source.duration)
        numbers = Text(figures(source))
        others: list[RenderableType] = [Text(state, _styles.style_of(state).style)]
        room = self._console.width - len(state) - numbers.cell_len - len(duration) - 6
        if self._console.is_terminal:
            style = "red" if any(counts.get(state) for state in _UNSUCCESSFUL) else "green"
            room -= 2
            width = max(_MIN_BAR_COLUMNS, min(self._bar_width, room - name.cell_len))
            others.append(self._bar(_settled(counts), sum(counts.values()), style, width))
            room -= width
        name.truncate(max(room, _MIN_NAME_COLUMNS), overflow="ellipsis")
        line = Table.grid(padding=(0, 2), pad_edge=False)
        for is_wrapped in (*(False for _ in (name, *others)), True, False):
            line.add_column(no_wrap=not is_wrapped)
        line.add_row(name, *others, numbers, Text(duration, "dim"))
        return line

    def row(self, node: int) -> RenderableType:
        """Return the row of a nested flow or atom."""
        source = self._source
        state, name = source.state_of(node), self._clean(source.names[node])
        style = _styles.style_of(state)
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
        silent = source.is_flow(node) or state in _STATES_WITHOUT_WORD or not is_known
        for part in (*(() if silent else (source.word_of(node),)), *source.details(node)):
            text.append(f"  {self._clean(part)}", "dim")
        progress = source.progress(node)
        if progress is None:
            return text
        bar = self._bar(progress, 1.0, "cyan", self._bar_width)
        return _grid([text, bar, Text(f"{progress:.0%}")])

    def add_steps(self, branch: Tree, steps: Iterable[Row]) -> None:
        """Add the rows of the steps of a workflow."""
        for state, row, *_ in steps:
            text = Text(no_wrap=self._console.is_terminal, overflow="ellipsis")
            if state is not None:
                style = _styles.style_of(state)
                icon = style.plain if self._console.options.ascii_only else style.icon
                text.append(f"{icon} ", style.style)
            text.append(self._clean(row), "" if state is not None else "dim")
            branch.add(text)

    def _clean(self, text: str) -> str:
        return clean(text, self._console, self._mask)

    @staticmethod
    def _bar(completed: float, total: float, style: str, width: int) -> ProgressBar:
        return ProgressBar(
            total or 1.0, completed, width, complete_style=style, finished_style=style
        )

    @property
    def _bar_width(self) -> int:
        return min(_BAR_COLUMNS, self._console.width // 6)


def _grid(cells: Iterable[RenderableType]) -> Table:
    line = Table.grid(padding=(0, 2), pad_edge=False)
    line.add_row(*cells)
    return line


class _Selection:
    """The selection of shown nodes. Its cost depends on the rows, not on the size of the flow."""

    def __init__(self, source: Source, rows: int | None) -> None:
        self._source = source
        self._whole = rows is None
        self._rows_left: float = math.inf if rows is None else max(rows, 4)
        #: Open flow -> its shown members.
        self.open: dict[int, set[int]] = {source.root: set()}
        #: Open flows with members that are not shown.
        self.cut: set[int] = set()
        #: Shown node -> number of omitted flows between it and its parent in the tree.
        self.skipped: dict[int, int] = {}
        #: The outermost flow of each omitted chain.
        self._omitted_roots: set[int] = set()
        #: Workflow -> the rows of its steps.
        self.steps: dict[int, Sequence[Row]] = {}
        if not source.is_flow(source.root):
            self._rows_left -= 1
            self._show_steps([source.root])
            return
        if rows is not None:
            for node in self._important_atoms(int(self._rows_left) // 2):
                if self._rows_left > 0:
                    self._show_atom(node)
            self._reserve_steps()
        #: Flows with more members than rows are left.
        large: list[int] = []
        waiting = deque(self.open)
        while waiting:
            waiting.extend(self._show_members(waiting.popleft(), large))
        for place, flow in enumerate(large):
            self._show_some_members(flow, int(self._rows_left) // (len(large) - place))
        self._show_steps(self._shown_atoms())

    def _important_atoms(self, limit: int) -> list[int]:
        failed = list(self._source.failed_atoms(max(1, limit // 2)))
        running = [node for node in self._source.running_atoms(limit) if node not in failed]
        return failed + running[: limit - len(failed)]

    def _show_atom(self, node: int) -> None:
        chain = [node]
        while chain[-1] not in self.open:
            chain.append(self._source.parents[chain[-1]] or self._source.root)
        chain.reverse()
        if len(chain) > _OUTER_FLOWS + _INNER_FLOWS + 1:
            outer, omitted, inner = (
                chain[: _OUTER_FLOWS + 1],
                chain[_OUTER_FLOWS + 1 : -_INNER_FLOWS],
                chain[-_INNER_FLOWS:],
            )
            self.skipped[inner[0]] = len(omitted)
            self._omitted_roots.add(omitted[0])
            self.cut.add(outer[-1])
            chain = outer + inner
        self._rows_left -= len(chain) - 1
        for flow, member in itertools.pairwise(chain):
            self.open.setdefault(flow, set()).add(member)

    def _shown_atoms(self) -> list[int]:
        return [
            node
            for members in self.open.values()
            for node in sorted(members)
            if not self._source.is_flow(node)
        ]

    def _reserve_steps(self) -> None:
        """Show the latest steps of failed and running workflows in about half of the rows."""
        workflows = [node for node in self._shown_atoms() if self._source.steps(node) is not None]
        other_tasks = sum(self._source.counts(self._source.root).values()) - len(workflows)
        room = max(self._rows_left // 2, self._rows_left - other_tasks)
        opened = workflows[: int(room) // _MIN_STEP_ROWS]
        for place, node in enumerate(opened):
            self._show_steps([node], room // (len(opened) - place))
            room -= len(self.steps.get(node, ()))

    def _show_steps(self, nodes: Iterable[int], room: float = math.inf) -> None:
        """Show the latest steps of workflows in at most `room` rows each, as far as they fit."""
        for node in nodes:
            steps = self._source.steps(node)
            if steps is None:
                continue
            from wbengine.drawing import _step_rows  # most flows have no workflow

            self._rows_left += len(self.steps.pop(node, ()))
            limit = min(room, self._rows_left)
            if limit >= _MIN_STEP_ROWS:
                self.steps[node] = _step_rows.rows(steps, None if self._whole else int(limit))
                self._rows_left -= len(self.steps[node])

    def _show_members(self, flow: int, large: list[int]) -> list[int]:
        """Show all other members of a flow, if they fit, and return those that are flows to open.

        A flow whose members do not fit is added to `large`.
        """
        shown_members = self.open[flow]
        hidden_members: list[int] = []
        for node in self._source.members(flow):
            if node not in shown_members and node not in self._omitted_roots:
                hidden_members.append(node)
            if len(hidden_members) > self._rows_left:
                break
        else:
            self._rows_left -= len(hidden_members)
            shown_members.update(hidden_members)
            opened = [
                node
                for node in hidden_members
                if self._source.is_flow(node) and self._should_open(node)
            ]
            self.open.update((node, set()) for node in opened)
            return opened
        large.append(flow)
        if shown_members or flow == self._source.root:
            self._rows_left -= 1
            self.cut.add(flow)
        return []

    def _show_some_members(self, flow: int, rows: int) -> None:
        """Show the first other members of a flow in `room` rows."""
        shown_members = self.open[flow]
        if flow not in self.cut:  # The row with the number of omitted tasks is not counted yet.
            rows -= 1
            if rows < 1:
                del self.open[flow]
                return
            self._rows_left -= 1
            self.cut.add(flow)
        hidden_members = (
            node
            for node in self._source.members(flow)
            if node not in shown_members and node not in self._omitted_roots
        )
        added = list(itertools.islice(hidden_members, max(0, rows)))
        self._rows_left -= len(added)
        shown_members.update(added)

    def _should_open(self, flow: int) -> bool:
        has_states = self._source.state is not None
        return self._whole or not has_states or self._source.state_of(flow) not in _CLOSED_STATES


class FlowTree(Source):
    """The structure of a flow and, with a view, its states.

    :param shows_types: the details of a task contain its type, unless that is its name.
    """

    def __init__(
        self,
        outline: outlines.Outline,
        view: FlowView | None = None,
        root: int = 0,
        *,
        shows_types: bool = False,
    ) -> None:
        self.root = root
        self._view = view
        self._structure = Structure(outline)
        self.names = [node.name for node in outline.nodes]
        self._shows_types = shows_types
        self.parents = [node.parent for node in outline.nodes]
        whole_tree = _structure.build_tree(outline, ()) if view is None else view.tree
        self._nodes = {each.node: each for each in whole_tree.walk()}
        #: Member -> the previous member.
        self._previous_member = {
            below.node: above.node
            for flow in self._nodes.values()
            for above, below in itertools.pairwise(flow.children)
        }
        whole = self._nodes[root].state if root else None
        self.state = None if view is None else whole or view.shown_state

    @property
    def size(self) -> int:
        """Number of atoms."""
        return self._nodes[self.root].size

    @property
    def depth(self) -> int:
        """Maximum nesting depth."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent is None else depths[parent] + 1)
        return max(depths)

    @property
    def duration(self) -> float | None:
        return None if self._view is None or self.root else self._view.duration

    def remarks(self) -> Iterable[str]:
        if self._view is None:
            return [_formatting.count(self.size, "atom")]
        return ()

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
        return _styles.word(self.state_of(node)) if atom is None else _box_text.state_of(atom)

    def failed_atoms(self, limit: int) -> list[int]:
        return self._atoms_in(FAILED_STATES, limit)

    def running_atoms(self, limit: int) -> list[int]:
        return self._atoms_in(RUNNING_STATES, limit)

    def _atoms_in(self, listed_states: tuple[str, ...], limit: int) -> list[int]:
        atoms = () if self._view is None or self.root else self._view.atoms
        return [atom.node for atom in atoms if atom.shown_state in listed_states][:limit]

    def progress(self, node: int) -> float | None:
        atom = self._nodes[node].atom
        return atom.progress if atom is not None and atom.state == states.RUNNING else None

    def details(self, node: int) -> Iterator[str]:
        kind, atom = self._nodes[node].kind, self._nodes[node].atom
        if kind not in (outlines.FLOW, outlines.TASK):
            yield f"({kind})"
        task = atom.task if self._shows_types and atom is not None else None
        if task is not None and task != self.names[node] and kind != outlines.RETRY:
            yield task
        if atom is not None and self._view is not None:
            yield from self._facts(atom, self._view.now)
        yield from self._order_and_notes(node)

    def steps(self, node: int) -> StepsView | None:
        atom = self._nodes[node].atom
        return None if atom is None else atom.steps

    def _facts(self, atom: AtomView, now: float) -> Iterator[str]:
        if atom.inherited is not None:
            yield "inherited"
        if _formatting.nth(atom) > 1:
            yield f"attempt {_formatting.nth(atom)}"
        if atom.state in RUNNING_STATES and atom.started is not None:
            yield _formatting.seconds(max(0.0, now - atom.started))
        elif took := _formatting.took(atom.execution_runtime, atom.reversion_runtime):
            yield took
        if atom.worker not in (None, "local"):
            yield f"on {atom.worker}"
        if atom.items:
            yield _box_text.counted(atom.items)
        failure = atom.revert_failure or atom.failure
        if failure is not None:
            yield _box_text.shortened(failure.line, 160)
        if atom.waiting is not None and (
            atom.state == states.RETRYING
            or atom.gate is not None
            or (atom.state == states.RUNNING and failure is None)
        ):
            yield atom.waiting

    def _order_and_notes(self, node: int) -> Iterator[str]:
        """Return the predecessors, unless the row above is the only one, and the notes."""
        before = self._structure.before[node]
        if before and list(before) != [self._previous_member.get(node)]:
            names = [
                _box_text.shortened(self.names[predecessor], 60)
                for predecessor in before[:_MAX_PREDECESSORS]
            ]
            unnamed = len(before) - len(names)
            yield f"after {', '.join(names)}" + (f" and {unnamed:,} more" if unnamed else "")
        notes = self._nodes[node].notes
        if notes:
            yield f"[{_box_text.shortened(notes, 200)}]"
