"""History of atoms, items and flows: attempts, lost workers and state changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.types import failure as ft

__all__ = [
    "FAILED", "MAX_CHANGES", "NOTE", "UNKNOWN", "Attempt", "Change", "Incident", "Outcome",
    "changes_of", "entered_at", "error", "errors_of", "latest_runtime", "latest_start", "notes_of",
    "one_line", "outcome", "runtime", "with_attempt", "with_change", "with_errors", "with_incident",
    "with_worker",
]  # fmt: skip

#: Maximum numbers of stored attempts (in addition to the latest one), incidents and state changes.
_MAX_PAST_ATTEMPTS: Final = 20
_MAX_INCIDENTS: Final = 50
MAX_CHANGES: Final = 50

_MAX_REASON_LENGTH: Final = 200

#: Final state of an attempt (None: unknown) and its error in one line, if any.
Outcome = tuple[str | None, str | None]
UNKNOWN: Final[Outcome] = (None, None)

#: Final states of an attempt by its action.
_FINAL_STATES: Final[Mapping[str, Collection[str]]] = {
    "execute": (states.SUCCESS, states.FAILURE),
    "revert": (states.REVERTED, states.REVERT_FAILURE),
}


#: States of a flow whose history contains an error.
FAILED: Final = (states.FAILURE, states.REVERTED)


class Attempt(NamedTuple):
    """One attempt of an atom: worker, times and result.

    :ivar submitted: Unix time at which the engine passed the task to its executor, or None.
    :ivar started: start on the clock of `worker`, or None.
    :ivar ended: end on the clock of `worker`, or None.
    :ivar state: SUCCESS, FAILURE, REVERTED or REVERT_FAILURE; None if the attempt has not ended or
        its process died.
    :ivar error: the failure in one line of at most 200 characters, for display. It may contain
        secrets.
    :ivar reversions: number of reversions up to and including this attempt.
    """

    attempt: int
    action: str
    worker: str | None
    started: float | None
    ended: float | None
    submitted: float | None = None
    state: str | None = None
    error: str | None = None
    reversions: int = 0

    @property
    def executions(self) -> int:
        return self.attempt - self.reversions

    @property
    def runtime(self) -> float | None:
        return runtime(self.started, self.ended)


def runtime(started: float | None, ended: float | None) -> float | None:
    """Return the seconds between two times, at least 0 (a clock may have been set back)."""
    return None if started is None or ended is None else max(0.0, ended - started)


def latest_runtime(attempts: Iterable[Attempt], action: str) -> float | None:
    """Return the seconds of the latest attempt with this action; None if they are unknown."""
    runtimes = [attempt.runtime for attempt in attempts if attempt.action == action]
    return runtimes[-1] if runtimes else None


def latest_start(attempts: Iterable[Attempt], action: str) -> float | None:
    """Return the start of the latest attempt with this action; None if it is unknown."""
    starts = [attempt.started for attempt in attempts if attempt.action == action]
    return starts[-1] if starts else None


def outcome(
    action: str,
    state: str | None,
    ended: float | None,
    failure: ft.Failure | None,
    revert_failure: ft.Failure | None,
) -> Outcome:
    """Return the result of the latest attempt, derived from fields of the record."""
    if state == states.RETRYING and ended is not None:
        state = states.SUCCESS  # The retry has already provided a value and will run again.
    if state == states.REVERTED and action == "execute" and ended is not None:
        # A step of a workflow, without a call of `revert`.
        state = states.SUCCESS if failure is None else states.FAILURE
    if state is None or state not in _FINAL_STATES.get(action, ()):
        return UNKNOWN
    cause = {states.FAILURE: failure, states.REVERT_FAILURE: revert_failure}.get(state)
    return state, None if cause is None else one_line(cause)


def one_line(failure: ft.Failure) -> str:
    """Return the type and message of an exception in one line of at most 200 characters."""
    name = next(iter(failure), "Exception").rpartition(".")[2]
    message = " ".join(failure.exception_str[: 4 * _MAX_REASON_LENGTH].split())
    return _cut(f"{name}: {message}" if message else name)


def with_attempt(past: tuple[Attempt, ...], latest: Attempt) -> tuple[tuple[Attempt, ...], int]:
    """Return `past` with `latest`, and the number of attempts that were dropped."""
    attempts = (*past, latest)
    return attempts[-_MAX_PAST_ATTEMPTS:], max(0, len(attempts) - _MAX_PAST_ATTEMPTS)


class Incident(NamedTuple):
    """A lost worker or a resend. `at` is in Unix seconds on the engine's clock.

    WORKER_LOST: `worker` was lost while it ran the task. RESENT: the request was published again,
    or the task began again after the engine that ran it had ended; it may have run twice.
    `worker` received the new copy (None: no worker yet, or unknown). `lost` had received the old
    copy (None: no worker, because the message was lost, or unknown). `item` is the index of an item
    of a Map, or -1.
    """

    event: str
    at: float
    attempt: int
    worker: str | None = None
    lost: str | None = None
    item: int = -1


def with_incident(incidents: tuple[Incident, ...], latest: Incident) -> tuple[Incident, ...]:
    return (*incidents, latest)[-_MAX_INCIDENTS:]


def with_worker(incidents: tuple[Incident, ...], item: int, worker: str) -> tuple[Incident, ...]:
    """Set the receiver of the latest resend of this item."""
    changed_incidents = list(incidents)
    for number in reversed(range(len(changed_incidents))):
        each = changed_incidents[number]
        if each.item == item:
            if each.event == states.RESENT and each.worker is None:
                changed_incidents[number] = each._replace(worker=worker)
            break
    return tuple(changed_incidents)


class Change(NamedTuple):
    """A change of a flow's state at a time in Unix seconds, on the clock of its engine.

    `why` is a one-line reason for display, for example the failure. It may contain secrets.
    `errors` contains the names of the classes of the exceptions in it, separated by commas.
    """

    state: str
    at: float
    why: str | None = None
    errors: str | None = None


def with_change(history: tuple[Change, ...], latest: Change) -> tuple[Change, ...]:
    """Append a change. Drop changes beyond `MAX_CHANGES`, oldest first."""
    if latest.why is not None:
        reason = _cut(" ".join(latest.why[: 4 * _MAX_REASON_LENGTH].split()))
        latest = latest._replace(why=reason or None)
    return (*history, latest)[-MAX_CHANGES:]


def errors_of(history: Iterable[Change]) -> dict[str, str]:
    """Return the `errors` of the changes that have some, by position.

    They are stored beside the changes, because release 0.1 reads only changes without them.
    """
    return {str(n): each.errors for n, each in enumerate(history) if each.errors is not None}


def with_errors(history: Iterable[Change], errors: Mapping[str, str]) -> tuple[Change, ...]:
    """Return a history with the result of `errors_of`."""
    return tuple(
        each._replace(errors=errors[str(n)]) if str(n) in errors else each
        for n, each in enumerate(history)
    )


def changes_of(fields: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the history in the fields of a stored flow; an empty one if it is damaged."""
    try:
        changes = [Change(*each) for each in fields.get("history", ())]
        return with_errors(changes, fields.get("history_errors", {}))
    except TypeError:
        return ()


