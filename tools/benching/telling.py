"""What is told of a measurement: the file of figures, and words that tables of it share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tools.benching.checks import Check, Measured
from tools.benching.profiling import Profile
from tools.benching.systems import System

DASH = "\N{EN DASH}"
MARKS = {True: "✔", False: "✘", None: DASH}
STARTED = {
    "import alone": "import wbengine.engines",
    "import": "import wbengine.engines, with its names",
}
#: Whose rate a case of others is compared with, where ours has none of that name.
COMPARED = {"pipeline": "chain"}


def parts(found: Sequence[Profile]) -> list[str]:
    """The names of all parts, the largest first."""
    sums: Counter[str] = Counter()
    for one in found:
        sums.update(one.parts)
    return [name for name, _ in sums.most_common()]


def told(
    facts: Mapping[str, Any], found: Measured, systems: Sequence[System],
    versions: Mapping[str, Mapping[str, str]], checks: Sequence[Check],
) -> dict[str, Any]:  # fmt: skip
    """All of it, for a file."""
    return {
        "facts": dict(facts),
        "systems": [
            {"name": one.name, "title": one.title, "peer": one.peer, "slots": one.slots,
             "defaults": one.defaults, "helped": one.helped, "log": one.log,
             "versions": dict(versions.get(one.driver, {}))}
            for one in systems
        ],
        "cells": [one.told() for one in found.table],
        "scale": [one.told() for one in found.grown],
        "start": {name: round(one, 4) for name, one in found.started.items()},
        "ready": [
            {"medium": medium, "system": system, "seconds": round(one, 3)}
            for (medium, system), one in found.ready.items()
        ],
        "idle": [one.told() for one in found.idle],
        "profiles": [one.told() for one in found.profiles],
        "checks": [one.told() for one in checks],
    }  # fmt: skip
