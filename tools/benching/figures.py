"""What is made of measurements: medians, spreads, ratios, growth.  Pure functions and data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Best(NamedTuple):
    system: str
    rate: float
    #: Else the rate is below that.
    known: bool = True


@dataclass
class Cell:
    """The runs of one case, on one medium, by one system."""

    case: str
    medium: str
    system: str
    tasks: int
    seconds: list[float] = field(default_factory=list)
    #: Processor seconds of the caller, of the workers, and of the broker.
    caller: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    broker: list[float] = field(default_factory=list)
    #: Without runs that ended well: seconds after which not all had been done.
    undone: float | None = None
    #: What became of runs that did not end well.
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether there is something to tell of it: runs that ended well."""
        return bool(self.seconds)

    @property
    def hopeless(self) -> bool:
        """Whether it is not worth while to try again."""
        return len(self.problems) > 1 or bool(self.problems and not self.seconds)

    @property
    def rates(self) -> list[float]:
        """Tasks per second of each run."""
        return [self.tasks / seconds for seconds in self.seconds]

    @property
    def rate(self) -> float:
        """The median of them."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """From the slowest to the fastest, as a part of the median."""
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def costs(self) -> dict[str, float]:
        """Processor microseconds of one task, medians: of the caller, the workers, the broker."""
        return {
            "caller_us": self._each(self.caller),
            "workers_us": self._each(self.workers),
            "broker_us": self._each(self.broker),
        }

    @property
    def limit(self) -> float | None:
        """What its rate is below, if that is all that is known of it."""
        return self.tasks / self.undone if self.undone and not self.seconds else None

    def _each(self, seconds: list[float]) -> float:
        return 1e6 * statistics.median(seconds) / self.tasks if seconds else 0.0

    def told(self) -> dict[str, Any]:
        """For a file."""
        found: dict[str, Any] = {
            "case": self.case, "medium": self.medium, "system": self.system, "tasks": self.tasks,
            "seconds": [round(one, 4) for one in self.seconds],
        }  # fmt: skip
        if self.seconds:
            costs = {name: round(one, 1) for name, one in self.costs.items()}
            found |= {"rate": round(self.rate, 1), "spread": round(self.spread, 3), **costs}
        if self.limit is not None:
            found["limit"] = round(self.limit, 1)
        if self.problems:
            found["problems"] = self.problems
        return found


class Table:
    """All cells, in the order in which they were first measured."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, str], Cell] = {}

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def cell(self, case: str, medium: str, system: str, tasks: int) -> Cell:
        """The cell, made when it is not there."""
        made = Cell(case, medium, system, tasks)
        return self._cells.setdefault((case, medium, system), made)

    def get(self, case: str, medium: str, system: str) -> Cell | None:
        return self._cells.get((case, medium, system))

    def rate(self, case: str, medium: str, system: str) -> float | None:
        """Tasks per second; None when there are no good runs."""
        found = self.get(case, medium, system)
        return found.rate if found is not None and found.good else None

    def best(self, case: str, medium: str, systems: Sequence[str]) -> Best | None:
        """The fastest of some systems, and how fast it is.

        Only if none of them has a good run it is one of which nothing but a limit is known.
        """
        cells = [cell for name in systems if (cell := self.get(case, medium, name)) is not None]
        known = [Best(cell.system, cell.rate) for cell in cells if cell.good]
        limits = [Best(cell.system, cell.limit, False) for cell in cells if cell.limit is not None]
        return max(known or limits, key=lambda one: one.rate, default=None)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The media and cases there are, in their order."""
        return list(dict.fromkeys((one.medium, one.case) for one in self))


def growth(first: tuple[int, float], last: tuple[int, float]) -> float:
    """The exponent by which time grows with size, between two measurements (size, seconds)."""
    return math.log(last[1] / first[1]) / math.log(last[0] / first[0])


def middle(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}
