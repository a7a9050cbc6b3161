"""Shows how far a flow is: a live tree on a terminal, plain lines everywhere else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.errors import LiveError
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from wbengine import states
from wbengine.drawing import tree
from wbengine.listeners import base
from wbengine.listeners._tally import Tally

__all__ = ["ProgressListener"]

LOG: Final = logging.getLogger(__name__)

#: Rows of a live tree that are not for atoms and flows: the headline, and a line to type in.
_MARGIN: Final = 3


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


class ProgressListener(base.Listener):
    """Shows a flow while it runs, and what became of it at the end.

    ::

        with ProgressListener(engine):
            engine.run()

    On a terminal: the flow as a tree with the states of its parts, bars for tasks that tell their
    progress, retries, counts and the time.  Finished flows are folded; of a large flow, what runs
    and what failed is shown, and the rest is counted.  Elsewhere (no terminal, `NO_COLOR`,
    `TERM=dumb`): a plain line now and then, and one for each failure and retry.

    An event costs a few assignments in the engine's thread, whatever the size of the flow; drawing
    happens in a thread of its own, so many times a second and no more.  Shows one engine at a time,
    which may run several times.
    """

    def __init__(
        self,
        engine: Any,
        console: Console | None = None,
        *,
        live: bool | None = None,
        refresh_per_second: float = 8.0,
        interval: float | None = 1.0,
        max_rows: int = 40,
        mask: Callable[[str], str] = str,
    ) -> None:
        """
        :param console: where to show it; standard error by default.
        :param live: a tree (True) or lines (False); None: whatever the console is good for.
        :param refresh_per_second: how often a live tree is drawn.
        :param interval: seconds between plain lines; None: only when `refresh` is called.
        :param max_rows: rows of a tree, if the terminal has so many.
        :param mask: takes secrets out of names and messages.
        :raises ValueError: a number is not positive.
        """
        super().__init__(engine)
        for name, value in (
            ("refresh_per_second", refresh_per_second),
            ("interval", 1 if interval is None else interval),
            ("max_rows", max_rows),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be greater than zero, not {value!r}")
        self._console = console if console is not None else Console(stderr=True)
        self._wants_live = _is_good(self._console) if live is None else live
        self._rate = refresh_per_second
        self._interval = interval
        self._max_rows = max_rows
        self._mask = mask
        self._tally: Tally | None = None
        self._picture: Picture | None = None
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._said = ""
        self._saying = threading.Lock()
        self._broken = False

    # -- told by the engine ---------------------------------------------------------------------

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        tally = self._known()
        if tally is None:
            return
        if kind != "flow":
            tally.atom(details[f"{kind}_name"], state, details.get("result"))
            return
        if state == states.RUNNING:
            tally.load(self._engine.storage.records)
        tally.flow(state)

    def _known(self) -> Tally | None:
        """The tally, made when the flow is compiled."""
        if self._tally is None and self._engine.compilation is not None:
            tally = Tally(self._engine.compilation.plan)
            tally.load(self._engine.storage.records)
            self._picture = Picture(tally, self._console, self._mask)
            self._tally = tally
        return self._tally

    # -- beginning and ending -------------------------------------------------------------------

    def register(self) -> None:
        """Begin to listen and to show; does nothing while it does already."""
        if self._registered:
            return
        self._said, self._broken = "", False
        self._known()
        super().register()
        if not self._wants_live or not self._start_live():
            self._start_lines()

    def deregister(self) -> None:
        """Listen no longer, and show what became of the flow; does nothing the second time."""
        if not self._registered:
            return
        super().deregister()
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        self._show(lambda picture: self._end(picture, live is not None))

    def _start_live(self) -> bool:
        live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=self._rate,
            transient=True,
        )
        try:
            live.start()
        except LiveError:  # somebody else has one on this console
            return False
        self._live = live
        return True

    def _start_lines(self) -> None:
        self._stopped.clear()
        if self._interval is not None:
            self._thread = threading.Thread(
                target=self._say_now_and_then, name="wbengine-progress", daemon=True
            )
            self._thread.start()

    def _say_now_and_then(self) -> None:
        while not self._stopped.wait(self._interval):
            self.refresh()

    # -- showing --------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Show now what is known; plain lines only if something happened since the last ones."""
        if self._live is not None:
            self._live.refresh()
        else:
            with self._saying:
                self._show(self._say)

    def _draw(self) -> RenderableType:
        drawn: list[RenderableType] = []
        rows = min(self._max_rows, self._console.size.height - _MARGIN)
        self._show(lambda picture: drawn.append(picture.tree(rows)))
        return drawn[0] if drawn else Text()

    def _say(self, picture: Picture) -> None:
        for line in picture.news():
            self._print(line)
        line = picture.line()
        if line != self._said:
            self._said = line
            self._print(f"{line}, {picture.elapsed()}")

    def _end(self, picture: Picture, live: bool) -> None:
        if live:
            self._console.print(picture.tree(self._max_rows))
        else:
            for line in picture.news():
                self._print(line)
        self._print(picture.summary())

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True, highlight=False)

    def _show(self, show: Callable[[Picture], Any]) -> None:
        """Show something; what goes wrong is logged, once, and hurts nobody."""
        if self._picture is None or self._broken:
            return
        try:
            show(self._picture)
        except (Exception, SystemExit):  # rich's answer to a reader who has gone
            self._broken = True
            LOG.warning("Progress cannot be shown any more", exc_info=True)


def _is_good(console: Console) -> bool:
    """Can a picture be replaced by the next one there?"""
    return console.is_terminal and not console.is_dumb_terminal and not console.no_color
