"""Makes the views of a flow's atoms of its records and its outline."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from wbengine import states
from wbengine.invocation import LOCAL
from wbengine.persistence import models
from wbengine.persistence.history import Attempt, in_short
from wbengine.types import failure as ft
from wbengine.types import outline as outlines
from wbengine.views import failures, sources, structure, waiting
from wbengine.views.atoms import AtomView, AttemptView, ItemView
from wbengine.views.failures import FailureView
from wbengine.views.masking import Masker

__all__ = ["Building", "on_workers"]

#: Items of a Map that are looked at one by one.
_ITEMS: Final = 100
_WORKERS: Final = frozenset({"workers", "worker-based"})

_DONE: Final = frozenset({states.SUCCESS, states.IGNORE})
_UNDONE: Final = frozenset({states.REVERTED, states.REVERT_FAILURE})
_BUSY: Final = frozenset({states.RUNNING, states.REVERTING})
#: States in which the atom's result says something.
_WITH_RESULT: Final = frozenset({states.SUCCESS, states.REVERTING})


class Building:
    """One look at a flow: everything that its parts have in common."""

    def __init__(
        self,
        detail: models.FlowDetail,
        outline: outlines.Outline | None,
        masker: Masker,
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
        self.masker = masker.knowing(*sources.of_flow(detail))
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
        self.outline = _masked(outline, self.masker)
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
        return self.masker.text(last.why)

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
            self.masker.text(str(name)): self.masker.value(self._injected[name], name)
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
            name, kind, _, task, _ = nodes[node]
            why = None
            if state not in quiet:
                why = waiting.of_atom(node, record, state, task, blocking, at)
            if record is None or (not record.attempt and state == states.PENDING):
                uuid = None if record is None else record.uuid
                found.append(_not_begun(node, uuid, name, kind, paths[node], task, why))
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
        )

    def _is_queued(self, record: models.AtomDetail, state: str) -> bool:
        """As far as that is known: only workers tell when they begin."""
        if state not in _BUSY or record.items is not None or not self.situation.on_workers:
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
            self.masker.result(item.value),
            state if busy else item.state,
            self._text(item.worker),
            None if failure is None else self.masker.text(in_short(failure)),
            item.attempt,
            item.submitted,
            item.started,
            item.ended,
        )

    def _attempt(self, attempt: Attempt) -> AttemptView:
        return AttemptView(
            attempt.attempt,
            attempt.action,
            attempt.state,
            self._text(attempt.worker),
            attempt.submitted,
            attempt.started,
            attempt.ended,
            self._text(attempt.error),
            attempt.executions,
            attempt.reversions,
        )

    def _text(self, text: str | None) -> str | None:
        if text is None:
            return None
        said = self._said.get(text)
        if said is None:
            said = self._said[text] = self.masker.text(text)
        return said

    def _where(self, record: models.AtomDetail, name: str) -> dict[str, Any]:
        return {
            "atom": name,
            "uuid": record.uuid,
            "worker": self._text(record.worker),
            "attempt": record.attempt,
            "executions": record.executions,
            "reversions": record.reversions,
            "at": record.ended,
        }

    def _failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        where: dict[str, Any] = {}
        failure = record.failure
        if failure is None:
            for item in record.items or ():
                if item.failure is not None:
                    failure = item.failure
                    where = {
                        "item": item.index,
                        "worker": self._text(item.worker),
                        "at": item.ended,
                    }
                    break
        else:
            where = {"item": _item_of(record, failure)}
            if record.action == "revert":
                where.update(self._executed(record))
        if failure is None:
            return None
        return failures.of(failure, self.masker, **{**self._where(record, name), **where})

    def _executed(self, record: models.AtomDetail) -> dict[str, Any]:
        """Where the execution was that failed before it was reverted."""
        for attempt in reversed(record.past):
            if attempt.action == "execute":
                return {
                    "worker": self._text(attempt.worker),
                    "attempt": attempt.attempt,
                    "executions": attempt.executions,
                    "reversions": attempt.reversions,
                    "at": attempt.ended,
                }
        return {"worker": None, "attempt": 0, "executions": 0, "reversions": 0, "at": None}

    def _revert_failure(self, record: models.AtomDetail, name: str) -> FailureView | None:
        if record.revert_failure is None:
            return None
        item = next((each.index for each in record.items or () if each.revert_failure), None)
        where = {**self._where(record, name), "action": "revert", "item": item}
        return failures.of(record.revert_failure, self.masker, **where)

    def _result(self, record: models.AtomDetail, state: str) -> str | None:
        if state not in _WITH_RESULT:
            return None
        return self.masker.result(record.last_results, record.name)

    def waiting(self, atoms: Sequence[AtomView]) -> str | None:
        """Why the flow does not go on."""
        if self.state in (states.SUCCESS, states.FAILURE, states.REVERTED):
            return None
        busy = [atom for atom in atoms if atom.state in _BUSY]
        resting = [
            (atom.name, atom.waiting)
            for atom in atoms
            if atom.state == states.RETRYING and atom.waiting
        ]
        return waiting.of_flow(self.situation, busy, resting)


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


def _masked(outline: outlines.Outline, masker: Masker) -> outlines.Outline:
    nodes = outline.nodes
    names = masker.texts([node.name for node in nodes])
    notes = masker.texts([node.notes or "" for node in nodes])
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


def _not_begun(
    node: int,
    uuid: str | None,
    name: str,
    kind: str,
    path: tuple[str, ...],
    task: str | None,
    why: str | None,
) -> AtomView:
    """An atom of which nothing is known but that it is there."""
    return AtomView(
        node, uuid, name, kind, path, task, states.PENDING, states.EXECUTE, 0, "execute",
        None, None, None, None, None, (), 0, 0, 0, None, None, None, None, why,
    )  # fmt: skip
