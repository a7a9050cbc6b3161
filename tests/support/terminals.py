"""Programs on a pseudo-terminal, and their screen as pyte renders it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte
from wcwidth import wcwidth

from tests.support import python
from tests.support.waiting import MARGIN

CTRL_C = "\x03"

#: Seconds in which a command starts and draws the expected text on an idle machine.
PATIENCE_SECONDS = 10.0
_HISTORY_LINES = 10_000


class Screen(pyte.HistoryScreen):
    """An xterm without reflow.

    Unlike pyte's own screens, it wraps a wide character that does not fit, combines zero-width
    characters with the one before, and records the rows that were longer than the screen is wide.
    """

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines, history=_HISTORY_LINES)
        #: The beginnings of lines that were too long for a row.
        self.overlong: list[str] = []
        self._is_continued = False

    def draw(self, data: str) -> None:
        for character in data:
            width = wcwidth(character)
            if width <= 0:
                self._combine(character)
                continue
            if self.cursor.x + width > self.columns:
                if not self._is_continued:
                    self.overlong.append(self._row(self.buffer[self.cursor.y]))
                self.carriage_return()
                self.linefeed()
                self._is_continued = True
            super().draw(character)

    def linefeed(self) -> None:
        self._is_continued = False
        super().linefeed()

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Change the size as xterm does: empty rows below the cursor are removed first."""
        if lines is not None and lines < self.lines:
            row = self.cursor.y
            self.cursor.y = self.lines - 1
            for _ in range(row - lines + 1):
                self.index()
            self.cursor.y = min(row, lines - 1)
            for y in range(lines, self.lines):
                self.buffer.pop(y, None)
            self.lines = lines
        super().resize(lines, columns)

    def _combine(self, character: str) -> None:
        row = self.buffer[self.cursor.y]
        column = self.cursor.x - 1
        if column > 0 and not row[column].data:  # the second half of a wide character
            column -= 1
        if column >= 0:
            row[column] = row[column]._replace(data=row[column].data + character)

    def _row(self, cells: Mapping[int, pyte.screens.Char]) -> str:
        width = max([self.columns, *(column + 1 for column in cells)])
        return "".join(cells[column].data for column in range(width)).rstrip()

    @property
    def rows(self) -> list[str]:
        """Return the rows of the screen, down to the last one with text."""
        return _without_empty_end([self._row(self.buffer[y]) for y in range(self.lines)])

    @property
    def scrollback(self) -> list[str]:
        """Return the rows that were scrolled off, followed by those of the screen."""
        return [*(self._row(cells) for cells in self.history.top), *self.rows]


def _without_empty_end(rows: list[str]) -> list[str]:
    while rows and not rows[-1]:
        rows.pop()
    return rows


class Terminal:
    """Python with these arguments on its own controlling terminal.

    The process is killed at the end of the `with` block. `piped` sends its standard output to a
    pipe; `piped_output` is its content. `env` is the whole environment (see `environment`).
    """

    def __init__(
        self,
        *words: str,
        folder: Path,
        columns: int = 80,
        lines: int = 24,
        piped: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        #: All bytes that the terminal received.
        self.output = b""
        self.piped_output = b""
        self._terminal, theirs = pty.openpty()
        self._set_size(columns, lines)
        # The kernel delivers Ctrl-C and SIGWINCH to the processes of a controlling terminal.
        self.process = python.start(
            words,
            terminal=True,
            cwd=folder,
            env=environment() if env is None else env,
            stdin=theirs,
            stdout=subprocess.PIPE if piped else theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._pipe = self.process.stdout
        self._open = {self._terminal, *([self._pipe.fileno()] if self._pipe else [])}

    # -- reading ---------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """Return the text of the screen."""
        return "\n".join(self.screen.rows)

    @property
    def scrollback(self) -> str:
        """Return the screen and all rows that were scrolled off it."""
        return "\n".join(self.screen.scrollback)

    def wait_for(self, condition: str | Callable[[], object]) -> None:
        """Read until the screen matches this pattern, in a row or across full rows, or until this
        condition is true.
        """
        deadline = time.monotonic() + MARGIN * PATIENCE_SECONDS
        while not self._holds(condition):
            if not self._read(0.05) and not self._open:
                assert self._holds(condition), f"it ended before {condition}:\n{self.text}"
            assert time.monotonic() < deadline, f"{condition} did not appear in:\n{self.text}"

    def _holds(self, condition: str | Callable[[], object]) -> object:
        if callable(condition):
            return condition()
        return re.search(condition, self.text) or re.search(condition, "".join(self.screen.rows))

    def end(self) -> int:
        """Read until the command has ended, and return its exit code."""
        deadline = time.monotonic() + MARGIN * PATIENCE_SECONDS
        while self.process.poll() is None or self._read(0):
            self._read(0.05)
            assert time.monotonic() < deadline, f"it did not end:\n{self.text}"
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        readable, _, _ = select.select(self._open, [], [], seconds)
        has_read = False
        for number in readable:
            try:
                data = os.read(number, 65536)
            except OSError:  # the last process on the terminal has ended
                data = b""
            if not data:
                self._open.discard(number)
            elif number == self._terminal:
                self.output += data
                self._stream.feed(data)
            else:
                self.piped_output += data
            has_read = has_read or bool(data)
        return has_read

    # -- acting ----------------------------------------------------------------------------------

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window; the kernel sends SIGWINCH.

        Pending output for the old size is read while both sizes fit.
        """
        self.screen.resize(max(lines, self.screen.lines), max(columns, self.screen.columns))
        self._set_size(columns, lines)
        while self._read(0):
            pass
        self.screen.resize(lines, columns)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        if self._pipe is not None:
            self._pipe.close()
        os.close(self._terminal)


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of this process without its terminal settings, with these changes."""
    ours = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return {**inherited, "TERM": "xterm-256color", "LANG": "C.UTF-8", **changes}
