"""Tasks that say in the audit file when they start and end; the module imports no flow.

What each returns is a function of its name alone: so anybody can say whether a result is right.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

from tests.chaos import audit
from wbengine import task


def value(name: str) -> int:
    """What the task of this name returns."""
    return zlib.crc32(name.encode()) % 1_000_000


def nap(name: str, seconds: float, long: float) -> float:
    """How long the task of this name takes: up to twice `seconds`; one in sixteen, `long`."""
    chance = zlib.crc32(b"nap" + name.encode())
    return long if chance % 16 == 0 else seconds * 2 * (chance % 1000) / 1000


def rest(name: str, seconds: float, long: float) -> None:
    time.sleep(nap(name, seconds, long))


class Once(task.Task):
    """Fails when nobody knows how far it came; its flow decides.

    It has no `revert`: one that is lost with its worker must not run twice either, and its flow
    would end in FAILURE, as is promised.
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
    """May be run again when nobody knows how far it came."""

    idempotent = True

    def revert(self, seconds: float, long: float, **rest: Any) -> None:
        self._do(f"{self.name}.revert", 0, 0)


class Break(Step):
    """Fails each time."""

    def execute(self, seconds: float, long: float) -> int:
        super().execute(seconds, long)
        raise ValueError(self.name)


class Sum(Step):
    """Of what others returned."""

    def execute(self, seconds: float, long: float, **parts: int) -> int:
        self._do(self.name, 0, 0)
        return sum(parts.values())
