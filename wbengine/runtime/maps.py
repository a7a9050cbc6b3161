"""Maps at work: their items begin, end, or are given back; what is stored of each.

To the plan and to the scheduler a Map is one node, in flight until its last item came back.  Only
the engine's thread calls this, but for `item_failed`.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard

from wbengine import composite_executor, exceptions, states
from wbengine import invocation as calls
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine.persistence import models
from wbengine.runtime.control import DEADLINE, GivenUp
from wbengine.types import failure as ft

__all__ = ["Idle", "ItemEvents", "MapCall", "Maps", "is_item", "resumes"]

#: States in which an interrupted attempt may have been left.
_BEGUN: Final[Mapping[str, frozenset[str]]] = {
    calls.EXECUTE: frozenset({states.RUNNING, states.PENDING}),
    calls.REVERT: frozenset({states.REVERTING, states.SUCCESS, states.FAILURE}),
}


class MapCall(NamedTuple):
    """A Map about to run, or to be reverted, item by item."""

    node: int
    task: task_module.Map
    action: calls.Action


#: Makes what takes what an item tells: of its Map's node and attempt, its index, its task, and
#: whether that is run in the engine's process, where others are not.
ItemEvents = Callable[[int, int, int, task_module.Task, bool], calls.EventSink | None]


def is_item(call: object) -> TypeGuard[calls.Invocation]:
    """Whether `call` is that of one item."""
    return isinstance(call, calls.Invocation) and call.index >= 0


class Idle(NamedTuple):
    """A Map that does not go on: with its outcome, or else none in this run.

    `begun`: some of its items are done, or may be.
    """

    call: MapCall
    outcome: calls.Outcome | None
    begun: bool


@dataclass(slots=True, eq=False)
class _Running:
    """A Map that is under way."""

    call: MapCall
    record: models.AtomDetail
    fanout: Fanout
    #: What the items are given besides themselves.
    shared: Mapping[str, Any]
    failures: Mapping[str, ft.Failure]
    takes_item: bool
    started: float
    #: Whether its items run in the engine's own process, although others do not.
    local: bool = False
    #: Whether an earlier run may have sent its items already, under the numbers they have now.
    recovered: bool = False
    #: Whether nothing more of it is executed, for what it is part of is being undone.
    undone: bool = False
    #: Whether what was in the executor was taken back.
    withdrawn: bool = False


def resumes(record: models.AtomDetail, action: calls.Action) -> bool:
    """Whether `action` goes on with what an earlier run left unfinished: it keeps its number."""
    items = record.items
    if items is None or record.action != action or record.state not in _BEGUN[action]:
        return False
    return (items.attempt == record.attempt) == (action == calls.EXECUTE)


class Maps:
    """The Maps of one run that are under way.

    Where the executor runs tasks elsewhere, those in `local_tasks` stay here.  `captures`: what
    items log is told, too.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        local_tasks: composite_executor.LocalTasks | None,
        *,
        captures: bool,
    ) -> None:
        self._storage = storage
        self._captures = captures
        self._kept = storage.backend is not None
        self._local_tasks = local_tasks
        #: By node; empty as long as a flow has none.
        self.running: dict[int, _Running] = {}
        # Those that may hand out something, in the order in which they became so.
        self._refillable: dict[int, None] = {}
        # Those of which nothing may be under way any more, although they are not done.
        self._maybe_idle: dict[int, None] = {}
        self._halted = False
        # Why nothing more is to be executed.
        self._given_up: GivenUp | None = None

    def begin(
        self, call: MapCall, record: models.AtomDetail, recovered: bool = False
    ) -> calls.Outcome | None:
        """Begin an attempt, or go on with it.

        `recovered`: whoever runs the items has to find out what became of those that are not done.
        Returns the outcome when there is nothing (more) to be done.

        :raises NotFound: an argument has no value.
        :raises TypeError: what was found is no list of items; iterating over it may raise anything.
        """
        task, action = call.task, call.action
        found = self._arguments(call, record)
        failures = calls.NO_FAILURES
        if action == calls.EXECUTE:
            values = found.pop(task.over, None)
            if record.items is None:
                self._expand(task, record, values)
        else:
            failures = self._storage.get_execute_failures()
        if record.items is None:
            return calls.Outcome(None)  # it failed before there were any
        limit, collect = task.max_in_flight, task.collects
        fanout = Fanout(record.items, action, limit, collect=collect, maybe_sent=recovered)
        now, takes_item = time.time(), task.takes_item(action)
        local = self._local_tasks is not None and task in self._local_tasks
        running = _Running(call, record, fanout, found, failures, takes_item, now, local, recovered)
        if self._given_up is not None and action == calls.EXECUTE:
            fanout.stop()
        if fanout.over:
            return self._outcome(running)
        if fanout.done:
            record.progress = fanout.done / fanout.total
        self.running[call.node] = running
        self._refillable[call.node] = None
        return None

    def _arguments(self, call: MapCall, record: models.AtomDetail) -> dict[str, Any]:
        task, items = call.task, record.items
        if call.action == calls.EXECUTE:
            rebind, optional = task.rebind, task.optional
            if items is not None:  # the list is fixed already
                rebind = {to: stored for to, stored in rebind.items() if to != task.over}
        elif items is not None and any(item.order for item in items):
            rebind, optional = task.revert_rebind, task.revert_optional
        else:
            return {}  # nothing was done, so there is nothing to undo
        return dict(self._storage.fetch_mapped_args(rebind, task.name, optional_args=optional))

    def _expand(self, task: task_module.Map, record: models.AtomDetail, values: Any) -> None:
        listed = task.listed(values)
        self._storage.check(listed, f"arguments[{task.over!r}]")
        if isinstance(values, Iterator):
            # Whoever looks next finds what this one has used up.
            self._storage.replace(record.name, task.over, values, listed)
        record.items = models.Items(record.attempt, listed)
        self._storage.writer.mark_items(record, record.items)

    def refill(
        self,
        most: int,
        events: ItemEvents,
        now: float | None = None,
        is_full: Callable[[int], bool] | None = None,
    ) -> list[calls.Invocation]:
        """What may be submitted `now` (unix seconds), at most `most` items, each with its `events`;
        of no Map of which so many wait that it `is_full`.
        """
        found: list[calls.Invocation] = []
        for node in list(self._refillable):
            if len(found) == most:
                break
            if is_full is not None and is_full(node):
                continue
            running = self.running[node]
            taken = running.fanout.take(most - len(found))
            for item in taken:
                item.submitted = now
                found.append(self._invocation(running, item, events))
            if not running.fanout.can_take:
                del self._refillable[node]
        return found

    def _invocation(
        self, running: _Running, item: models.ItemDetail, events: ItemEvents
    ) -> calls.Invocation:
        node, parent, action = running.call
        record, items, task = running.record, running.fanout.items, parent.of_item(item.index)
        arguments = running.shared
        if running.takes_item:
            arguments = {**arguments, parent.item: item.value}
        made = calls.Invocation(
            task,
            action,
            record.uuid,
            record.attempt,
            arguments,
            result=item.results if item.failure is None else item.failure,
            failures=running.failures,
            events=events(node, record.attempt, item.index, task, running.local),
            node=node,
            flow_uuid=self._storage.flow_uuid,
            priority=task.priority,
            index=item.index,
            resumed=items.resumed,
            epoch=record.epoch,
            recovered=running.recovered,
        )
        made.local = running.local
        made.captures = self._captures
        return made

    def item_failed(self, call: calls.Invocation) -> None:
        """An item of a Map failed just now: start no further ones.  From any thread."""
        running = self.running.get(call.node)
        if running is not None:
            running.fanout.item_failed()

    def holds_back(self, call: calls.Invocation) -> bool:
        """Whether an item that was handed out is not to start: its Map starts no further ones."""
        running = self.running.get(call.node)
        return running is not None and running.fanout.stopped and not call.recovered

    def to_withdraw(self, node: int) -> bool:
        """Whether what a Map has in the executor is to be taken back; True once, unless more of it
        may turn out not to have started."""
        running = self.running[node]
        if running.withdrawn or not running.fanout.stopped:
            return False
        running.withdrawn = not running.recovered
        return True

    def finish(
        self, call: calls.Invocation, outcome: calls.Outcome
    ) -> tuple[MapCall, calls.Outcome] | None:
        """Store the outcome of one item; returns that of the Map, if this was the last."""
        running = self.running[call.node]
        fanout, record, parent = running.fanout, running.record, running.call.task
        self._storage.keepable(outcome)
        if outcome.failed:
            outcome.value.belongs_to(parent._home())
        item = fanout.put(call.index, outcome)
        if record.incidents and outcome.worker not in (None, calls.LOCAL):
            record.set_incident_worker(outcome.worker, call.index)
        self._storage.writer.mark_items(record, (item,))
        record.progress = fanout.done / fanout.total
        if self._kept:
            self._storage.writer.mark(record)
        if parent._listeners is not None:
            parent.update_progress(record.progress)
        if fanout.over:
            return self._end(running)
        self._changed(call.node, fanout)
        return None

    def give_back(self, call: calls.Invocation) -> None:
        """An item that was to be submitted, or was, did not start."""
        fanout = self.running[call.node].fanout
        fanout.give_back(call.index, call.recovered)
        self._changed(call.node, fanout)

    def _changed(self, node: int, fanout: Fanout) -> None:
        if fanout.can_take:
            self._refillable[node] = None
        else:
            self._refillable.pop(node, None)
        if fanout.idle:
            self._maybe_idle[node] = None

    def halt(self) -> None:
        """Nothing more starts in this run: all of them are to be found `idle` sooner or later."""
        self._halted = True
        self._maybe_idle.update(dict.fromkeys(self.running))

    def stop(self, why: GivenUp) -> None:
        """Execute no further items, although nothing failed."""
        self._given_up = why
        for node, running in self.running.items():
            if running.call.action == calls.EXECUTE:
                running.fanout.stop()
                self._changed(node, running.fanout)

    def undo(self, scope: range, limited: Container[int]) -> list[int]:
        """Execute no further items of the Maps in a scope that is being undone, if their items end
        early then, or are `limited`; returns their nodes.
        """
        found = []
        for node, running in self.running.items():
            call = running.call
            ends = call.task.cancel_on_revert or node in limited
            if node in scope and ends and call.action == calls.EXECUTE:
                running.undone = True
                running.fanout.stop()
                self._changed(node, running.fanout)
                found.append(node)
        return found

    def idle(self) -> list[Idle]:
        """Take out those of which nothing is under way, and nothing more will be in this run.

        Those that only wait to be refilled stay.
        """
        if not self._maybe_idle:
            return []
        candidates, self._maybe_idle = self._maybe_idle, {}
        found = []
        for node in candidates:
            running = self.running.get(node)
            if running is None or not (
                running.fanout.over or (self._halted and running.fanout.idle)
            ):
                continue
            begun = self.drop(node)
            ended = begun and running.fanout.over
            outcome = self._outcome(running) if ended else None
            found.append(Idle(running.call, outcome, begun))
        return found

    def drop(self, node: int) -> bool:
        """Forget a Map that does not go on; returns whether any of its items is done, or may be."""
        self._refillable.pop(node, None)
        running = self.running.pop(node)
        return running.fanout.done > 0 or running.fanout.may_be_under_way

    def _end(self, running: _Running) -> tuple[MapCall, calls.Outcome]:
        self.drop(running.call.node)
        return running.call, self._outcome(running)

    def _outcome(self, running: _Running) -> calls.Outcome:
        fanout, call = running.fanout, running.call
        value = (
            fanout.value if fanout.decided else self._unfinished(call.task, fanout, running.undone)
        )
        return calls.Outcome(value, calls.LOCAL, running.started, time.time())

    def _unfinished(self, task: task_module.Map, fanout: Fanout, undone: bool) -> ft.Failure:
        why = self._given_up or (GivenUp(True, "it is to be undone") if undone else DEADLINE)
        done = f"{fanout.done} of its {fanout.total} items were done"
        if why.cancelled:
            return why.failure(f"Map {task.name!r}, when {done},")
        return why.failure(f"Map {task.name!r} was given up when {done}")


