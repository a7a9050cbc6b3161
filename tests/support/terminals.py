"""Commands on a terminal of their own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path


class Terminal:
    """Python with these words on a terminal of so many columns; it ends with the test.

    `told` is what it has shown so far.  `result` gets the standard output, if that is not the
    terminal.
    """

    def __init__(
        self, *words: str, folder: Path, columns: int = 80, result: Path | None = None, **env: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
        output = theirs if result is None else os.open(result, os.O_WRONLY | os.O_CREAT)
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **size, **env},
            stdin=theirs,
            stdout=output,
            stderr=theirs,
            start_new_session=True,
        )
        for number in {theirs, output}:
            os.close(number)
        self.told = ""

    def until(self, pattern: str) -> None:
        """Read until it shows what is looked for."""
        until = time.monotonic() + 60
        while not re.search(pattern, self.told):
            assert time.monotonic() < until and self._read(), self.told

    def end(self) -> int:
        """Read all that it shows; its exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=60)

    def _read(self) -> bool:
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # it has ended
            return False
        self.told += found.decode(errors="replace")
        return bool(found)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
