"""The records that an engine writes: logbook, flow detail, atom details, items of a `Map`.

Records neither validate nor save themselves. A flow of 100,000 tasks has as many records, so
records are small: they have slots, and `meta` is created on first use.
"""

# Field defaults are calls that define the kind of the field:
# ruff: noqa: RUF009

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import numbers
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from wbengine import exceptions, states
from wbengine._introspection import object_names
from wbengine._logs import stored_lines
from wbengine.persistence import _fields, _listing, _pauses, _pictures
from wbengine.persistence import _history as history
from wbengine.persistence._commands import FlowCommand
from wbengine.persistence._fields import field
from wbengine.persistence._history import Attempt, Change, Incident
from wbengine.persistence._stored_results import StoredResult
from wbengine.types import _tags
from wbengine.types import failure as ft

__all__ = [
    "LogBook",
    "FlowDetail",
    "AtomDetail",
    "TaskDetail",
    "RetryDetail",
    "ItemDetail",
    "Items",
    "LogChunk",
    "ATOM_TYPES",
    "Attempt",
    "Change",
    "CANCELLED",
    "CHILD",
    "DEADLINE_EXCEEDED",
    "GIVEN_UP_KEYS",
    "AWAITS_REVERSION",
    "ENGINE",
    "LOG_LEVEL",
    "FACTORY",
    "FORKED_FROM",
    "FORKS",
    "INHERITED",
    "INJECTOR",
    "Incident",
    "MADE_BY",
    "META_PROGRESS",
    "META_PROGRESS_DETAILS",
    "PARENT",
    "PARTIAL",
    "PUBLISHED",
    "STEP",
    "UNDONE",
    "UNDO_UNTIL",
    "SUBMITTED",
    "PAUSED_BY",
    "PERMIT_UNITS",
    "RESULT_OWNER",
    "REVERTING_PARENT",
    "WAITS_FOR",
    "WORKFLOW",
    "atom_detail_class",
    "atom_detail_type",
    "new_uuid",
    "new_uuids",
]

_D = TypeVar("_D", bound="AtomDetail")
_N = TypeVar("_N", bound="_Named")

#: States in which the record of a task without a failure contains the result of `execute`.
STATES_WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})

#: Name of the record that contains the values injected into the whole flow. It is not an atom.
INJECTOR: Final = "_wbengine_injector"

#: Keys in the `meta` of a task: its progress, and details of the progress.
META_PROGRESS: Final = "progress"
META_PROGRESS_DETAILS: Final = "progress_details"
#: Keys in the `meta` of an atom (or the injector): persistently injected values, and their MAC.
META_INJECTED: Final = "injected"
META_INJECTED_MAC: Final = "injected_mac"
#: Key in the `meta` of the injector: defaults of the parameters of workflows, by name of the atom.
META_DEFAULTS: Final = "defaults"
#: Key in the `meta` of a retry that was created for `Task.retries`: the name of the task.
OF_TASK: Final = "of_task"
#: Key in the `meta` of a waiting retry controller: the end of the wait in Unix seconds.
RETRY_AT: Final = "retry_at"
#: Keys in the `meta` of a retry controller: start of its first attempt in Unix seconds; number of
#: attempts that its history does not contain any more.
FIRST_START: Final = "first_start"
DROPPED: Final = "dropped"
#: Key in the `meta` of a task with an `eta`: its earliest start in Unix seconds.
STARTS_AT: Final = "starts_at"
#: Key in the `meta` of a task with a transaction: the highest attempt that had succeeded before
#: its latest execution began.
SETTLED: Final = "settled"
#: Key in the `meta` of a workflow: the number of its attempt, and data of that attempt.
WORKFLOW: Final = "workflow"
#: Key in the `meta` of a workflow: the inputs of its latest attempt and the signals that earlier
#: ones received, after `steps.continue_as_new`.
CONTINUED: Final = "continued"
#: Key in the value of `WORKFLOW`: published values by name.
PUBLISHED: Final = "published"
#: Key in the `meta` of a step of a workflow: the fields of its `StepNote`.
STEP: Final = "step"
#: Keys in the `meta` of a flow: factory, kind of its latest engine (missing: default).
FACTORY: Final = "factory"
ENGINE: Final = "engine"
#: Key in the `meta` of a flow: notes of users, each with its time, author and text.
NOTES: Final = "notes"
#: Key in the `meta` of a flow: why other processes cannot import its workflow.
NO_FACTORY: Final = "no_factory"
#: Key in the `meta` of a child flow: `flow` and `step`, the uuids of its parent and of the record
#: of the step that waits for it, `detached`, and `limits`: the names of limits for which a parent
#: has a permit.
PARENT: Final = "parent"
#: Key in the `meta` of a step that runs a child flow: the uuid of this flow.
CHILD: Final = "child"
#: Key in the `meta` of a submitted flow: the board and the priority of its job.
SUBMITTED: Final = "submitted"
#: Keys in the `meta` of a flow: time and reason of its cancellation, or of the request to revert it
#: after it succeeded; signals that it waits for.
CANCELLED: Final = "cancelled"
UNDONE: Final = "undone"
WAITS_FOR: Final = "waits_for"
#: Key in the `meta` of a flow: the seconds from its end in SUCCESS in which it can be undone.
UNDO_UNTIL: Final = "undo_until"
#: Key in the `meta` of a flow that is reverted although some effects remain: True.
PARTIAL: Final = "revert_partial"
#: Maximum number of names of tasks whose effects remain after a flow was undone.
_MAX_REMAINING: Final = 100
#: Key in the `meta` of a flow: patterns of the pauses for which it is parked.
PAUSED_BY: Final = "paused_by"
BLOCKED: Final = "blocked"
#: Key in the `meta` of a flow: the units of its limit that its next run takes.
PERMIT_UNITS: Final = "permit_units"
#: Key in the `meta` of a flow: time (Unix seconds) of the passed deadline.
DEADLINE_EXCEEDED: Final = "deadline_exceeded"
#: Keys of flows that must not continue.
GIVEN_UP_KEYS: Final = (DEADLINE_EXCEEDED, CANCELLED, UNDONE)
#: Key in the `meta` of a flow: root log level of its engine, if that level excludes INFO.
LOG_LEVEL: Final = "log_level"
#: Key in the `meta` of a fork: the flow from which it was forked ("flow"), and the task or step
#: from which it runs again ("start").
FORKED_FROM: Final = "forked_from"
#: Key in the `meta` of a flow: its forks, each with its uuid ("flow"), the task or step ("start"),
#: and whether it owns the results that it inherited ("own").
FORKS: Final = "forks"
#: Key in the `meta` of a fork that starts after the original flow is reverted: True.
AWAITS_REVERSION: Final = "held"
#: Key in the `meta` of an atom or step of a fork: uuids of the flow and the record whose result it
#: inherited.
INHERITED: Final = "inherited"
#: Key in the `meta` of an atom or step: uuid of the flow that reverts its result instead of this
#: one.
RESULT_OWNER: Final = "reverted_by"
#: Key in the `meta` of a child flow: uuid of the fork of its parent that reverts it.
REVERTING_PARENT: Final = "reverted_for"
#: Key in the `meta` of a logbook: program that created it for one flow.
MADE_BY: Final = "made_by"

