"""What failed, and what was undone, in the order in which it happened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wbengine import states
from wbengine.views.atoms import AtomView, AttemptView
from wbengine.views.failures import FailureView

__all__ = ["Undone", "failures_of", "path"]


@dataclass(frozen=True, slots=True)
class Undone:
    """One atom was reverted, or it was tried: `state` is REVERTED, REVERT_FAILURE or REVERTING."""

    atom: str
    uuid: str | None
    state: str
    attempt: AttemptView

    def to_dict(self) -> dict[str, Any]:
        told = {**self.attempt.to_dict(), "state": self.state}
        return {"atom": self.atom, "uuid": self.uuid, **told}


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
            yield Undone(atom.name, atom.uuid, state, attempt)


def _ended(undone: Undone) -> tuple[float, float]:
    started, ended = undone.attempt.started, undone.attempt.ended
    return math.inf if ended is None else ended, math.inf if started is None else started
