"""The programs of the folder `tools`, run from the command line."""

from __future__ import annotations

import subprocess

from tests.support import python
from tests.support.workers import REPOSITORY

FOLDER = REPOSITORY / "tools"


def run(name: str, *words: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its result. It must exit with `code`, unless that is None."""
    command = [str(FOLDER / name), "--here", *map(str, words)]
    ended = python.run(command, capture_output=True, text=True)
    assert code in (None, ended.returncode), ended.stdout + ended.stderr
    return ended
