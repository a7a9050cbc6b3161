"""A tally as something to look at: a tree for terminals, lines of plain text for all else.

Whatever the size of the flow, a picture has a limited number of rows: what failed and what runs,
the flows around that, and as much of the rest as there is room for.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from wbengine import states
from wbengine._terminal import visible
from wbengine.listeners import _tally
from wbengine.listeners._tally import Counts, Tally
from wbengine.runtime import retries

__all__ = ["Picture"]

#: Of a chain of flows around what is shown, so many outer and inner ones are shown.
_OUTER: Final = 2
_INNER: Final = 4
_BAR: Final = 24

#: By mark: icon, icon where there is only ASCII, style, word.
_LOOKS: Final = {
    _tally.WAITING: ("·", ".", "dim", "waiting"),
    _tally.RUNNING: ("●", ">", "cyan", "running"),
    _tally.DONE: ("✓", "+", "green", "done"),
    _tally.IGNORED: ("○", "o", "dim", "ignored"),
    _tally.FAILED: ("✗", "x", "bold red", "failed"),
    _tally.RETRYING: ("↻", "@", "yellow", "runs again"),
    _tally.REVERTING: ("↶", "<", "yellow", "reverting"),
    _tally.REVERTED: ("↶", "<", "yellow", "reverted"),
    _tally.STUCK: ("✗", "x", "bold red", "could not be reverted"),
}


class Picture:
    """Draws a tally for one console."""

    def __init__(self, tally: Tally, console: Console, mask: Callable[[str], str] = str) -> None:
        self._tally = tally
        self._console = console
        self._mask = mask
        self._ascii = console.options.ascii_only
        # How many of the dropped news were told of.
        self._dropped = 0

    # -- a tree ---------------------------------------------------------------------------------

    def tree(self, rows: int) -> Tree:
        """The run as a tree of at most about so many rows."""
        tally = self._tally
        root = Tree(self._headline())
        if not tally.is_flow(0):
            root.add(self._row(0))
            return root
        shown = _Choice(tally, rows)
        drawn = {0: root}
        queue = deque([0])
        while queue:
            flow = queue.popleft()
            branch = drawn[flow]
            for node in shown.below(flow):
                skipped = shown.skipped.get(node, 0)
                within = (
                    branch.add(Text(f"... {skipped:,} flows around", "dim")) if skipped else branch
                )
                drawn[node] = within.add(self._row(node))
                if node in shown.open:
                    queue.append(node)
            rest = self._rest(flow, shown)
            if rest:
                branch.add(Text(rest, "dim"))
        return root

    def _headline(self) -> RenderableType:
        tally = self._tally
        counts = tally.counts(0)
        failing = counts.failed or counts.reverting or counts.reverted
        line = self._grid()
        line.add_row(
            Text(self.clean(tally.plan.names[0]), "bold"),
            self._bar(counts.settled, counts.total, "red" if failing else "green"),
            _one_line(Text(", ".join(self._figures(counts)))),
            Text(self.elapsed(), "dim"),
        )
        return line

    def _figures(self, counts: Counts) -> Iterator[str]:
        yield f"{counts.done:,} of {_plural(counts.total, 'task')} done"
        for name in ("running", "failed", "reverting", "reverted", "ignored"):
            count = getattr(counts, name)
            if count:
                yield f"{count:,} {name}"
        if self._tally.waves:
            yield f"{_plural(self._tally.waves, 'retry', 'retries')}"

    def _row(self, node: int) -> RenderableType:
        return self._flow_row(node) if self._tally.is_flow(node) else self._atom_row(node)

    def _flow_row(self, node: int) -> RenderableType:
        counts = self._tally.counts(node)
        icon, style = self._look(_flow_mark(counts))
        text = Text.assemble(
            (f"{icon} ", style), (self.clean(self._tally.plan.names[node]), "bold")
        )
        text.append(f"  {counts.settled:,}/{counts.total:,}", "dim")
        return _one_line(text)

    def _atom_row(self, node: int) -> RenderableType:
        tally = self._tally
        icon, style = self._look(tally.mark(node))
        text = Text.assemble(
            (f"{icon} ", style), self.clean(tally.plan.names[node]), (self._more(node), "dim")
        )
        lasted, progress = tally.lasted(node), tally.progress(node)
        if progress is None:
            if lasted is not None:
                text.append(f"  {lasted:.1f} s", "dim")
            return _one_line(text)
        line = self._grid()
        line.add_row(
            _one_line(text),
            self._bar(progress, 1.0, "cyan"),
            Text(f"{progress:.0%}"),
            Text("" if lasted is None else f"{lasted:.1f} s", "dim"),
        )
        return line

    def _more(self, node: int) -> str:
        """What is to be said of an atom besides its name and where it is."""
        tally, mark = self._tally, self._tally.mark(node)
        words = self.clean(tally.failures.get(node, ""))
        if tally.is_retry(node):
            return "".join(f"  {part}" for part in (self._attempt(node), words) if part)
        if words and mark in (_tally.REVERTING, _tally.REVERTED):
            return f"  {_LOOKS[mark][3]}: {words}"
        if words:
            return f"  {words}"
        said = (_tally.IGNORED, _tally.REVERTING, _tally.REVERTED, _tally.STUCK)
        return f"  {_LOOKS[mark][3]}" if mark in said else ""

    def _attempt(self, node: int) -> str:
        """Which attempt a retry is at, and when the next one begins."""
        if node >= len(self._tally.records):
            return ""
        record = self._tally.records[node]
        attempts = len(record.results)
        text = f"attempt {attempts}" if attempts else ""
        at = record.meta.get(retries.RETRY_AT) if record.has_meta else None
        if self._tally.mark(node) == _tally.RETRYING and isinstance(at, int | float):
            text += f", again in {max(0.0, at - time.time()):.0f} s"
        return text

    def _rest(self, flow: int, shown: _Choice) -> str:
        """What of an open flow is not shown."""
        if not shown.cut[flow]:
            return ""
        counts = self._tally.counts(flow)
        for node in shown.below(flow):
            here = self._tally.counts(node)
            # Things go on while we count.
            counts = Counts(*(max(0, all_ - some) for all_, some in zip(counts, here, strict=True)))
        if not counts.total:
            return ""
        names = ("waiting", "running", "done", "ignored", "failed", "reverting", "reverted")
        figures = [f"{getattr(counts, name):,} {name}" for name in names if getattr(counts, name)]
        return f"... {_plural(counts.total, 'more task')}: {', '.join(figures)}"

    # -- lines ----------------------------------------------------------------------------------

    def line(self) -> str:
        """How far the run is; the same text until that changes."""
        tally = self._tally
        figures = ", ".join(self._figures(tally.counts(0)))
        busy = [
            self._busy(node)
            for node in tally.under_way(4)
            if tally.mark(node) == _tally.RUNNING and not tally.is_retry(node)
        ]
        names = f" ({', '.join([*busy[:3], *(['...'] if len(busy) > 3 else [])])})" if busy else ""
        return f"{self._name()}: {figures}{names}"

    def _busy(self, node: int) -> str:
        name, progress = self.clean(self._tally.plan.names[node]), self._tally.progress(node)
        return name if progress is None else f"{name} {progress:.0%}"

    def news(self) -> Iterator[str]:
        """A line for each event that is worth one and was not said yet."""
        tally = self._tally
        while tally.news:
            node, state, words = tally.news.popleft()
            who = f"{'retry' if tally.is_retry(node) else 'task'} {self._quoted(node)}"
            if state == states.RETRYING:
                yield f"{self._name()}: {who}: its flow runs again"
            else:
                what = "failed" if state == states.FAILURE else "could not be reverted"
                yield f"{self._name()}: {who} {what}: {self.clean(words)}"
        dropped = tally.dropped - self._dropped
        if dropped:
            self._dropped += dropped
            yield f"{self._name()}: {dropped:,} more failures and retries"

    def summary(self) -> str:
        """How the run ended."""
        tally = self._tally
        figures = ", ".join(self._figures(tally.counts(0)))
        return f"{self._name()}: {tally.flow_state}, {figures}, {self.elapsed()}"

    def elapsed(self) -> str:
        """How long the run took so far."""
        return f"{self._tally.elapsed:.1f} s"

    # -- words ----------------------------------------------------------------------------------

    def clean(self, text: str) -> str:
        """`text` without secrets, and what a console could take for an order, or cannot show."""
        safe = visible(self._mask(text))
        encoding = self._console.encoding
        return safe.encode(encoding, "replace").decode(encoding, "replace")

    def _name(self) -> str:
        return self.clean(self._tally.plan.names[0])

    def _quoted(self, node: int) -> str:
        return f"'{self.clean(self._tally.plan.names[node])}'"

    def _look(self, mark: int) -> tuple[str, str]:
        icon, plain, style, _ = _LOOKS[mark]
        return (plain if self._ascii else icon), style

    def _bar(self, completed: float, total: float, style: str) -> ProgressBar:
        return ProgressBar(
            total=total or 1.0, completed=completed, width=_BAR, complete_style=style
        )

    def _grid(self) -> Table:
        return Table.grid(padding=(0, 2), pad_edge=False)


class _Choice:
    """Which nodes a picture shows."""

    def __init__(self, tally: Tally, rows: int) -> None:
        self._tally = tally
        self._left = max(rows, 4)
        #: Flows whose members are shown (not all of them, if `cut`).
        self.open: dict[int, list[int]] = {0: []}
        self.cut: dict[int, bool] = {}
        #: Shown node -> how many flows between it and the one it is shown in are left out.
        self.skipped: dict[int, int] = {}
        for node in self._chosen(self._left // 2):
            if self._left > 0:
                self._place(node)
        for flow in list(self.open):
            self._fill(flow)

    def below(self, flow: int) -> Sequence[int]:
        """What is shown directly below an open flow."""
        return sorted(set(self.open[flow]))

    def _chosen(self, most: int) -> list[int]:
        wrong = self._tally.wrong(max(1, most // 2))
        seen = set(wrong)
        busy = [node for node in self._tally.under_way(most) if node not in seen]
        return wrong + busy[: most - len(wrong)]

    def _place(self, node: int) -> None:
        """Show an atom, and enough of the flows around it to know where it is."""
        parent = self._tally.plan.parent
        chain = [node]
        while chain[-1] not in self.open:
            chain.append(parent[chain[-1]])
        chain.reverse()
        if len(chain) > _OUTER + _INNER + 1:
            outer, inner = chain[: _OUTER + 1], chain[-_INNER:]
            self.skipped[inner[0]] = len(chain) - len(outer) - len(inner)
            chain = outer + inner
        self._left -= len(chain) - 1
        for flow, member in itertools.pairwise(chain):
            self.open.setdefault(flow, []).append(member)

    def _fill(self, flow: int) -> None:
        """Show the other members of an open flow, if there is room for all of them."""
        shown, after = set(self.open[flow]), self._tally.after
        deeper = [node for node in shown if node in self.skipped]
        others: list[int] = []
        for node in self._tally.members(flow):
            if node not in shown and not any(node < inner < after(node) for inner in deeper):
                others.append(node)
            if len(others) > self._left:
                break
        self.cut[flow] = len(others) > self._left or bool(deeper)
        if len(others) > self._left:
            self._left -= 1
        else:
            self._left -= len(others)
            self.open[flow] += others


def _flow_mark(counts: Counts) -> int:
    for mark, here in (
        (_tally.FAILED, counts.failed),
        (_tally.REVERTING, counts.reverting),
        (_tally.RUNNING, counts.running),
        (_tally.REVERTED, counts.reverted),
    ):
        if here:
            return mark
    if counts.total and counts.ignored == counts.total:
        return _tally.IGNORED
    if counts.settled == counts.total:
        return _tally.DONE
    return _tally.RUNNING if counts.settled else _tally.WAITING


def _one_line(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
