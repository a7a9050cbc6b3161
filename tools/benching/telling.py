"""What is printed: tables of text, and the file of figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.benching import growing
from tools.benching.checks import KEPT, OURS, TITLES, Check, Measured
from tools.benching.figures import Cell
from tools.benching.idling import Idle
from tools.benching.profiling import MEDIUM, Profile
from tools.benching.systems import LOCALS, System

DASH = "\N{EN DASH}"
MARKS = {True: "✔", False: "✘", None: DASH}
STARTED = {
    "import alone": "import wbengine.engines",
    "import": "import wbengine.engines, with its names",
}
#: Whose rate a case of others is compared with, where ours has none of that name.
COMPARED = {"pipeline": "chain"}


def rates(found: Measured, systems: Sequence[System]) -> Iterator[str]:
    """A table for each medium and case: medians, spreads, ratios; a dash for what is not there."""
    for medium, case in found.table.pairs:
        cells = {s.name: found.table.get(case, medium, s.name) for s in systems}
        tasks = next(cell.tasks for cell in cells.values() if cell is not None)
        like = COMPARED.get(case, case)
        ours = [found.table.rate(like, medium, name) for name in (OURS, KEPT)]
        beside = f"; wbengine's are those of {like}" if like != case else ""
        yield f"\n{case}, {medium}: {tasks:,} tasks{beside}"
        yield (
            f"  {'':<26}{'tasks/s':>9}{'spread':>8}{'us caller':>11}{'workers':>9}{'broker':>8}"
            f"{'wbengine x':>12}{'kept x':>9}"
        )
        for system in systems:
            if cells[system.name] is None and (medium in LOCALS or case in COMPARED):
                continue  # whose task it is to use workers, or who has no such thing
            yield f"  {system.title:<26}{_rate(cells[system.name], ours)}"


def _rate(cell: Cell | None, ours: Sequence[float | None]) -> str:
    """What is beside the name of a system."""
    if cell is None:
        return f"{DASH:>9}"
    problems = "".join(f"  ({why[:120]})" for why in cell.problems)
    if not cell.good:
        limit = f"<{cell.limit:,.0f}" if cell.limit is not None else DASH
        return f"{limit:>9}{problems}"
    times = "".join(
        f"{one / cell.rate:>{width - 1}.2f}x" if one is not None else f"{'':>{width}}"
        for one, width in zip(ours, (12, 9), strict=True)
    ).rstrip()
    spent = "".join(
        f"{one:>{width},.0f}" for one, width in zip(cell.costs.values(), (11, 9, 8), strict=True)
    )
    return f"{cell.rate:>9,.0f}{100 * cell.spread:>7.0f}%{spent}{times}{problems}"


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
            yield f"  {medium:<12}{TITLES[system]:<30}{seconds:>9.2f}"


def idle(found: Sequence[Idle]) -> Iterator[str]:
    if found:
        yield "\nworkers that have nothing to do"
        yield f"  {'':<42}{'% of a core':>12}{'MB':>8}{'MB shared':>11}{'processes':>11}"
        for one in found:
            yield (
                f"  {one.medium:<12}{TITLES[one.system]:<30}{one.processor:>12.2f}"
                f"{one.memory:>8.1f}{one.share:>11.1f}{one.processes:>11}"
            )


def profiles(found: Sequence[Profile]) -> Iterator[str]:
    if found:
        yield f"\nwhere the time goes, over {MEDIUM}: parts of the samples of each process"
        yield f"  {'':<48}" + "".join(f"{one.case + ', ' + one.side:>15}" for one in found)
        for name in parts(found):
            shares = "".join(f"{100 * one.parts.get(name, 0):>13.0f} %" for one in found)
            yield f"  {name:<48}{shares}"


def parts(found: Sequence[Profile]) -> list[str]:
    """The names of all parts, the largest first."""
    sums: Counter[str] = Counter()
    for one in found:
        sums.update(one.parts)
    return [name for name, _ in sums.most_common()]


def defaults(systems: Sequence[System], versions: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What each does who is asked for nothing."""
    yield "\nby default"
    for system in systems:
        known = ", ".join(f"{name} {one}" for name, one in versions.get(system.driver, {}).items())
        yield f"  {system.title} ({known or 'not measured'}; {system.slots})"
        yield f"    {system.defaults}"
        if system.helped:
            yield f"    told otherwise: {system.helped}"
        yield f"    log: {system.log}"


def judged(checks: Sequence[Check]) -> Iterator[str]:
    if checks:
        yield "\npromises"
    for one in checks:
        least = "" if one.promised.startswith(("under", "at most")) else "at least "
        promised = f" ({least}{one.promised})" if one.promised else ", not judged"
        yield f"{MARKS[one.kept]} {one.text}: {one.found}{promised}"


def lines(
    found: Measured, systems: Sequence[System], versions: Mapping[str, Mapping[str, str]],
    checks: Sequence[Check],
) -> Iterator[str]:  # fmt: skip
    """All of it, as it is printed."""
    yield from rates(found, systems)
    yield from grown(found.grown)
    yield from started(found)
    yield from idle(found.idle)
    yield from profiles(found.profiles)
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
