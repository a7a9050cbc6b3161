"""One measurement of everything that was asked for, from the brokers to the verdict."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import _bootstrap
from tools.benching import (
    cases,
    checks,
    growing,
    idling,
    measuring,
    places,
    profiling,
    starting,
    systems,
)
from tools.benching.systems import LOCALS, NAMES, WIRES, System


@dataclass(frozen=True)
class Wanted:
    """What was asked for; names that are known."""

    groups: Sequence[str] = cases.NAMES
    systems: Sequence[str] = NAMES
    #: What tasks travel through.
    media: Sequence[str] = WIRES
    repeat: int = 3
    divide: int = 1
    sizes: Sequence[int] = growing.SIZES
    engine: str = "serial"
    #: Seconds that an idle worker is looked at.
    idle: float = 10.0
    patience: float = measuring.PATIENCE
    #: Where folders are made.
    folder: str | None = None
    #: Whether Redis keeps a log of its writes.
    log: bool = False


class Run:
    """One measurement; what there is of it can be told at any time."""

    def __init__(self, wanted: Wanted, say: Any = _bootstrap.say) -> None:
        self._wanted = wanted
        self._say = say
        self.systems: list[System] = systems.of(wanted.systems)
        self.facts: dict[str, Any] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.found = checks.Measured()

    @property
    def checks(self) -> list[checks.Check]:
        """Nothing is promised of smaller cases."""
        return checks.judge(self.found) if self._wanted.divide == 1 else []

    def all(self) -> None:
        """Measure it; what fails is told, and the rest goes on."""
        groups = {*self._wanted.groups}
        self.facts = facts(self._wanted)
        if "scale" in groups:
            self.found.grown = [*self._grow()]
        if "start" in groups:
            self._say("start-up: imports, first engines")
            self.found.started = starting.measure()
        if not groups & {*cases.RUN, "start", "idle", "profile"}:
            return
        # Those are in turn, too, but have no medium that one could ask for.
        media = [*self._wanted.media, *(LOCALS if "local" in groups else ())]
        pythons = systems.pythons(self.systems, sys.executable, _bootstrap.ensure_peer)
        with places.Places(media, folder=self._wanted.folder, log=self._wanted.log) as where:
            self.facts["brokers"] = where.versions
            there = [medium for medium in media if medium not in where.missing]
            self._run(there, pythons, where)
            if "idle" in groups:
                self.found.idle = [*self._idle(there, pythons, where)]
            if "profile" in groups and profiling.MEDIUM in there:
                self.found.profiles = [*self._profiles(pythons, where)]
        self.facts["load at the end"] = round(os.getloadavg()[0], 2)

    def _grow(self) -> Iterator[growing.Grown]:
        wanted = self._wanted
        for one in growing.grow(wanted.sizes, wanted.engine, wanted.repeat):
            self._say(f"scale: {one.shape}, {one.tasks:,} tasks: {one.all:.3f} s")
            yield one

    def _run(self, media: list[str], pythons: dict[str, str], where: places.Places) -> None:
        wanted = self._wanted
        plan = measuring.Plan(
            self.systems, pythons, media, wanted.groups, wanted.repeat, wanted.divide,
            wanted.patience,
        )  # fmt: skip
        made = measuring.Measuring(plan, where, self._say)
        self.found.table = made.found.table
        with contextlib.ExitStack() as last:
            last.callback(self._keep, made.found)
            made.all()

    def _keep(self, found: measuring.Found) -> None:
        self.versions = found.versions
        self.found.ready = {key: statistics.median(took) for key, took in found.ready.items()}

    def _idle(
        self, media: list[str], pythons: dict[str, str], where: places.Places
    ) -> Iterator[idling.Idle]:
        kinds = [
            one
            for one in self.systems
            if one.driver != "kombu" and (one.driver != "wbengine" or not one.variant)
        ]
        for one in idling.measure_all(kinds, pythons, media, where, self._wanted.idle):
            if isinstance(one, str):
                self._say(f"idle: {one}")
                continue
            self._say(f"idle: {one.medium}, {one.system}: {one.processor:.2f} % of a core")
            yield one

    def _profiles(
        self, pythons: dict[str, str], where: places.Places
    ) -> Iterator[profiling.Profile]:
        ours = [one for one in self.systems if one.name == checks.OURS and one.name in pythons]
        python = _bootstrap.ensure_peer("py-spy", profiling.PACKAGE) if ours else None
        if python is None:
            return
        spy, seconds = str(Path(python).with_name("py-spy")), max(round(self._wanted.idle), 1)
        for one in profiling.measure(
            ours[0], pythons[checks.OURS], spy, where, seconds, self._wanted.patience
        ):
            if isinstance(one, str):
                self._say(f"profile: {one}")
                continue
            self._say(f"profile: {one.case}, {one.side}: {one.samples:,} samples")
            yield one


def facts(wanted: Wanted) -> dict[str, Any]:
    """What the figures depend on."""
    from wbengine import version

    return {
        "when": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "wbengine": version.version_string(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "processor": _processor(),
        "load at the start": round(os.getloadavg()[0], 2),
        "repeat": wanted.repeat,
        "divide": wanted.divide,
        "redis keeps a log": wanted.log,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
