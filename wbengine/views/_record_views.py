"""Views of the attempts, failures, items and results in the record of an atom or a step."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final

from wbengine import states
from wbengine.persistence import models
from wbengine.persistence._history import Attempt, one_line
from wbengine.types import failure as ft
from wbengine.views._atoms import (
    AttemptView,
    FailureView,
    IncidentView,
    ItemView,
    Undone,
    failure_of,
)
from wbengine.views.redaction import Redactor

__all__ = ["RecordViews"]

#: Maximum number of items of a Map in its view.
_MAX_ITEMS: Final = 100
_RUNNING_STATES: Final = frozenset({states.RUNNING, states.REVERTING})
#: Represents a failed execution that is not among the stored attempts.
_DROPPED_ATTEMPT: Final = Attempt(0, "execute", None, None, None)
#: States in which the stored result of an atom is shown.
_STATES_WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})


class RecordViews:
    """Views of parts of the records of one flow, with masked secrets. Texts are masked once."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self._masked_texts: dict[str, str] = {}

    def text(self, text: str | None) -> str | None:
        if text is None:
            return None
        masked = self._masked_texts.get(text)
        if masked is None:
            masked = self._masked_texts[text] = self.redactor.text(text)
        return masked

    def attempts(self, record: models.AtomDetail) -> tuple[AttemptView, ...]:
        return tuple([self._attempt(each) for each in record.all_attempts])

    def _attempt(self, attempt: Attempt) -> AttemptView:
        worker, error = self.text(attempt.worker), self.text(attempt.error)
        view = AttemptView(*attempt)
        if (worker, error) == (view.worker, view.error):
            return view
        return view._replace(worker=worker, error=error)

    def reversions(self, step: models.AtomDetail) -> Iterator[Undone]:
        """Yield the stored reversions of a step."""
        if not step.reversions:
            return
        name = self.text(step.name) or ""
        for attempt in step.all_attempts:
            if attempt.action == "revert":
                state = attempt.state or (step.attempt == attempt.attempt and step.state)
                yield Undone(name, step.uuid, state or states.REVERTING, self._attempt(attempt))

    def incidents(self, record: models.AtomDetail) -> tuple[IncidentView, ...]:
        return tuple(
            IncidentView(
                incident.event,
                incident.at,
                incident.attempt,
                self.text(incident.worker),
                self.text(incident.lost),
                None if incident.item < 0 else incident.item,
            )
            for incident in record.incidents
        )

    def items(self, record: models.AtomDetail, state: str) -> tuple[ItemView, ...]:
        if record.items is None:
            return ()
        shown = heapq.nsmallest(
            _MAX_ITEMS, record.items, key=lambda item: (item.failure is None, item.index)
        )
        return tuple(self._item(item, state) for item in shown)

    def _item(self, item: models.ItemDetail, state: str) -> ItemView:
        failure = item.revert_failure or item.failure
        busy = state in _RUNNING_STATES and item.submitted is not None and item.ended is None
        return ItemView(
            item.index,
            self.redactor.result(item.value),
            state if busy else item.state,
            self.text(item.worker),
            None if failure is None else self.redactor.text(one_line(failure)),
            item.attempt,
            item.submitted,
            item.started,
            item.ended,
        )

    def failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        """Return the failure of the latest execution, or None."""
        fields: dict[str, Any] = {"atom": name, "uuid": record.uuid}
        failure = record.failure
        if failure is None:
            failed_item = next(
                (item for item in record.items or () if item.failure is not None), None
            )
            if failed_item is None or failed_item.failure is None:
                return None
            fields |= {
                "item": failed_item.index,
                "worker": self.text(failed_item.worker),
                "at": failed_item.ended,
            }
            return self._failure_of(failed_item.failure, record, **fields)
        fields["item"] = _failed_item_index(record, failure)
        if record.action != "revert":
            return self._failure_of(failure, record, **fields)
        # The atom was reverted later: the failure belongs to its last execution.
        past_executions = (each for each in reversed(record.past) if each.action == "execute")
        return self._failure_of(failure, next(past_executions, _DROPPED_ATTEMPT), **fields)

    def revert_failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        """Return the failure of the latest reversion, or None."""
        if record.revert_failure is None:
            return None
        item = next((each.index for each in record.items or () if each.revert_failure), None)
        fields = {"atom": name, "uuid": record.uuid, "action": "revert", "item": item}
        return self._failure_of(record.revert_failure, record, **fields)

    def _failure_of(
        self, failure: ft.Failure, tried: Attempt | models.AtomDetail, **where: Any
    ) -> FailureView:
        """Create the view of a failure of `tried`. The fields in `where` have precedence."""
        fields = {
            "worker": self.text(tried.worker),
            "attempt": tried.attempt,
            "executions": tried.executions,
            "reversions": tried.reversions,
            "at": tried.ended,
        }
        return failure_of(failure, self.redactor, **{**fields, **where})

    def result(self, record: models.AtomDetail, state: str) -> str | None:
        """Return the displayed result of an atom; None if it has none."""
        if state not in _STATES_WITH_RESULT:
            return None
        return self.redactor.result(record.last_results, record.name)


def _failed_item_index(record: models.AtomDetail, failure: ft.Failure) -> int | None:
    for item in sorted(record.items or (), key=lambda item: item.order):
        if item.failure is not None and item.failure.matches(failure):
            return item.index
    return None
