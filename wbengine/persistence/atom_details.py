"""The records of atoms (see `persistence.models`, where users find them).

They are kept small, for a flow of 100,000 tasks has 100,000 of them: slots, and a `meta` that
exists from the first time it is asked for.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from wbengine import states
from wbengine.persistence import attempts, pictures, values
from wbengine.persistence.annotated import Annotated
from wbengine.persistence.attempts import Attempt
from wbengine.persistence.identities import identity_in, new_uuid
from wbengine.persistence.item_details import Items
from wbengine.types import failure as ft

__all__ = ["AtomDetail", "TaskDetail"]

_D = TypeVar("_D", bound="AtomDetail")
_NOTHING: Final[Mapping[str, Any]] = {}
#: Where the `meta` of a task has its progress, and what the task said besides.
META_PROGRESS: Final = "progress"
META_PROGRESS_DETAILS: Final = "progress_details"


class AtomDetail(Annotated):
    """What is known of one atom: its state, its latest results and failures, its latest attempt.

    `attempt` is 0 before the first one, and only rises: it counts `executions` and `reversions`
    together, and says which of two attempts is the later one.  `worker`, `submitted`, `started` and
    `ended` are those of that attempt (see `Attempt`).  `epoch` is the number under which its
    request is published: it rises when whoever resumes the flow may have to publish it again.
    `progress` is what the task itself last told (None: nothing, the state says it).  `revert_*`
    hold what the latest reversion returned or raised.  `items` are those of the latest execution of
    a `Map` (None: none so far, or no Map); they are records beside this one.

    `past` are the attempts before the latest one, the oldest first: the last 20 of them, after
    `attempts_dropped` others.
    """

    __slots__ = (
        "_came_to",
        "action",
        "attempt",
        "attempts_dropped",
        "ended",
        "epoch",
        "failure",
        "intention",
        "items",
        "name",
        "past",
        "progress",
        "progress_details",
        "results",
        "reversions",
        "revert_failure",
        "revert_results",
        "started",
        "state",
        "submitted",
        "uuid",
        "version",
        "worker",
    )

    kind: ClassVar[str] = "atom"
    #: Keys of `meta` that are kept elsewhere.
    SHOWN: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, name: str, uuid: str | None = None) -> None:
        self._meta = None
        self.name = name
        self.uuid = uuid if uuid is not None else new_uuid()
        self.state: str | None = None
        self.intention: str = states.EXECUTE
        self.version: str | None = None
        self.results: Any = None
        self.failure: ft.Failure | None = None
        self.revert_results: Any = None
        self.revert_failure: ft.Failure | None = None
        self.attempt = 0
        self.reversions = 0
        self.epoch = 0
        self.action = "execute"
        self.worker: str | None = None
        self.submitted: float | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.progress: float | None = None
        self.progress_details: Any = None
        self.items: Items | None = None
        self.past: tuple[Attempt, ...] = ()
        self.attempts_dropped = 0
        # How the latest attempt ended, when that was forgotten by `reset`.
        self._came_to: attempts.Outcome | None = None

    @property
    def executions(self) -> int:
        """How often it was begun to be executed."""
        return self.attempt - self.reversions

    @property
    def last_attempt(self) -> Attempt | None:
        if not self.attempt:
            return None
        return Attempt(
            self.attempt, self.action, self.worker, self.started, self.ended, self.submitted,
            *self._outcome(), self.reversions,
        )  # fmt: skip

    @property
    def all_attempts(self) -> tuple[Attempt, ...]:
        """The attempts that are remembered, the oldest first."""
        last = self.last_attempt
        return self.past if last is None else (*self.past, last)

    def keep_attempt(self) -> None:
        """Let the latest attempt be of the past, for the next one is about to begin."""
        last = self.last_attempt
        if last is not None:
            self.past, dropped = attempts.keep(self.past, last)
            self.attempts_dropped += dropped
            self._came_to = None

    def _outcome(self) -> attempts.Outcome:
        """How the latest attempt ended."""
        if self._came_to is not None:
            return self._came_to
        return attempts.outcome(
            self.action, self.state, self.ended, self.failure, self.revert_failure
        )

    def noted(self, key: str) -> Any:
        """What somebody attached under a key of `meta`; None: nothing.  Makes no `meta`."""
        return None if self._meta is None else self._meta.get(key)

    @property
    def last_results(self) -> Any:
        """The value the atom currently stands for."""
        return self.results

    def put(self, state: str, result: Any) -> None:
        """Enter `state` with `result`: a value, or the failure when `state` is a failed one."""
        raise NotImplementedError

    def reset(self, state: str) -> None:
        """Forget results and failures and enter `state`; attempts and `meta` stay."""
        outcome = self._outcome()
        self._came_to = outcome if outcome is not attempts.UNKNOWN else None
        self.results = None
        self.failure = None
        self.revert_results = None
        self.revert_failure = None
        self.progress = None
        self.progress_details = None
        self.items = None
        self.state = state
        self.intention = states.EXECUTE

    def update(self: _D, other: _D) -> _D:
        """Take over everything `other` says (values are shared, containers of ours are not)."""
        self.update_row(other)
        if other.items is not None:
            self.items = other.items.copy(deep=False)
        return self

    def update_row(self: _D, other: _D) -> _D:
        """`update` without the items: they stay, as long as they are of the same attempt."""
        mine, theirs = self.items, other.items
        self._take(other)
        if theirs is not None:
            if mine is None or mine.attempt != theirs.attempt:
                mine = theirs.emptied()
            mine.resumed = theirs.resumed
            self.items = mine
        return self

    def _take(self, other: AtomDetail) -> None:
        """Have the fields of `other`; records are copied often, and nothing is faster than this."""
        # A dict of its own: other threads may be adding to theirs.
        self._meta = None if other._meta is None else dict(other._meta)
        self.name = other.name
        self.uuid = other.uuid
        self.state = other.state
        self.intention = other.intention
        self.version = other.version
        self.results = other.results
        self.failure = other.failure
        self.revert_results = other.revert_results
        self.revert_failure = other.revert_failure
        self.attempt = other.attempt
        self.reversions = other.reversions
        self.epoch = other.epoch
        self.action = other.action
        self.worker = other.worker
        self.submitted = other.submitted
        self.started = other.started
        self.ended = other.ended
        self.progress = other.progress
        self.progress_details = other.progress_details
        self.items = other.items
        self.past = other.past
        self.attempts_dropped = other.attempts_dropped
        self._came_to = other._came_to

    def merge(self: _D, other: _D, deep_copy: bool = False) -> _D:
        """Like `update`, but meta keys only `self` has are kept; `deep_copy` shares no value."""
        if other is self:
            return self
        mine = self._meta
        self.update(other.copy() if deep_copy else other)
        if mine:
            self._meta = {**mine, **(self._meta or {})}
        return self

    def copy(self: _D, retain_contents: bool = True) -> _D:
        """Copy the record and, deeply, its values (failures are shared: they never change).

        Its items are copied too, or (`retain_contents=False`) left out.
        """
        clone = type(self).__new__(type(self))
        clone._take(self)
        if self.items is not None:
            clone.items = self.items.copy() if retain_contents else self.items.emptied()
        clone.results = self._copy_results()
        clone.revert_results = values.deep(self.revert_results)
        clone.progress_details = values.deep(self.progress_details)
        if clone._meta is not None:
            clone._meta = copy.deepcopy(clone._meta)
        return clone

    def _copy_results(self) -> Any:
        return values.deep(self.results)

    def to_dict(self) -> dict[str, Any]:
        """Describe the record's own row as plain data; result values are left as they are."""
        found = {
            "name": self.name,
            "uuid": self.uuid,
            "state": self.state,
            "intention": self.intention,
            "version": self.version,
            "meta": self._told_meta(),
            "results": self._results_to_dict(),
            "failure": values.failure_to_dict(self.failure),
            "revert_results": self.revert_results,
            "revert_failure": values.failure_to_dict(self.revert_failure),
            "attempt": self.attempt,
            "epoch": self.epoch,
            "action": self.action,
            "worker": self.worker,
            "submitted": self.submitted,
            "started": self.started,
            "ended": self.ended,
            "progress": self.progress,
            "progress_details": self.progress_details,
            "items": None if self.items is None else self.items.to_dict(),
        }
        # Most have none.
        if self.reversions or self.past or self.action == "revert":  # else they are counted anew
            found["reversions"] = self.reversions
        if self.past:
            found["past"] = [list(attempt) for attempt in self.past]
        if self.attempts_dropped:
            found["attempts_dropped"] = self.attempts_dropped
        if self._came_to is not None:
            found["came_to"] = list(self._came_to)
        return found

    def _told_meta(self) -> dict[str, Any]:
        if not self._meta:
            return {}
        # Of a copy: other threads may be adding to it.
        meta = self._meta.copy()
        return {key: value for key, value in meta.items() if key not in self.SHOWN}

    @classmethod
    def from_dict(cls: type[_D], data: Mapping[str, Any]) -> _D:
        """Make the record that `to_dict` described; keys that are missing keep their defaults."""
        record = cls(*identity_in(data))
        for key in (
            "state", "intention", "version", "revert_results", "attempt", "epoch", "action",
            "worker", "submitted", "started", "ended", "progress", "progress_details",
            "attempts_dropped",
        ):  # fmt: skip
            if key in data:
                setattr(record, key, data[key])
        record._meta = dict(data["meta"]) if data.get("meta") else None
        record.results = cls._results_from_dict(data.get("results"))
        record.items = Items.from_dict(data["items"]) if data.get("items") else None
        record._count_reversions(data.get("reversions"), data.get("past") or ())
        if data.get("came_to"):
            state, error = data["came_to"]
            record._came_to = state, error
        record.failure = values.failure_from_dict(data.get("failure"))
        record.revert_failure = values.failure_from_dict(data.get("revert_failure"))
        return record

    def _count_reversions(self, kept: int | None, past: Collection[Sequence[Any]]) -> None:
        """Take over how many reversions, and which attempts, were kept."""
        now = bool(self.attempt) and self.action == "revert"
        if kept is None:
            # There were none, or they were not counted yet.
            kept = now + sum(Attempt(*told).action == "revert" for told in past)
        self.reversions = kept
        self.past = attempts.remembered(past, kept - now)

    def _results_to_dict(self) -> Any:
        return self.results

    @classmethod
    def _results_from_dict(cls, data: Any) -> Any:
        return data

    def __getstate__(self) -> dict[str, Any]:
        slots = (*AtomDetail.__slots__, *Annotated.__slots__)
        return {slot: getattr(self, slot) for slot in slots}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for slot, value in state.items():
            setattr(self, slot, value)

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the record in a few readable lines; long values are cut."""
        lines = pictures.lines_of_atom(self, self._told_meta())
        return pictures.picture(f"{type(self).__name__}: {self.name!r}", lines, (), indent, linesep)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state} #{self.attempt}>"


class TaskDetail(AtomDetail):
    """The record of a task: `results` is what `execute` returned.

    Its `meta` also has the progress, under the keys that TaskFlow keeps it in.
    """

    __slots__ = ()
    kind: ClassVar[str] = "task"
    SHOWN: ClassVar[frozenset[str]] = frozenset({META_PROGRESS, META_PROGRESS_DETAILS})

    @property
    def so_far(self) -> float | None:
        """How far the task is: what it last told, or what its state says; None before it began."""
        if self.progress is not None or self.state in (None, states.PENDING, states.IGNORE):
            return self.progress
        return 1.0 if self.state in (states.SUCCESS, states.REVERTED) else 0.0

    def _show(self, meta: dict[str, Any]) -> None:
        progress = self.so_far
        if progress is not None:
            meta.update({META_PROGRESS: progress, META_PROGRESS_DETAILS: self.progress_details})
        elif META_PROGRESS in meta:
            meta.pop(META_PROGRESS, None)
            meta.pop(META_PROGRESS_DETAILS, None)

    def put(self, state: str, result: Any) -> None:
        self.state = state
        if state == states.SUCCESS:
            self.results = result
            self.failure = self.revert_results = self.revert_failure = None
        elif state == states.FAILURE:
            self.failure = result
            self.results = self.revert_results = self.revert_failure = None
        elif state == states.REVERTED:
            self.revert_results = result
            self.results = self.revert_failure = None
        elif state == states.REVERT_FAILURE:
            self.revert_failure = result  # the result stays: it may be reverted again
            self.revert_results = None
