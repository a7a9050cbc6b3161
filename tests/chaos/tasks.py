"""Tasks that write their start and end to the audit file. The module imports no flow.

The result of a task depends only on its name, so each result can be checked.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

from tests.chaos import audit
from wbengine import task


def value(name: str) -> int:
    """Return the result of the task with this name."""
    return zlib.crc32(name.encode()) % 1_000_000


def nap(name: str, seconds: float, long: float) -> float:
    """Return the duration of the task with this name: up to twice `seconds`; for one in sixteen,
    `long`.
    """
    chance = zlib.crc32(b"nap" + name.encode())
    return long if chance % 16 == 0 else seconds * 2 * (chance % 1000) / 1000


def rest(name: str, seconds: float, long: float) -> None:
    time.sleep(nap(name, seconds, long))


class Once(task.Task):
    """Is not idempotent: it fails with its worker, and its flow decides.

    It has no `revert`: a lost reversion would not run twice either, and its flow would end in
    FAILURE, as documented.
    """

    def execute(self, seconds: float, long: float) -> int:
        self._do(self.name, seconds, long)
        return value(self.name)

    def _do(self, name: str, seconds: float, long: float) -> None:
        asked = self.request
        known = ("-", 0, 0) if asked is None else (asked.id, asked.epoch, asked.attempt)
        audit.note(audit.STARTED, name, *known)
        rest(name, seconds, long)
        audit.note(audit.ENDED, name, *known)


class Step(Once):
    """Is idempotent: it can run again."""

    idempotent = True

    def revert(self, seconds: float, long: float, **ignored: Any) -> None:
        self._do(f"{self.name}.revert", 0, 0)


class Break(Step):
    """Fails each time."""

    def execute(self, seconds: float, long: float) -> int:
        super().execute(seconds, long)
        raise ValueError(self.name)


class Sum(Step):
    """Returns the sum of other results."""

    def execute(self, seconds: float, long: float, **parts: int) -> int:
        self._do(self.name, 0, 0)
        return sum(parts.values())
