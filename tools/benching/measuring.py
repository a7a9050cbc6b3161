"""Runs of the cases: repeatedly for each system on each medium."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tools import _bootstrap
from tools.benching import cases, private_brokers
from tools.benching.driving import Driver, Failed
from tools.benching.figures import Cell, Table
from tools.benching.systems import System

#: Time limit of a run in seconds.
RUN_SECONDS = 120.0
#: Divisor of the size of a warm-up.
WARM_UP_DIVISOR = 10
#: Number of log lines of workers that is reported as high.
MANY_LOG_LINES = 50


@dataclass
class Measurements:
    """Measurements of the cases."""

    table: Table = field(default_factory=Table)
    #: System -> versions of its packages.
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    #: (medium, system) -> seconds until a new worker has completed a task.
    ready: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    #: (medium, system) -> reason why the system could not be started.
    refused: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    systems: Sequence[System]
    #: System -> its interpreter.
    pythons: Mapping[str, str]
    media: Sequence[str]
    #: Names of groups of cases.
    groups: Sequence[str]
    repeat: int = 3
    #: Divisor of the sizes of all cases.
    divide: int = 1
    patience: float = RUN_SECONDS


class Measuring:
    """Execution of a plan. `found` can be read at any time."""

    def __init__(
        self,
        plan: Plan,
        where: private_brokers.PrivateBrokers,
        say: Callable[[str], None] = _bootstrap.say,
    ) -> None:
        self._plan = plan
        self._out = say
        self._places = where
        self.found = Measurements()
        self._began = time.monotonic()

    def all(self) -> Measurements:
        """Run all systems in turn, repeatedly, for each medium.

        Drift of the host thus affects all systems alike. Each repetition starts with another
        system, so that no system always follows the same one.
        """
        plan = self._plan
        for medium in plan.media:
            medium_cases = cases.matching_cases(list(plan.groups), medium, plan.divide)
            if not medium_cases and "start" not in plan.groups:
                continue
            for repetition in range(plan.repeat):
                first = repetition % max(len(plan.systems), 1)
                for system in [*plan.systems[first:], *plan.systems[:first]]:
                    if medium in system.media and system.name in plan.pythons:
                        self._run_system(medium, system, medium_cases, repetition)
        return self.found

    def _run_system(
        self, medium: str, system: System, medium_cases: Sequence[cases.Case], repetition: int
    ) -> None:
        """Run all cases once with one system in a new place, and in another after each failure."""
        medium_cases = [each_case for each_case in medium_cases if each_case.suits(system.driver)]
        cells = {each_case: self._cell(each_case, medium, system) for each_case in medium_cases}
        remaining = [each_case for each_case in medium_cases if not cells[each_case].hopeless]
        where = f"{medium}, {system.name}, {repetition + 1} of {self._plan.repeat}"
        for attempt in itertools.count(1):
            if (medium, system.name) in self.found.refused:
                return
            with self._places.fresh(medium) as place:
                try:
                    driver = Driver(system, self._plan.pythons[system.name], place)
                except Failed as error:
                    self._say(f"{where}: {error}\n{private_brokers.logs(place['folder'])}")
                    if attempt > 1 or "Error" in str(error):  # other errors may be accidental
                        self._refuse(medium, system, str(error))
                    continue
                with contextlib.closing(driver):
                    quiet = private_brokers.lines(place["folder"])
                    self._note_driver(medium, system, driver)
                    if not medium_cases and driver.ready is not None:
                        self._say(f"{where}: ready after {driver.ready:.2f} s")
                    while remaining:
                        case = remaining.pop(0)
                        if not self._run(driver, case, cells[case], where):
                            self._out(private_brokers.logs(place["folder"]))
                            break
                    else:
                        if (
                            lines := private_brokers.lines(place["folder"]) - quiet
                        ) > MANY_LOG_LINES:
                            self._say(f"{where}: wrote {lines} log lines, which takes time as well")
            if not remaining:
                return

    def _cell(self, case: cases.Case, medium: str, system: System) -> Cell:
        return self.found.table.cell(case.name, medium, system.name, case.tasks)

    def _run(self, driver: Driver, case: cases.Case, cell: Cell, where: str) -> bool:
        """Run a case and return whether it succeeded. After a failure, the driver is unusable."""
        began = time.monotonic()
        try:
            driver.run(case.name, case.smaller(WARM_UP_DIVISOR).sizes, self._plan.patience)
            before, began = self._places.processor, time.monotonic()
            run = driver.run(case.name, case.sizes, self._plan.patience)
        except Failed as error:
            cell.undone = time.monotonic() - began
            cell.problems.append(str(error))
            self._say(f"{where}, {case.name}: {error}")
            return False
        cell.seconds.append(run["seconds"])
        cell.caller.append(run["caller"])
        cell.delays += run["delays"]
        cell.workers.append(run["workers"])
        cell.broker.append(self._places.processor - before)
        self._say(f"{where}, {case.name}: {cell.rates[-1]:,.0f} tasks/s")
        return True

    def _note_driver(self, medium: str, system: System, driver: Driver) -> None:
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
