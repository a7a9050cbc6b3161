"""What the terminal shows while the flow runs: a live board, or plain lines where there is none."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from rich import progress_bar as bars
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wbengine import states

if TYPE_CHECKING:
    from typing_extensions import Self

_PERIOD: Final = 1.0  # seconds between plain lines
_REFRESH: Final = 12.0  # pictures per second


class Place:
    """A process that runs one task at a time: which one, which one before, how many it ended."""

    __slots__ = ("ended", "last", "running")

    def __init__(self) -> None:
        self.running = ""
        self.last = ""
        self.ended = 0


class Board:
    """Keeps count of a run; a context manager that shows it on `console`.

    May be told things by any thread; the live display reads from its own.
    """

    def __init__(self, console: Console, total: int) -> None:
        self.total = total
        self.reverted = 0
        self.failed = ""
        self._succeeded = 0
        self._next = _PERIOD
        self.places: dict[int, Place] = {}
        self._begun: dict[str, int] = {}
        self._lock = threading.Lock()
        self._console = console
        self._live: Live | None = None
        self._started = time.monotonic()
        if console.is_terminal:
            self._live = Live(
                get_renderable=self._draw,
                console=console,
                refresh_per_second=_REFRESH,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Say something that stays on the screen."""
        self._console.print(line, markup=False, highlight=False)

    def begin(self) -> None:
        """The flow starts now."""
        self._started = time.monotonic()

    @property
    def done(self) -> int:
        """How many tasks came to an end.

        A process that begins a task is done with the one before, though the engine may tell later:
        the serial one tells of all that became ready together once the last of them has run.
        """
        running = sum(bool(place.running) for place in self.places.values())
        return max(self._succeeded, len(self._begun) - running)

    def begun(self, name: str, pid: int) -> None:
        """A task began in a process."""
        with self._lock:
            self._begun[name] = pid
            place = self.places.setdefault(pid, Place())
            self._leave(place)
            place.running = name
            self._line()

    def atom(self, state: str, details: dict[str, Any]) -> None:
        """A listener for `engine.atom_notifier`."""
        name = details.get("task_name", "")
        with self._lock:
            if state in (states.SUCCESS, states.FAILURE):
                place = self.places.get(self._begun.get(name, -1))
                if place is not None and place.running == name:
                    self._leave(place)
            if state == states.SUCCESS:
                self._succeeded += 1
                self._line()
            elif state == states.FAILURE and not self.failed:
                self.failed = name
                self._plainly(f"{name} failed: reverting")
            elif state == states.REVERTED:
                self.reverted += 1

    def place(self, name: str) -> int | None:
        """The process where a task began, if that was told."""
        return self._begun.get(name)

    def _leave(self, place: Place) -> None:
        if place.running:
            place.last, place.running = place.running, ""
            place.ended += 1

    def _line(self) -> None:
        """Say a plain line now and then."""
        elapsed = time.monotonic() - self._started
        done = self.done
        if not self.failed and (elapsed >= self._next or self._succeeded == self.total):
            self._next = elapsed + _PERIOD
            self._plainly(f"{done} of {self.total} tasks done, {elapsed:.1f} s")

    def _plainly(self, line: str) -> None:
        if self._live is None:
            self.say(line)

    def _draw(self) -> RenderableType:
        elapsed = time.monotonic() - self._started
        table = Table.grid(padding=(0, 2))
        failed = bool(self.failed)
        count = self.reverted if failed else self.done
        style = "red" if failed else "green"
        bar = bars.ProgressBar(total=self.total, completed=count, width=44, complete_style=style)
        says = f"{self.failed} failed: reverting" if failed else f"{count} of {self.total} tasks"
        table.add_row(bar, Text(says, style="bold"), Text(f"{elapsed:.1f} s", style="dim"))
        lines = Table.grid(padding=(0, 2))
        with self._lock:
            places = [
                (pid, each.ended, each.running, each.last) for pid, each in self.places.items()
            ]
        for number, (pid, ended, running, last) in enumerate(places, 1):
            what = Text(running, style="cyan") if running else Text(last, style="dim")
            name = "here" if pid == os.getpid() else f"worker {number}"
            lines.add_row(Text(name, style="bold"), Text(f"{ended} done"), what)
        return Group(table, lines)
