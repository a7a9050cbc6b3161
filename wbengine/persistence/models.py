"""The records an engine writes: log book -> flow detail -> atom details (-> items of a `Map`).

A record is plain data: it checks nothing and writes itself nowhere.  Those of atoms and items are
kept small, for a flow of 100,000 tasks has 100,000 of them: slots, and a `meta` that exists from
the first time it is asked for.
"""

# Defaults of fields say of which kind they are:
# ruff: noqa: RUF009

from __future__ import annotations

import copy
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from wbengine import exceptions, states, task_logs
from wbengine.persistence import fields, history, listing, pictures
from wbengine.persistence.fields import field
from wbengine.persistence.history import Attempt, Change, Incident
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
    "ENGINE",
    "FACTORY",
    "INJECTOR",
    "Incident",
    "MADE_BY",
    "META_PROGRESS",
    "META_PROGRESS_DETAILS",
    "TAGS",
    "UNIQUE",
    "atom_detail_class",
    "atom_detail_type",
    "new_uuid",
    "new_uuids",
]

_D = TypeVar("_D", bound="AtomDetail")
_N = TypeVar("_N", bound="_Named")

#: States in which the record of a task that did not fail holds the result of `execute`.
WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})

#: Name of the record that keeps what was injected for the whole flow: it is no atom's.
INJECTOR: Final = "_wbengine_injector"

#: Keys of the `meta` of a task: its progress, and what the task said besides.
META_PROGRESS: Final = "progress"
META_PROGRESS_DETAILS: Final = "progress_details"
#: Of any atom: what was injected for it to stay, and (also of the injector) the MAC of that.
META_INJECTED: Final = "injected"
META_INJECTED_MAC: Final = "injected_mac"
#: Of a flow: what makes it, the kind of engine that it was first loaded into, and its tags.
FACTORY: Final = "factory"
ENGINE: Final = "engine"
TAGS: Final = "tags"
#: Of a log book: that it was made for one flow; the latest flow of the key that it stands for.
MADE_BY: Final = "made_by"
UNIQUE: Final = "unique"

_UUID_LENGTH: Final = 16
# What says that they are random, in the seventh byte and the ninth.
_VERSION: Final = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT: Final = bytes(0x80 | byte & 0x3F for byte in range(256))


def new_uuids(count: int) -> list[str]:
    """Make `count` random (version 4) uuids, with one call of the system's random source."""
    made = bytearray(os.urandom(_UUID_LENGTH * count))
    made[6::_UUID_LENGTH] = made[6::_UUID_LENGTH].translate(_VERSION)
    made[8::_UUID_LENGTH] = made[8::_UUID_LENGTH].translate(_VARIANT)
    # All of them at once: groups of four digits, without the dashes that are too many.
    text = bytearray(made.hex("-", 2), "ascii")
    del text[34::40], text[29::39], text[4::38]
    text[36::37] = b" " * (count - 1)
    return text.decode().split()


def new_uuid() -> str:
    """Make one random (version 4) uuid."""
    return new_uuids(1)[0]


_making_meta: Final = threading.Lock()
_incidents_lock: Final = threading.Lock()


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Named(fields.Record):
    """A record with a name, a uuid, and a `meta`: what listeners and users attach."""

    name: str = field(fields.WORD, "", given=True)
    uuid: str = field(fields.PLAIN, given=True)
    _meta: dict[str, Any] | None = field(fields.META, source="own_meta")

    def __post_init__(self) -> None:
        if self.uuid is None:
            self.uuid = new_uuid()

    @classmethod
    def _bare(cls: type[_N], data: Mapping[str, Any]) -> _N:
        try:
            return cls(data["name"], data["uuid"])
        except (KeyError, TypeError):
            raise exceptions.InvalidFormat(
                f"The description of a record is a dict with 'name' and 'uuid', not {data!r:.80}"
            ) from None

    @property
    def meta(self) -> dict[str, Any]:
        """Made when first asked for."""
        if self._meta is None:
            with _making_meta:  # two threads must get the same one
                if self._meta is None:
                    self._meta = {}
        self._show(self._meta)
        return self._meta

    @meta.setter
    def meta(self, value: dict[str, Any] | None) -> None:
        self._meta = value

    @property
    def has_meta(self) -> bool:
        return bool(self._meta)

    def noted(self, key: str) -> Any:
        """What somebody attached under a key of `meta`; None: nothing.  Makes no `meta`."""
        return None if self._meta is None else self._meta.get(key)

    @property
    def own_meta(self) -> Mapping[str, Any]:
        """What is kept there, without what is only shown."""
        return self._meta or {}

    def _show(self, meta: dict[str, Any]) -> None:
        """Put in what is to be seen there but is kept elsewhere."""

    def _assign(self, other: fields.Record) -> None:
        fields.Record._assign(self, other)
        if self._meta is not None:  # other threads may be adding to theirs
            self._meta = dict(self._meta)

    def _merge_meta(self, mine: dict[str, Any] | None) -> None:
        """Have those of `mine` too."""
        if mine:
            self._meta = {**mine, **(self._meta or {})}

    def _picture(
        self, lines: Iterable[str], inside: Iterable[str], indent: int, linesep: str
    ) -> str:
        head = f"{type(self).__name__}: {self.name!r}"
        return pictures.picture(head, lines, inside, indent, linesep)


