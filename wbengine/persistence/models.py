"""The records an engine writes: log book -> flow detail -> atom details (-> items of a `Map`).

A record is plain data: it checks nothing and writes itself nowhere.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.persistence import histories, pictures
from wbengine.persistence.annotated import Annotated
from wbengine.persistence.atom_details import AtomDetail, TaskDetail
from wbengine.persistence.attempts import Attempt
from wbengine.persistence.histories import Change
from wbengine.persistence.identities import identity_in, new_uuid, new_uuids
from wbengine.persistence.item_details import ItemDetail, Items
from wbengine.persistence.retry_details import RetryDetail

__all__ = [
    "LogBook",
    "FlowDetail",
    "AtomDetail",
    "TaskDetail",
    "RetryDetail",
    "ItemDetail",
    "Items",
    "ATOM_TYPES",
    "Attempt",
    "Change",
    "INJECTOR",
    "atom_detail_class",
    "atom_detail_type",
    "detail_from_dict",
    "new_uuid",
    "new_uuids",
]

#: States in which the record of a task that did not fail holds the result of `execute`.
WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})

#: Name of the record that keeps what was injected for the whole flow: it is no atom's.
INJECTOR: Final = "_wbengine_injector"

_NOTHING: Final[Mapping[str, Any]] = {}


def _now() -> datetime:
    return _naive(datetime.now(timezone.utc))


def _naive(moment: datetime) -> datetime:
    """A moment in UTC that does not say so, as TaskFlow's: the two kinds cannot be compared."""
    if moment.tzinfo is None:
        return moment
    return moment.astimezone(timezone.utc).replace(tzinfo=None)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def _text_of(moment: datetime | None) -> str | None:
    return None if moment is None else _aware(moment).isoformat()


def _moment_of(text: str | None) -> datetime | None:
    return None if text is None else _naive(datetime.fromisoformat(text))


_ATOM_KINDS: Final[Mapping[str, type[AtomDetail]]] = {"task": TaskDetail, "retry": RetryDetail}


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


def detail_from_dict(kind: str, data: Mapping[str, Any]) -> AtomDetail:
    """Make the atom record of `kind` ('task' or 'retry') from what its `to_dict` said.

    :raises InvalidFormat: there is no such kind.
    """
    if kind not in _ATOM_KINDS:
        raise exceptions.InvalidFormat(f"{kind!r} is no kind of atom; known: task, retry")
    return _ATOM_KINDS[kind].from_dict(data)


