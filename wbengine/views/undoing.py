"""What failed, and what was undone, in the order in which it happened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wbengine import states
from wbengine.persistence import attempts
from wbengine.views import words
from wbengine.views.atoms import AtomView
from wbengine.views.failures import FailureView

__all__ = ["Undone", "failures_of", "path"]


@dataclass(frozen=True, slots=True)
class Undone:
    """One atom was reverted, or it was tried.

    `state` is REVERTED, REVERT_FAILURE or REVERTING; times are unix seconds, None where they are
    not known.
    """

    atom: str
    uuid: str | None
    state: str
    worker: str | None
    attempt: int
    started: float | None
    ended: float | None
    error: str | None

    @property
    def runtime(self) -> float | None:
        return attempts.runtime(self.started, self.ended)

    def to_dict(self) -> dict[str, Any]:
        return {
            "atom": self.atom,
            "uuid": self.uuid,
            "state": self.state,
            "worker": self.worker,
            "attempt": self.attempt,
            "started": words.iso(self.started),
            "ended": words.iso(self.ended),
            "runtime": self.runtime,
            "error": self.error,
        }


def failures_of(atoms: Iterable[AtomView]) -> tuple[FailureView, ...]:
    """Those that count now, the earliest first; those of reversions after what led to them."""
    found = [
        failure
        for atom in atoms
        for failure in (atom.failure, atom.revert_failure)
        if failure is not None
    ]
    return tuple(sorted(found, key=_when))


def _when(failure: FailureView) -> tuple[bool, float]:
    return failure.action != "execute", math.inf if failure.at is None else failure.at


def path(atoms: Iterable[AtomView]) -> tuple[Undone, ...]:
    """What was undone, in that order; what is being undone, last."""
    return tuple(sorted(_undone(atoms), key=_ended))


def _undone(atoms: Iterable[AtomView]) -> Iterator[Undone]:
    for atom in atoms:
        for attempt in atom.attempts:
            if attempt.action != "revert":
                continue
            latest = attempt.attempt == atom.attempt
            state = attempt.state or (atom.state if latest else None) or states.REVERTING
            yield Undone(
                atom.name,
                atom.uuid,
                state,
                attempt.worker,
                attempt.attempt,
                attempt.started,
                attempt.ended,
                attempt.error,
            )


def _ended(undone: Undone) -> tuple[float, float]:
    ended = math.inf if undone.ended is None else undone.ended
    return ended, math.inf if undone.started is None else undone.started
