"""What workers cost that have nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tools.benching import places, processes
from tools.benching.driving import Driver, Failed
from tools.benching.systems import LOCALS, System

#: Seconds at most between the last task and the measurement.
SETTLING = 2.0


@dataclass(frozen=True)
class Idle:
    """The processes of a worker, or of a pool of them, that wait."""

    medium: str
    system: str
    #: Percent of a core.
    processor: float
    #: Megabytes: all added up, and with shared ones divided.
    memory: float
    share: float
    processes: int

    def told(self) -> dict[str, Any]:
        return {key: round(v, 2) if isinstance(v, float) else v for key, v in asdict(self).items()}


def measure(system: System, python: str, medium: str, where: places.Places, seconds: float) -> Idle:
    """Start a worker, have it do something, and look at it for so long when it does nothing.

    :raises Failed: when it does not start, or does not stay.
    """
    with where.fresh(medium) as place:
        driver = Driver(system, python, place)
        try:
            time.sleep(min(SETTLING, seconds))
            pids = driver.workers
            before, began = processes.fine(pids), time.monotonic()
            time.sleep(seconds)
            used, took = processes.fine(pids) - before, time.monotonic() - began
            memory, share = processes.memory(pids)
            if not set(pids) <= set(driver.workers):
                raise Failed("a process of it ended while it was looked at")
        finally:
            driver.close()
    return Idle(medium, system.name, 100 * used / took, memory, share, len(pids))


def measure_all(
    systems: list[System],
    pythons: dict[str, str],
    media: list[str],
    where: places.Places,
    seconds: float,
) -> Iterator[Idle | str]:
    """All that have workers, one after the other; a line for each that does not start."""
    for medium in media:
        for system in systems:
            if medium in LOCALS or medium not in system.media or system.name not in pythons:
                continue
            try:
                yield measure(system, pythons[system.name], medium, where, seconds)
            except Failed as error:
                yield f"{medium}, {system.name}: {error}"
