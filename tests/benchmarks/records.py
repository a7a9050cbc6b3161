"""Recorded counts, and their comparison with new ones."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

PLACE: Final = Path(__file__).with_name("counts.json")

#: If this variable is set, counts are recorded instead of compared.
RECORD: Final = "WBENGINE_RECORD_COUNTS"

#: Tolerance as a fraction, and the minimum tolerance.
TENTH: Final = 0.1
LEAST: Final = 0.05

#: Maximum number of repetitions of counts that depend on chance.
TIMES: Final = 5

#: Sizes of objects depend on the version of Python.
PYTHON: Final = f"Python {sys.version_info.major}.{sys.version_info.minor}"

Counts = Mapping[str, float]


def differences(
    case: str, was: Counts, now: Counts, *, less: bool = True, loose: Collection[str] = ()
) -> list[str]:
    """Return a line for each count that changed by more than a tenth.

    Decreases are included unless `less` is False: an unrecorded decrease would hide a later
    increase. Counts in `loose` depend on the load of the machine and are included if they more than
    doubled.
    """
    actual = []
    for name in sorted({*was, *now}):
        if max(was.get(name, 0.0), now.get(name, 0.0)) <= LEAST:
            continue
        if name not in was:
            actual.append(f"{case}: {name} is not recorded")
        elif name not in now:
            actual.append(f"{case}: {name} was {was[name]:g}, and is not counted any more")
        elif abs(now[name] - was[name]) > max(LEAST, was[name] * (name in loose or TENTH)):
            if now[name] < was[name] and (name in loose or not less):
                continue
            change = f"{100 * (now[name] / was[name] - 1):+.0f} %" if was[name] else "new"
            word = "MORE" if now[name] > was[name] else "less: record it"
            actual.append(f"{case}: {name} was {was[name]:g}, is {now[name]:g} ({change}) {word}")
    return actual


def recording() -> bool:
    return bool(os.environ.get(RECORD))


def read() -> dict[str, dict[str, float]]:
    data: dict[str, dict[str, float]] = json.loads(PLACE.read_text(encoding="utf-8"))
    return data


def write(case: str, now: Counts) -> None:
    """Record one case; safe for concurrent processes."""
    with PLACE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = json.loads(file.read() or "{}") | {case: dict(sorted(now.items()))}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def least(
    case: str,
    measure: Callable[[], Counts],
    *,
    less: bool = True,
    loose: Collection[str] = (),
) -> None:
    """Check the lowest counts of up to five repetitions.

    A busy machine causes additional heartbeats and polls.

    :raises AssertionError: like `check`
    """
    minima = dict(measure())
    for _ in range(TIMES - 1):
        was = read().get(case, {})
        if not (recording() or differences(case, was, minima, less=less, loose=loose)):
            return
        for name, count in measure().items():
            minima[name] = min(count, minima.get(name, count))
    check(case, minima, less=less, loose=loose)


def check(case: str, counted: Counts, *, less: bool = True, loose: Collection[str] = ()) -> None:
    """Compare counts with the recorded ones, or record them.

    :raises AssertionError: if they differ
    """
    now = {name: round(count, 2) for name, count in counted.items()}
    if recording():
        write(case, now)
        return
    wrong = differences(case, read().get(case, {}), now, less=less, loose=loose)
    if wrong:
        raise AssertionError(
            "\n".join(["", *wrong, f"if that is meant: {RECORD}=1 pytest tests/benchmarks"])
        )
