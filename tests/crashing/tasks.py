"""Tasks of flows whose processes are killed. The module imports no flow.

Each task writes an effect to the audit before it returns, and returns the effect. So the store
shows which effects were saved.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from tests.crashing import audit as audits
from wbengine import task


class Step(task.Task):
    """Writes one effect for each round."""

    def execute(self, audit: str, nap: float, round: int) -> str:
        time.sleep(nap)
        return audits.note(audit, audits.effect(self.name, "execute", round))

    def revert(self, audit: str, round: int, **ignored: Any) -> str:
        return audits.note(audit, audits.effect(self.name, "revert", round))


class Telling(Step):
    """Reports its progress."""

    def execute(self, audit: str, nap: float, round: int) -> str:
        self.update_progress(0.25)
        done = super().execute(audit, nap, round)
        self.update_progress(0.75)
        return done


class Bulky(Step):
    """Returns a large result."""

    def execute(self, audit: str, nap: float, round: int, size: int) -> list[str]:  # type: ignore[override]
        return [super().execute(audit, nap, round), "x" * size]


class Late(Step):
    """Takes longer than the other tasks."""

    def execute(self, audit: str, nap: float, round: int, late: float) -> str:  # type: ignore[override]
        return super().execute(audit, late, round)


class Paused(Step):
    """Its type is paused at the start of each process."""


class Limited(Step):
    """Needs a permit."""

    concurrency = 1


class Harmless(Step):
    """Is idempotent: it can run again."""

    idempotent = True


class Break(Step):
    """Fails each time."""

    def execute(self, audit: str, nap: float, round: int) -> None:  # type: ignore[override]
        raise ValueError(super().execute(audit, nap, round))


class Wave(task.Task):
    """Writes one effect for each wave of an inner retry."""

    def execute(self, audit: str, nap: float, round: int, wave: int) -> str:
        time.sleep(nap)
        return audits.note(audit, audits.effect(self.name, "execute", round, wave))

    def revert(self, audit: str, round: int, wave: int, **ignored: Any) -> str:
        return audits.note(audit, audits.effect(self.name, "revert", round, wave))


class Shaky(Wave):
    """Fails in the first wave."""

    def execute(self, audit: str, nap: float, round: int, wave: int) -> str:
        done = super().execute(audit, nap, round, wave)
        if wave == 1:
            raise ValueError(done)
        return done


class Each(Step):
    """Runs for an item in a round."""

    def execute(self, audit: str, nap: float, round: int, number: int) -> str:  # type: ignore[override]
        return super().execute(audit, nap, round)


class EachStep(Step):
    """Is a step for one of several numbers."""

    def execute(self, number: int, audit: str, nap: float, round: int) -> str:  # type: ignore[override]
        return super().execute(audit, nap, round)


class EachWave(Wave):
    """Runs for an item in a wave."""

    def execute(self, audit: str, nap: float, round: int, wave: int, number: int) -> str:  # type: ignore[override]
        return super().execute(audit, nap, round, wave)


class Sum(Step):
    """Returns a digest of other results, which is wrong if any of them is wrong."""

    def execute(self, audit: str, nap: float, round: int, parts: list[Any]) -> list[str]:  # type: ignore[override]
        effects = sorted(audits.timeless(audits.effects_in(str(parts))))
        super().execute(audit, nap, round)
        digest = hashlib.sha256("\n".join(effects).encode()).hexdigest()[:16]
        return [audits.effect(self.name, "execute", round), f"{len(effects)} parts {digest}"]
