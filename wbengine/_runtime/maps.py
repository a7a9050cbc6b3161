"""Run the items of Maps and store the state of each.

For the plan and the scheduler, a Map is one node that is in flight until its last item ends. Only
the thread of the engine uses this module, except for `item_failed`.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine._calls import invocation as calls
from wbengine._runtime.control import DEADLINE, GivenUp, unknown_result
from wbengine._runtime.executors import composite
from wbengine._runtime.node_calls import MapCall
from wbengine.persistence import models
from wbengine.running import LOCAL
from wbengine.types import failure as ft

__all__ = ["Idle", "ItemEvents", "Maps", "is_item", "resumes"]

#: States in which an interrupted attempt may be stored.
_BEGUN: Final[Mapping[str, frozenset[str]]] = {
    calls.EXECUTE: frozenset({states.RUNNING, states.PENDING}),
    calls.REVERT: frozenset({states.REVERTING, states.SUCCESS, states.FAILURE}),
}


#: Returns the receiver of events of an item. Arguments: the record of the Map, index and task of
#: the item, and whether only this task runs in the process of the engine.
ItemEvents = Callable[[models.AtomDetail, int, task_module.Task, bool], calls.EventSink | None]


def is_item(call: object) -> TypeGuard[calls.Invocation]:
    return isinstance(call, calls.Invocation) and call.index >= 0


class Idle(NamedTuple):
    """A Map that does not continue.

    :ivar outcome: None: it has no outcome in this run.
    :ivar begun: some of its items are done, or may be.
    """

    call: MapCall
    outcome: calls.Outcome | None
    begun: bool


@dataclass(slots=True, eq=False)
class _Running:
    call: MapCall
    record: models.AtomDetail
    fanout: Fanout
    #: Arguments of all items, without the items themselves.
    shared: Mapping[str, Any]
    failures: Mapping[str, ft.Failure]
    takes_item: bool
    started: float
    #: The items run in the process of the engine although other tasks do not.
    local: bool = False
    #: An earlier run may have submitted the items with their present numbers.
    recovered: bool = False
    #: The scope of the Map is being reverted: nothing more is executed.
    undone: bool = False
    #: The items were withdrawn from the executor.
    withdrawn: bool = False


def resumes(record: models.AtomDetail, action: calls.Action) -> bool:
    """Return whether `action` continues an unfinished attempt, with its number."""
    items = record.items
    if items is None or record.action != action or record.state not in _BEGUN[action]:
        return False
    if record.ended is not None:  # A reversion that failed, and is to run again.
        return False
    return (items.attempt == record.attempt) == (action == calls.EXECUTE)


class Maps:
    """The Maps of a run that are in flight.

    :param local_tasks: tasks that run in this process although the executor runs others elsewhere.
    """

    def __init__(
        self,
        storage: storage_module.Storage,
        local_tasks: composite.LocalTasks | None,
        *,
        captures: bool,
    ) -> None:
        self._storage = storage
        self._captures = captures
        self._has_store = storage.backend is not None
        self._local_tasks = local_tasks
        self.running: dict[int, _Running] = {}
        # Maps with items to submit, oldest first.
        self._refillable: dict[int, None] = {}
        # Maps that may have no items in flight although they are not done.
        self._maybe_idle: dict[int, None] = {}
        self._halted = False
        self._given_up: GivenUp | None = None

    def begin(
        self,
        call: MapCall,
        record: models.AtomDetail,
        *,
        recovered: bool = False,
        runs_again: bool = False,
    ) -> calls.Outcome | None:
        """Begin or continue an attempt.

        :param recovered: the executor has to look up the results of items that are not done.
        :param runs_again: items that are not done may have run in an earlier run.
        :returns: the outcome if there is nothing to do.
        :raises NotFound: if an argument has no value.
        :raises TypeError: if the value is not a list of items. Iterating over it may raise any
            exception.
        """
        task, action = call.task, call.action
        shared_arguments = self._arguments(call, record)
        failures = calls.NO_FAILURES
        if action == calls.EXECUTE:
            values = shared_arguments.pop(task.over, None)
            if record.items is None:
                self._expand(task, record, values)
        else:
            failures = self._storage.get_execute_failures()
        if record.items is None:
            return calls.Outcome(None)  # the Map failed before its list existed
        limit, collect = task.max_in_flight, task.collects
        fanout = Fanout(
            record.items,
            action,
            limit,
            collect=collect,
            maybe_sent=recovered,
            may_have_run=runs_again,
        )
        now, takes_item = time.time(), task.takes_item(action)
        local = self._local_tasks is not None and task in self._local_tasks
        running = _Running(
            call, record, fanout, shared_arguments, failures, takes_item, now, local, recovered
        )
        if self._given_up is not None and action == calls.EXECUTE:
            fanout.stop()
        if fanout.over:
            return self._outcome(running)
        if fanout.done:
            record.progress = fanout.done / fanout.total
        self.running[call.node] = running
        self._refillable[call.node] = None
        record.items.in_flight = True  # Saved with the state of the Map, which has just changed.
        return None

    def _arguments(self, call: MapCall, record: models.AtomDetail) -> dict[str, Any]:
        task, items = call.task, record.items
        if call.action == calls.EXECUTE:
            rebind, optional = task.rebind, task.optional
            if items is not None:  # the list was stored already
                rebind = {to: stored for to, stored in rebind.items() if to != task.over}
        elif items is not None and any(item.order for item in items):
            rebind, optional = task.revert_rebind, task.revert_optional
        else:
            return {}  # nothing was executed, so there is nothing to revert
        return self._storage.gather(call.node, task.name, rebind, optional)

    def _expand(self, task: task_module.Map, record: models.AtomDetail, values: Any) -> None:
        values = self._storage.loaded(values, f"argument {task.over!r} of {record.name!r}")
        listed = self._storage.kept_items(task.listed(values), f"arguments[{task.over!r}]")
        if isinstance(values, Iterator):
            # The iterator is used up, so later readers need the list.
            self._storage.replace(record.name, task.over, values, listed)
        record.items = models.Items(record.attempt, listed)
        self._storage.writer.mark_items(record, record.items)

    def refill(
        self,
        max_items: int,
        events: ItemEvents,
        now: float | None = None,
        is_full: Callable[[int], bool] | None = None,
    ) -> list[calls.Invocation]:
        """Return items to submit, of all Maps together.

        :param now: Unix seconds, stored as the time of submission.
        :param is_full: returns whether too many items of a Map wait for permits.
        """
        invocations: list[calls.Invocation] = []
        for node in list(self._refillable):
            if len(invocations) == max_items:
                break
            if is_full is not None and is_full(node):
                continue
            running = self.running[node]
            new_items = running.fanout.take(max_items - len(invocations))
            for item in new_items:
                item.submitted = now
                invocations.append(self._invocation(running, item, events))
            if not running.fanout.can_take:
                del self._refillable[node]
        return invocations

    def _invocation(
        self, running: _Running, item: models.ItemDetail, events: ItemEvents
    ) -> calls.Invocation:
        node, parent, action = running.call
        record, items, task = running.record, running.fanout.items, parent.of_item(item.index)
        arguments = running.shared
        if running.takes_item:
            arguments = {**arguments, parent.item: item.value}
        invocation = calls.Invocation(
            task,
            action,
            record.uuid,
            record.attempt,
            arguments,
            result=item.results if item.failure is None else item.failure,
            failures=running.failures,
            events=events(record, item.index, task, running.local),
            node=node,
            flow_uuid=self._storage.flow_uuid,
            priority=task.priority,
            index=item.index,
            resumed=items.resumed,
            epoch=record.epoch,
            recovered=running.recovered,
            settled=record.settled,
        )
        if item.index in running.fanout.lost:
            invocation.recovered = invocation.lost = True
        invocation.local = running.local
        invocation.captures = self._captures
        return invocation

    def item_failed(self, call: calls.Invocation) -> None:
        """Start no further items after a failure of this one. Thread-safe."""
        running = self.running.get(call.node)
        if running is not None:
            running.fanout.item_failed()

    def is_stopped(self, call: calls.Invocation) -> bool:
        """Return whether a submitted item must not start because its Map stopped."""
        running = self.running.get(call.node)
        return running is not None and running.fanout.stopped and not call.recovered

    def must_withdraw(self, node: int) -> bool:
        """Return whether submitted items of a Map have to be withdrawn.

        This is True once; for a recovered Map again, because more items may turn out not to have
        started.
        """
        running = self.running[node]
        if running.withdrawn or not running.fanout.stopped:
            return False
        running.withdrawn = not running.recovered
        return True

    def finish(
        self, call: calls.Invocation, outcome: calls.Outcome
    ) -> tuple[MapCall, calls.Outcome] | None:
        """Store the outcome of an item; return the outcome of the Map if this was the last item."""
        running = self.running[call.node]
        fanout, record, parent = running.fanout, running.record, running.call.task
        self._storage.keepable(outcome)
        if outcome.failed:
            outcome.value.belongs_to(parent._home())
        item = fanout.put(call.index, outcome)
        if record.incidents and outcome.worker not in (None, LOCAL):
            record.set_incident_worker(outcome.worker, call.index)
        self._storage.writer.mark_items(record, (item,))
        record.progress = fanout.done / fanout.total
        if self._has_store:
            self._storage.writer.mark(record)
        if parent._listeners is not None:
            parent.update_progress(record.progress)
        if fanout.over:
            return self._end(running)
        self._changed(call.node, fanout)
        return None

    def return_item(self, call: calls.Invocation) -> None:
        fanout = self.running[call.node].fanout
        fanout.return_item(call.index, call.recovered, call.lost)
        self._changed(call.node, fanout)

    def _changed(self, node: int, fanout: Fanout) -> None:
        if fanout.can_take:
            self._refillable[node] = None
        else:
            self._refillable.pop(node, None)
        if fanout.idle:
            self._maybe_idle[node] = None

    @property
    def extra_in_flight(self) -> int:
        """Number of items in flight, minus the number of Maps."""
        return sum(running.fanout.running - 1 for running in self.running.values())

    @property
    def has_idle(self) -> bool:
        """Whether a Map has no items in flight."""
        return any(running.fanout.idle for running in self.running.values())

    def halt(self) -> None:
        """Start nothing more in this run; all Maps become `idle`."""
        self._halted = True
        self._maybe_idle.update(dict.fromkeys(self.running))

    def stop(self, given_up: GivenUp) -> None:
        """Execute no further items, because the run was cancelled or its deadline passed."""
        self._given_up = given_up
        for node, running in self.running.items():
            if running.call.action == calls.EXECUTE:
                running.fanout.stop()
                self._changed(node, running.fanout)

    def stop_for_revert(self, scope: range, may_delay_items: Callable[[int], bool]) -> list[int]:
        """Stop Maps in a reverted scope that have `cancel_on_revert` or whose items may wait.

        :param may_delay_items: returns whether items of a Map may have to wait before they start.
        :returns: the nodes of the stopped Maps.
        """
        nodes = []
        for node, running in self.running.items():
            call = running.call
            is_stopped = call.task.cancel_on_revert or may_delay_items(node)
            if node in scope and is_stopped and call.action == calls.EXECUTE:
                running.undone = True
                running.fanout.stop()
                self._changed(node, running.fanout)
                nodes.append(node)
        return nodes

    def idle(self) -> list[Idle]:
        """Remove and return Maps without items in flight that will not get any in this run.

        Maps that only wait for `refill` stay.
        """
        if not self._maybe_idle:
            return []
        candidates, self._maybe_idle = self._maybe_idle, {}
        idle_maps = []
        for node in candidates:
            running = self.running.get(node)
            if running is None or not (
                running.fanout.over or (self._halted and running.fanout.idle)
            ):
                continue
            has_begun = self.drop(node)
            ended = has_begun and running.fanout.over
            outcome = self._outcome(running) if ended else None
            idle_maps.append(Idle(running.call, outcome, has_begun))
        return idle_maps

    def drop(self, node: int) -> bool:
        """Remove a Map that does not continue; return whether any item is, or may be, done."""
        self._refillable.pop(node, None)
        running = self.running.pop(node)
        fanout = running.fanout
        # An interruption of the run leaves items that it submitted.
        fanout.items.in_flight = fanout.running > 0 or fanout.may_be_under_way
        self._storage.writer.mark(running.record)
        return fanout.done > 0 or fanout.items.in_flight

    def _end(self, running: _Running) -> tuple[MapCall, calls.Outcome]:
        self.drop(running.call.node)
        return running.call, self._outcome(running)

    def _outcome(self, running: _Running) -> calls.Outcome:
        fanout, call = running.fanout, running.call
        ended = fanout.end_interrupted(call.task.name)
        if ended:
            self._storage.writer.mark_items(running.record, ended)
        value = (
            fanout.value if fanout.decided else self._unfinished(call.task, fanout, running.undone)
        )
        return calls.Outcome(value, LOCAL, running.started, time.time())

    def _unfinished(self, task: task_module.Map, fanout: Fanout, undone: bool) -> ft.Failure:
        reason = self._given_up or (
            GivenUp(models.CANCELLED, "it is being reverted") if undone else DEADLINE
        )
        done = f"{fanout.done} of its {fanout.total} items were done"
        if reason.cancelled:
            return reason.failure(f"Map {task.name!r}, of which {done},")
        return reason.failure(f"Map {task.name!r} did not end before its deadline: {done}")


_DONE: Final = (states.SUCCESS, states.FAILURE)
_UNDONE: Final = (states.REVERTED, states.REVERT_FAILURE)


class Fanout:
    """The executions, or the reverts, of the items of an attempt.

    `items` contains the earlier results; items without one are to do. Executions follow the order
    of the items, reverts the reverse order in which the executions ended. At most `limit` (None:
    any number) are in flight. After a failure, unless `collect`, nothing more is submitted, except
    for items that an earlier run may have submitted (`maybe_sent`): their results have to be looked
    up.
    """

    __slots__ = (
        "_collects",
        "_failures",
        "_filtered",
        "_interrupted",
        "_limit",
        "_maybe_sent",
        "_todo",
        "action",
        "done",
        "items",
        "lost",
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
        may_have_run: bool = False,
    ) -> None:
        self.items = items
        self.action = action
        self._limit = limit
        self._collects = collect and action == calls.EXECUTE
        executes = action == calls.EXECUTE
        if executes:
            todo = [item for item in items if item.state == states.PENDING]
            self.done = len(items) - len(todo)
            failed_state = states.FAILURE
        else:
            todo = [item for item in items if item.state in _DONE]
            todo.sort(key=lambda item: -item.order)
            self.done = sum(item.state in _UNDONE for item in items)
            failed_state = states.REVERT_FAILURE
        self._todo = deque(item.index for item in todo)
        # Items that an earlier run submitted: at most `limit`, in this order.
        self._maybe_sent = set(itertools.islice(self._todo, limit if maybe_sent else 0))
        # Items that may have run in an earlier run and ended with its process: at most `limit`.
        may_have_run = executes and may_have_run
        self._interrupted = set(itertools.islice(self._todo, limit if may_have_run else 0))
        #: Items of this run with which a worker was lost.
        self.lost: set[int] = set()
        # Only items of `_maybe_sent` are left in `_todo`.
        self._filtered = False
        self.total = self.done + len(todo)
        self.running = 0
        self._failures = [item for item in items if item.state == failed_state]
        self._failures.sort(key=lambda item: item.order)
        self.stopped = bool(self._failures) and not self._collects

    def take(self, max_items: int) -> list[models.ItemDetail]:
        room = min(max_items, self._remaining)
        if self._limit is not None:
            room = min(room, self._limit - self.running)
        taken_items = [self.items[self._todo.popleft()] for _ in range(room)]
        self.running += len(taken_items)
        return taken_items

    def item_failed(self) -> None:
        """Stop after the failure of an item, unless failures are collected. Thread-safe."""
        if not self._collects:
            self.stopped = True

    def stop(self) -> None:
        """Submit no more items. Items in flight continue."""
        self.stopped = True

    def put(self, index: int, outcome: calls.Outcome) -> models.ItemDetail:
        item, failed = self.items[index], outcome.failed
        self._interrupted.discard(index)
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
                # A cancelled item ends the Map, also if failures are collected.
                self._collects = False
                self._failures.insert(0, item)
            else:
                self._failures.append(item)
            self.item_failed()
        return item

    def return_item(self, index: int, maybe_sent: bool = False, lost: bool = False) -> None:
        """Take back an item that did not start; with `maybe_sent`, at least not in this run.

        :param lost: whether a worker was lost with the item. Its result must be looked up.
        """
        self.running -= 1
        if lost:
            self.lost.add(index)
            self._maybe_sent.add(index)
        elif not maybe_sent:
            self._maybe_sent.discard(index)
        if index in self._maybe_sent or not self._filtered:
            self._todo.appendleft(index)

    def end_interrupted(self, name: str) -> list[models.ItemDetail]:
        """Let the items fail that may have run before and do not run again. They are reverted.

        :param name: name of the Map.
        :returns: these items.
        """
        ended = [self.items[index] for index in sorted(self._interrupted)]
        self._interrupted.clear()
        for number, item in enumerate(ended, self.done + 1):
            item.order = number
            item.put(states.FAILURE, unknown_result(f"{name}[{item.index}]"))
        return ended

    @property
    def idle(self) -> bool:
        return self.running == 0

    @property
    def over(self) -> bool:
        """True if nothing is in flight and nothing more will be submitted."""
        return self.running == 0 and not self._remaining

    @property
    def decided(self) -> bool:
        """True if `value` is defined: all items are done, or a failure ends the Map."""
        return self.done == self.total or (bool(self._failures) and not self._collects)

    @property
    def can_take(self) -> bool:
        return self._remaining > 0 and self.running != self._limit

    @property
    def may_be_under_way(self) -> bool:
        """True if an item may be in flight that this run did not submit, or ended before."""
        return bool(self._interrupted) or not self._maybe_sent.isdisjoint(self._todo)

    @property
    def _remaining(self) -> int:
        if self.stopped and not self._filtered:
            self._filtered = True
            self._todo = deque(filter(self._maybe_sent.__contains__, self._todo))
        return len(self._todo)

    @property
    def value(self) -> Any:
        """The results in the order of the items, or a failure. Defined once `over`."""
        if self._failures and not self._collects:
            item = self._failures[0]
            return item.failure if self.action == calls.EXECUTE else item.revert_failure
        if self.action == calls.REVERT:
            return [item.revert_results for item in self.items]
        return [item.results if item.failure is None else item.failure for item in self.items]
