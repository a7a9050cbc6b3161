"""What tasks did, line by line, in a file that outlives whoever runs them.

A line says a *deed*: who did what in which wave (`left execute 1.0`: task `left`, first round of
the flow's retry, no wave of an inner one), and the process.  A deed is what an attempt is for: a
task cannot know the number of its attempt, but whoever does a deed twice ran an attempt twice, or
made two attempts of what was to be one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

# Looked for in big results too: it begins where a word does, and is short.
DEED = re.compile(r"(?<![\w.\[\]-])[\w.\[\]-]{1,40} (?:execute|revert) \d+\.\d+")
_WAVE = re.compile(r" \d+\.\d+$")


def deed(name: str, action: str, round: int = 0, wave: int = 0) -> str:
    return f"{name} {action} {round}.{wave}"


def note(path: str, deed: str) -> str:
    """Add a line, in one write: lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{deed} {os.getpid()}\n".encode())
    finally:
        os.close(file)
    return deed


def read(path: Path) -> list[str]:
    """The deeds that were done, in their order."""
    if not path.exists():
        return []
    return [line.rpartition(" ")[0] for line in path.read_text(encoding="utf-8").splitlines()]


def deeds_in(text: str) -> set[str]:
    """The deeds that are told of somewhere: in a result, a failure, a record."""
    return set(DEED.findall(text))


def timeless(deeds: Iterable[str]) -> set[str]:
    """Who did what, in whichever wave."""
    return {_WAVE.sub("", deed) for deed in deeds}
