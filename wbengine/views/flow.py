"""A flow as people look at it: where it stands, why it waits, what failed, what was undone."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from wbengine import states
from wbengine.invocation import LOCAL
from wbengine.persistence import base, changes, leases, models, owners
from wbengine.persistence.commands import FlowCommand
from wbengine.persistence.history import Attempt, in_short
from wbengine.types import failure as ft
from wbengine.types import outline as outlines
from wbengine.views import formatting, redaction, secrets, structure, waiting
from wbengine.views.atoms import (
    AtomView,
    AttemptView,
    FailureView,
    IncidentView,
    ItemView,
    Undone,
    failure_of,
    failures_of,
    revert_path,
)
from wbengine.views.redaction import Redactor
from wbengine.views.structure import NodeView, grow

__all__ = [
    "Building",
    "ChangeView",
    "FlowRecords",
    "FlowView",
    "INTERRUPTED",
    "QUEUED",
    "SCHEMA",
    "on_workers",
    "read",
    "shown_state",
    "view",
]

#: Items of a Map that are looked at one by one.
_ITEMS: Final = 100
_WORKERS: Final = frozenset({"workers", "worker-based"})

_DONE: Final = frozenset({states.SUCCESS, states.IGNORE})
_UNDONE: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})
_BUSY: Final = frozenset({states.RUNNING, states.REVERTING})
#: The attempt at an atom whose attempts are not kept any more.
_FORGOTTEN: Final = Attempt(0, "execute", None, None, None)
#: States in which the atom's result says something.
_WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})


class Building:
    """One look at a flow: everything that its parts have in common."""

    def __init__(
        self,
        detail: models.FlowDetail,
        outline: outlines.Outline | None,
        redactor: Redactor,
        *,
        now: float,
        owner: str | None,
        died: bool,
        offered: Collection[str] | None,
    ) -> None:
        self._detail = detail
        self.state = detail.state or states.PENDING
        records = [atom for atom in detail if atom.name != models.INJECTOR]
        self._injected: Mapping[str, Any] = next(
            (atom.results or {} for atom in detail if atom.name == models.INJECTOR), {}
        )
        self.redactor = redactor
        by_name = {record.name: record for record in records}
        if outline is None:
            outline = structure.outline_of(detail, records)
        else:
            known = {node.name for node in outline.nodes if node.kind != outlines.FLOW}
            outline = structure.with_others(
                outline, (record for record in records if record.name not in known)
            )
        # What was masked before: there are few workers, and few kinds of errors.
        self._said: dict[str, str] = {}
        self._records: list[models.AtomDetail | None] = [
            None if node.kind == outlines.FLOW else by_name.get(node.name) for node in outline.nodes
        ]
        self.outline = _masked(outline, self.redactor)
        self._structure = structure.Structure(self.outline)
        self.counts = Counter(self._state(node) for node in self._structure.tasks())
        self.situation = waiting.Situation(
            self.state, now, owner, died, self._suspended(), offered, on_workers(detail)
        )

    def _state(self, node: int) -> str:
        record = self._records[node]
        return (record.state if record is not None else None) or states.PENDING

    def _suspended(self) -> str | None:
        last = self._detail.history[-1] if self._detail.history else None
        for change in reversed(self._detail.history):
            if change.state not in (states.SUSPENDED, states.SUSPENDING):
                break
            if change.why is not None:
                last = change
                break
        if last is None or last.why is None or last.state not in _SUSPENDED:
            return None
        return self.redactor.text(last.why)

    @property
    def progress(self) -> float:
        """How much of the flow is done, from 0 to 1."""
        if self.state == states.SUCCESS:
            return 1.0
        total = sum(self.counts.values())
        if not total:
            return 0.0
        done = float(sum(self.counts[state] for state in _DONE))
        for record in self._records:
            if record is not None and record.state == states.RUNNING:
                done += min(max(record.progress or 0.0, 0.0), 1.0)
        return min(1.0, done / total)

    def values(self) -> dict[str, Any]:
        """The flow's own values, as far as they may be shown."""
        names = sorted(self._injected, key=str)
        return {
            self.redactor.text(str(name)): self.redactor.value(self._injected[name], name)
            for name in names
        }

    def atoms(self) -> tuple[AtomView, ...]:
        """The views of all atoms, in the order of the outline."""
        blocking = waiting.Blocking(self._structure, self._state)
        at, found = self.situation, []
        nodes, paths, quiet = self.outline.nodes, self._structure.paths, self._quiet()
        records = self._records
        for node in self._structure.atoms():
            record = records[node]
            state = (record.state if record is not None else None) or states.PENDING
            name, kind, _, task, *_ = nodes[node]
            why = None
            if state not in quiet:
                why = waiting.of_atom(node, record, state, task, blocking, at)
            if record is None or (not record.attempt and state == states.PENDING):
                uuid = None if record is None else record.uuid
                found.append(AtomView(node, uuid, name, kind, paths[node], task, waiting=why))
            else:
                found.append(self._atom(node, record, state, name, kind, paths[node], task, why))
        return tuple(found)

    def _quiet(self) -> Collection[str]:
        """States in which an atom has nothing to wait for, whatever else is said of it."""
        if self.state == states.SUCCESS:
            return (states.SUCCESS, states.REVERTED, states.REVERT_FAILURE)
        return _UNDONE

    def _atom(
        self,
        node: int,
        record: models.AtomDetail,
        state: str,
        name: str,
        kind: str,
        path: tuple[str, ...],
        task: str | None,
        why: str | None,
    ) -> AtomView:
        return AtomView(
            node,
            record.uuid,
            name,
            outlines.MAP if record.items is not None else kind,
            path,
            task,
            state,
            record.intention,
            record.attempt,
            record.action,
            self._text(record.worker),
            record.submitted,
            record.started,
            record.ended,
            _progress(record, state),
            tuple([self._attempt(each) for each in record.all_attempts]),
            record.attempts_dropped,
            record.executions,
            record.reversions,
            self._failure(record, name),
            self._revert_failure(record, name),
            self._result(record, state),
            None if record.items is None else Counter(item.state for item in record.items),
            why,
            self._is_queued(record, state),
            self._items(record, state),
            tuple([self._incident(each) for each in record.incidents]),
        )

    def _is_queued(self, record: models.AtomDetail, state: str) -> bool:
        """As far as that is known: only workers tell when they begin."""
        if state not in _BUSY or record.items is not None or not self.situation.on_workers:
            return False
        if record.noted(waiting.WAITS_FOR) is not None:
            return False
        return self.situation.runs and record.started is None and record.progress is None

    def _items(self, record: models.AtomDetail, state: str) -> tuple[ItemView, ...]:
        if record.items is None:
            return ()
        shown = heapq.nsmallest(
            _ITEMS, record.items, key=lambda item: (item.failure is None, item.index)
        )
        return tuple(self._item(item, state) for item in shown)

    def _item(self, item: models.ItemDetail, state: str) -> ItemView:
        failure = item.revert_failure or item.failure
        busy = state in _BUSY and item.submitted is not None and item.ended is None
        return ItemView(
            item.index,
            self.redactor.result(item.value),
            state if busy else item.state,
            self._text(item.worker),
            None if failure is None else self.redactor.text(in_short(failure)),
            item.attempt,
            item.submitted,
            item.started,
            item.ended,
        )

    def _incident(self, incident: models.Incident) -> IncidentView:
        return IncidentView(
            incident.event,
            incident.at,
            incident.attempt,
            self._text(incident.worker),
            self._text(incident.lost),
            None if incident.item < 0 else incident.item,
        )

    def _attempt(self, attempt: Attempt) -> AttemptView:
        worker, error = self._text(attempt.worker), self._text(attempt.error)
        made = AttemptView(*attempt)
        if (worker, error) == (made.worker, made.error):
            return made  # there is hardly ever a secret in it
        return made._replace(worker=worker, error=error)

    def _text(self, text: str | None) -> str | None:
        if text is None:
            return None
        said = self._said.get(text)
        if said is None:
            said = self._said[text] = self.redactor.text(text)
        return said

    def _failure_of(
        self, failure: ft.Failure, tried: Attempt | models.AtomDetail, **where: Any
    ) -> FailureView:
        """`tried` is the attempt that failed, or its record; `where` says what is known better."""
        found = {
            "worker": self._text(tried.worker),
            "attempt": tried.attempt,
            "executions": tried.executions,
            "reversions": tried.reversions,
            "at": tried.ended,
        }
        return failure_of(failure, self.redactor, **{**found, **where})

    def _failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        where: dict[str, Any] = {"atom": name, "uuid": record.uuid}
        failure = record.failure
        if failure is None:
            failed = next((item for item in record.items or () if item.failure is not None), None)
            if failed is None or failed.failure is None:
                return None
            where |= {"item": failed.index, "worker": self._text(failed.worker), "at": failed.ended}
            return self._failure_of(failed.failure, record, **where)
        where["item"] = _item_of(record, failure)
        if record.action != "revert":
            return self._failure_of(failure, record, **where)
        # The execution that failed before it was reverted.
        executed = (each for each in reversed(record.past) if each.action == "execute")
        return self._failure_of(failure, next(executed, _FORGOTTEN), **where)

    def _revert_failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        if record.revert_failure is None:
            return None
        item = next((each.index for each in record.items or () if each.revert_failure), None)
        where = {"atom": name, "uuid": record.uuid, "action": "revert", "item": item}
        return self._failure_of(record.revert_failure, record, **where)

    def _result(self, record: models.AtomDetail, state: str) -> str | None:
        if state not in _WITH_RESULT:
            return None
        return self.redactor.result(record.last_results, record.name)

    def waiting(self, atoms: Sequence[AtomView]) -> str | None:
        """Why the flow does not go on."""
        if self.state in states.FLOW_ENDED:
            return None
        busy = [atom for atom in atoms if atom.state in _BUSY]
        if self.situation.parked:
            noted = {
                record.name
                for record in self._records
                if record is not None and record.noted(waiting.WAITS_FOR) is not None
            }
            busy = [atom for atom in atoms if atom.name in noted]
        resting = [
            (atom.name, atom.waiting)
            for atom in atoms
            if atom.state == states.RETRYING and atom.waiting
        ]
        nodes = self.outline.nodes
        limited = [
            (atom.name, atom.waiting)
            for atom in atoms
            if atom.state == states.PENDING
            and atom.waiting
            and atom.waiting == waiting.of_limit(nodes[atom.node])
        ]
        whole = waiting.of_limit(nodes[0]) if nodes[0].kind == outlines.FLOW else None
        if whole is not None and any(atom.waiting == whole for atom in atoms):
            limited = [(nodes[0].name, whole)]
        return waiting.of_flow(self.situation, busy, resting, limited)


