"""The runs: each system in turn, on each medium, again and again."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tools import _bootstrap
from tools.benching import cases, places
from tools.benching.driving import Driver, Failed
from tools.benching.figures import Cell, Table
from tools.benching.systems import System

#: Seconds after which a run is given up.
PATIENCE = 120.0
#: How much smaller a warm-up is.
WARM = 10
#: So many lines in the log of workers are said to be many.
CHATTY = 50


@dataclass
class Found:
    """What was measured by running cases."""

    table: Table = field(default_factory=Table)
    #: Of packages, by system.
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Seconds until a new worker had done something, by medium and system.
    ready: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    #: Systems that could not be started, by medium and system.
    refused: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    systems: Sequence[System]
    #: Their interpreters.
    pythons: Mapping[str, str]
    media: Sequence[str]
    #: Names of groups of cases.
    groups: Sequence[str]
    repeat: int = 3
    #: How much smaller the cases are made.
    divide: int = 1
    patience: float = PATIENCE


class Measuring:
    """One measurement of a plan; what is found can be looked at any time."""

    def __init__(
        self, plan: Plan, where: places.Places, say: Callable[[str], None] = _bootstrap.say
    ) -> None:
        self._plan = plan
        self._out = say
        self._places = where
        self.found = Found()
        self._began = time.monotonic()

    def all(self) -> Found:
        """Media in turn; on each, the systems in turn, again and again: drift hits all alike.

        Each time another one begins: nobody always comes after the same.
        """
        plan = self._plan
        for medium in plan.media:
            wanted = cases.of(list(plan.groups), medium, plan.divide)
            if not wanted and "start" not in plan.groups:
                continue
            for turn in range(plan.repeat):
                first = turn % max(len(plan.systems), 1)
                for system in [*plan.systems[first:], *plan.systems[:first]]:
                    if medium in system.media and system.name in plan.pythons:
                        self._turn(medium, system, wanted, turn)
        return self.found

    def _turn(self, medium: str, system: System, wanted: Sequence[cases.Case], turn: int) -> None:
        """All cases once, by one system, in a fresh place; a new one after each that failed."""
        wanted = [one for one in wanted if one.suits(system.driver)]
        cells = {one: self._cell(one, medium, system) for one in wanted}
        left = [one for one in wanted if not cells[one].hopeless]
        where = f"{medium}, {system.name}, {turn + 1} of {self._plan.repeat}"
        for attempt in itertools.count(1):
            if (medium, system.name) in self.found.refused:
                return
            with self._places.fresh(medium) as place:
                try:
                    driver = Driver(system, self._plan.pythons[system.name], place)
                except Failed as error:
                    self._say(f"{where}: {error}\n{places.logs(place['folder'])}")
                    if attempt > 1 or "Error" in str(error):  # else it may have been chance
                        self._refuse(medium, system, str(error))
                    continue
                with contextlib.closing(driver):
                    quiet = places.lines(place["folder"])
                    self._opened(medium, system, driver)
                    if not wanted and driver.ready is not None:
                        self._say(f"{where}: ready after {driver.ready:.2f} s")
                    while left:
                        case = left.pop(0)
                        if not self._run(driver, case, cells[case], where):
                            self._out(places.logs(place["folder"]))
                            break
                    else:
                        if (lines := places.lines(place["folder"]) - quiet) > CHATTY:
                            self._say(f"{where}: it logged {lines:,} lines, which takes time, too")
            if not left:
                return

    def _cell(self, case: cases.Case, medium: str, system: System) -> Cell:
        return self.found.table.cell(case.name, medium, system.name, case.tasks)

    def _run(self, driver: Driver, case: cases.Case, cell: Cell, where: str) -> bool:
        """Whether it did what it was to do; else the driver is of no more use."""
        began = time.monotonic()
        try:
            driver.run(case.name, case.smaller(WARM).sizes, self._plan.patience)
            before, began = self._places.processor, time.monotonic()
            one = driver.run(case.name, case.sizes, self._plan.patience)
        except Failed as error:
            cell.undone = time.monotonic() - began
            cell.problems.append(str(error))
            self._say(f"{where}, {case.name}: {error}")
            return False
        cell.seconds.append(one["seconds"])
        cell.caller.append(one["caller"])
        cell.workers.append(one["workers"])
        cell.broker.append(self._places.processor - before)
        self._say(f"{where}, {case.name}: {cell.rates[-1]:,.0f} tasks/s")
        return True

    def _opened(self, medium: str, system: System, driver: Driver) -> None:
        self.found.versions[system.driver] = driver.versions
        if driver.ready is not None:
            self.found.ready.setdefault((medium, system.name), []).append(driver.ready)

    def _refuse(self, medium: str, system: System, why: str) -> None:
        self.found.refused[medium, system.name] = why
        for cell in self.found.table:
            if (cell.medium, cell.system) == (medium, system.name):
                cell.problems.append(why)

    def _say(self, text: str) -> None:
        self._out(f"[{time.monotonic() - self._began:5.0f} s] {text}")