# -- items of a Map --------------------------------------------------------------------------------

#: Where the outcome is kept that leads to a state.
_OUTCOMES: Final[Mapping[str, str]] = {
    states.SUCCESS: "results",
    states.FAILURE: "failure",
    states.REVERTED: "revert_results",
    states.REVERT_FAILURE: "revert_failure",
}


class LogChunk(NamedTuple):
    """What an execution of an atom logged, or a part of it: of an item of a `Map` where `item` is
    not -1."""

    atom_uuid: str
    attempt: int
    item: int
    lines: tuple[task_logs.Line, ...]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class ItemDetail(fields.Record):
    """What is known of one item of a `Map`: its value, its state, what it came to.

    `attempt` is the execution of the atom that the item belongs to, also while it is reverted.
    `order` says as which of them it finished, from 1 (0: it has not).  States and results are those
    of a task, without the ones in which something is under way: the atom's own state tells that.
    `worker`, `submitted`, `started` and `ended` mean what they mean in an `Attempt`.

    A Map may have 100,000 of them, so that what is written of one must not cost what all of them
    cost: each is a record of its own, beside the row of its atom.
    """

    index: int = field(fields.NUMBER, 0, given=True)
    value: Any = field(fields.VALUE, given=True)
    attempt: int = field(fields.NUMBER, 0, given=True)
    order: int = field(fields.NUMBER, 0)
    state: str = field(fields.OneOf(states.ATOM_STATES), states.PENDING)
    results: Any = field(fields.VALUE)
    failure: ft.Failure | None = field(fields.FAILURE)
    revert_results: Any = field(fields.VALUE)
    revert_failure: ft.Failure | None = field(fields.FAILURE)
    worker: str | None = field(fields.PLAIN)
    submitted: float | None = field(fields.PLAIN)
    started: float | None = field(fields.PLAIN)
    ended: float | None = field(fields.PLAIN)

    @property
    def runtime(self) -> float | None:
        """Seconds from the start to the end of what was done last, never less than none."""
        return history.runtime(self.started, self.ended)

    def put(self, state: str, result: Any) -> None:
        """Enter `state` with `result`: a value, or the failure when `state` is a failed one."""
        self.state = state
        if state != states.REVERT_FAILURE:  # that may be reverted again
            self.results = None
        setattr(self, _OUTCOMES[state], result)

    def revert_again(self) -> None:
        """If its revert failed, go back to where it was before that."""
        if self.state == states.REVERT_FAILURE:
            self.state = states.SUCCESS if self.failure is None else states.FAILURE
            self.revert_failure = None

    def copy(self, deep: bool = True) -> ItemDetail:
        """Copy the record, and (`deep`) its values too; failures are shared: they never change."""
        clone = ItemDetail()
        (clone._assign_copies if deep else clone._assign)(self)
        return clone

    @classmethod
    def _bare(cls, data: Mapping[str, Any]) -> ItemDetail:
        try:
            return cls(data["index"], None, data["attempt"])
        except (LookupError, TypeError):
            raise exceptions.InvalidFormat(
                f"The description of an item has an 'index' and an 'attempt', not {data!r:.80}"
            ) from None

    def __repr__(self) -> str:
        return f"<ItemDetail {self.index} {self.state} #{self.attempt}>"


