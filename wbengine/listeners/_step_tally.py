"""The steps of the workflows of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

from wbengine import states
from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote
from wbengine.views import _steps, _waiting
from wbengine.views._atoms import StepsView
from wbengine.views.redaction import Redactor

__all__ = ["StepTally"]

_RUNNING = frozenset({states.RUNNING, states.REVERTING})

#: Minimum time between two views of a workflow, as a multiple of the time that a view needs.
_PAUSE_FACTOR = 20


class StepTally:
    """The records of steps by workflow. An event costs O(1).

    The thread of the engine adds events. Displays read at any time.
    """

    def __init__(self) -> None:
        #: By uuids of workflow and step.
        self._records: defaultdict[str, dict[str, models.AtomDetail]] = defaultdict(dict)
        #: Workflow -> uuids of its running steps that wait, and of those that do not.
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        self._busy: defaultdict[str, set[str]] = defaultdict(set)
        #: Workflow -> its view, and the earliest time of the next view.
        self._views: dict[str, tuple[StepsView, float]] = {}

    def load(self, records: Iterable[models.AtomDetail]) -> None:
        """Add the steps of an earlier run. They do not run."""
        for record in records:
            note = StepNote.of(record) if record.is_step else None
            if note is not None:
                self._records[note.workflow][record.uuid] = record

    def add(self, record: models.AtomDetail, state: str) -> str | None:
        """Record that a step entered `state`. Return the uuid of its workflow."""
        note = StepNote.of(record)
        if note is None:
            return None
        workflow = note.workflow
        self._records[workflow][record.uuid] = record
        self._waiting[workflow].discard(record.uuid)
        self._busy[workflow].discard(record.uuid)
        if state in _RUNNING:
            group = self._busy if record.waits_for is None else self._waiting
            group[workflow].add(record.uuid)
        return workflow

    def waits(self, workflow: str) -> bool:
        """Return whether all running steps of a workflow wait for signals or times."""
        return bool(self._waiting[workflow]) and not self._busy[workflow]

    def forget_views(self) -> None:
        """Create new views at the next call of `view`."""
        self._views.clear()

    def view(self, workflow: str) -> StepsView | None:
        """Return the steps of a workflow; None if there are none.

        The view of a large workflow can be some seconds old.
        """
        began = time.monotonic()
        view, until = self._views.get(workflow, (None, 0.0))
        if view is None or began >= until:
            # A copy, because the thread of the engine adds records.
            records = list(self._records.get(workflow, {}).values())
            situation = _waiting.Situation(states.RUNNING, time.time(), "", False, in_pool=True)
            view = _steps.steps_of(records, Redactor(), situation).get(workflow)
            if view is not None:
                ended = time.monotonic()
                self._views[workflow] = view, ended + (ended - began) * _PAUSE_FACTOR
        return view
