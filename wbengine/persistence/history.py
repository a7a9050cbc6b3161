"""What is remembered of the past: attempts at atoms and items, workers that were lost with them,
and changes of a flow's state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.types import failure as ft

__all__ = [
    "UNKNOWN", "Attempt", "Change", "Incident", "Outcome", "changed", "error", "in_short",
    "kept", "outcome", "remembered", "runtime", "with_incident", "with_worker",
]  # fmt: skip

#: So many attempts before the latest one, incidents, and changes are remembered.
_MOST_ATTEMPTS: Final = 20
_MOST_INCIDENTS: Final = 50
_MOST_CHANGES: Final = 50

#: What is told in one line has at most so many characters.
_LONGEST: Final = 200

#: The state that an attempt led to, and in one line what it failed with; None: not, or not known.
Outcome = tuple[str | None, str | None]
UNKNOWN: Final[Outcome] = (None, None)

#: The states that an attempt may end in, by its action.
_ENDS: Final[Mapping[str, Collection[str]]] = {
    "execute": (states.SUCCESS, states.FAILURE),
    "revert": (states.REVERTED, states.REVERT_FAILURE),
}


_FAILED: Final = (states.FAILURE, states.REVERTED)


class Attempt(NamedTuple):
    """Who ran an atom, when, and how that ended.

    `submitted` is when the engine handed it out (unix seconds on the engine's clock), `started` and
    `ended` when it began and ended (on the clock of the `worker`); None: it is not known, or not
    yet.  `state` is SUCCESS, FAILURE, REVERTED or REVERT_FAILURE; None: it has not ended, or nobody
    knows how (whoever ran it died).  `error` is what it failed with, in one line of at most 200
    characters: for people; it may tell secrets.  Of the attempts up to this one, itself included,
    so many were `executions`, and so many `reversions`.
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
        """Seconds from the start to the end, never less than none."""
        return runtime(self.started, self.ended)


def runtime(started: float | None, ended: float | None) -> float | None:
    """Seconds between two moments of one clock, which may have been set back meanwhile."""
    return None if started is None or ended is None else max(0.0, ended - started)


def outcome(
    action: str,
    state: str | None,
    ended: float | None,
    failure: ft.Failure | None,
    revert_failure: ft.Failure | None,
) -> Outcome:
    """How the latest attempt of an atom ended, by what its record says now."""
    if state == states.RETRYING and ended is not None:
        state = states.SUCCESS  # it provided something, and is about to do so again
    if state is None or state not in _ENDS.get(action, ()):
        return UNKNOWN
    found = {states.FAILURE: failure, states.REVERT_FAILURE: revert_failure}.get(state)
    return state, None if found is None else in_short(found)


def in_short(failure: ft.Failure) -> str:
    """The type of an exception and what it says, in one line of at most 200 characters."""
    name = next(iter(failure), "Exception").rpartition(".")[2]
    said = " ".join(failure.exception_str[: 4 * _LONGEST].split())
    return _cut(f"{name}: {said}" if said else name)


def remembered(past: Collection[Sequence[Any]], reversions: int) -> tuple[Attempt, ...]:
    """The attempts that were kept, of which the last one came after so many `reversions`.

    What was kept before reversions were counted is counted now.
    """
    if all(len(told) == len(Attempt._fields) for told in past):
        return tuple(Attempt(*told) for told in past)
    found = []
    for told in reversed(list(past)):
        found.append(Attempt(*told)._replace(reversions=reversions))
        reversions -= found[-1].action == "revert"
    return tuple(reversed(found))


def kept(past: tuple[Attempt, ...], latest: Attempt) -> tuple[tuple[Attempt, ...], int]:
    """`past` with one more, and how many had to be dropped for it."""
    every = (*past, latest)
    return every[-_MOST_ATTEMPTS:], max(0, len(every) - _MOST_ATTEMPTS)


class Incident(NamedTuple):
    """What happened to an attempt at a moment (unix seconds, on the engine's clock).

    WORKER_LOST: `worker` was lost while it had the task.  RESENT: the task was sent again, and
    `worker` has begun it since (None: nobody yet); `lost` is who had it before (None: its message
    was lost, no worker).  None for a worker that nobody knows.  `item` is the index of an item of a
    Map, else -1.
    """

    event: str
    at: float
    attempt: int
    worker: str | None = None
    lost: str | None = None
    item: int = -1


def with_incident(incidents: tuple[Incident, ...], latest: Incident) -> tuple[Incident, ...]:
    """`incidents` with one more: the last of them are kept."""
    return (*incidents, latest)[-_MOST_INCIDENTS:]


def with_worker(incidents: tuple[Incident, ...], item: int, worker: str) -> tuple[Incident, ...]:
    """`incidents`, now that `worker` is known to have what was sent again."""
    found = list(incidents)
    for number in reversed(range(len(found))):
        each = found[number]
        if each.item == item:
            if each.event == states.RESENT and each.worker is None:
                found[number] = each._replace(worker=worker)
            break
    return tuple(found)


class Change(NamedTuple):
    """A flow entered `state` at a moment (unix seconds, on the clock of whoever ran it).

    `why` is told in one line, where there is more to tell than the state: what failed, who
    suspended it.  It is for people, and may tell secrets.
    """

    state: str
    at: float
    why: str | None = None


def changed(history: tuple[Change, ...], latest: Change) -> tuple[Change, ...]:
    """`history` with one change more."""
    if latest.why is not None:
        why = _cut(" ".join(latest.why[: 4 * _LONGEST].split()))
        latest = latest._replace(why=why or None)
    return (*history, latest)[-_MOST_CHANGES:]


def error(state: str | None, history: tuple[Change, ...]) -> str | None:
    """Why a flow is in a state in which something failed."""
    if state not in _FAILED or not history or history[-1].state != state:
        return None
    return history[-1].why


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
