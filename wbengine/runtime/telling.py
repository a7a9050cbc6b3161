"""What listeners are told of an atom's change of state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wbengine import arguments, states
from wbengine import task as task_module
from wbengine.persistence import models
from wbengine.types import notifier as notifier_module

__all__ = ["NO_RESULT", "Notice"]

#: The result of a change of state that brings none.
NO_RESULT: Final = arguments.MISSING

#: What an atom's own listeners are told about its progress by the engine.
_PROGRESS: Final[Mapping[str, float]] = {
    states.RUNNING: 0.0,
    states.REVERTING: 0.0,
    states.SUCCESS: 1.0,
    states.REVERTED: 1.0,
}


class Notice(NamedTuple):
    """A change of state to be told: once it is written, and in the order it happened.

    `run` is the attempt that came to its end by it, with `result`.
    """

    record: models.AtomDetail
    atom: Any
    state: str
    old_state: str | None
    result: Any
    run: models.Attempt | None

    def tell(self, notifier: notifier_module.Notifier | None) -> None:
        """Tell `notifier`, and the atom's own listeners."""
        atom, state = self.atom, self.state
        if notifier is not None:
            notifier.notify(state, self._details())
        if isinstance(atom, task_module.Task) and atom._listeners is not None:
            progress = _PROGRESS.get(state)
            if progress is not None:
                atom.notifier.notify(task_module.EVENT_UPDATE_PROGRESS, {"progress": progress})

    def _details(self) -> dict[str, Any]:
        record, run = self.record, self.run
        details: dict[str, Any] = {
            f"{record.kind}_name": record.name,
            f"{record.kind}_uuid": record.uuid,
            "old_state": self.old_state,
            "attempt": record.attempt if run is None else run.attempt,
        }
        if run is not None:
            details.update(
                result=self.result,
                worker=run.worker,
                submitted=run.submitted,
                started=run.started,
                ended=run.ended,
                runtime=run.runtime,
            )
        return details
