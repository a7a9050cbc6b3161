"""The audit file: one line for each action of a task, which survives all processes.

A line contains an *effect*: task, action and wave (`left execute 1.0`: task `left`, first round of
the retry of the flow, no wave of an inner retry), and the process. Each effect has one attempt: a
repeated effect means that an attempt ran twice, or that two attempts were made instead of one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

# Deeds also occur in large results: they begin at a word boundary and are short.
DEED = re.compile(r"(?<![\w./\[\]-])[\w./\[\]-]{1,40} (?:execute|revert) \d+\.\d+")
_WAVE = re.compile(r"(execute|revert) \d+\.\d+")
#: The attempt of a workflow in the name of a step.
_ATTEMPT = re.compile(r"/\d+\.(?=\d+-)")


def effect(name: str, action: str, round: int = 0, wave: int = 0) -> str:
    return f"{name} {action} {round}.{wave}"


def note(path: str, effect: str) -> str:
    """Append a line with a single write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{effect} {os.getpid()}\n".encode())
    finally:
        os.close(file)
    return effect


def read(path: Path) -> list[str]:
    """Return the effects in order."""
    if not path.exists():
        return []
    return [line.rpartition(" ")[0] for line in path.read_text(encoding="utf-8").splitlines()]


def effects_in(text: str) -> set[str]:
    """Return the effects in a text: a result, a failure, a record."""
    return set(DEED.findall(text))


def timeless(effects: Iterable[str]) -> set[str]:
    """Return the effects without their waves."""
    return {without_waves(effect) for effect in effects}


def without_waves(text: str) -> str:
    """Return a text without the waves of effects, and without the attempts of workflows."""
    return _ATTEMPT.sub("/", _WAVE.sub(r"\1", text))