class Items:
    """The items of one attempt of a `Map`, by index.

    The list was fixed when the attempt began.  `attempt` and `resumed` (how often it went on after
    an interruption) belong to the row of the atom, the items are written on their own.
    """

    __slots__ = ("_details", "attempt", "resumed")

    def __init__(self, attempt: int, values: Iterable[Any] = (), resumed: int = 0) -> None:
        self.attempt = attempt
        self.resumed = resumed
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
        """Add the next item, or replace the one of the same index.

        One of another attempt is of the past, and left out.

        :raises ValueError: the items before it are missing.
        """
        if item.attempt != self.attempt:
            return
        if item.index == len(self._details):
            self._details.append(item)
        elif item.index < len(self._details):
            self._details[item.index] = item
        else:
            raise ValueError(f"Item {item.index} came before item {len(self._details)}")

    def copy(self, deep: bool = True) -> Items:
        """Copy the items, and (`deep`) their values too."""
        clone = self.emptied()
        clone._details = [item.copy(deep) for item in self._details]
        return clone

    def emptied(self) -> Items:
        """What the row of the atom says of them, without any."""
        return Items(self.attempt, (), self.resumed)

    def __repr__(self) -> str:
        return f"<Items {len(self)} #{self.attempt}>"


class _ItemsKind(fields.Kind):
    """What belongs to the row of the atom; the items are to be `put`."""

    def dump(self, value: Items, name: str, typed: bool) -> Any:
        return {"attempt": value.attempt, "resumed": value.resumed}

    def load(self, data: Any, name: str, typed: bool) -> Items | None:
        return Items(data["attempt"], (), data.get("resumed", 0)) if data else None


