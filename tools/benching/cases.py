"""The cases of the benchmark and their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tools.benching.systems import BROKERS, DATABASES, LOCALS


@dataclass(frozen=True, eq=False)
class Case:
    """A method of a driver and its arguments."""

    name: str
    text: str
    sizes: Mapping[str, int]
    media: tuple[str, ...] = BROKERS
    #: Drivers that have this case; empty: all drivers.
    drivers: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """Number of tasks of one run."""
        sizes = self.sizes
        return sizes["layers"] * sizes["width"] if "layers" in sizes else sizes["tasks"]

    def smaller(self, times: int) -> Case:
        """Return the case with fewer tasks, as a warm-up or for a trial."""
        sizes = {
            name: value if name in ("size", "width") else max(value // times, 2)
            for name, value in self.sizes.items()
        }
        return replace(self, sizes=sizes)

    def suits(self, driver: str) -> bool:
        """Return whether a driver has this case."""
        return not self.drivers or driver in self.drivers


#: Group -> cases, which run on each medium.
RUN = {
    "wide": (
        Case("wide", "tasks that do nothing, all at once", {"tasks": 2000}),
    ),
    "chain": (
        Case("chain", "a chain of tasks, where the caller receives each result before it starts"
                      " the next task",
             {"tasks": 1000}),
        # For callers that need only the last result. Intermediate results are not visible.
        Case("pipeline", "a chain of tasks, where the worker starts the next task", {"tasks": 200},
             drivers=("celery", "dramatiq", "huey")),
    ),
    "diamond": (
        Case("diamond", "layers of 40 tasks; each layer starts when the last has ended",
             {"layers": 50, "width": 40}),
    ),
    "payload": (
        Case("payload", "tasks that receive 100 KB and return them",
             {"tasks": 200, "size": 100_000}),
    ),
    "latency": (
        Case("latency", "tasks that start on an idle worker, one after the other", {"tasks": 500},
             DATABASES, ("wbengine", "dbos", "procrastinate", "pgqueuer")),
    ),
    "local": (
        Case("wide", "tasks that do nothing, all at once", {"tasks": 1000}, LOCALS),
        Case("linear", "tasks that do nothing, one after the other", {"tasks": 1000}, LOCALS),
        Case("map", "a Map whose items do nothing", {"tasks": 10_000}, ("serial",), ("wbengine",)),
        Case("parked", "flows on sqlite: each is parked until a signal arrives, and then finished",
             {"tasks": 1000}, ("serial",), ("wbengine",)),
    ),
}  # fmt: skip
#: Groups that are measured in other ways.
OTHERS = ("scale", "start", "idle", "profile")
NAMES = (*RUN, *OTHERS)
#: Group of `--timeline`, which is not a benchmark: its calls are recorded.
TIMELINE = "timeline"


def matching_cases(names: list[str], medium: str, divide: int = 1) -> list[Case]:
    """Return the cases of some groups that run on a medium."""
    matching = [case for name in names if name in RUN for case in RUN[name] if medium in case.media]
    return [case.smaller(divide) for case in matching] if divide > 1 else matching
