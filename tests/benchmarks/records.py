"""Counts as they were recorded, and what is to be said of those that are not as they were."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

PLACE: Final = Path(__file__).with_name("counts.json")

#: Set it, and what is counted is recorded instead of compared.
RECORD: Final = "WBENGINE_RECORD_COUNTS"

#: The part by which a count may differ, and what it may differ by in any case.
TENTH: Final = 0.1
LEAST: Final = 0.05

#: How often is counted what depends on chance, at most.
TIMES: Final = 5

#: Objects have other sizes in each version of Python.
PYTHON: Final = f"Python {sys.version_info.major}.{sys.version_info.minor}"

Counts = Mapping[str, float]


def differences(
    case: str, was: Counts, now: Counts, *, less: bool = True, loose: Collection[str] = ()
) -> list[str]:
    """What has changed by more than a tenth, a line each.

    Also (unless not `less`) what became less: else it could grow again, up to what was recorded,
    and nobody would see.  What is `loose` depends on what else the machine does: it is told when it
    is more than twice as much.
    """
    found = []
    for name in sorted({*was, *now}):
        if max(was.get(name, 0.0), now.get(name, 0.0)) <= LEAST:
            continue
        if name not in was:
            found.append(f"{case}: {name} is not recorded")
        elif name not in now:
            found.append(f"{case}: {name} was {was[name]:g}, and is not counted any more")
        elif abs(now[name] - was[name]) > max(LEAST, was[name] * (name in loose or TENTH)):
            if now[name] < was[name] and (name in loose or not less):
                continue
            change = f"{100 * (now[name] / was[name] - 1):+.0f} %" if was[name] else "new"
            word = "MORE" if now[name] > was[name] else "less: record it"
            found.append(f"{case}: {name} was {was[name]:g}, is {now[name]:g} ({change}) {word}")
    return found


def recording() -> bool:
    return bool(os.environ.get(RECORD))


def read(place: Path = PLACE) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(place.read_text(encoding="utf-8"))
    return found


def write(case: str, now: Counts, place: Path = PLACE) -> None:
    """Record one case; tests of several processes may do that at once."""
    with place.open("r+", encoding="utf-8") as file:
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
    place: Path = PLACE,
) -> None:
    """Check the least counts of up to five times: on a busy machine there are more beats and looks
    at the clock than need be, which is nobody's fault.

    :raises AssertionError: as `check`.
    """
    found = dict(measure())
    for _ in range(TIMES - 1):
        was = read(place).get(case, {})
        if not (recording() or differences(case, was, found, less=less, loose=loose)):
            return
        for name, count in measure().items():
            found[name] = min(count, found.get(name, count))
    check(case, found, less=less, loose=loose, place=place)


def check(
    case: str,
    counted: Counts,
    *,
    less: bool = True,
    loose: Collection[str] = (),
    place: Path = PLACE,
) -> None:
    """Compare with what was recorded, or record it.

    :raises AssertionError: it is not as it was.
    """
    now = {name: round(count, 2) for name, count in counted.items()}
    if recording():
        write(case, now, place)
        return
    wrong = differences(case, read(place).get(case, {}), now, less=less, loose=loose)
    if wrong:
        raise AssertionError(
            "\n".join(["", *wrong, f"if that is meant: {RECORD}=1 pytest tests/benchmarks"])
        )