class FlowDetail(Annotated):
    """The record of one flow, and those of its atoms.

    `epoch` is that of the flow's latest lease when the record was read; backends set it, and it is
    not written.  `created` is when the record was made (unix seconds; None: nobody knows any more).
    `history` are the changes of the flow's state, the oldest first, the last 50 of them.
    `outlined` names the outline that is kept of the flow, if one is (see `Outline.digest`).
    """

    __slots__ = ("_atoms", "created", "epoch", "history", "name", "outlined", "state", "uuid")

    def __init__(self, name: str, uuid: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.uuid = uuid if uuid is not None else new_uuid()
        self.state: str | None = None
        self.epoch = 0
        self.created: float | None = time.time()
        self.history: tuple[Change, ...] = ()
        self.outlined: str | None = None
        self._atoms: dict[str, AtomDetail] = {}

    def enter(self, state: str, at: float, why: str | None = None) -> None:
        """Be in `state` from now on, and remember that."""
        self.state = state
        self.history = histories.keep(self.history, Change(state, at, why))

    @property
    def error(self) -> str | None:
        """Why the flow is in FAILURE, or REVERTED, in one line; None: it is not, or nobody knows.

        For people; it may tell secrets.
        """
        return histories.error(self.state, self.history)

    def add(self, detail: AtomDetail) -> None:
        """Make `detail` part of this flow; one with the same uuid is replaced."""
        self._atoms[detail.uuid] = detail

    def add_all(self, details: Iterable[AtomDetail]) -> None:
        self._atoms.update([(detail.uuid, detail) for detail in details])

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
        self.name, self.state = other.name, other.state
        self.created, self.history = other.created, other.history
        self.outlined = other.outlined
        self._meta = None if other._meta is None else dict(other._meta)
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
        if deep_copy and self._meta is not None:
            self._meta = copy.deepcopy(dict(self._meta))
        if mine:
            self._meta = {**mine, **(self._meta or {})}
        for theirs in other:
            ours = self._atoms.get(theirs.uuid)
            if ours is None:
                self.add(theirs.copy() if deep_copy else theirs)
            else:
                ours.merge(theirs, deep_copy=deep_copy)
        return self

    def copy(self, retain_contents: bool = True) -> FlowDetail:
        """Copy the record; its atoms are copied too, or (`retain_contents=False`) left out."""
        clone = FlowDetail(self.name, self.uuid)
        clone.state, clone.epoch = self.state, self.epoch
        clone.created, clone.history = self.created, self.history
        clone.outlined = self.outlined
        clone._meta = None if self._meta is None else copy.deepcopy(dict(self._meta))
        if retain_contents:
            clone.add_all(detail.copy() for detail in self)
        return clone

    def to_dict(self) -> dict[str, Any]:
        """Describe the flow's own row; its atoms describe themselves."""
        return {
            "name": self.name,
            "uuid": self.uuid,
            "state": self.state,
            "meta": dict(self._meta or _NOTHING),
            "created": self.created,
            "history": [list(change) for change in self.history],
            "outlined": self.outlined,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FlowDetail:
        record = cls(*identity_in(data))
        record.state = data.get("state")
        record.created = data.get("created")
        record.outlined = data.get("outlined")
        record.history = tuple(Change(*told) for told in data.get("history") or ())
        record._meta = dict(data["meta"]) if data.get("meta") else None
        return record

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the flow, and its atoms, in readable lines."""
        lines = [f"- uuid = {self.uuid}", f"- state = {self.state}"]
        lines += pictures.lines_of_meta(self._meta)
        inside = [atom.pformat(indent + pictures.STEP, linesep) for atom in self]
        return pictures.picture(f"FlowDetail: {self.name!r}", lines, inside, indent, linesep)

    def __repr__(self) -> str:
        return f"<FlowDetail {self.name!r} {self.state} ({len(self)} atoms)>"


class LogBook(Annotated):
    """A named collection of flow details.

    `created_at` and `updated_at` (None: not yet) are moments in UTC, without a time zone.
    """

    __slots__ = ("_flows", "created_at", "name", "updated_at", "uuid")

    def __init__(self, name: str, uuid: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.uuid = uuid if uuid is not None else new_uuid()
        self.created_at: datetime | None = _now()
        self.updated_at: datetime | None = None
        self._flows: dict[str, FlowDetail] = {}

    def add(self, detail: FlowDetail) -> None:
        self._flows[detail.uuid] = detail

    @property
    def created(self) -> float:
        """When the book was made, in unix seconds; 0 if that is not known."""
        return 0.0 if self.created_at is None else _aware(self.created_at).timestamp()

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
        self.name = other.name
        self.created_at, self.updated_at = other.created_at, other.updated_at
        self._meta = None if other._meta is None else dict(other._meta)
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
        for flow in other:
            ours = self._flows.get(flow.uuid)
            if ours is None:
                self.add(flow.copy() if deep_copy else flow)
            else:
                ours.merge(flow, deep_copy=deep_copy)
        return self

    def copy(self, retain_contents: bool = True) -> LogBook:
        clone = LogBook(self.name, self.uuid)
        clone.created_at, clone.updated_at = self.created_at, self.updated_at
        clone._meta = None if self._meta is None else copy.deepcopy(dict(self._meta))
        if retain_contents:
            for flow in self:
                clone.add(flow.copy())
        return clone

    def to_dict(self, marshal_time: bool = False) -> dict[str, Any]:
        """Describe the book's own row; its flows describe themselves.

        `marshal_time`: with ISO 8601 texts instead of `datetime` objects.
        """
        moments = (self.created_at, self.updated_at)
        created_at, updated_at = map(_text_of, moments) if marshal_time else moments
        return {
            "name": self.name,
            "uuid": self.uuid,
            "meta": dict(self._meta or _NOTHING),
            "created_at": created_at,
            "updated_at": updated_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], unmarshal_time: bool = False) -> LogBook:
        """Make the book that `to_dict` described, with `marshal_time` or without."""
        record = cls(*identity_in(data))
        moments = (data.get("created_at"), data.get("updated_at"))
        record.created_at, record.updated_at = (
            map(_moment_of, moments) if unmarshal_time else moments
        )
        record._meta = dict(data["meta"]) if data.get("meta") else None
        return record

    def pformat(self, indent: int = 0, linesep: str = "\n") -> str:
        """Describe the book, its flows, and their atoms, in readable lines."""
        lines = [f"- uuid = {self.uuid}"]
        for name in ("created_at", "updated_at"):
            moment = getattr(self, name)
            if moment is not None:
                lines.append(f"- {name} = {moment.isoformat()}")
        lines += pictures.lines_of_meta(self._meta)
        inside = [flow.pformat(indent + pictures.STEP, linesep) for flow in self]
        return pictures.picture(f"LogBook: {self.name!r}", lines, inside, indent, linesep)

    def __repr__(self) -> str:
        return f"<LogBook {self.name!r} ({len(self)} flows)>"