_SUSPENDED: Final = frozenset({states.SUSPENDED, states.SUSPENDING})


def on_workers(detail: models.FlowDetail) -> bool:
    """Whether workers run the tasks of a flow, as far as its records tell."""
    noted = detail.meta.get(models.ENGINE) if detail.has_meta else None
    if noted is not None:
        return noted in _WORKERS
    return any(atom.worker not in (None, LOCAL) for atom in detail)


def _item_of(record: models.AtomDetail, failure: ft.Failure) -> int | None:
    """The index of the item that a Map failed with."""
    for item in sorted(record.items or (), key=lambda item: item.order):
        if item.failure is not None and item.failure.matches(failure):
            return item.index
    return None


def _masked(outline: outlines.Outline, redactor: Redactor) -> outlines.Outline:
    nodes = outline.nodes
    names = redactor.texts([node.name for node in nodes])
    notes = redactor.texts([node.notes or "" for node in nodes])
    if all(map(_same, nodes, names, notes)):
        return outline
    return outlines.Outline(
        tuple(
            node._replace(name=name, notes=note or None)
            for node, name, note in zip(nodes, names, notes, strict=True)
        ),
        outline.edges,
    )


def _same(node: outlines.OutlineNode, name: str, note: str) -> bool:
    return node.name == name and (node.notes or "") == note


