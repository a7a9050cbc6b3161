"""An atom as people look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wbengine import states
from wbengine.persistence import history
from wbengine.views import words
from wbengine.views.failures import FailureView

__all__ = ["AtomView", "AttemptView", "ItemView"]


_UNDONE: Final = frozenset({states.REVERTING, states.REVERTED, states.REVERT_FAILURE})


class AttemptView(NamedTuple):
    """One attempt at an atom: who ran it, when, and how it ended.

    `action` is 'execute' or 'revert'.  `state` is how it ended (None: it did not, or nobody knows),
    `error` in one line what it failed with.  Times are unix seconds, None where they are not known.
    `executions` and `reversions` count those of the atom up to this attempt, itself included.
    """

    attempt: int
    action: str
    state: str | None
    worker: str | None
    submitted: float | None
    started: float | None
    ended: float | None
    error: str | None = None
    executions: int = 0
    reversions: int = 0

    @property
    def runtime(self) -> float | None:
        """Seconds from the start to the end."""
        return history.runtime(self.started, self.ended)

    @property
    def queued(self) -> float | None:
        """Seconds between being handed out and the start."""
        return history.runtime(self.submitted, self.started)

    def to_dict(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "action": self.action,
            "state": self.state,
            "worker": self.worker,
            "submitted": words.iso(self.submitted),
            "started": words.iso(self.started),
            "ended": words.iso(self.ended),
            "queued": self.queued,
            "runtime": self.runtime,
            "error": self.error,
            "executions": self.executions,
            "reversions": self.reversions,
        }


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
        return {
            "index": self.index,
            "input": self.input,
            "state": self.state,
            "worker": self.worker,
            "error": self.error,
            "tries": self.tries,
            "submitted": words.iso(self.submitted),
            "started": words.iso(self.started),
            "ended": words.iso(self.ended),
            "runtime": self.runtime,
        }


class AtomView(NamedTuple):
    """What is known of one atom.

    `node` is its position in the outline of the flow; `path` the names of the flows around it, the
    outermost first.  `kind` is 'task', 'retry' or 'map'; `task` the name of its class or function.
    `attempt`, `action`, `worker`, `submitted`, `started`, `ended` are those of its latest attempt
    (`attempt` 0: none yet); `attempts` has that one too, last.  It was begun `executions` times
    to be executed, `reversions` times to be reverted.  `progress` is from 0 to 1, None where
    nothing is known.  `items` counts those of a Map by their state.  `result` says what it
    returned: a type and a size, or the masked value if the masker shows values.  `waiting` says why
    it does not run, in one sentence; None: it runs, or is done.  `queued`: it was handed out, and
    no worker has begun it yet.  `item_rows` are items of a Map, those that failed first; of many
    items not all of them.
    """

    node: int
    uuid: str | None
    name: str
    kind: str
    path: tuple[str, ...]
    task: str | None
    state: str
    intention: str
    attempt: int
    action: str
    worker: str | None
    submitted: float | None
    started: float | None
    ended: float | None
    progress: float | None
    attempts: tuple[AttemptView, ...]
    attempts_dropped: int
    executions: int
    reversions: int
    failure: FailureView | None
    revert_failure: FailureView | None
    result: str | None
    items: Mapping[str, int] | None
    waiting: str | None
    queued: bool = False
    item_rows: tuple[ItemView, ...] = ()

    @property
    def runtime(self) -> float | None:
        """Seconds that the latest attempt took."""
        return history.runtime(self.started, self.ended)

    @property
    def failed_before(self) -> bool:
        """It failed, and was or is being reverted since."""
        return self.failure is not None and self.state in _UNDONE

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "uuid": self.uuid,
            "name": self.name,
            "kind": self.kind,
            "path": list(self.path),
            "task": self.task,
            "state": self.state,
            "intention": self.intention,
            "attempt": self.attempt,
            "action": self.action,
            "worker": self.worker,
            "submitted": words.iso(self.submitted),
            "started": words.iso(self.started),
            "ended": words.iso(self.ended),
            "runtime": self.runtime,
            "progress": self.progress,
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "attempts_dropped": self.attempts_dropped,
            "executions": self.executions,
            "reversions": self.reversions,
            "failure": None if self.failure is None else self.failure.to_dict(),
            "revert_failure": (
                None if self.revert_failure is None else self.revert_failure.to_dict()
            ),
            "result": self.result,
            "items": None if self.items is None else dict(self.items),
            "waiting": self.waiting,
            "queued": self.queued,
            "item_rows": [item.to_dict() for item in self.item_rows],
        }
