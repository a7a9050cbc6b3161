"""A folder with a store, a broker and flows, and the command on terminals there."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from tests.support.terminals import CTRL_C, Terminal, environment

ROOT = Path(__file__).parents[2]
FLOWS = "tests.terminal.flows"

#: Rows that are not folded, so that they can be copied: lines of the log, values of a JSON
#: document, and single words such as paths.
_UNFOLDED = re.compile(r'(\^C)?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d| *("[^"]*": )?["\[{]| *[!-~]+$')

_FAULT = re.compile(r'File "[^"]*/wbengine/|cannot be shown|Exception (in|ignored)')


class Shop:
    """The folder that commands run in, and their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {
            name: value
            for name, value in environment().items()
            if not name.startswith(("WBENGINE_", "XDG_", "CI"))
        }
        self.environment = {
            **inherited,
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT),
            "WBENGINE_PERSISTENCE": f"dir://{folder}/flows",
            "WBENGINE_URL": f"filesystem://{folder}/broker",
            "WBENGINE_TIMEOUT": "50",
        }

    @contextlib.contextmanager
    def terminal(
        self,
        command: str | Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        piped: bool = False,
        env: Mapping[str, str] | None = None,
        checked: bool = True,
    ) -> Iterator[Terminal]:
        """Start `wbengine` with these arguments; `:name` is a flow of `flows`.

        A command that is no str contains arguments with blanks. The screen is `checked` at the end.
        """
        given = command.split() if isinstance(command, str) else command
        words = [f"{FLOWS}{word}" if word.startswith(":") else word for word in given]
        with Terminal(
            "-m", "wbengine", *words, folder=self.folder, columns=columns, lines=lines,
            piped=piped, env={**self.environment, **(env or {})},
        ) as terminal:  # fmt: skip
            yield terminal
        if checked:
            check(terminal)

    def run(self, command: str | Sequence[str], **how: Any) -> Terminal:
        """Run a command on a terminal to its end."""
        with self.terminal(command, **how) as terminal:
            terminal.end()
        return terminal

    @contextlib.contextmanager
    def worker(self) -> Iterator[Terminal]:
        """A worker that offers the tasks of `flows`."""
        with self.terminal(f"worker flows --tasks {FLOWS}", columns=120) as worker:
            worker.wait_for("process ")
            yield worker
            worker.press(CTRL_C)
            worker.end()

    def quietly(self, command: str) -> str:
        """Return the standard output of a command that has no terminal."""
        words = [f"{FLOWS}{word}" if word.startswith(":") else word for word in command.split()]
        return python.run(
            ["-m", "wbengine", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ).stdout

    def go(self) -> None:
        """End the tasks that wait."""
        (self.folder / "go").touch()

    def finish(self, run: Terminal) -> None:
        """End the tasks that wait, and so a run, which succeeds."""
        self.go()
        assert run.end() == 0

    def suspend(self, run: Terminal) -> None:
        """Suspend a run with Ctrl-C, after its running tasks."""
        run.press(CTRL_C)
        run.wait_for("suspending after the running tasks")
        self.go()
        assert run.end() == 130

    def begun(self, task: str) -> bool:
        return (self.folder / f"{task}.begun").exists()


def check(terminal: Terminal) -> None:
    """Require that the terminal shows no frame of wbengine, and that all rows fit."""
    received = terminal.output.decode(errors="replace")
    assert not _FAULT.search(received), received
    overlong = [row for row in terminal.screen.overlong if not _UNFOLDED.match(row)]
    assert not overlong, "\n".join(overlong)


def interrupt(run: Terminal) -> None:
    """Press Ctrl-C, which ends the run."""
    run.press(CTRL_C)
    assert run.end() == 130


def matched(patterns: tuple[str, ...], rows: list[str]) -> bool:
    """Return True if rows match the patterns in their order."""
    left = iter(rows)
    return all(any(re.fullmatch(pattern, row) for row in left) for pattern in patterns)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    folder = tmp_path / "shop"
    folder.mkdir()
    new_shop = Shop(folder)
    yield new_shop
    new_shop.go()  # also ends detached runs