_UUID_LENGTH: Final = 16

# Values of the seventh and ninth byte with the bits that identify version 4.
_VERSION: Final = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT: Final = bytes(0x80 | byte & 0x3F for byte in range(256))


def new_uuids(count: int) -> list[str]:
    """Create `count` random (version 4) uuids with one call of the system's random source."""
    random_bytes = bytearray(os.urandom(_UUID_LENGTH * count))
    random_bytes[6::_UUID_LENGTH] = random_bytes[6::_UUID_LENGTH].translate(_VERSION)
    random_bytes[8::_UUID_LENGTH] = random_bytes[8::_UUID_LENGTH].translate(_VARIANT)
    # Format all uuids at once: groups of four digits, minus the surplus dashes.
    text = bytearray(random_bytes.hex("-", 2), "ascii")
    del text[34::40], text[29::39], text[4::38]
    text[36::37] = b" " * (count - 1)
    return text.decode().split()


def new_uuid() -> str:
    """Create a random (version 4) uuid."""
    return new_uuids(1)[0]


_meta_lock: Final = threading.Lock()
_incidents_lock: Final = threading.Lock()


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Named(_fields.Record):
    name: str = field(_fields.WORD, "", given=True)
    uuid: str = field(_fields.PLAIN, given=True)
    _meta: dict[str, Any] | None = field(_fields.META, source="own_meta")

    def __post_init__(self) -> None:
        # A damaged record can contain a name of any type. The inline length check saves a call.
        if isinstance(self.name, str) and len(self.name) > object_names.MAX_NAME_LENGTH:
            object_names.check_length(f"The name of a {type(self).__name__}", self.name)
        if self.uuid is None:
            self.uuid = new_uuid()

    @classmethod
    def _from_identity(cls: type[_N], data: Mapping[str, Any]) -> _N:
        try:
            return cls(data["name"], data["uuid"])
        except ValueError as error:
            raise exceptions.InvalidFormat(str(error)) from None
        except (KeyError, TypeError):
            raise exceptions.InvalidFormat(
                f"The dict of a record must contain 'name' and 'uuid', got {data!r:.80}"
            ) from None

    @property
    def meta(self) -> dict[str, Any]:
        """User data of the record, created on first access."""
        if self._meta is None:
            with _meta_lock:  # Concurrent first accesses must return the same dict.
                if self._meta is None:
                    self._meta = {}
        return self._meta

    @meta.setter
    def meta(self, value: dict[str, Any] | None) -> None:
        self._meta = value

    @property
    def has_meta(self) -> bool:
        return bool(self._meta)

    def meta_value(self, key: str) -> Any:
        """Return the value of a key of `meta`, or None, without creating `meta`."""
        return None if self._meta is None else self._meta.get(key)

    def set_meta_value(self, key: str, value: Any) -> None:
        """Set a key of `meta` that is not one of the progress of a task."""
        if self._meta is None:
            self._meta = {key: value}
        else:
            self._meta[key] = value

    @property
    def own_meta(self) -> Mapping[str, Any]:
        """The stored part of `meta`, without keys that are only for display."""
        return self._meta or {}

    def _assign(self, other: _fields.Record) -> None:
        _fields.Record._assign(self, other)
        if self._meta is not None:  # A copy, because other threads may modify the dict of `other`.
            self._meta = dict(self._meta)

    def _merge_meta(self, mine: dict[str, Any] | None) -> None:
        if mine:
            self._meta = {**mine, **(self._meta or {})}

    def _describe(
        self, lines: Iterable[str], inside: Iterable[str], indent: int, linesep: str
    ) -> str:
        head = f"{type(self).__name__}: {self.name!r}"
        return _pictures.picture(head, lines, inside, indent, linesep)


_SUCCEEDED: Final = (states.SUCCESS, states.REVERTED)

#: Field that contains the result for each final state.
_RESULT_FIELDS: Final[Mapping[str, str]] = {
    states.SUCCESS: "results",
    states.FAILURE: "failure",
    states.REVERTED: "revert_results",
    states.REVERT_FAILURE: "revert_failure",
}


