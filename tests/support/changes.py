"""What the latest commits and the working tree changed. The tests of some parts depend on it."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
#: Number of commits whose changes are recent.
RECENT_COMMITS = 10


def is_recent(path: Path) -> bool:
    """Return whether a file changed recently. Outside a repository, all files did."""
    paths = changed()
    return paths is None or path in paths


@functools.cache
def changed() -> frozenset[Path] | None:
    """Return the files with recent changes, or None outside a repository."""
    git = ("git", "-C", str(REPOSITORY))
    log = [*git, "log", f"-{RECENT_COMMITS}", "--name-only", "--format="]
    local = [*git, "ls-files", "--modified", "--others", "--exclude-standard"]
    ended = [subprocess.run(each, capture_output=True, text=True) for each in (log, local)]
    if any(each.returncode for each in ended):
        return None
    return frozenset(REPOSITORY / name for each in ended for name in each.stdout.splitlines())


@functools.cache
def added_tests() -> frozenset[str]:
    """Return the names of the test functions that the latest commits added."""
    log = ("log", f"-{RECENT_COMMITS}", "--patch", "--unified=0", "--format=")
    ended = subprocess.run(["git", "-C", str(REPOSITORY), *log], capture_output=True, text=True)
    return frozenset(re.findall(r"^\+\s*(?:async )?def (test_\w+)", ended.stdout, re.MULTILINE))
