"""What happened to a flow: one moment after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from wbengine import states
from wbengine.persistence import models
from wbengine.persistence.attempts import Attempt
from wbengine.views import words
from wbengine.views.masking import Masker

__all__ = ["ATOM", "FLOW", "SCHEMA", "Event", "Teller"]

SCHEMA: Final = "wbengine/event/1"
FLOW: Final = "flow"
ATOM: Final = "atom"

_BUSY: Final = frozenset({states.RUNNING, states.REVERTING})


@dataclass(frozen=True, slots=True)
class Event:
    """The flow, or an atom of it, entered a state, or told its progress.

    `at` is in unix seconds, None where nobody knows.  `error` is what it failed with, or why the
    flow entered its state, in one line.
    """

    at: float | None
    kind: str
    name: str
    uuid: str
    state: str
    attempt: int = 0
    action: str | None = None
    worker: str | None = None
    progress: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "at": words.iso(self.at),
            "kind": self.kind,
            "name": self.name,
            "uuid": self.uuid,
            "state": self.state,
            "attempt": self.attempt,
            "action": self.action,
            "worker": self.worker,
            "progress": self.progress,
            "error": self.error,
        }


class Teller:
    """Tells what is new in records, each thing once; remembers of each atom what was told last.

    `silently`: what the records say now was told already.
    """

    def __init__(self) -> None:
        # Atom -> the attempt that was told of last, whether its end was, too, state, progress.
        self._told: dict[str, tuple[int, bool, str, float | None]] = {}
        self._changes: set[models.Change] = set()

    def tell(
        self,
        flow: models.FlowDetail,
        atoms: Iterable[models.AtomDetail],
        masker: Masker,
        now: float | None,
    ) -> list[Event]:
        """What is new in `flow` and in these atoms of it, in the order in which it happened."""
        found = list(self._of_flow(flow, masker))
        for atom in atoms:
            if atom.name != models.INJECTOR:
                found += self._of_atom(atom, masker, now)
        # What has no time of its own comes after what is told with it.
        latest = max((event.at for event in found if event.at is not None), default=0.0)
        return sorted(found, key=lambda event: latest if event.at is None else event.at)

    def _of_flow(self, flow: models.FlowDetail, masker: Masker) -> Iterator[Event]:
        for change in flow.history:
            if change not in self._changes:
                self._changes.add(change)
                why = None if change.why is None else masker.text(change.why)
                name = masker.text(flow.name)
                yield Event(change.at, FLOW, name, flow.uuid, change.state, error=why)
        self._changes.intersection_update(flow.history)

    def _of_atom(
        self, atom: models.AtomDetail, masker: Masker, now: float | None
    ) -> Iterator[Event]:
        state = atom.state or states.PENDING
        number, ended, last, progress = self._told.get(atom.uuid, (0, True, states.PENDING, None))
        name = masker.text(atom.name)
        for attempt in atom.all_attempts:
            if attempt.attempt < number or (attempt.attempt == number and ended):
                continue
            if attempt.attempt > number:
                last = states.REVERTING if attempt.action == "revert" else states.RUNNING
                began = attempt.submitted if attempt.submitted is not None else attempt.started
                yield self._event(atom, name, attempt, last, began, masker)
            number, ended = attempt.attempt, attempt.state is not None
            if attempt.state is not None:
                last = attempt.state
                yield self._event(atom, name, attempt, last, attempt.ended, masker)
        if state != last:
            last = state
            yield Event(now, ATOM, name, atom.uuid, state, atom.attempt, atom.action)
        elif state in _BUSY and atom.progress is not None and atom.progress != progress:
            worker = None if atom.worker is None else masker.text(atom.worker)
            yield Event(
                now, ATOM, name, atom.uuid, state, number, atom.action, worker, atom.progress
            )
        self._told[atom.uuid] = (number, ended, last, atom.progress)

    @staticmethod
    def _event(
        atom: models.AtomDetail,
        name: str,
        attempt: Attempt,
        state: str,
        at: float | None,
        masker: Masker,
    ) -> Event:
        ends = state not in _BUSY
        worker = None if attempt.worker is None else masker.text(attempt.worker)
        error = None if attempt.error is None or not ends else masker.text(attempt.error)
        return Event(
            at, ATOM, name, atom.uuid, state, attempt.attempt, attempt.action, worker, None, error
        )