class LogChunk(NamedTuple):
    """Log lines of one execution of an atom, or some of them.

    `item` is the index of the item of a `Map`, or -1.
    """

    atom_uuid: str
    attempt: int
    item: int
    lines: tuple[stored_lines.Line, ...]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class ItemDetail(_fields.Record):
    """The record of one item of a `Map`. It is separate, so that an item is written at low cost.

    `attempt` is the attempt of the atom that executed the item. Reversions do not change it.
    `order` is the position in which the item finished, from 1, or 0 if it has not finished. States
    and results are those of a task, except for the states of running work: only the atom has them.
    `worker`, `submitted`, `started` and `ended` are as in `Attempt`.
    """

    index: int = field(_fields.NUMBER, 0, given=True)
    value: Any = field(_fields.VALUE, given=True)
    attempt: int = field(_fields.NUMBER, 0, given=True)
    order: int = field(_fields.NUMBER, 0)
    state: str = field(_fields.OneOf(states.ATOM_STATES), states.PENDING)
    results: Any = field(_fields.VALUE)
    failure: ft.Failure | None = field(_fields.FAILURE)
    revert_results: Any = field(_fields.VALUE)
    revert_failure: ft.Failure | None = field(_fields.FAILURE)
    worker: str | None = field(_fields.PLAIN)
    submitted: float | None = field(_fields.PLAIN)
    started: float | None = field(_fields.PLAIN)
    ended: float | None = field(_fields.PLAIN)

    @property
    def runtime(self) -> float | None:
        return history.runtime(self.started, self.ended)

    def put(self, state: str, result: Any) -> None:
        """Set `state` and its result: a value, or a failure if `state` is a failed one."""
        self.state = state
        if state != states.REVERT_FAILURE:  # The item may be reverted again.
            self.results = None
        setattr(self, _RESULT_FIELDS[state], result)

    def undo_failed_revert(self) -> bool:
        """If the reversion failed, restore the state before it. Return whether it failed."""
        has_failed = self.state == states.REVERT_FAILURE
        if has_failed:
            self.state = states.SUCCESS if self.failure is None else states.FAILURE
            self.revert_failure = None
        return has_failed

    def copy(self, deep: bool = True) -> ItemDetail:
        clone = ItemDetail()
        (clone._assign_copies if deep else clone._assign)(self)
        return clone

    @classmethod
    def _from_identity(cls, data: Mapping[str, Any]) -> ItemDetail:
        try:
            return cls(data["index"], None, data["attempt"])
        except (LookupError, TypeError):
            raise exceptions.InvalidFormat(
                f"The dict of an item must contain 'index' and 'attempt', got {data!r:.80}"
            ) from None

    def __repr__(self) -> str:
        return f"<ItemDetail {self.index} {self.state} #{self.attempt}>"


class Items:
    """The items of one attempt of a `Map`, by index. Their number is fixed when the attempt starts.

    The row of the atom contains `attempt`, `resumed` (how often the attempt was resumed) and
    `in_flight` (a run began or continued it, and has not stored that no item is in flight).
    """

    __slots__ = ("_details", "attempt", "in_flight", "resumed")

    def __init__(
        self,
        attempt: int,
        values: Iterable[Any] = (),
        resumed: int = 0,
        *,
        in_flight: bool = False,
    ) -> None:
        self.attempt = attempt
        self.resumed = resumed
        self.in_flight = in_flight
        self._details = [ItemDetail(index, value, attempt) for index, value in enumerate(values)]

    def __len__(self) -> int:
        return len(self._details)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[ItemDetail]:
        return iter(self._details)

    def __getitem__(self, index: int) -> ItemDetail:
        return self._details[index]

    def put(self, item: ItemDetail) -> None:
        """Add the next item, or replace the item with the same index. Ignore other attempts.

        :raises ValueError: if the index is higher than the number of items.
        """
        if item.attempt != self.attempt:
            return
        if item.index == len(self._details):
            self._details.append(item)
        elif item.index < len(self._details):
            self._details[item.index] = item
        else:
            raise ValueError(
                f"The index of the next item must be at most {len(self._details)}, got {item.index}"
            )

    def copy(self, deep: bool = True) -> Items:
        clone = self.without_items()
        clone._details = [item.copy(deep) for item in self._details]
        return clone

    def without_items(self) -> Items:
        """Return the part that is stored in the row of the atom."""
        return Items(self.attempt, (), self.resumed, in_flight=self.in_flight)

    def __repr__(self) -> str:
        return f"<Items {len(self)} #{self.attempt}>"


