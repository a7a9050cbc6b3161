"""What is printed: tables of text, and the file of figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.benching import growing
from tools.benching.checks import OURS, Check, Measured
from tools.benching.figures import Cell
from tools.benching.idling import Idle
from tools.benching.systems import LOCALS, SYSTEMS, System

DASH = "\N{EN DASH}"
MARKS = {True: "✔", False: "✘", None: DASH}
STARTED = {
    "import alone": "import wbengine.engines",
    "import": "import wbengine.engines, with its names",
}
_TITLES = {system.name: system.title for system in SYSTEMS}


def rates(found: Measured, systems: Sequence[System]) -> Iterator[str]:
    """A table for each medium and case: medians, spreads, ratios; a dash for what is not there."""
    for medium, case in found.table.pairs:
        cells = {s.name: found.table.get(case, medium, s.name) for s in systems}
        tasks = next(cell.tasks for cell in cells.values() if cell is not None)
        ours = found.table.rate(case, medium, OURS)
        yield f"\n{case}, {medium}: {tasks:,} tasks"
        yield (
            f"  {'':<28}{'tasks/s':>9}{'spread':>9}{'us cpu/task':>13}{'its broker':>12}"
            f"{'wbengine x':>12}"
        )
        for system in systems:
            if medium in LOCALS and medium not in system.media:
                continue  # whose task it is to use workers
            yield f"  {system.title:<28}{_rate(cells[system.name], ours)}"


def _rate(cell: Cell | None, ours: float | None) -> str:
    """What is beside the name of a system."""
    if cell is None:
        return f"{DASH:>9}"
    if not cell.good:
        return f"{DASH:>9}  {cell.problems[0][:120]}"
    times = f"{ours / cell.rate:>11.2f}x" if ours is not None else ""
    problems = "".join(f"  ({why[:120]})" for why in cell.problems)
    return (
        f"{cell.rate:>9,.0f}{100 * cell.spread:>8.0f}%{cell.cost:>13,.0f}{cell.load:>12,.0f}"
        f"{times}{problems}"
    )


def grown(found: Sequence[growing.Grown]) -> Iterator[str]:
    if found:
        yield "\nscale: one flow, serial, from the construction of its tasks to its end"
        yield growing.HEAD
        yield from map(growing.line, found)


def started(found: Measured) -> Iterator[str]:
    if found.started:
        yield "\nstart-up"
        for name, seconds in found.started.items():
            text = STARTED.get(name, f"first engine: {name}")
            yield f"  {text:<42}{seconds:>9.3f} s"
    if found.ready:
        yield "\nseconds from the start of a worker until it had done something"
        for (medium, system), seconds in found.ready.items():
            yield f"  {medium:<12}{_TITLES[system]:<30}{seconds:>9.2f}"


def idle(found: Sequence[Idle]) -> Iterator[str]:
    if found:
        yield "\nworkers that have nothing to do"
        yield f"  {'':<42}{'% of a core':>12}{'MB':>8}{'MB shared':>11}{'processes':>11}"
        for one in found:
            yield (
                f"  {one.medium:<12}{_TITLES[one.system]:<30}{one.processor:>12.2f}"
                f"{one.memory:>8.1f}{one.share:>11.1f}{one.processes:>11}"
            )


def defaults(systems: Sequence[System], versions: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What each does who is asked for nothing."""
    yield "\nby default"
    for system in systems:
        known = ", ".join(f"{name} {one}" for name, one in versions.get(system.driver, {}).items())
        yield f"  {system.title} ({known or 'not measured'}; {system.slots})"
        yield f"    {system.defaults}"
        if system.helped:
            yield f"    told otherwise: {system.helped}"


def judged(checks: Sequence[Check]) -> Iterator[str]:
    if checks:
        yield "\npromises"
    for one in checks:
        yield f"{MARKS[one.kept]} {one.text}: {one.found} (at least {one.promised})".replace(
            "(at least under", "(under"
        ).replace("(at least at most", "(at most")


def lines(
    found: Measured, systems: Sequence[System], versions: Mapping[str, Mapping[str, str]],
    checks: Sequence[Check],
) -> Iterator[str]:  # fmt: skip
    """All of it, as it is printed."""
    yield from rates(found, systems)
    yield from grown(found.grown)
    yield from started(found)
    yield from idle(found.idle)
    if versions:
        yield from defaults(systems, versions)
    yield from judged(checks)


def told(
    facts: Mapping[str, Any], found: Measured, systems: Sequence[System],
    versions: Mapping[str, Mapping[str, str]], checks: Sequence[Check],
) -> dict[str, Any]:  # fmt: skip
    """All of it, for a file."""
    return {
        "facts": dict(facts),
        "systems": [
            {"name": one.name, "title": one.title, "peer": one.peer, "slots": one.slots,
             "defaults": one.defaults, "helped": one.helped,
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
        "checks": [one.told() for one in checks],
    }  # fmt: skip
