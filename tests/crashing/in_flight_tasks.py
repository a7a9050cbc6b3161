"""Steps that are in flight while their engine is killed. The module imports no flow.

Each step has a key, with which an external system would recognize it. Its effects are lines of a
file: `do KEY` and `undo KEY`, or `unknown KEY` if its revert receives no result. `begin KEY` and
`end KEY` surround each execution.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.crashing import audit
from wbengine import exceptions, task
from wbengine._concurrency.crash_points import crashpoint
from wbengine.types import failure as ft


def read(path: Path) -> list[tuple[str, str]]:
    """Return the effects with their keys, in order."""
    lines = (line.partition(" ")[::2] for line in audit.read(path))
    return [(what, key) for what, key in lines]


def _note(effects: str, what: str, key: str) -> None:
    audit.note(effects, f"{what} {key}")


@task.task
def work(key: str, effects: str, nap: float) -> str:
    """Take effect after `nap` seconds; fail if the key demands it, before the effect."""
    _note(effects, "begin", key)
    try:
        if key.startswith("fails"):
            raise ValueError(key)
        if key.startswith("slow"):
            time.sleep(nap)
        crashpoint("task.before-effect")
        _note(effects, "do", key)
        crashpoint("task.after-effect")
    finally:
        _note(effects, "end", key)
    return key


@work.revert
def undo_work(key: str, effects: str, result: Any) -> None:
    _note_reversion(effects, key, result)


@task.task(retries=2)
def flaky(key: str, effects: str, nap: float) -> str:
    """Fail after the first effect."""
    is_first = ("do", key) not in read(Path(effects))
    _note(effects, "begin", key)
    try:
        time.sleep(nap / 2)
        crashpoint("task.before-effect")
        _note(effects, "do", key)
        crashpoint("task.after-effect")
        if is_first:
            raise ValueError(key)
    finally:
        _note(effects, "end", key)
    return key


@flaky.revert(failed=True)
def undo_flaky(key: str, effects: str, nap: float, result: Any) -> None:
    time.sleep(nap / 2)
    _note_reversion(effects, key, result)


def _note_reversion(effects: str, key: str, result: Any) -> None:
    is_unknown = isinstance(result, ft.Failure) and (
        result.check(exceptions.Interrupted, exceptions.WorkerLost) is not None
    )
    _note(effects, "unknown" if is_unknown else "undo", key)


@task.task
def fail(effects: str, nap: float) -> None:
    """Fail after a part of the time that a slow step needs."""
    time.sleep(nap / 4)
    raise ValueError("a task of the flow fails")
