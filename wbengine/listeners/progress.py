"""A display of a flow's progress: a live tree on terminals, otherwise plain lines."""

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
from wbengine._concurrency import conditions, threads
from wbengine.drawing import _terminal_tree
from wbengine.listeners import base
from wbengine.listeners._tally import Tally
from wbengine.views._shown_states import shown_state

__all__ = ["ProgressListener"]

LOG: Final = logging.getLogger(__name__)

#: Rows of a live tree that do not contain atoms or flows: the headline, and a line for input.
_MARGIN: Final = 3


_NAMED_TASK_STATES: Final = (states.RUNNING, states.WAITING)
_NAMED_FLOW_STATES: Final = (states.CANCELLING, states.WAITING)


class Picture:
    def __init__(self, tally: Tally, console: Console, mask: Callable[[str], str] = str) -> None:
        self._tally = tally
        self._console = console
        self._mask = mask
        self._shown_dropped = 0

    def tree(self, rows: int) -> Tree:
        """Return the run as a tree of about `rows` rows at most."""
        return _terminal_tree.tree(self._tally, self._console, rows, self._mask)

    def line(self) -> str:
        """Return the progress of the run as one line of text."""
        tally = self._tally
        busy = [
            self._label(node)
            for node in tally.running_atoms(4)
            if tally.state_of(node) in _NAMED_TASK_STATES and not tally.is_retry(node)
        ]
        names = f" ({', '.join([*busy[:3], *(['...'] if len(busy) > 3 else [])])})" if busy else ""
        state = f"{tally.state}, " if tally.state in _NAMED_FLOW_STATES else ""
        return f"{self._name(tally.root)}: {state}{_terminal_tree.figures(tally)}{names}"

    def _label(self, node: int) -> str:
        progress = self._tally.progress(node)
        return self._name(node) + ("" if progress is None else f" {progress:.0%}")

    def events(self) -> Iterator[str]:
        """Yield a line for each event that was not displayed yet."""
        tally, flow = self._tally, self._name(self._tally.root)
        while tally.events:
            node, state, text = tally.events.popleft()
            name = f"{'retry' if tally.is_retry(node) else 'task'} '{self._name(node)}'"
            if state == states.RETRYING:
                yield (
                    f"{flow}: {name}{': its flow runs' if tally.is_retry(node) else ' runs'} again"
                )
            else:
                verb = "failed" if state == states.FAILURE else "could not be reverted"
                yield f"{flow}: {name} {verb}: {self._clean(text)}"
        dropped = tally.dropped - self._shown_dropped
        if dropped:
            self._shown_dropped += dropped
            yield f"{flow}: {dropped:,} more failures and retries"

    def summary(self) -> str:
        tally = self._tally
        figures = _terminal_tree.figures(tally)
        return f"{self._name(tally.root)}: {tally.state}, {figures}, {self.elapsed()}"

    def elapsed(self) -> str:
        return f"{self._tally.duration or 0.0:.1f} s"

    def _name(self, node: int) -> str:
        return self._clean(self._tally.names[node])

    def _clean(self, text: str) -> str:
        return _terminal_tree.clean(text, self._console, self._mask)