def notes_of(stored: Any) -> tuple[Change, ...]:
    """Return the notes in a field of `meta`, which can contain any value."""
    try:
        notes = [(float(at), author, str(text)) for at, author, text in stored or ()]
    except (TypeError, ValueError):
        return ()
    return tuple(
        Change(NOTE, at, f"{author}: {text}" if author else text) for at, author, text in notes
    )


#: State of a note in the events of a flow.
NOTE: Final = "NOTE"

#: Reason in the history of a parked flow.
PARKED: Final = "it waits"
#: Reason in the history of a blocked flow.
BLOCKED: Final = "its code differs"


def why_suspended(history: tuple[Change, ...]) -> str | None:
    """Return the reason for the current or requested suspension, or None."""
    for change in reversed(history):
        if change.state not in (states.SUSPENDED, states.SUSPENDING):
            break
        if change.why is not None:
            return change.why
    return None


def undo_until(state: str | None, history: tuple[Change, ...], seconds: object) -> float | None:
    """Return the time until which a flow in SUCCESS can be undone, or None.

    :param seconds: the seconds from the end of the flow; another type: there is no limit.
    """
    if state != states.SUCCESS or not isinstance(seconds, int | float):
        return None
    end = entered_at(history)
    return None if end is None else end + seconds


def entered_at(history: tuple[Change, ...]) -> float | None:
    """Return the time at which the flow entered its state.

    Later changes without another state explain the state, for example why a retry was refused.
    """
    at = None
    for change in reversed(history):
        if change.state != history[-1].state:
            break
        at = change.at
    return at


def error(state: str | None, history: tuple[Change, ...]) -> str | None:
    if state not in FAILED or not history or history[-1].state != state:
        return None
    return history[-1].why


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_REASON_LENGTH else f"{text[: _MAX_REASON_LENGTH - 3]}..."
