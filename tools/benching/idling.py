"""Resource usage of idle workers, and the load that they cause on their server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tools.benching import private_brokers, processes
from tools.benching.driving import Driver, Failed
from tools.benching.systems import LOCALS, System

#: Maximum time in seconds between the last task and the measurement.
SETTLING_SECONDS = 2.0


@dataclass(frozen=True)
class Idle:
    """The processes of an idle worker or pool of workers."""

    medium: str
    system: str
    #: Percent of a core.
    processor: float
    #: Megabytes: the sum of all processes, and the sum with shared pages divided.
    memory: float
    share: float
    processes: int
    #: Percent of a core that the brokers use.
    broker: float
    #: Transactions per second on PostgreSQL.
    transactions: float

    def to_dict(self) -> dict[str, Any]:
        return {key: round(v, 2) if isinstance(v, float) else v for key, v in asdict(self).items()}


def measure(
    system: System, python: str, medium: str, where: private_brokers.PrivateBrokers, seconds: float
) -> Idle:
    """Start a worker, let it execute a task, and measure it while it is idle.

    :raises Failed: if it does not start, or ends during the measurement.
    """
    with where.fresh(medium) as place:
        driver = Driver(system, python, place)
        try:
            time.sleep(min(SETTLING_SECONDS, seconds))
            pids = driver.workers
            transactions, broker = where.transactions(place), where.processor
            before, began = processes.own_processor(pids), time.monotonic()
            time.sleep(seconds)
            used, took = processes.own_processor(pids) - before, time.monotonic() - began
            broker = where.processor - broker
            transactions = where.transactions(place) - transactions
            memory, share = processes.memory(pids)
            if not set(pids) <= set(driver.workers):
                raise Failed("a process of the worker ended during the measurement")
        finally:
            driver.close()
    return Idle(
        medium, system.name, 100 * used / took, memory, share, len(pids), 100 * broker / took,
        transactions / took,
    )  # fmt: skip


def measure_all(
    systems: list[System],
    pythons: dict[str, str],
    media: list[str],
    where: private_brokers.PrivateBrokers,
    seconds: float,
) -> Iterator[Idle | str]:
    """Measure all systems that have workers. Yield a text for each that does not start."""
    for medium in media:
        for system in systems:
            if medium in LOCALS or medium not in system.media or system.name not in pythons:
                continue
            try:
                yield measure(system, pythons[system.name], medium, where, seconds)
            except Failed as error:
                yield f"{medium}, {system.name}: {error}"
