"""Tasks of the simulated world, and sets of tasks that workers offer."""

from __future__ import annotations

from typing import Final

from wbengine import task


class One(task.Task):
    """A task that is not idempotent."""

    def execute(self, seconds: float) -> int:
        raise AssertionError("tasks only take time")


class Two(One):
    """A task that is idempotent."""

    idempotent = True


class Six(One):
    """A task like `One` that few workers offer."""


class Bad(Two):
    """A task that kills its worker."""


OFFERS: Final = ([One, Two], [One], [Two, Six, Bad], [One, Two, Six])
KINDS: Final = (One, Two, One, Two, Six, Two, One, Bad)
#: Durations of tasks, and of steps that pass time, in seconds.
SECONDS: Final = (0.01, 0.5, 3.0, 0.1, 12.0, 0.01, 40.0, 1.0)
PASSES: Final = (
    0.002,
    0.05,
    1.0,
    0.002,
    5.0,
    0.3,
    0.01,
    2.0,
    16.0,
    0.002,
    0.1,
    4.0,
    30.0,
    1.0,
    70.0,
    0.5,
)
HOLDS: Final = (0.5, 3.0, 20.0, 1.0, 70.0, 8.0)