class ProgressListener(base.Listener):
    """Displays a flow while it runs, and its result at the end.

    ::

        with ProgressListener(engine):
            engine.run()

    On a terminal, it displays the flow as a tree with states, progress bars, retries, counts and
    the duration. Finished flows are collapsed. For a large flow, it displays running and failed
    tasks, and counts the others. Elsewhere (no terminal, `NO_COLOR`, `TERM=dumb`), it prints a
    plain line at an interval, and one for each failure and retry.

    An event costs a few assignments in the thread of the engine. A separate thread draws, at a
    limited rate. A listener displays one engine, which may run several times.
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
        """Create a listener for `engine`.

        :param console: the console to write to; default: standard error.
        :param live: a tree (True) or lines (False); None: depends on the console.
        :param refresh_per_second: how often a live tree is drawn.
        :param interval: seconds between plain lines; None: only when `refresh` is called.
        :param max_rows: maximum rows of a tree.
        :param mask: removes secrets from names and messages.
        :raises ValueError: if a number is not positive.
        """
        super().__init__(engine)
        for name, value in (
            ("refresh_per_second", refresh_per_second),
            ("interval", 1 if interval is None else interval),
            ("max_rows", max_rows),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be greater than zero, got {value!r}")
        self._console = console if console is not None else Console(stderr=True)
        self._wants_live = _terminal_tree.can_redraw(self._console) if live is None else live
        self._rate = refresh_per_second
        self._interval = interval
        self._max_rows = max_rows
        self._mask = mask
        self._tally: Tally | None = None
        self._picture: Picture | None = None
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._stopped = conditions.Event()
        self._last_line = ""
        self._print_lock = threading.Lock()
        self._error: BaseException | None = None
        self._has_logged_error = False

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        self._log_error()
        tally = self._get_tally()
        if tally is None:
            return
        storage = self._engine.storage
        if kind != "flow":
            record = storage.flow_detail.find(details[f"{kind}_uuid"])
            if record is not None and record.is_step:
                tally.step(record, state)
            else:
                tally.atom(details[f"{kind}_name"], state, details.get("result"))
            return
        if state == states.RUNNING:
            tally.load(storage.records, storage.flow_detail.atoms)
        tally.flow(state)

    def _get_tally(self) -> Tally | None:
        if self._tally is None and self._engine.compilation is not None:
            executor = getattr(self._engine, "executor", None)
            tally = Tally(
                self._engine.compilation.plan,
                shown_state=self._shown_state,
                has_queue=executor is not None and not executor.immediate,
                paused=self._engine.paused_tasks,
            )
            storage = self._engine.storage
            tally.load(storage.records, storage.flow_detail.atoms)
            self._picture = Picture(tally, self._console, self._mask)
            self._tally = tally
        return self._tally

    def _shown_state(self, state: str) -> str:
        engine = self._engine
        waits = bool(engine.storage.flow_detail.waits_for)
        return shown_state(state, "", False, cancelled=engine.is_cancelled, waits=waits)

    def register(self) -> None:
        """Start listening and displaying. Idempotent."""
        if self._registered:
            return
        self._last_line, self._error, self._has_logged_error = "", None, False
        self._get_tally()
        super().register()
        if not self._wants_live or not self._start_live():
            self._start_lines()

    def deregister(self) -> None:
        """Stop, and display the result of the flow. Idempotent."""
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
        self._log_error()

    def _start_live(self) -> bool:
        live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=self._rate,
            transient=True,
        )
        try:
            # Only a later drawing erases an earlier one: a log line that is printed while a thread
            # draws for the first time would leave that drawing above it.
            live.start(refresh=True)
        except LiveError:  # The console has another live display.
            return False
        self._live = live
        return True

    def _start_lines(self) -> None:
        self._stopped.clear()
        if self._interval is not None:
            self._thread = threads.Thread(
                target=self._print_periodically, name="wbengine-progress", daemon=True
            )
            self._thread.start()

    def _print_periodically(self) -> None:
        while not self._stopped.wait(self._interval):
            self.refresh()

    def refresh(self) -> None:
        """Display the current state. Plain lines are printed only if the state has changed."""
        if self._live is not None:
            self._live.refresh()
        else:
            with self._print_lock:
                self._show(self._print_lines)
        self._log_error()

    def _draw(self) -> RenderableType:
        drawn: list[RenderableType] = []
        rows = min(self._max_rows, self._console.size.height - _MARGIN)
        self._show(lambda picture: drawn.append(picture.tree(rows)))
        return drawn[0] if drawn else Text()

    def _print_lines(self, picture: Picture) -> None:
        for line in picture.events():
            self._print(line)
        line = picture.line()
        if line != self._last_line:
            self._last_line = line
            self._print(f"{line}, {picture.elapsed()}")

    def _end(self, picture: Picture, live: bool) -> None:
        if live:
            self._console.print(picture.tree(self._max_rows))
        else:
            for line in picture.events():
                self._print(line)
        self._print(picture.summary())

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=not self._console.is_terminal, highlight=False)

    def _show(self, show: Callable[[Picture], Any]) -> None:
        """Call `show`. After the first exception, store it and display nothing more."""
        if self._picture is None or self._error is not None:
            return
        try:
            show(self._picture)
        except (Exception, SystemExit) as error:  # rich exits if the output is closed.
            self._error = error

    def _log_error(self) -> None:
        """Log the exception that ended the display.

        A live display draws under its lock, which a log line takes, too. Nothing is logged there.
        """
        if self._error is not None and not self._has_logged_error:
            self._has_logged_error = True
            LOG.warning("cannot show the progress any longer", exc_info=self._error)
