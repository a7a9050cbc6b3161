"""The programs of the folder `tools`, run as people do."""

from __future__ import annotations

import subprocess
import sys

from tests.support.workers import REPOSITORY

FOLDER = REPOSITORY / "tools"


def run(name: str, *words: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """What one of them printed; it must end with `code`, if one is given."""
    command = [sys.executable, str(FOLDER / name), "--here", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert code in (None, ended.returncode), ended.stdout + ended.stderr
    return ended
