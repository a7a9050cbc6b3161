"""File with the figures of a measurement, and words that its tables share."""

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
    "import": "import wbengine.engines and all its names",
}
#: Case -> the case of wbengine with which it is compared, if wbengine does not have it.
COMPARED = {"pipeline": "chain"}


def parts(profiles: Sequence[Profile]) -> list[str]:
    """Return the names of all parts, largest first."""
    sums: Counter[str] = Counter()
    for profile in profiles:
        sums.update(profile.parts)
    return [name for name, _ in sums.most_common()]


def document(
    facts: Mapping[str, Any], measured: Measured, systems: Sequence[System],
    versions: Mapping[str, Mapping[str, str]], checks: Sequence[Check],
) -> dict[str, Any]:  # fmt: skip
    """Return the measurement as a JSON object."""
    return {
        "facts": dict(facts),
        "systems": [
            {"name": entry.name, "title": entry.title, "peer": entry.peer, "slots": entry.slots,
             "defaults": entry.defaults, "helped": entry.helped, "log": entry.log,
             "versions": dict(versions.get(entry.driver, {}))}
            for entry in systems
        ],
        "cells": [entry.to_dict() for entry in measured.table],
        "scale": [entry.to_dict() for entry in measured.grown],
        "start": {name: round(entry, 4) for name, entry in measured.started.items()},
        "ready": [
            {"medium": medium, "system": system, "seconds": round(entry, 3)}
            for (medium, system), entry in measured.ready.items()
        ],
        "idle": [entry.to_dict() for entry in measured.idle],
        "profiles": [entry.to_dict() for entry in measured.profiles],
        "timelines": [entry.to_dict() for entry in measured.timelines],
        "checks": [entry.to_dict() for entry in checks],
    }  # fmt: skip
