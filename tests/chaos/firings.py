"""Schedules that several processes fire, while processes are killed and the clock jumps.

Each tick must create one flow. The clock is described in `tests/support/scheduled.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.support import python, scheduled, servers
from tests.support.waiting import until
from wbengine.persistence import backends
from wbengine.schedules import Schedule, Schedules

PROCESSES, NAMES = 3, ("a", "b", "c", "d")


def run(uri: str, folder: Path, firings: int, kills: int, seed: int) -> dict[str, Any]:
    """Run until this many ticks were fired. Return the figures, including `problems`."""
    file, began = folder / "ahead", time.monotonic()
    _set_clock(file, 0)
    chance = random.Random(seed)
    with backends.backend(uri) as backend:
        schedules = Schedules(backend, clock=functools.partial(scheduled.clock, str(file)))
        for name in NAMES:
            schedules.add(
                Schedule(
                    name=name,
                    factory="tests.support.conducted:greeting",
                    every=1,
                    catch_up="all",
                    overlap="allow",
                    inputs={"name": name},
                )
            )
        first = {entry.name: entry.next_tick for entry in schedules.all()}
        serving = [_serve(uri, file) for _ in range(PROCESSES)]
        ahead, step = 0.0, firings / len(NAMES) / kills
        try:
            for number in range(kills):
                # The clock advances by the pending ticks, and sometimes jumps back.
                ahead += step if number % 4 else step * 1.5
                _set_clock(file, ahead - (step * 0.5 if number % 4 == 2 else 0))
                enough = _count(backend) + chance.randrange(20)
                until(lambda enough=enough: _count(backend) > enough, 60)  # type: ignore[misc]
                victim = serving.pop(chance.randrange(len(serving)))
                victim.kill()
                victim.wait()
                serving.append(_serve(uri, file))
            _set_clock(file, ahead)
            until(lambda: _count(backend) >= firings, 120)
            for name in NAMES:
                schedules.pause(name)
            time.sleep(0.5)  # an active firing may finish; later ones would be an error
        finally:
            for process in serving:
                process.kill()
                process.wait()
        expected = {
            entry.schedule.flow_id(tick)
            for entry in schedules.all()
            for tick in range(first[entry.name], entry.next_tick)
        }
        flows, jobs = _rows(backend, "wbe_flowdetails"), _rows(backend, "wbe_jobs")
        done = _rows(backend, "wbe_flowdetails WHERE state = 'SUCCESS'")
    problems = []
    if len(flows) < firings:
        problems.append(f"{len(flows)} flows of {firings}")
    for what, wrong in {
        "fired twice": len(flows) - len(set(flows)),
        "not fired": len(expected - set(flows)),
        "fired for no tick": len(set(flows) - expected),
        "without a job": len(set(flows) - set(done) - set(jobs)),
        "with two jobs": len(jobs) - len(set(jobs)),
    }.items():
        if wrong:
            problems.append(f"{wrong} flows: {what}")
    return {
        "seed": seed, "firings": len(flows), "kills": kills, "problems": len(problems),
        "seconds": round(time.monotonic() - began, 1), "first problems": problems,
    }  # fmt: skip


def summary(figures: Mapping[str, Any]) -> list[str]:
    totals = (
        f"seed {figures['seed']}: {figures['firings']} firings of {len(NAMES)} schedules by"
        f" {PROCESSES} processes, {figures['kills']} kills, the clock set forward and back;"
        f" {figures['seconds']:.0f} s, {figures['problems']} problems"
    )
    return [*(f"PROBLEM {problem}" for problem in figures["first problems"]), totals]


def _serve(uri: str, file: Path) -> subprocess.Popen[bytes]:
    return python.start(
        ["-m", "tests.support.scheduled", uri, str(file)],
        cwd=servers.REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        die_with_parent=True,
    )


def _set_clock(file: Path, ahead: float) -> None:
    file.with_suffix(".new").write_text(str(ahead))
    os.replace(file.with_suffix(".new"), file)


def _rows(backend: Any, where: str) -> list[str]:
    with contextlib.closing(backend.engine.connect()) as raw:
        return list(raw.execute(sa.text(f"SELECT uuid FROM {where}")).scalars())


def _count(backend: Any) -> int:
    with contextlib.closing(backend.engine.connect()) as raw:
        return int(raw.scalar(sa.text("SELECT count(*) FROM wbe_flowdetails")))