class _ItemsKind(_fields.Kind):
    """The part of `Items` that is stored in the row of the atom."""

    def dump(self, value: Items, name: str, typed: bool) -> Any:
        return {field: getattr(value, field) for field in ("attempt", "resumed", "in_flight")}

    def load(self, data: Any, name: str, typed: bool) -> Items | None:
        if not data:
            return None
        in_flight = data.get("in_flight", True)  # 0.1 does not store it.
        return Items(data["attempt"], (), data["resumed"], in_flight=in_flight)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class AtomDetail(_Named):
    """The record of one atom: its state, latest results and failures, and attempts.

    :ivar attempt: number of executions and reversions together; it only increases.
    :ivar worker: worker of the latest attempt. `submitted`, `started` and `ended` are its times.
    :ivar epoch: epoch of its request. It increases if a resumed flow may publish the request again.
    :ivar progress: the latest progress that the task reported; None: the state determines it.
    :ivar revert_results: the return value of the latest reversion. `revert_failure` is its failure.
    :ivar items: items of the latest execution of a `Map`, or None.
    :ivar past: the attempts before the latest one, at most 20, oldest first. `attempts_dropped` is
        the number of older attempts.
    :ivar incidents: the latest 50 incidents of the atom (lost workers and resends).
    """

    state: str | None = field(_fields.OneOf(states.ATOM_STATES))
    intention: str = field(_fields.OneOf(states.INTENTIONS), states.EXECUTE)
    version: str | None = field(_fields.PLAIN)
    results: Any = field(_fields.VALUE)
    failure: ft.Failure | None = field(_fields.FAILURE)
    revert_results: Any = field(_fields.VALUE)
    revert_failure: ft.Failure | None = field(_fields.FAILURE)
    attempt: int = field(_fields.NUMBER, 0)
    reversions: int = field(_fields.NUMBER, 0)
    epoch: int = field(_fields.NUMBER, 0)
    action: str = field(_fields.PLAIN, "execute")
    worker: str | None = field(_fields.PLAIN)
    submitted: float | None = field(_fields.PLAIN)
    started: float | None = field(_fields.PLAIN)
    ended: float | None = field(_fields.PLAIN)
    progress: float | None = field(_fields.PLAIN)
    progress_details: Any = field(_fields.VALUE)
    items: Items | None = field(_ItemsKind())
    past: tuple[Attempt, ...] = field(_fields.Tuples(Attempt), (), rare=True)
    attempts_dropped: int = field(_fields.PLAIN, 0, rare=True)
    incidents: tuple[Incident, ...] = field(_fields.Tuples(Incident), (), rare=True)
    #: Result of the latest attempt, after `reset` cleared the fields that contained it.
    _came_to: history.Outcome | None = field(_fields.PLAIN, rare=True)

    kind: ClassVar[str] = "atom"

    @property
    def waits_for(self) -> _listing.Wait | None:
        """The signal or time that a task waits for; None if there is none or it is damaged."""
        return _listing.wait_of(self.name, self.meta_value(WAITS_FOR))

    @property
    def is_step(self) -> bool:
        """Whether this is the record of a step of a workflow, not of an atom of the flow."""
        return self._meta is not None and STEP in self._meta

    @property
    def inherited_from(self) -> str | None:
        """UUID of the flow from which a fork inherited the result, or None."""
        inherited = self.meta_value(INHERITED)
        return inherited[0] if isinstance(inherited, list | tuple) and inherited else None

    @property
    def has_other_owner(self) -> bool:
        """Whether the result belongs to another flow: this flow never reverts it."""
        return self._meta is not None and RESULT_OWNER in self._meta

    @property
    def executions(self) -> int:
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
        """The latest attempts that are stored, oldest first."""
        last = self.last_attempt
        return self.past if last is None else (*self.past, last)

    def archive_attempt(self) -> None:
        """Move the latest attempt to `past`, before the next one starts."""
        last = self.last_attempt
        if last is not None:
            self.past, dropped = history.with_attempt(self.past, last)
            self.attempts_dropped += dropped
            self._came_to = None

    @property
    def repeats(self) -> int:
        """The number of attempts directly before this one that did not end, and that it repeats."""
        count = 0
        for each in reversed(self.past):
            if each.state is not None or each.action != self.action:
                break
            count += 1
        return count

    @property
    def settled(self) -> int:
        """The highest attempt that `settle_attempts` found, or 0."""
        number = self.meta_value(SETTLED)
        return number if isinstance(number, int) else 0

    def settle_attempts(self) -> None:
        """Store the highest past attempt that succeeded, before an execution of a transaction."""
        ended = [each.attempt for each in self.past if each.state in _SUCCEEDED]
        if ended and ended[-1] > self.settled:
            self.set_meta_value(SETTLED, ended[-1])

    def add_incident(self, incident: Incident) -> None:
        """Add an incident. Thread-safe."""
        with _incidents_lock:
            self.incidents = history.with_incident(self.incidents, incident)

    def set_incident_worker(self, worker: str, item: int = -1) -> None:
        """Store which worker received the latest resent request, if there is one. Thread-safe."""
        with _incidents_lock:
            self.incidents = history.with_worker(self.incidents, item, worker)

    def _outcome(self) -> history.Outcome:
        if self._came_to is not None:
            return self._came_to
        return history.outcome(
            self.action, self.state, self.ended, self.failure, self.revert_failure
        )

    @property
    def last_results(self) -> Any:
        return self.results

    def put(self, state: str, result: Any) -> None:
        """Set `state` and its result: a value, or a failure if the state means a failure."""
        raise NotImplementedError

    def reset(self, state: str) -> None:
        """Clear results and failures and set `state`. Attempts and most of `meta` are kept."""
        outcome = self._outcome()
        self._came_to = outcome if outcome is not history.UNKNOWN else None
        self.results = self.revert_results = None
        self.failure = self.revert_failure = None
        self.progress = self.progress_details = None
        self.items = None
        self.state = state
        self.intention = states.EXECUTE
        if self._meta is not None:
            # The next execution does not continue this one.
            self._meta.pop(WORKFLOW, None)
            self._meta.pop(STARTS_AT, None)
            self._meta.pop(INHERITED, None)

    def update(self: _D, other: _D) -> _D:
        """Copy all fields of `other`. Values are shared; the containers of items are not."""
        self.update_row(other)
        if other.items is not None:
            self.items = other.items.copy(deep=False)
        return self

    def update_row(self: _D, other: _D) -> _D:
        """Copy all fields of `other` except its items. Items of another attempt are removed."""
        mine, theirs = self.items, other.items
        self._assign(other)
        if theirs is not None:
            if mine is None or mine.attempt != theirs.attempt:
                mine = theirs.without_items()
            mine.resumed, mine.in_flight = theirs.resumed, theirs.in_flight
            self.items = mine
        return self

    def merge(self: _D, other: _D, deep_copy: bool = False) -> _D:
        """Copy all fields of `other`, but keep keys of `meta` that `other` does not have."""
        if other is self:
            return self
        mine = self._meta
        self.update(other.copy() if deep_copy else other)
        self._merge_meta(mine)
        return self

    def copy(self: _D, retain_contents: bool = True) -> _D:
        """Copy the record and its values deeply. Failures are immutable and shared.

        :param retain_contents: if False, omit the items.
        """
        clone = type(self)(self.name, self.uuid)
        clone._assign_copies(self)
        if self.items is not None:
            clone.items = self.items.copy() if retain_contents else self.items.without_items()
        return clone

    def _complete(self, data: Mapping[str, Any]) -> None:
        if self._came_to is not None:
            self._came_to = self._came_to[0], self._came_to[1]

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        return self._describe(_pictures.lines_of_atom(self, self.own_meta), (), indent, linesep)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state} #{self.attempt}>"


def first_attempt(workflow: AtomDetail) -> int:
    """Return the attempt with which a workflow continued as new, or 0.

    The steps of earlier attempts are deleted.
    """
    content = workflow.meta_value(CONTINUED)
    return content.get("attempt", 0) if isinstance(content, Mapping) else 0


