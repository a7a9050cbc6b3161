"""Fleets of two builds, while workers and engines are killed.

`--upgrade`: all processes begin with the first build. One after another is replaced by the second
build, then by the first one again. Both read what the other writes: no flow may be lost.

`--upgrade --skip-release`: workers of the present package, which reads only format 1, and engines
of a build that writes format 2. Half of the workers are replaced by that build, one after another.
Requests wait for the first of them. Only these workers run tasks, and the run ends without
problems.

`--upgrade --without-checks`: the control run, with the builds of `--skip-release` but without their
checks of formats. Workers of the present package take requests that they cannot read, and drop
them: the run ends with lost flows, and with exit code 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import audit, builds
from tests.chaos.stage import Plan, Stage

#: Maximum number of seconds before a kill, also if few tasks end.
MAX_WAIT_SECONDS = 20.0
#: Seconds before the first replacement.
START_SECONDS = 10.0


@dataclass(frozen=True)
class Replacement:
    kind: str
    number: int
    build: Path


@dataclass
class Upgrade:
    """SIGKILL of workers and engines at random times, and replacements between them."""

    kills: int
    tasks: int
    replacements: Sequence[Replacement]

    def __call__(self, stage: Stage) -> None:
        stage.wait(START_SECONDS)
        count = len(self.replacements)
        for number, replacement in enumerate(self.replacements):
            self._replace(stage, replacement)
            for _ in range(self.kills * number // count, self.kills * (number + 1) // count):
                self._kill(stage)

    def _kill(self, stage: Stage) -> None:
        tasks = 2 * stage.chance.random() * self.tasks / self.kills
        goal, due = stage.counts[audit.ENDED] + tasks, time.monotonic() + MAX_WAIT_SECONDS
        while stage.counts[audit.ENDED] < goal and time.monotonic() < due:
            stage.tick()
        kind = stage.chance.choice(("worker", "worker", "engine"))
        if living := stage.crew.living(kind):
            stage.crew.kill(stage.chance.choice(living))

    def _replace(self, stage: Stage, replacement: Replacement) -> None:
        crew = stage.crew
        processes = crew.workers if replacement.kind == "worker" else crew.engines
        process = processes[replacement.number]
        while process.pid is None:
            stage.tick()
        crew.replace(process, replacement.build, kill=stage.chance.random() < 0.5)
        stage.say()


def plan_upgrade(
    plan: Plan, folder: Path, kills: int, tasks: int, *, skip: bool, checks: bool
) -> Upgrade:
    """Create the builds, set `plan.builds`, and return the faults of the run."""
    if skip or not checks:
        removed = () if checks else builds.WITHOUT_CHECKS
        present = builds.create(folder / "present", removed)
        later = builds.create(
            folder / "later", builds.READ_MESSAGES + builds.WRITE_MESSAGES + removed
        )
        plan.builds = present, later
        replaced = range(plan.workers // 2, plan.workers)
        return Upgrade(kills, tasks, [Replacement("worker", each, later) for each in replaced])
    first = builds.create(folder / "first", builds.FIRST)
    second = builds.create(folder / "second", builds.SECOND)
    plan.builds = first, first
    processes = [("worker", number) for number in range(plan.workers)]
    processes += [("engine", number) for number in range(plan.engines)]
    replacements = [Replacement(*each, build) for build in (second, first) for each in processes]
    return Upgrade(kills, tasks, replacements)
