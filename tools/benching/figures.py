"""Statistics of measurements: medians, spreads, ratios, growth. Pure functions and data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Best(NamedTuple):
    system: str
    rate: float
    #: If False, the rate is only an upper limit.
    known: bool = True


@dataclass
class Cell:
    """The runs of one case on one medium with one system."""

    case: str
    medium: str
    system: str
    tasks: int
    seconds: list[float] = field(default_factory=list)
    #: Processor time in seconds of the caller, the workers and the broker.
    caller: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    broker: list[float] = field(default_factory=list)
    #: Seconds from sending a task to its execution, of the tasks of all runs.
    delays: list[float] = field(default_factory=list)
    #: Time in seconds after which a run was given up.
    undone: float | None = None
    #: Errors of failed runs.
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether any run succeeded."""
        return bool(self.seconds)

    @property
    def hopeless(self) -> bool:
        """Whether further attempts are useless."""
        return len(self.problems) > 1 or bool(self.problems and not self.seconds)

    @property
    def rates(self) -> list[float]:
        """Tasks per second of each run."""
        return [self.tasks / seconds for seconds in self.seconds]

    @property
    def rate(self) -> float:
        """Median of the tasks per second."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """Difference of the fastest and the slowest run, relative to the median."""
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def costs(self) -> dict[str, float]:
        """Median processor time of one task in microseconds: caller, workers, broker."""
        return {
            "caller_us": self._each(self.caller),
            "workers_us": self._each(self.workers),
            "broker_us": self._each(self.broker),
        }

    @property
    def limit(self) -> float | None:
        """Upper limit of the rate, if no run succeeded."""
        return self.tasks / self.undone if self.undone and not self.seconds else None

    def _each(self, seconds: list[float]) -> float:
        return 1e6 * statistics.median(seconds) / self.tasks if seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as a JSON object."""
        content: dict[str, Any] = {
            "case": self.case, "medium": self.medium, "system": self.system, "tasks": self.tasks,
            "seconds": [round(value, 4) for value in self.seconds],
        }  # fmt: skip
        if self.seconds:
            costs = {name: round(value, 1) for name, value in self.costs.items()}
            content |= {"rate": round(self.rate, 1), "spread": round(self.spread, 3), **costs}
        if self.delays:
            hundredths = statistics.quantiles(self.delays, n=100)
            content |= {"p50_ms": 1e3 * hundredths[49], "p99_ms": 1e3 * hundredths[98]}
        if self.limit is not None:
            content["limit"] = round(self.limit, 1)
        if self.problems:
            content["problems"] = self.problems
        return content


class Table:
    """All cells, in the order of their first measurement."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, str], Cell] = {}

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def cell(self, case: str, medium: str, system: str, tasks: int) -> Cell:
        """Return the cell. Create it if it does not exist."""
        new_cell = Cell(case, medium, system, tasks)
        return self._cells.setdefault((case, medium, system), new_cell)

    def get(self, case: str, medium: str, system: str) -> Cell | None:
        return self._cells.get((case, medium, system))

    def rate(self, case: str, medium: str, system: str) -> float | None:
        """Return tasks per second; None without a successful run."""
        cell = self.get(case, medium, system)
        return cell.rate if cell is not None and cell.good else None

    def best(self, case: str, medium: str, systems: Sequence[str]) -> Best | None:
        """Return the fastest of some systems and its rate.

        A system for which only a limit is known is returned only if no system has a successful run.
        """
        cells = [cell for name in systems if (cell := self.get(case, medium, name)) is not None]
        measured = [Best(cell.system, cell.rate) for cell in cells if cell.good]
        limits = [Best(cell.system, cell.limit, False) for cell in cells if cell.limit is not None]
        return max(measured or limits, key=lambda best: best.rate, default=None)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The measured media and cases in order."""
        return list(dict.fromkeys((cell.medium, cell.case) for cell in self))


def growth(first: tuple[int, float], last: tuple[int, float]) -> float:
    """Return the exponent of growth between two measurements (size, seconds)."""
    return math.log(last[1] / first[1]) / math.log(last[0] / first[0])


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}
