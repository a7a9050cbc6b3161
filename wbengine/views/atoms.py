"""An atom as people look at it, what failed, and what was reverted in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.persistence import history
from wbengine.types import failure as ft
from wbengine.views import formatting, redaction

__all__ = [
    "AtomView",
    "AttemptView",
    "FailureView",
    "IncidentView",
    "ItemView",
    "Undone",
    "failure_of",
    "failures_of",
    "revert_path",
]

_UNDONE: Final = frozenset({states.REVERTING, states.REVERTED, states.REVERT_FAILURE})


class AttemptView(history.Attempt):
    """One attempt at an atom (see `history.Attempt`), its texts masked."""

    __slots__ = ()

    @property
    def queued(self) -> float | None:
        """Seconds between being handed out and the start."""
        return history.runtime(self.submitted, self.started)

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self, "executions", "queued", "runtime")


class IncidentView(NamedTuple):
    """What happened to an attempt that was under way: see `models.Incident`."""

    event: str
    at: float
    attempt: int
    worker: str | None
    lost_worker: str | None
    item: int | None

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self)


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a Map: `input` says what it is, as `AtomView.result` does; `tries` counts the
    executions of the Map up to the one that the item is of."""

    index: int
    input: str
    state: str
    worker: str | None
    error: str | None
    tries: int
    submitted: float | None
    started: float | None
    ended: float | None

    @property
    def runtime(self) -> float | None:
        """Seconds from the start to the end."""
        return history.runtime(self.started, self.ended)

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self, "runtime")


class AtomView(NamedTuple):
    """What is known of one atom.

    `node` is its position in the outline of the flow; `path` the names of the flows around it, the
    outermost first.  `kind` is 'task', 'retry' or 'map'; `task` the name of its class or function.
    `attempt`, `action`, `worker`, `submitted`, `started`, `ended` are those of its latest attempt
    (`attempt` 0: none yet); `attempts` has that one too, last.  It was begun `executions` times to
    be executed, `reversions` times to be reverted.  `progress` is from 0 to 1, None where nothing
    is known.  `items` counts those of a Map by their state.  `result` says what it returned: a type
    and a size, or the masked value if the redactor shows values.  `waiting` says why it does not
    run, in one sentence; None: it runs, or is done.  `queued`: it was handed out, and no worker has
    begun it yet; `worker` may have taken it.  `item_rows` are items of a Map, those that failed
    first; of many items not all of them.  `incidents` are the workers that were lost with it, and
    the times it was sent again.
    """

    node: int
    uuid: str | None
    name: str
    kind: str
    path: tuple[str, ...]
    task: str | None
    state: str = states.PENDING
    intention: str = states.EXECUTE
    attempt: int = 0
    action: str = "execute"
    worker: str | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    progress: float | None = None
    attempts: tuple[AttemptView, ...] = ()
    attempts_dropped: int = 0
    executions: int = 0
    reversions: int = 0
    failure: FailureView | None = None
    revert_failure: FailureView | None = None
    result: str | None = None
    items: Mapping[str, int] | None = None
    waiting: str | None = None
    queued: bool = False
    item_rows: tuple[ItemView, ...] = ()
    incidents: tuple[IncidentView, ...] = ()

    @property
    def runtime(self) -> float | None:
        """Seconds that the latest attempt took."""
        return history.runtime(self.started, self.ended)

    @property
    def failed_before(self) -> bool:
        """It failed, and was or is being reverted since."""
        return self.failure is not None and self.state in _UNDONE

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self, "runtime")


@dataclass(frozen=True, slots=True)
class FailureView:
    """What an atom failed with, where and when; its secrets are masked.

    `type` is the full name of the exception's class, `traceback` the lines it went through (on the
    worker, if it ran there).  `causes` are what was behind it, the nearest first, and have none of
    their own.  `action` is 'execute' or 'revert'; `at` in unix seconds.  `item` is the index of the
    item of a Map.  `executions` and `reversions` count those of the atom up to this attempt.
    """

    type: str
    message: str
    traceback: str
    causes: tuple[FailureView, ...] = ()
    atom: str | None = None
    uuid: str | None = None
    action: str = "execute"
    worker: str | None = None
    attempt: int = 0
    at: float | None = None
    item: int | None = None
    executions: int = 0
    reversions: int = 0

    @property
    def line(self) -> str:
        """Its type, without the module, and the first line of its message; of a Map, the index of
        the item."""
        name = self.type.rpartition(".")[2]
        said = next(iter(self.message.splitlines()), "")
        item = "" if self.item is None else f"item {self.item}: "
        return f"{item}{name}: {said}" if said else f"{item}{name}"

    @property
    def text(self) -> str:
        """All of it, as Python tells it: the first cause first."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        found: list[str] = []
        for each in reversed((self, *self.causes)):
            if found:
                found += ["", "It was behind the following exception:", ""]
            if each.traceback:
                found += ["Traceback (most recent call last):", each.traceback.rstrip("\n")]
            found.append(f"{each.type}: {each.message}" if each.message else each.type)
        return found

    def to_dict(self) -> dict[str, Any]:
        causes = [
            {"type": cause.type, "message": cause.message, "traceback": cause.traceback}
            for cause in self.causes
        ]
        return {**formatting.as_dict(self, without=("causes",)), "causes": causes}


def failure_of(failure: ft.Failure, redactor: redaction.Redactor, **where: Any) -> FailureView:
    """Look at `failure`; `where` are the fields of the view that it does not know itself."""
    causes = tuple(_failure(cause, redactor) for cause in failure.causes)
    return _failure(failure, redactor, causes=causes, **where)


def _failure(failure: ft.Failure, redactor: redaction.Redactor, **where: Any) -> FailureView:
    return FailureView(
        type=redactor.text(next(iter(failure), "Exception")),
        message=redactor.text(failure.exception_str),
        traceback=redactor.text(failure.traceback_str),
        **where,
    )


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


def revert_path(atoms: Iterable[AtomView]) -> tuple[Undone, ...]:
    """What was undone, in that order; what is being undone, last."""
    return tuple(sorted(_undone(atoms), key=_when_ended))


def _undone(atoms: Iterable[AtomView]) -> Iterator[Undone]:
    for atom in atoms:
        for attempt in atom.attempts:
            if attempt.action != "revert":
                continue
            latest = attempt.attempt == atom.attempt
            state = attempt.state or (atom.state if latest else None) or states.REVERTING
            yield Undone(atom.name, atom.uuid, state, attempt)


def _when_ended(undone: Undone) -> tuple[float, float]:
    started, ended = undone.attempt.started, undone.attempt.ended
    return math.inf if ended is None else ended, math.inf if started is None else started
