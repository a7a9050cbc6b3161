"""A tally as something to look at: a tree for terminals, lines of plain text for all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.tree import Tree

from wbengine import states
from wbengine.drawing import tree
from wbengine.listeners._tally import Tally

__all__ = ["Picture"]


class Picture:
    """Draws a tally for one console."""

    def __init__(self, tally: Tally, console: Console, mask: Callable[[str], str] = str) -> None:
        self._tally = tally
        self._console = console
        self._mask = mask
        # How many of the dropped news were told of.
        self._dropped = 0

    def tree(self, rows: int) -> Tree:
        """The run as a tree of at most about so many rows."""
        return tree.tree(self._tally, self._console, rows, self._mask)

    def line(self) -> str:
        """How far the run is; the same text until that changes."""
        tally = self._tally
        busy = [
            self._busy(node)
            for node in tally.busy(4)
            if tally.state_of(node) == states.RUNNING and not tally.is_retry(node)
        ]
        names = f" ({', '.join([*busy[:3], *(['...'] if len(busy) > 3 else [])])})" if busy else ""
        return f"{self._name(0)}: {tree.figures(tally)}{names}"

    def _busy(self, node: int) -> str:
        progress = self._tally.progress(node)
        return self._name(node) + ("" if progress is None else f" {progress:.0%}")

    def news(self) -> Iterator[str]:
        """A line for each event that is worth one and was not said yet."""
        tally, flow = self._tally, self._name(0)
        while tally.news:
            node, state, words = tally.news.popleft()
            who = f"{'retry' if tally.is_retry(node) else 'task'} '{self._name(node)}'"
            if state == states.RETRYING:
                yield f"{flow}: {who}: its flow runs again"
            else:
                what = "failed" if state == states.FAILURE else "could not be reverted"
                yield f"{flow}: {who} {what}: {self._clean(words)}"
        dropped = tally.dropped - self._dropped
        if dropped:
            self._dropped += dropped
            yield f"{flow}: {dropped:,} more failures and retries"

    def summary(self) -> str:
        """How the run ended."""
        tally = self._tally
        return f"{self._name(0)}: {tally.state}, {tree.figures(tally)}, {self.elapsed()}"

    def elapsed(self) -> str:
        """How long the run took so far."""
        return f"{self._tally.duration or 0.0:.1f} s"

    def _name(self, node: int) -> str:
        return self._clean(self._tally.names[node])

    def _clean(self, text: str) -> str:
        return tree.clean(text, self._console, self._mask)