def _progress(record: models.AtomDetail, state: str) -> float | None:
    if state in _UNDONE:
        return None  # what it told while it was reverted is no part of what is done
    if record.progress is not None:
        return min(max(float(record.progress), 0.0), 1.0)
    if state == states.SUCCESS:
        return 1.0
    items = record.items
    if items is not None and len(items):
        return sum(item.state in _DONE for item in items) / len(items)
    return None


SCHEMA: Final = "wbengine/flow/1"
#: What is shown of a flow that is under way, by its records, and has no engine that lives.
INTERRUPTED: Final = "INTERRUPTED"
#: What people see as the state of a task that is under way, and that no worker has begun yet.
QUEUED: Final = "QUEUED"
_RESTS: Final = states.FLOW_ENDED | {states.SUSPENDED, states.PENDING}
_NOT_IN_JSON: Final = frozenset({"book_uuid", "book_name", "owner_short", "now", "outline"})


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
        return formatting.as_dict(self)


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
    is where a `FlowWatcher` goes on from this view.
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
    revert_path: tuple[Undone, ...]
    wish: str | None
    values: Mapping[str, Any]
    cursor: str | None
    outline: outlines.Outline = field(repr=False)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many tasks there are."""
        return sum(self.counts.values())

    @property
    def finished(self) -> bool:
        """It has come to its end: nothing more happens unless somebody runs it again."""
        return self.state in states.FLOW_ENDED and self.owner is None

    @property
    def shown_state(self) -> str:
        """Its state; INTERRUPTED where it was run by an engine that is gone."""
        return shown_state(self.state, self.owner, self.owner_died)

    @property
    def queued(self) -> int:
        """How many of the tasks that are under way no worker has begun yet."""
        return sum(atom.queued for atom in self.atoms)

    @cached_property
    def shown_counts(self) -> Mapping[str, int]:
        """How many tasks are in which state, those that are queued apart from those that run."""
        found = Counter(self.counts)
        for atom in self.atoms:
            if atom.queued and atom.kind != outlines.RETRY:
                found[atom.state] -= 1
                found[QUEUED] += 1
        return {state: count for state, count in found.items() if count > 0}

    @property
    def error(self) -> str | None:
        """What failed first, in one line."""
        return self.failures[0].line if self.failures else None

    @cached_property
    def tree(self) -> NodeView:
        """What is inside what."""
        found = grow(self.outline, self.atoms)
        found.state = self.state
        return found

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
        left_out = _NOT_IN_JSON if atoms else {*_NOT_IN_JSON, "atoms"}
        return {
            "schema": SCHEMA,
            "book": {"uuid": self.book_uuid, "name": self.book_name},
            "interrupted": self.shown_state == INTERRUPTED,
            **formatting.as_dict(self, "total", "queued", "error", without=left_out),
        }


def read(
    connection: base.Connection,
    uuid: str,
    *,
    redactor: Redactor | None = None,
    now: float | None = None,
    offered: Collection[str] | None = None,
) -> FlowView:
    """Look at a flow that is kept.

    :raises NotFound: it is not.
    """
    records = FlowRecords(connection, uuid, redactor or Redactor())
    records.look()
    return records.view(now, offered)


class FlowRecords:
    """What is kept of a flow, and a redactor that knows its secrets.

    Reads only.  For one thread at a time.
    """

    def __init__(
        self,
        connection: base.Connection,
        uuid: str,
        redactor: Redactor,
        cursor: str | None = None,
    ) -> None:
        self.uuid = uuid
        self.redactor = redactor
        #: Where somebody else goes on after the latest look.
        self.cursor = cursor
        #: All that is known, when that is all there is.
        self.detail: models.FlowDetail | None = None
        self._connection = connection
        self._outline: outlines.Outline | None = None
        self._outlined = -1
        self._book: tuple[str, str] | None = None

    def look(self) -> changes.Changes:
        """What changed since the look before, or since the cursor.

        :raises NotFound: the flow is not kept (any more).
        """
        found = self._connection.get_changes(self.uuid, self.cursor)
        self.cursor = found.cursor
        self.redactor = self.redactor.with_secrets_from(*secrets.values_of_changes(found))
        if found.whole or self.detail is not None:
            self.detail = found.put_into(self.detail)
        return found

    def learn(self) -> models.FlowDetail:
        """Read all records, to know their secrets; the cursor stays where it was.

        :raises NotFound: the flow is not kept (any more).
        """
        found = self._connection.get_changes(self.uuid).put_into(None)
        self.redactor = self.redactor.with_secrets_of_flow(found)
        return found

    def view(self, now: float | None = None, offered: Collection[str] | None = None) -> FlowView:
        """The flow as it was at the latest look; `offered` as for the function `view`.

        :raises NotFound: the flow is not kept (any more).
        """
        if self.detail is None:
            self.detail = self.learn()
        detail = self.detail
        if self._outlined != detail.epoch or self._outline is None:
            self._outline = self._connection.get_outline(self.uuid)
            self._outlined = detail.epoch
        if self._book is None:
            for row in self._connection.list_flows(uuid=self.uuid, limit=1).flows:
                self._book = row.book_uuid, row.book_name
        return view(
            detail,
            self._outline,
            self._connection.get_lease(self.uuid),
            now=time.time() if now is None else now,
            redactor=self.redactor,
            book=self._book,
            wish=self._connection.commands([self.uuid]).get(self.uuid),
            cursor=self.cursor,
            offered=offered,
            knows_secrets=True,
        )

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()


def view(
    detail: models.FlowDetail,
    outline: outlines.Outline | None = None,
    lease: leases.Lease | None = None,
    *,
    now: float,
    redactor: Redactor | None = None,
    book: tuple[str, str] | None = None,
    wish: FlowCommand | None = None,
    cursor: str | None = None,
    offered: Collection[str] | None = None,
    knows_secrets: bool = False,
) -> FlowView:
    """Look at the records of a flow.

    Without an `outline` nothing is known of its structure but what it consists of.  `book` is the
    uuid and the name of the flow's book; `offered` the names of the tasks that live workers offer
    (None: nobody knows).  `knows_secrets`: the redactor knows those of the flow.  Costs
    O(atoms + edges).
    """
    redactor = redactor or Redactor()
    redactor = redactor if knows_secrets else redactor.with_secrets_of_flow(detail)
    owner = None if lease is None else lease.owner
    made = Building(
        detail,
        outline,
        redactor,
        now=now,
        owner=None if owner is None else owners.in_words(owner),
        died=owner is not None and owners.died(owner),
        offered=offered,
    )
    atoms = made.atoms()
    history = tuple(
        ChangeView(
            change.state, change.at, None if change.why is None else redactor.text(change.why)
        )
        for change in detail.history
    )
    started = _started(detail, atoms)
    updated = max(_moments(detail, atoms), default=None)
    until = now if made.situation.runs else updated
    return FlowView(
        uuid=detail.uuid,
        name=redactor.text(detail.name),
        book_uuid=None if book is None else book[0],
        book_name=None if book is None else redactor.text(book[1]),
        state=made.state,
        owner=None if made.situation.owner is None else redactor.text(made.situation.owner),
        owner_short=None if owner is None else redactor.text(formatting.owner(owner)),
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
        failures=failures_of(atoms),
        revert_path=revert_path(atoms),
        wish=None if wish is None else redactor.text(wish.in_words()),
        values=made.values(),
        cursor=cursor,
        outline=made.outline,
        tags=redaction.tags(detail.tags, redactor),
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
    begun = [change.at for change in detail.history if change.state == states.RUNNING]
    if begun and len(detail.history) < 50:
        return begun[0]
    # What was first is forgotten, or was never written.
    first = [each.submitted for atom in atoms for each in atom.attempts if each.submitted]
    return min([*first, *begun[:1]], default=None)


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
            moments = (
                each.ended or each.started or each.submitted or 0.0
                for atom in atoms
                for each in atom.attempts
            )
            last = max((each for each in moments if each < change.at), default=begin)
            total, begin = total + max(0.0, max(last, at) - begin), change.at
        at = change.at
    return total if begin is None else total + max(0.0, (until or begin) - begin)


def _ended(detail: models.FlowDetail, atoms: Collection[AtomView], state: str) -> float | None:
    if state not in states.FLOW_ENDED and state != states.SUSPENDED:
        return None
    if detail.history and detail.history[-1].state == state:
        return detail.history[-1].at
    return max((atom.ended for atom in atoms if atom.ended is not None), default=None)
