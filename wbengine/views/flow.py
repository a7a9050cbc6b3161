"""A flow as people look at it: where it stands, why it waits, what failed, what was undone."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from wbengine import states
from wbengine.persistence import base, leases, models, owners
from wbengine.persistence.commands import FlowCommand
from wbengine.types import outline as outlines
from wbengine.views import undoing, words
from wbengine.views.atoms import AtomView
from wbengine.views.building import Building
from wbengine.views.failures import FailureView
from wbengine.views.masking import Masker
from wbengine.views.trees import NodeView, grow

__all__ = ["INTERRUPTED", "SCHEMA", "ChangeView", "FlowView", "read", "shown_state", "view"]

SCHEMA: Final = "wbengine/flow/1"
#: What is shown of a flow that is under way, by its records, and has no engine that lives.
INTERRUPTED: Final = "INTERRUPTED"
_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED})
_RESTS: Final = _ENDED | {states.SUSPENDED, states.PENDING}


def shown_state(state: str, owner: str | None, died: bool) -> str:
    """The state of a flow; INTERRUPTED where it was run by an engine that is gone."""
    return state if state in _RESTS or (owner is not None and not died) else INTERRUPTED


@dataclass(frozen=True, slots=True)
class ChangeView:
    """The flow entered `state` at a moment (unix seconds), for a reason that may be told."""

    state: str
    at: float
    why: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state, "at": words.iso(self.at), "why": self.why}


@dataclass(frozen=True)
class FlowView:
    """All that is known of a flow at a moment (`now`), with its secrets masked.

    `owner` says who runs it, in words (None: nobody), `owner_short` in two of them; `owner_died`:
    and is certainly dead.
    `created`, `started`, `ended` and `updated` (the last thing that is known to have happened) are
    unix seconds, `duration` the seconds in which it was run (None: it was not started).  `counts`
    say how many tasks are in which state, `progress` is from 0 to 1.  `atoms` are in the order of
    `outline`, which is the one to draw the view with.  `waiting` says why the flow does not go on,
    in one sentence (None: it does, or has ended).  `failures` are those of its atoms, the earliest
    first; `revert_path` is what was undone, in that order.  `wish` is what somebody wants of
    whoever runs it.  `values` are the flow's own, by name, as far as they may be shown.  `cursor`
    is where a `Watch` goes on from this view.
    """

    uuid: str
    name: str
    book_uuid: str | None
    book_name: str | None
    state: str
    owner: str | None
    owner_short: str | None
    owner_died: bool
    created: float | None
    started: float | None
    ended: float | None
    duration: float | None
    updated: float | None
    now: float
    counts: Mapping[str, int]
    progress: float
    atoms: tuple[AtomView, ...]
    waiting: str | None
    history: tuple[ChangeView, ...]
    failures: tuple[FailureView, ...]
    revert_path: tuple[undoing.Undone, ...]
    wish: str | None
    values: Mapping[str, Any]
    cursor: str | None
    outline: outlines.Outline = field(repr=False)

    @property
    def total(self) -> int:
        """How many tasks there are."""
        return sum(self.counts.values())

    @property
    def finished(self) -> bool:
        """It has come to its end: nothing more happens unless somebody runs it again."""
        return self.state in _ENDED and self.owner is None

    @property
    def shown_state(self) -> str:
        """Its state; INTERRUPTED where it was run by an engine that is gone."""
        return shown_state(self.state, self.owner, self.owner_died)

    @property
    def queued(self) -> int:
        """How many of the tasks that are under way no worker has begun yet."""
        return sum(atom.queued for atom in self.atoms)

    @property
    def error(self) -> str | None:
        """What failed first, in one line."""
        return self.failures[0].line if self.failures else None

    @cached_property
    def tree(self) -> NodeView:
        """What is inside what."""
        return grow(self.outline, self.atoms)

    @cached_property
    def _by_name(self) -> Mapping[str, AtomView]:
        found = {atom.name: atom for atom in reversed(self.atoms)}
        found.update((atom.uuid, atom) for atom in self.atoms if atom.uuid is not None)
        return found

    def atom(self, name: str) -> AtomView | None:
        """The atom of that name, or uuid."""
        return self._by_name.get(name)

    def to_dict(self, atoms: bool = True) -> dict[str, Any]:
        """Describe it for JSON; without the atoms what is left is small."""
        told: dict[str, Any] = {
            "schema": SCHEMA,
            "uuid": self.uuid,
            "name": self.name,
            "book": {"uuid": self.book_uuid, "name": self.book_name},
            "state": self.state,
            "interrupted": self.shown_state == INTERRUPTED,
            "owner": self.owner,
            "owner_died": self.owner_died,
            "created": words.iso(self.created),
            "started": words.iso(self.started),
            "ended": words.iso(self.ended),
            "updated": words.iso(self.updated),
            "duration": self.duration,
            "counts": dict(self.counts),
            "total": self.total,
            "queued": self.queued,
            "progress": self.progress,
            "waiting": self.waiting,
            "wish": self.wish,
            "error": self.error,
            "history": [change.to_dict() for change in self.history],
            "failures": [failure.to_dict() for failure in self.failures],
            "revert_path": [undone.to_dict() for undone in self.revert_path],
            "values": dict(self.values),
            "cursor": self.cursor,
        }
        if atoms:
            told["atoms"] = [atom.to_dict() for atom in self.atoms]
        return told


def read(
    connection: base.Connection,
    uuid: str,
    *,
    masker: Masker | None = None,
    now: float | None = None,
    offered: Collection[str] | None = None,
) -> FlowView:
    """Look at a flow that is kept.

    :raises NotFound: it is not.
    """
    changes = connection.get_changes(uuid)
    return view(
        changes.put_into(None),
        connection.get_outline(uuid),
        connection.get_lease(uuid),
        now=time.time() if now is None else now,
        masker=masker,
        book=book_of(connection, uuid),
        wish=connection.commands([uuid]).get(uuid),
        cursor=changes.cursor,
        offered=offered,
    )


def book_of(connection: base.Connection, uuid: str) -> tuple[str, str] | None:
    """The uuid and the name of the book that a flow is in."""
    for row in connection.list_flows(uuid=uuid, limit=1).flows:
        return row.book_uuid, row.book_name
    return None


def view(
    detail: models.FlowDetail,
    outline: outlines.Outline | None = None,
    lease: leases.Lease | None = None,
    *,
    now: float,
    masker: Masker | None = None,
    book: tuple[str, str] | None = None,
    wish: FlowCommand | None = None,
    cursor: str | None = None,
    offered: Collection[str] | None = None,
) -> FlowView:
    """Look at the records of a flow.

    Without an `outline` nothing is known of its structure but what it consists of.  `book` is the
    uuid and the name of the flow's book; `offered` the names of the tasks that live workers offer
    (None: nobody knows).  Costs O(atoms + edges).
    """
    owner = None if lease is None else lease.owner
    made = Building(
        detail,
        outline,
        masker or Masker(),
        now=now,
        owner=None if owner is None else owners.in_words(owner),
        died=owner is not None and owners.died(owner),
        offered=offered,
    )
    masker, atoms = made.masker, made.atoms()
    history = tuple(
        ChangeView(change.state, change.at, None if change.why is None else masker.text(change.why))
        for change in detail.history
    )
    started = _started(detail, atoms)
    updated = max(_moments(detail, atoms), default=None)
    until = now if made.situation.runs else updated
    return FlowView(
        uuid=detail.uuid,
        name=masker.text(detail.name),
        book_uuid=None if book is None else book[0],
        book_name=None if book is None else masker.text(book[1]),
        state=made.state,
        owner=None if made.situation.owner is None else masker.text(made.situation.owner),
        owner_short=None if owner is None else masker.text(words.owner(owner)),
        owner_died=made.situation.died,
        created=detail.created,
        started=started,
        ended=_ended(detail, atoms, made.state) if started is not None else None,
        duration=_duration(detail, atoms, started, until),
        updated=updated,
        now=now,
        counts=made.counts,
        progress=made.progress,
        atoms=atoms,
        waiting=made.waiting(atoms),
        history=history,
        failures=undoing.failures_of(atoms),
        revert_path=undoing.path(atoms),
        wish=None if wish is None else masker.text(wish.in_words()),
        values=made.values(),
        cursor=cursor,
        outline=made.outline,
    )


def _moments(detail: models.FlowDetail, atoms: Collection[AtomView]) -> Iterator[float]:
    if detail.created is not None:
        yield detail.created
    yield from (change.at for change in detail.history)
    for atom in atoms:
        latest = atom.ended or atom.started or atom.submitted
        if latest is not None:
            yield latest


def _started(detail: models.FlowDetail, atoms: Collection[AtomView]) -> float | None:
    """When it was run first, as far as that is remembered."""
    told = [change.at for change in detail.history if change.state == states.RUNNING]
    if told and len(detail.history) < 50:
        return told[0]
    # What was first is forgotten, or was never written.
    first = [each.submitted for atom in atoms for each in atom.attempts if each.submitted]
    return min([*first, *told[:1]], default=None)


def _duration(
    detail: models.FlowDetail,
    atoms: Collection[AtomView],
    started: float | None,
    until: float | None,
) -> float | None:
    """Seconds in which the flow was run: not those in which it was suspended, or had no engine."""
    if started is None:
        return None
    total, at = 0.0, started
    begin: float | None = started
    for change in detail.history:
        if change.state in _RESTS:
            total, begin = total + max(0.0, change.at - (begin or change.at)), None
        elif begin is None:
            begin = change.at
        elif change.state == states.RUNNING and change.at > started:
            # Another engine took over from one that told nobody when it ended.
            told = (
                each.ended or each.started or each.submitted or 0.0
                for atom in atoms
                for each in atom.attempts
            )
            last = max((each for each in told if each < change.at), default=begin)
            total, begin = total + max(0.0, max(last, at) - begin), change.at
        at = change.at
    return total if begin is None else total + max(0.0, (until or begin) - begin)


def _ended(detail: models.FlowDetail, atoms: Collection[AtomView], state: str) -> float | None:
    if state not in _ENDED and state != states.SUSPENDED:
        return None
    if detail.history and detail.history[-1].state == state:
        return detail.history[-1].at
    return max((atom.ended for atom in atoms if atom.ended is not None), default=None)
