"""A database with schedules, a manual clock and a service that fires them."""

from __future__ import annotations

from typing import Any

from wbengine.jobs.backends import impl_sql
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules._service import ScheduleService

#: Time that is a multiple of all intervals.
START = 1_800_000_000.0

GREETING = "tests.support.conducted:greeting"


class ScheduleSite:
    """Database with schedules, a manual clock and a service that fires them."""

    def __init__(self, backend: Any) -> None:
        self.now = START
        self.backend = backend
        self.board = impl_sql.SQLJobBoard("b", persistence=backend)
        self.board.connect()
        self.schedules = Schedules(backend, clock=self.clock)
        self.service = ScheduleService(backend, self.board, clock=self.clock)

    def clock(self) -> float:
        return self.now

    def add(self, name: str = "s", **options: Any) -> None:
        arguments: dict[str, Any] = {"every": 60, "overlap": "allow", **options}
        arguments = {"factory": GREETING, "inputs": {"name": "Ada"}, **arguments}
        self.schedules.add(Schedule(name=name, **arguments))

    def fire(self) -> None:
        """Fire all schedules that are due."""
        for _ in range(200):
            if self.service.fire_due():
                return
        raise AssertionError("there is always more to do")