_DONE: Final = (states.SUCCESS, states.FAILURE)
_UNDONE: Final = (states.REVERTED, states.REVERT_FAILURE)


class Fanout:
    """The executions, or the reversions, of the items of one attempt.

    `items` tells what came of them before; what is missing is to be done.  Executions go in the
    order of the items, reversions of what finished in the opposite order of finishing.  At most
    `limit` (None: any number) are under way.  When one fails, unless `collect`, no more are handed
    out; but for those that an earlier run may have under way, if there was one (`maybe_sent`): what
    became of them is to be found out.
    """

    __slots__ = (
        "_collects",
        "_failures",
        "_filtered",
        "_limit",
        "_maybe_sent",
        "_todo",
        "action",
        "done",
        "items",
        "running",
        "stopped",
        "total",
    )

    def __init__(
        self,
        items: models.Items,
        action: calls.Action,
        limit: int | None = None,
        *,
        collect: bool = False,
        maybe_sent: bool = False,
    ) -> None:
        self.items = items
        self.action = action
        self._limit = limit
        self._collects = collect and action == calls.EXECUTE
        executes = action == calls.EXECUTE
        if executes:
            todo = [item for item in items if item.state == states.PENDING]
            self.done = len(items) - len(todo)
            bad = states.FAILURE
        else:
            todo = [item for item in items if item.state in _DONE]
            todo.sort(key=lambda item: -item.order)
            self.done = sum(item.state in _UNDONE for item in items)
            bad = states.REVERT_FAILURE
        self._todo = deque(item.index for item in todo)
        # What an earlier run handed out: never more at a time, and in this order.
        self._maybe_sent = set(itertools.islice(self._todo, limit if maybe_sent else 0))
        # Whether only such are left to be done.
        self._filtered = False
        #: How many there are to be done in all, and how many of them are.
        self.total = self.done + len(todo)
        #: How many were handed out and did not come back.
        self.running = 0
        # Those that failed, in the order in which they did.
        self._failures = [item for item in items if item.state == bad]
        self._failures.sort(key=lambda item: item.order)
        #: No more are handed out.
        self.stopped = bool(self._failures) and not self._collects

    def take(self, most: int) -> list[models.ItemDetail]:
        """Hand out what may go now, at most `most` of them."""
        room = min(most, self._left)
        if self._limit is not None:
            room = min(room, self._limit - self.running)
        found = [self.items[self._todo.popleft()] for _ in range(room)]
        self.running += len(found)
        return found

    def item_failed(self) -> None:
        """An item failed: hand out no more, unless that does not matter.  From any thread."""
        if not self._collects:
            self.stopped = True

    def stop(self) -> None:
        """Hand out no more, whatever becomes of those under way."""
        self.stopped = True

    def put(self, index: int, outcome: calls.Outcome) -> models.ItemDetail:
        """What was handed out came to an end; returns its record, which tells so."""
        item, failed = self.items[index], outcome.failed
        self.running -= 1
        self.done += 1
        if self.action == calls.EXECUTE:
            item.order = self.done
            item.put(states.FAILURE if failed else states.SUCCESS, outcome.value)
        else:
            item.put(states.REVERT_FAILURE if failed else states.REVERTED, outcome.value)
        item.worker, item.started, item.ended = outcome.worker, outcome.started, outcome.ended
        if failed:
            if self._collects and outcome.value.check(exceptions.Cancelled):
                # Somebody asked for it to end: no failure like others.
                self._collects = False
                self._failures.insert(0, item)
            else:
                self._failures.append(item)
            self.item_failed()
        return item

    def give_back(self, index: int, maybe_sent: bool = False) -> None:
        """What was handed out did not start after all, or not in this run (`maybe_sent`)."""
        self.running -= 1
        if not maybe_sent:
            self._maybe_sent.discard(index)
        if index in self._maybe_sent or not self._filtered:
            self._todo.appendleft(index)

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self.running == 0

    @property
    def over(self) -> bool:
        """Nothing is under way, and nothing will be."""
        return self.running == 0 and not self._left

    @property
    def decided(self) -> bool:
        """`value` has a meaning: all is done, or something failed where that ends it."""
        return self.done == self.total or (bool(self._failures) and not self._collects)

    @property
    def can_take(self) -> bool:
        """`take` would hand out something."""
        return self._left > 0 and self.running != self._limit

    @property
    def may_be_under_way(self) -> bool:
        """Something may be under way that was not handed out."""
        return not self._maybe_sent.isdisjoint(self._todo)

    @property
    def _left(self) -> int:
        """How many are still to be handed out."""
        if self.stopped and not self._filtered:
            self._filtered = True
            self._todo = deque(filter(self._maybe_sent.__contains__, self._todo))
        return len(self._todo)

    @property
    def value(self) -> Any:
        """What it amounts to, once `over`: the results in the order of the items, or a failure."""
        if self._failures and not self._collects:
            item = self._failures[0]
            return item.failure if self.action == calls.EXECUTE else item.revert_failure
        if self.action == calls.REVERT:
            return [item.revert_results for item in self.items]
        return [item.results if item.failure is None else item.failure for item in self.items]
