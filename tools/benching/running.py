"""Measurement of all requested groups, from the start of brokers to the checks."""

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
    driving,
    growing,
    idling,
    measuring,
    private_brokers,
    profiling,
    starting,
    systems,
    timeline,
)
from tools.benching.systems import LOCALS, NAMES, WIRES, System


@dataclass(frozen=True)
class Request:
    """The requested measurements, with valid names."""

    groups: Sequence[str] = cases.NAMES
    systems: Sequence[str] = NAMES
    #: Brokers.
    media: Sequence[str] = WIRES
    repeat: int = 3
    divide: int = 1
    sizes: Sequence[int] = growing.SIZES
    engine: str = "serial"
    #: Duration of the measurement of an idle worker in seconds.
    idle: float = 10.0
    patience: float = measuring.RUN_SECONDS
    #: Parent of the temporary folders.
    folder: str | None = None
    #: Whether Redis writes its append-only file.
    log: bool = False


class Run:
    """One measurement. Partial results can be read at any time."""

    def __init__(self, request: Request, say: Any = _bootstrap.say) -> None:
        self._wanted = request
        self._say = say
        # Media that cannot be selected as brokers are measured too.
        self._media = [*request.media, *(LOCALS if "local" in request.groups else ())]
        self.systems: list[System] = [
            system
            for system in systems.matching_systems(request.systems)
            if {*system.media} & {*self._media}
        ]
        self.facts: dict[str, Any] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.found = checks.Measured()

    @property
    def checks(self) -> list[checks.Check]:
        """The checks. There are no targets for reduced cases."""
        return checks.judge(self.found) if self._wanted.divide == 1 else []

    def all(self) -> None:
        """Run all measurements. Failures are reported and do not end the run."""
        groups = {*self._wanted.groups}
        self.facts = facts(self._wanted)
        if "scale" in groups:
            self.found.grown = [*self._grow()]
        if "start" in groups:
            self._say("start-up: imports, first engines")
            self.found.started = starting.measure()
        if not groups & {*cases.RUN, "start", "idle", "profile", cases.TIMELINE}:
            return
        pythons = systems.pythons(self.systems, sys.executable, _bootstrap.ensure_peer)
        with private_brokers.PrivateBrokers(
            self._media, folder=self._wanted.folder, log=self._wanted.log
        ) as where:
            self.facts["brokers"] = where.versions
            available = [medium for medium in self._media if medium not in where.missing]
            self._run(available, pythons, where)
            if "idle" in groups:
                self.found.idle = [*self._idle(available, pythons, where)]
            if "profile" in groups and profiling.MEDIUM in available:
                self.found.profiles = [*self._profiles(pythons, where)]
            if cases.TIMELINE in groups:
                self.found.timelines = [*self._timelines(available, pythons, where)]
        self.facts["load at the end"] = round(os.getloadavg()[0], 2)

    def _grow(self) -> Iterator[growing.Grown]:
        request = self._wanted
        for grown in growing.grow(request.sizes, request.engine, request.repeat):
            self._say(f"scale: {grown.shape}, {grown.tasks:,} tasks: {grown.all:.3f} s")
            yield grown

    def _run(
        self, media: list[str], pythons: dict[str, str], where: private_brokers.PrivateBrokers
    ) -> None:
        request = self._wanted
        plan = measuring.Plan(
            self.systems, pythons, media, request.groups, request.repeat, request.divide,
            request.patience,
        )  # fmt: skip
        measurement = measuring.Measuring(plan, where, self._say)
        self.found.table = measurement.found.table
        with contextlib.ExitStack() as last:
            last.callback(self._keep, measurement.found)
            measurement.all()

    def _keep(self, measured: measuring.Measurements) -> None:
        self.versions = measured.versions
        self.found.ready = {key: statistics.median(took) for key, took in measured.ready.items()}

    def _idle(
        self, media: list[str], pythons: dict[str, str], where: private_brokers.PrivateBrokers
    ) -> Iterator[idling.Idle]:
        kinds = [
            entry
            for entry in self.systems
            if entry.driver != "kombu" and (entry.driver != "wbengine" or not entry.variant)
        ]
        for entry in idling.measure_all(kinds, pythons, media, where, self._wanted.idle):
            if isinstance(entry, str):
                self._say(f"idle: {entry}")
                continue
            self._say(f"idle: {entry.medium}, {entry.system}: {entry.processor:.2f} % of a core")
            yield entry

    def _profiles(
        self, pythons: dict[str, str], where: private_brokers.PrivateBrokers
    ) -> Iterator[profiling.Profile]:
        ours = [
            entry for entry in self.systems if entry.name == checks.OURS and entry.name in pythons
        ]
        python = _bootstrap.ensure_peer("py-spy", profiling.PACKAGE) if ours else None
        if python is None:
            return
        spy, seconds = str(Path(python).with_name("py-spy")), max(round(self._wanted.idle), 1)
        for entry in profiling.measure(
            ours[0], pythons[checks.OURS], spy, where, seconds, self._wanted.patience
        ):
            if isinstance(entry, str):
                self._say(f"profile: {entry}")
                continue
            self._say(f"profile: {entry.case}, {entry.side}: {entry.samples:,} samples")
            yield entry

    def _timelines(
        self, media: list[str], pythons: dict[str, str], where: private_brokers.PrivateBrokers
    ) -> Iterator[timeline.Timeline]:
        request = self._wanted
        (ours,) = systems.matching_systems([checks.OURS])
        for medium in media:
            try:
                found = timeline.measure(
                    ours, pythons[checks.OURS], medium, where, request.divide, request.repeat,
                    request.patience,
                )  # fmt: skip
            except driving.Failed as error:
                self._say(f"timeline: {medium}: {error}")
                continue
            self._say(f"timeline: {medium}: {found.hop:,.0f} µs a hop")
            yield found


def facts(request: Request) -> dict[str, Any]:
    """Return the conditions of the measurement."""
    from wbengine import version

    return {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "wbengine": version.version_string(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "processor": _processor(),
        "load at the start": round(os.getloadavg()[0], 2),
        "repeat": request.repeat,
        "divide": request.divide,
        "Redis writes its append-only file": request.log,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