def progress_of(value: Any) -> float | None:
    """Return the progress that a task reported as a float, or None if it is not a finite number."""
    if not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class _TaskMeta(dict[str, Any]):
    """The `meta` of a task's record. Writing its progress keys sets the record's progress."""

    __slots__ = ("_record",)

    def __init__(self, record: TaskDetail, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self._record: Final = record

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __ior__(self, other: Any) -> _TaskMeta:  # type: ignore[override,misc]
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        content = dict(*args, **kwargs)
        self._record.set_progress(content)
        super().update(content)

    def is_of(self, record: TaskDetail) -> bool:
        return self._record is record

    def __reduce__(self) -> Any:  # A copy is a plain dict, without a record.
        return dict, (dict(self),)


class TaskDetail(AtomDetail):
    """The record of a task. `results` is the return value of `execute`.

    Its `meta` also contains the progress, under TaskFlow's keys. While a run executes a workflow,
    `results` of a complete step may be in the store only: then each access reads it from there.
    """

    __slots__ = ("_stored_result",)
    kind: ClassVar[str] = "task"

    if not TYPE_CHECKING:  # Otherwise type checkers would accept all attributes.

        def __getattr__(self, name: str) -> Any:
            # Only called for attributes without a value.
            if name == "results":
                return self._stored_result()
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def held_results(self) -> Any:
        """The results, or a `StoredResult` if they are in the store only."""
        try:
            return object.__getattribute__(self, "results")
        except AttributeError:
            return self._stored_result

    @held_results.setter
    def held_results(self, value: Any) -> None:
        if type(value) is StoredResult:
            self._stored_result = value
            with contextlib.suppress(AttributeError):  # It is already in the store only.
                del self.results
        else:
            self.results = value

    @property
    def meta(self) -> dict[str, Any]:
        """User data and progress, created on first access."""
        meta = self._meta
        if not isinstance(meta, _TaskMeta) or not meta.is_of(self):
            with _meta_lock:  # Two threads must get the same dict.
                meta = self._meta
                if not isinstance(meta, _TaskMeta) or not meta.is_of(self):
                    meta = self._meta = _TaskMeta(self, meta or {})
        progress = self.effective_progress
        if progress is not None:
            shown = {META_PROGRESS: progress, META_PROGRESS_DETAILS: self.progress_details}
            dict.update(meta, shown)
        elif META_PROGRESS in meta:
            for key in _PROGRESS_KEYS:
                meta.pop(key, None)
        return meta

    @meta.setter
    def meta(self, value: dict[str, Any] | None) -> None:
        self.set_progress({**dict.fromkeys(_PROGRESS_KEYS), **(value or {})})
        self._meta = value

    def set_progress(self, meta: Mapping[str, Any]) -> None:
        """Set the progress from the progress keys of `meta`, if present.

        :raises TypeError, ValueError: if the progress is not a finite number.
        """
        if META_PROGRESS in meta:
            progress = meta[META_PROGRESS]
            self.progress = None if progress is None else self.check_progress(progress)
        if META_PROGRESS_DETAILS in meta:
            self.progress_details = meta[META_PROGRESS_DETAILS]

    def check_progress(self, progress: Any) -> float:
        """Return the progress as a float.

        :raises TypeError, ValueError: if the progress is not a finite number.
        """
        number = progress_of(progress)
        if number is not None:
            return number
        if isinstance(progress, numbers.Real):
            raise ValueError(f"The progress of {self.name!r} must be finite, got {progress!r:.80}")
        raise TypeError(f"The progress of {self.name!r} must be a number, got {progress!r:.80}")

    def _complete(self, data: Mapping[str, Any]) -> None:
        AtomDetail._complete(self, data)
        if self._meta:
            self.set_progress(self._meta)

    @property
    def effective_progress(self) -> float | None:
        """The reported progress; otherwise 0.0 or 1.0 by the state, or None before the start."""
        if self.progress is not None or self.state in (None, states.PENDING, states.IGNORE):
            return self.progress
        return 1.0 if self.state in (states.SUCCESS, states.REVERTED) else 0.0

    @property
    def own_meta(self) -> Mapping[str, Any]:
        if not self._meta:
            return {}
        own = self._meta.copy()  # Other threads may modify the dict.
        for key in _PROGRESS_KEYS:
            own.pop(key, None)
        return own

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
            # The result stays, because the task may be reverted again.
            self.revert_failure = result
            self.revert_results = None


#: Keys of a task's `meta` that are stored in fields of the record.
_PROGRESS_KEYS: Final = (META_PROGRESS, META_PROGRESS_DETAILS)

#: One entry of a retry's history: the provided value, and the failures of the atoms that ran with
#: it, by name.
HistoryEntry = tuple[Any, dict[str, ft.Failure]]


class _RetryHistoryKind(_fields.Kind):
    def dump(self, value: Iterable[HistoryEntry], name: str, typed: bool) -> Any:
        return [
            [
                _fields.VALUE.dump(provided, name, typed),
                {
                    atom_name: _fields.FAILURE.dump(each, name, typed)
                    for atom_name, each in failures.items()
                },
            ]
            for provided, failures in value
        ]

    def load(self, data: Any, name: str, typed: bool) -> list[HistoryEntry]:
        return [
            (
                _fields.VALUE.load(provided, name, typed),
                {
                    atom_name: ft.Failure.from_dict(each, read_home=True)
                    for atom_name, each in failures.items()
                },
            )
            for provided, failures in data or ()
        ]

    def copy(self, value: Iterable[HistoryEntry]) -> list[HistoryEntry]:
        return [(_fields.VALUE.copy(provided), dict(failures)) for provided, failures in value]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class RetryDetail(AtomDetail):
    """The record of a retry. `results` is its history, with one entry for each execution."""

    results: list[HistoryEntry] = field(_RetryHistoryKind())
    kind: ClassVar[str] = "retry"

    def __post_init__(self) -> None:
        AtomDetail.__post_init__(self)
        self.results = []

    @property
    def last_results(self) -> Any:
        return self.results[-1][0] if self.results else None

    @property
    def last_failures(self) -> dict[str, ft.Failure]:
        return self.results[-1][1] if self.results else {}

    @property
    def first_start(self) -> float | None:
        """Start of the first attempt in Unix seconds, or None."""
        value = self.meta_value(FIRST_START)
        return value if isinstance(value, float) else None

    @property
    def dropped(self) -> int:
        """Number of attempts that `results` does not contain any more."""
        value = self.meta_value(DROPPED)
        return value if isinstance(value, int) else 0

    def _clear_history(self) -> None:
        self.results = []
        if self._meta is not None:
            self._meta.pop(FIRST_START, None)
            self._meta.pop(DROPPED, None)

    def put(self, state: str, result: Any) -> None:
        self.state = state
        if state == states.SUCCESS:
            self.results.append((result, {}))
            self.failure = self.revert_results = self.revert_failure = None
        elif state == states.FAILURE:
            self.failure = result
            self.revert_results = self.revert_failure = None
        elif state == states.REVERTED:
            self._clear_history()
            self.revert_results = result
            self.revert_failure = None
        elif state == states.REVERT_FAILURE:
            self.revert_failure = result
            self.revert_results = None

    def reset(self, state: str) -> None:
        AtomDetail.reset(self, state)
        self._clear_history()


_TYPES: Final[Mapping[str, type[AtomDetail]]] = {
    "RETRY_DETAIL": RetryDetail,
    "TASK_DETAIL": TaskDetail,
}
ATOM_TYPES: Final = list(_TYPES)


def atom_detail_class(atom_type: str) -> type[AtomDetail]:
    """Return the class of atom records for one of `ATOM_TYPES`.

    :raises TypeError: if the type is unknown.
    """
    if atom_type not in _TYPES:
        raise TypeError(f"Unknown atom type {atom_type!r}; known types: {', '.join(ATOM_TYPES)}")
    return _TYPES[atom_type]


def atom_detail_type(atom_detail: AtomDetail) -> str:
    """Return the name in `ATOM_TYPES` of the type of a record.

    :raises TypeError: if it is not an atom record.
    """
    for name, kind in _TYPES.items():
        if type(atom_detail) is kind:
            return name
    raise TypeError(f"Unknown atom {atom_detail!r}: it must be the record of a task or a retry")


class _ChangesKind(_fields.Tuples):
    """The history of a flow. The field `history_errors` contains the `errors` of the changes."""

    def dump(self, value: Iterable[Change], name: str, typed: bool) -> Any:
        return [list(each[:3]) for each in value]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class FlowDetail(_Named):
    """The record of one flow with its atoms.

    :ivar epoch: epoch of the flow's latest lease when the record was read. Only backends set it.
    :ivar created: creation time in Unix seconds; None if unknown.
    :ivar history: the latest 50 changes of the flow's state, oldest first.
    :ivar outlined: digest of the stored outline (see `Outline.digest`), or None.
    :ivar code: code that executed the latest task or step ('app:version'), or None; see `codes`.
    :ivar resent_at: time in Unix seconds at which a task of the flow was first resent: the task may
        have run twice. None: no task was resent.
    """

    state: str | None = field(_fields.OneOf(states.FLOW_STATES))
    created: float | None = field(_fields.PLAIN)
    history: tuple[Change, ...] = field(_ChangesKind(Change), ())
    _history_errors: None = field(_fields.PLAIN, rare=True, source="history_errors")
    outlined: str | None = field(_fields.PLAIN)
    code: str | None = field(_fields.PLAIN)
    resent_at: float | None = field(_fields.PLAIN)
    epoch: int = dataclasses.field(default=0, init=False)
    _atoms: dict[str, AtomDetail] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        _Named.__post_init__(self)
        self.created = time.time()

    @property
    def tags(self) -> Mapping[str, _tags.Value]:
        """The tags of the flow, for searches: those of its submission, and those of its run."""
        return _tags.tags_in(self.own_meta)

    @property
    def given_tags(self) -> Mapping[str, _tags.Value]:
        """The tags of the submission. They never change, so permissions may depend on them."""
        return _tags.given_in(self.own_meta)

    @property
    def is_parked(self) -> bool:
        """Whether the flow is parked. A conductor resumes it when its wait ends."""
        reason = history.why_suspended(self.history)
        return self.state == states.SUSPENDED and reason == history.PARKED

    @property
    def is_suspended_by_command(self) -> bool:
        """Whether a command suspended the flow. Conductors do not resume it."""
        reason = history.why_suspended(self.history)
        return self.state == states.SUSPENDED and reason not in (
            None,
            history.PARKED,
            history.BLOCKED,
        )

    @property
    def is_blocked(self) -> bool:
        """Whether the code of the latest engine did not repeat the recorded steps of the flow.

        Conductors with other code run it again.
        """
        reason = history.why_suspended(self.history)
        return self.state == states.SUSPENDED and reason == history.BLOCKED

    @property
    def difference(self) -> str | None:
        """The difference that blocks the flow, in one line, or None.

        The text contains arguments of steps.
        """
        text = self.meta_value(BLOCKED) if self.is_blocked else None
        return text if isinstance(text, str) else None

    @property
    def is_submitted(self) -> bool:
        """Whether the flow was submitted to conductors, which run it again on request."""
        return isinstance(self.meta_value(SUBMITTED), Mapping)

    @property
    def parent(self) -> str | None:
        """UUID of the flow that started this one as a child, or None."""
        return None if self._meta is None else _tags.parent_in(self._meta)

    @property
    def inherited_limits(self) -> Collection[str]:
        """Names of the limits for which a parent of the flow has a permit."""
        note = self.meta_value(PARENT)
        names = note.get("limits") if isinstance(note, Mapping) else None
        return names if isinstance(names, list) else ()

    @property
    def is_detached(self) -> bool:
        """Whether cancellation, suspension and reversion of the parent do not reach the flow."""
        note = self.meta_value(PARENT)
        return isinstance(note, Mapping) and note.get("detached") is True

    @property
    def forks(self) -> tuple[Mapping[str, Any], ...]:
        """The flows that were forked from this one, oldest first; see `FORKS`."""
        forks = self.meta_value(FORKS)
        return tuple(forks) if isinstance(forks, list) else ()

    @property
    def forked_from(self) -> Mapping[str, Any] | None:
        """The flow from which this one was forked, and the start; see `FORKED_FROM`."""
        forked_from = self.meta_value(FORKED_FROM)
        return forked_from if isinstance(forked_from, Mapping) else None

    @property
    def awaits_reversion(self) -> bool:
        """Whether the flow is a fork that starts after the original flow is reverted."""
        return self.meta_value(AWAITS_REVERSION) is not None

    @property
    def successor(self) -> str | None:
        """UUID of the latest fork that owns results of this flow, or None."""
        return next((fork["flow"] for fork in reversed(self.forks) if fork.get("own")), None)

    @property
    def forks_to_start(self) -> Collection[str]:
        """UUIDs of the forks that start now, because this flow is reverted."""
        is_reverted = self.state == states.REVERTED
        return [fork["flow"] for fork in self.forks if fork.get("own")] if is_reverted else ()

    def was_suspended_by(self, command: FlowCommand) -> bool:
        """Return whether this command suspended the flow."""
        expected = history.with_change((), Change(states.SUSPENDED, 0.0, command.describe()))
        return self.is_suspended_by_command and (
            history.why_suspended(self.history) == history.why_suspended(expected)
        )

    @property
    def waits_for(self) -> tuple[_listing.Wait, ...]:
        """At most 20 signals for which the flow waits while no other part of it runs."""
        return _listing.waits_of(self.meta_value(WAITS_FOR))

    @waits_for.setter
    def waits_for(self, waits: Iterable[_listing.Wait]) -> None:
        self.meta[WAITS_FOR] = [wait.to_meta() for wait in waits]

    @property
    def paused_by(self) -> tuple[str, ...]:
        """Patterns of the pauses of task types for which the flow is parked."""
        return _pauses.patterns_of(self.meta_value(PAUSED_BY))

    @property
    def permit_units(self) -> float:
        """The units of its limit for which the flow is parked."""
        units = self.meta_value(PERMIT_UNITS)
        return float(units) if isinstance(units, int | float) else 1.0

    @property
    def log_level(self) -> str | None:
        """Root log level of the engine if it excludes INFO, or None."""
        level = self.meta_value(LOG_LEVEL)
        return level if isinstance(level, str) else None

    @log_level.setter
    def log_level(self, level: str | None) -> None:
        if level is not None:
            self.meta[LOG_LEVEL] = level
        elif self.meta_value(LOG_LEVEL) is not None:
            del self.meta[LOG_LEVEL]

    @property
    def notes(self) -> tuple[Change, ...]:
        """Notes of users in the form of changes, oldest first."""
        return history.notes_of(self.meta_value(NOTES))

    def add_note(self, at: float, text: str, author: str | None) -> None:
        """Add a note at a time in Unix seconds. Drop notes beyond `MAX_CHANGES`, oldest first."""
        stored = self.meta_value(NOTES) if self.notes else []
        self.meta[NOTES] = [*stored, [at, author, text]][-history.MAX_CHANGES :]

    @property
    def is_cancelled(self) -> bool:
        """Whether the flow was cancelled. Its reversion may be complete, running or pending."""
        return self.meta_value(CANCELLED) is not None

    def cancel(self, at: float, reason: str | None) -> None:
        """Record the cancellation. The engine that runs the flow then reverts it."""
        self.meta[CANCELLED] = {"at": at, "reason": reason}
        self.history = history.with_change(self.history, Change(states.CANCELLING, at, reason))

    @property
    def undo_until(self) -> float | None:
        """Unix seconds until which the flow, which is in SUCCESS, can be undone.

        None: it is in another state, or has no limit.
        """
        return history.undo_until(self.state, self.history, self.meta_value(UNDO_UNTIL))

    @property
    def is_undone(self) -> bool:
        """Whether the flow was reverted, or is being reverted, after all of it had succeeded."""
        return self.meta_value(UNDONE) is not None

    @property
    def remaining(self) -> tuple[str, ...]:
        """The first names of tasks whose effects remain after the flow was undone."""
        return tuple((self.meta_value(UNDONE) or {}).get("remaining", ()))

    def undo_outcome(self, state: str | None) -> str | None:
        """Return what the undo of the complete flow has led to in a state; None: it is not undone.

        :returns: "running"; "complete": all effects are undone; "partial": those of irreversible
            tasks remain; "failed": a revert failed.
        """
        request = self.meta_value(UNDONE)
        if request is None:
            return None
        if state == states.REVERTED:
            return "partial" if request["remaining_count"] else "complete"
        return "failed" if state == states.FAILURE else "running"

    def undo(self, at: float, reason: str | None, remaining: Sequence[str]) -> None:
        """Record that the complete flow is to be reverted. Its engine then reverts it.

        :param remaining: names of tasks whose effects remain. The first 100 are stored.
        """
        names = list(remaining[:_MAX_REMAINING])
        self.meta[UNDONE] = {
            "at": at,
            "reason": reason,
            "remaining": names,
            "remaining_count": len(remaining),
        }
        self.history = history.with_change(self.history, Change(states.REVERTING, at, reason))

    def add_remaining(self, names: Iterable[str]) -> None:
        """Add names of tasks whose effects remain to the undo of the flow."""
        request = self.meta[UNDONE]
        new = [name for name in names if name not in request["remaining"]]
        request["remaining"] = [*request["remaining"], *new][:_MAX_REMAINING]
        request["remaining_count"] += len(new)

    def enter(
        self, state: str, at: float, why: str | None = None, errors: str | None = None
    ) -> None:
        """Set the state and add the change to the history."""
        self.state = state
        self.history = history.with_change(self.history, Change(state, at, why, errors))

    @property
    def error(self) -> str | None:
        """The reason for FAILURE or REVERTED in one line, or None.

        The text is for display and may contain secrets.
        """
        return history.error(self.state, self.history)

    def add(self, detail: AtomDetail) -> None:
        """Add an atom to this flow, or replace the atom with the same uuid."""
        self._atoms[detail.uuid] = detail

    def add_all(self, details: Iterable[AtomDetail]) -> None:
        # A generator, because a list of this many tuples would trigger the garbage collector.
        self._atoms.update((detail.uuid, detail) for detail in details)

    def find(self, uuid: str) -> AtomDetail | None:
        return self._atoms.get(uuid)

    def discard(self, uuid: str) -> None:
        self._atoms.pop(uuid, None)

    @property
    def atoms(self) -> Collection[AtomDetail]:
        return self._atoms.values()

    def __iter__(self) -> Iterator[AtomDetail]:
        return iter(self._atoms.values())

    def __len__(self) -> int:
        return len(self._atoms)

    def __bool__(self) -> bool:
        return True

    def update(self, other: FlowDetail) -> FlowDetail:
        """Copy the flow's own fields, without its atoms."""
        uuid = self.uuid
        self._assign(other)
        self.uuid = uuid
        return self

    def replace_with(self, other: FlowDetail) -> None:
        """Replace all contents, including atoms and epoch, by those of `other`."""
        self.update(other)
        self.epoch, self._atoms = other.epoch, dict(other._atoms)

    def merge(self, other: FlowDetail, deep_copy: bool = False) -> FlowDetail:
        """Copy the fields of `other` and of all its atoms. Keep all other atoms of this flow."""
        if other is self:
            return self
        mine = self._meta
        self.update(other)
        if deep_copy:
            self._meta = copy.deepcopy(self._meta)
        self._merge_meta(mine)
        _merge_inside(self, other, deep_copy)
        return self

    def copy(self, retain_contents: bool = True) -> FlowDetail:
        """Copy the record with its atoms, or without them if `retain_contents` is False."""
        clone = FlowDetail(self.name, self.uuid)
        clone._assign_copies(self)
        clone.epoch = self.epoch
        if retain_contents:
            clone.add_all(detail.copy() for detail in self)
        return clone

    @property
    def history_errors(self) -> Mapping[str, str]:
        """The `errors` of the history, as they are stored."""
        return history.errors_of(self.history)

    def _complete(self, data: Mapping[str, Any]) -> None:
        self.created = data.get("created")
        if "history_errors" in data:
            self.history = history.with_errors(self.history, data["history_errors"])
            self._history_errors = None

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        lines = [f"- uuid = {self.uuid}", f"- state = {self.state}"]
        lines += _pictures.lines_of_meta(self._meta)
        inside = [atom.pformat(indent + _pictures.INDENT_STEP, linesep) for atom in self]
        return self._describe(lines, inside, indent, linesep)

    def __repr__(self) -> str:
        return f"<FlowDetail {self.name!r} {self.state} ({len(self)} atoms)>"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class LogBook(_Named):
    """A named group of flow details.

    `created_at` and `updated_at` (None: never) are in UTC, without a time zone.
    """

    created_at: datetime | None = field(_fields.MOMENT)
    updated_at: datetime | None = field(_fields.MOMENT)
    _flows: dict[str, FlowDetail] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        _Named.__post_init__(self)
        self.created_at = _now()

    def add(self, detail: FlowDetail) -> None:
        self._flows[detail.uuid] = detail

    @property
    def created(self) -> float:
        """Creation time in Unix seconds; 0 if unknown."""
        return 0.0 if self.created_at is None else _fields.aware(self.created_at).timestamp()

    def discard(self, uuid: str) -> None:
        self._flows.pop(uuid, None)

    def find(self, uuid: str) -> FlowDetail | None:
        return self._flows.get(uuid)

    def __iter__(self) -> Iterator[FlowDetail]:
        return iter(self._flows.values())

    def __len__(self) -> int:
        return len(self._flows)

    def __bool__(self) -> bool:
        return True

    def update(self, other: LogBook) -> LogBook:
        """Copy the logbook's own fields, without its flows."""
        uuid = self.uuid
        self._assign(other)
        self.uuid = uuid
        return self

    def merge(self, other: LogBook, deep_copy: bool = False) -> LogBook:
        """Copy the fields of `other` and of its flows. Keep all other flows of this logbook."""
        if other is self:
            return self
        self.name = other.name
        if other._meta:
            theirs = copy.deepcopy(other._meta) if deep_copy else other._meta
            self._meta = {**(self._meta or {}), **theirs}
        self.updated_at = _now()
        _merge_inside(self, other, deep_copy)
        return self

    def copy(self, retain_contents: bool = True) -> LogBook:
        clone = LogBook(self.name, self.uuid)
        clone._assign_copies(self)
        if retain_contents:
            for flow in self:
                clone.add(flow.copy())
        return clone

    def to_dict(self, marshal_time: bool = False) -> dict[str, Any]:
        """Return the logbook's own fields as a dict, without its flows.

        :param marshal_time: if True, times are ISO 8601 strings instead of `datetime` objects.
        """
        return _with_times(self.dump(), _fields.MOMENT.dump if marshal_time else None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], unmarshal_time: bool = False) -> LogBook:
        """Create the logbook from a dict of `to_dict`, with or without `marshal_time`."""
        return cls.load(_with_times(data, _fields.MOMENT.load if unmarshal_time else None))

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        lines = [f"- uuid = {self.uuid}"]
        for name in ("created_at", "updated_at"):
            moment = getattr(self, name)
            if moment is not None:
                lines.append(f"- {name} = {moment.isoformat()}")
        lines += _pictures.lines_of_meta(self._meta)
        inside = [flow.pformat(indent + _pictures.INDENT_STEP, linesep) for flow in self]
        return self._describe(lines, inside, indent, linesep)

    def __repr__(self) -> str:
        return f"<LogBook {self.name!r} ({len(self)} flows)>"


def _now() -> datetime:
    return _fields.naive(datetime.now(UTC))


def _with_times(
    data: Mapping[str, Any], change: Callable[[Any, str, bool], Any] | None
) -> dict[str, Any]:
    fields_with_times = {"created_at": None, "updated_at": None, **data}
    if change is not None:
        for key in ("created_at", "updated_at"):
            fields_with_times[key] = (
                None
                if fields_with_times[key] is None
                else change(fields_with_times[key], key, True)
            )
    return fields_with_times


def _merge_inside(ours: Any, theirs: Any, deep_copy: bool) -> None:
    for each in theirs:
        mine = ours.find(each.uuid)
        if mine is None:
            ours.add(each.copy() if deep_copy else each)
        else:
            mine.merge(each, deep_copy=deep_copy)