# -- atoms -----------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class AtomDetail(_Named):
    """What is known of one atom: its state, its latest results and failures, its latest attempt.

    `attempt` is 0 before the first one, and only rises: it counts `executions` and `reversions`
    together, and says which of two attempts is the later one.  `worker`, `submitted`, `started` and
    `ended` are those of that attempt (see `Attempt`).  `epoch` is the number under which its
    request is published: it rises when whoever resumes the flow may have to publish it again.
    `progress` is what the task itself last told (None: nothing, the state says it).  `revert_*`
    hold what the latest reversion returned or raised.  `items` are those of the latest execution of
    a `Map` (None: none so far, or no Map); they are records beside this one.

    `past` are the attempts before the latest one, the oldest first: the last 20 of them, after
    `attempts_dropped` others.  `incidents` are the last 50 losses of workers that had the atom, and
    times it was sent again.
    """

    state: str | None = field(fields.OneOf(states.ATOM_STATES))
    intention: str = field(fields.OneOf(states.INTENTIONS), states.EXECUTE)
    version: str | None = field(fields.PLAIN)
    results: Any = field(fields.VALUE)
    failure: ft.Failure | None = field(fields.FAILURE)
    revert_results: Any = field(fields.VALUE)
    revert_failure: ft.Failure | None = field(fields.FAILURE)
    attempt: int = field(fields.NUMBER, 0)
    reversions: int = field(fields.NUMBER, 0)
    epoch: int = field(fields.NUMBER, 0)
    action: str = field(fields.PLAIN, "execute")
    worker: str | None = field(fields.PLAIN)
    submitted: float | None = field(fields.PLAIN)
    started: float | None = field(fields.PLAIN)
    ended: float | None = field(fields.PLAIN)
    progress: float | None = field(fields.PLAIN)
    progress_details: Any = field(fields.VALUE)
    items: Items | None = field(_ItemsKind())
    past: tuple[Attempt, ...] = field(fields.Tuples(Attempt), (), rare=True)
    attempts_dropped: int = field(fields.PLAIN, 0, rare=True)
    incidents: tuple[Incident, ...] = field(fields.Tuples(Incident), (), rare=True)
    #: How the latest attempt ended, when that was forgotten by `reset`.
    _came_to: history.Outcome | None = field(fields.PLAIN, rare=True)

    kind: ClassVar[str] = "atom"

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
            self.past, dropped = history.kept(self.past, last)
            self.attempts_dropped += dropped
            self._came_to = None

    def add_incident(self, incident: Incident) -> None:
        """Remember what happened to an attempt; from any thread."""
        with _incidents_lock:
            self.incidents = history.with_incident(self.incidents, incident)

    def set_incident_worker(self, worker: str, item: int = -1) -> None:
        """`worker` has what was sent again, if anything was; from any thread."""
        with _incidents_lock:
            self.incidents = history.with_worker(self.incidents, item, worker)

    def _outcome(self) -> history.Outcome:
        """How the latest attempt ended."""
        if self._came_to is not None:
            return self._came_to
        return history.outcome(
            self.action, self.state, self.ended, self.failure, self.revert_failure
        )

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
        self._came_to = outcome if outcome is not history.UNKNOWN else None
        self.results = self.revert_results = None
        self.failure = self.revert_failure = None
        self.progress = self.progress_details = None
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
        self._assign(other)
        if theirs is not None:
            if mine is None or mine.attempt != theirs.attempt:
                mine = theirs.emptied()
            mine.resumed = theirs.resumed
            self.items = mine
        return self

    def merge(self: _D, other: _D, deep_copy: bool = False) -> _D:
        """Like `update`, but meta keys only `self` has are kept; `deep_copy` shares no value."""
        if other is self:
            return self
        mine = self._meta
        self.update(other.copy() if deep_copy else other)
        self._merge_meta(mine)
        return self

    def copy(self: _D, retain_contents: bool = True) -> _D:
        """Copy the record and, deeply, its values (failures are shared: they never change).

        Its items are copied too, or (`retain_contents=False`) left out.
        """
        clone = type(self)(self.name, self.uuid)
        clone._assign_copies(self)
        if self.items is not None:
            clone.items = self.items.copy() if retain_contents else self.items.emptied()
        return clone

    def _complete(self, data: Mapping[str, Any]) -> None:
        if self._came_to is not None:
            self._came_to = self._came_to[0], self._came_to[1]
        now = bool(self.attempt) and self.action == "revert"
        if "reversions" not in data:  # nobody counted them
            self.reversions = now + sum(each.action == "revert" for each in self.past)
        self.past = history.remembered(data.get("past") or (), self.reversions - now)

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the record in a few readable lines; long values are cut."""
        return self._picture(pictures.lines_of_atom(self, self.own_meta), (), indent, linesep)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.state} #{self.attempt}>"


class TaskDetail(AtomDetail):
    """The record of a task: `results` is what `execute` returned.

    Its `meta` also has the progress, under the keys that TaskFlow keeps it in.
    """

    __slots__ = ()
    kind: ClassVar[str] = "task"

    @property
    def so_far(self) -> float | None:
        """How far the task is: what it last told, or what its state says; None before it began."""
        if self.progress is not None or self.state in (None, states.PENDING, states.IGNORE):
            return self.progress
        return 1.0 if self.state in (states.SUCCESS, states.REVERTED) else 0.0

    @property
    def own_meta(self) -> Mapping[str, Any]:
        if not self._meta:
            return {}
        own = self._meta.copy()  # other threads may be adding to it
        for key in _SHOWN:
            own.pop(key, None)
        return own

    def _show(self, meta: dict[str, Any]) -> None:
        progress = self.so_far
        if progress is not None:
            meta.update({META_PROGRESS: progress, META_PROGRESS_DETAILS: self.progress_details})
        elif META_PROGRESS in meta:
            for key in _SHOWN:
                meta.pop(key, None)

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


#: Keys of the `meta` of a task that are kept elsewhere.
_SHOWN: Final = (META_PROGRESS, META_PROGRESS_DETAILS)

#: One entry of a retry's results: what it provided, and who failed with what while that was
#: provided.
HistoryEntry = tuple[Any, dict[str, ft.Failure]]


class _TriesKind(fields.Kind):
    """The results of a retry."""

    def dump(self, value: Iterable[HistoryEntry], name: str, typed: bool) -> Any:
        return [
            [
                fields.VALUE.dump(provided, name, typed),
                {who: fields.FAILURE.dump(each, name, typed) for who, each in failures.items()},
            ]
            for provided, failures in value
        ]

    def load(self, data: Any, name: str, typed: bool) -> list[HistoryEntry]:
        return [
            (
                fields.VALUE.load(provided, name, typed),
                {who: ft.Failure.from_dict(each) for who, each in failures.items()},
            )
            for provided, failures in data or ()
        ]

    def copy(self, value: Iterable[HistoryEntry]) -> list[HistoryEntry]:
        return [(fields.VALUE.copy(provided), dict(failures)) for provided, failures in value]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class RetryDetail(AtomDetail):
    """The record of a retry: `results` is its history, one entry for each time it executed."""

    results: list[HistoryEntry] = field(_TriesKind())
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

    def put(self, state: str, result: Any) -> None:
        self.state = state
        if state == states.SUCCESS:
            self.results.append((result, {}))
            self.failure = self.revert_results = self.revert_failure = None
        elif state == states.FAILURE:
            self.failure = result
            self.revert_results = self.revert_failure = None
        elif state == states.REVERTED:
            self.results = []
            self.revert_results = result
            self.revert_failure = None
        elif state == states.REVERT_FAILURE:
            self.revert_failure = result
            self.revert_results = None

    def reset(self, state: str) -> None:
        AtomDetail.reset(self, state)
        self.results = []


#: The kinds of atom records, by the names that TaskFlow keeps them under.
_TYPES: Final[Mapping[str, type[AtomDetail]]] = {
    "RETRY_DETAIL": RetryDetail,
    "TASK_DETAIL": TaskDetail,
}
ATOM_TYPES: Final = list(_TYPES)


def atom_detail_class(atom_type: str) -> type[AtomDetail]:
    """The class of atom records of one of `ATOM_TYPES`.

    :raises TypeError: there is no such type.
    """
    if atom_type not in _TYPES:
        raise TypeError(f"Unknown atom type {atom_type!r}; known: {', '.join(ATOM_TYPES)}")
    return _TYPES[atom_type]


def atom_detail_type(atom_detail: AtomDetail) -> str:
    """Which of `ATOM_TYPES` an atom record is of.

    :raises TypeError: it is none.
    """
    for name, kind in _TYPES.items():
        if type(atom_detail) is kind:
            return name
    raise TypeError(f"Unknown atom {atom_detail!r}: not the record of a task or a retry")


# -- flows and books -------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class FlowDetail(_Named):
    """The record of one flow, and those of its atoms.

    `epoch` is that of the flow's latest lease when the record was read; backends set it, and it is
    not written.  `created` is when the record was made (unix seconds; None: nobody knows any more).
    `history` are the changes of the flow's state, the oldest first, the last 50 of them.
    `outlined` names the outline that is kept of the flow, if one is (see `Outline.digest`).
    """

    state: str | None = field(fields.OneOf(states.FLOW_STATES))
    created: float | None = field(fields.PLAIN)
    history: tuple[Change, ...] = field(fields.Tuples(Change), ())
    outlined: str | None = field(fields.PLAIN)
    epoch: int = dataclasses.field(default=0, init=False)
    _atoms: dict[str, AtomDetail] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        _Named.__post_init__(self)
        self.created = time.time()

    @property
    def tags(self) -> Mapping[str, str]:
        """What it was made with, to be found by."""
        return listing.tags_of(self.meta.get(TAGS))

    def enter(self, state: str, at: float, why: str | None = None) -> None:
        """Be in `state` from now on, and remember that."""
        self.state = state
        self.history = history.changed(self.history, Change(state, at, why))

    @property
    def error(self) -> str | None:
        """Why the flow is in FAILURE, or REVERTED, in one line; None: it is not, or nobody knows.

        For people; it may tell secrets.
        """
        return history.error(self.state, self.history)

    def add(self, detail: AtomDetail) -> None:
        """Make `detail` part of this flow; one with the same uuid is replaced."""
        self._atoms[detail.uuid] = detail

    def add_all(self, details: Iterable[AtomDetail]) -> None:
        # No list: so many tuples at once would set off the collector of cycles.
        self._atoms.update((detail.uuid, detail) for detail in details)

    def find(self, uuid: str) -> AtomDetail | None:
        return self._atoms.get(uuid)

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
        """Take over the flow's own fields (not its atoms)."""
        uuid = self.uuid
        self._assign(other)
        self.uuid = uuid
        return self

    def become(self, other: FlowDetail) -> None:
        """Take over everything, atoms and epoch too, and nothing of before."""
        self.update(other)
        self.epoch, self._atoms = other.epoch, dict(other._atoms)

    def merge(self, other: FlowDetail, deep_copy: bool = False) -> FlowDetail:
        """Take over what `other` says of the flow and of every atom; atoms only we have stay."""
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
        """Copy the record; its atoms are copied too, or (`retain_contents=False`) left out."""
        clone = FlowDetail(self.name, self.uuid)
        clone._assign_copies(self)
        clone.epoch = self.epoch
        if retain_contents:
            clone.add_all(detail.copy() for detail in self)
        return clone

    def _complete(self, data: Mapping[str, Any]) -> None:
        self.created = data.get("created")

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the flow, and its atoms, in readable lines."""
        lines = [f"- uuid = {self.uuid}", f"- state = {self.state}"]
        lines += pictures.lines_of_meta(self._meta)
        inside = [atom.pformat(indent + pictures.STEP, linesep) for atom in self]
        return self._picture(lines, inside, indent, linesep)

    def __repr__(self) -> str:
        return f"<FlowDetail {self.name!r} {self.state} ({len(self)} atoms)>"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class LogBook(_Named):
    """A named collection of flow details.

    `created_at` and `updated_at` (None: not yet) are moments in UTC, without a time zone.
    """

    created_at: datetime | None = field(fields.MOMENT)
    updated_at: datetime | None = field(fields.MOMENT)
    _flows: dict[str, FlowDetail] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        _Named.__post_init__(self)
        self.created_at = _now()

    def add(self, detail: FlowDetail) -> None:
        self._flows[detail.uuid] = detail

    @property
    def created(self) -> float:
        """When the book was made, in unix seconds; 0 if that is not known."""
        return 0.0 if self.created_at is None else fields.aware(self.created_at).timestamp()

    def discard(self, uuid: str) -> None:
        """Let a flow be no part of this book, if it is."""
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
        """Take over the book's own fields (not its flows)."""
        uuid = self.uuid
        self._assign(other)
        self.uuid = uuid
        return self

    def merge(self, other: LogBook, deep_copy: bool = False) -> LogBook:
        """Take over what `other` says of the book and of every flow; flows only we have stay."""
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
        """Describe the book's own row; its flows describe themselves.

        `marshal_time`: with ISO 8601 texts instead of `datetime` objects.
        """
        return _with_moments(self.dump(), fields.MOMENT.dump if marshal_time else None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], unmarshal_time: bool = False) -> LogBook:
        """Make the book that `to_dict` described, with `marshal_time` or without."""
        return cls.load(_with_moments(data, fields.MOMENT.load if unmarshal_time else None))

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the book, its flows, and their atoms, in readable lines."""
        lines = [f"- uuid = {self.uuid}"]
        for name in ("created_at", "updated_at"):
            moment = getattr(self, name)
            if moment is not None:
                lines.append(f"- {name} = {moment.isoformat()}")
        lines += pictures.lines_of_meta(self._meta)
        inside = [flow.pformat(indent + pictures.STEP, linesep) for flow in self]
        return self._picture(lines, inside, indent, linesep)

    def __repr__(self) -> str:
        return f"<LogBook {self.name!r} ({len(self)} flows)>"


def _now() -> datetime:
    return fields.naive(datetime.now(timezone.utc))


def _with_moments(
    data: Mapping[str, Any], change: Callable[[Any, str, bool], Any] | None
) -> dict[str, Any]:
    found = {"created_at": None, "updated_at": None, **data}
    if change is not None:
        for key in ("created_at", "updated_at"):
            found[key] = None if found[key] is None else change(found[key], key, True)
    return found


def _merge_inside(ours: Any, theirs: Any, deep_copy: bool) -> None:
    for each in theirs:
        mine = ours.find(each.uuid)
        if mine is None:
            ours.add(each.copy() if deep_copy else each)
        else:
            mine.merge(each, deep_copy=deep_copy)
