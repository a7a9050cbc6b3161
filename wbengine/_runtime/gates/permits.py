"""Flows, tasks, items of Maps and steps of workflows that wait for permits of limits, or have them.

A task waits before it begins, so after the death of its engine it has certainly not run. Items of a
Map and steps wait as calls.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks
from wbengine._limits.permit_renewer import Member, Membership, PermitRenewer
from wbengine._limits.permit_sharing import MAX_COSTS
from wbengine._runtime import deadlines
from wbengine._runtime import plan as plans
from wbengine._runtime.control import Parked
from wbengine._runtime.gates import base
from wbengine._tasks import limit_attributes, step_limits
from wbengine.types import failure as ft

__all__ = ["PermitGate"]

#: Node and part of a call (`base.part_of`).
_Key = tuple[int, int]

_FLOW: Final = (0, base.TASK)


class _Queue:
    """Tasks that wait for permits of one limit, by priority and then by arrival."""

    __slots__ = ("checked", "entries", "is_weighted", "membership", "waiting")

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        #: Number of waiting tasks. `entries` may also contain others.
        self.waiting = 0
        self.entries: list[tuple[float, int, _Key]] = []
        #: Whether a task has a cost.
        self.is_weighted = False
        #: The quota that permits the costs of all waiting tasks.
        self.checked: limit_attributes.Quota | None = None


class _Wait(NamedTuple):
    """A waiting task, or the call of an item. It takes `cost` units of the rate."""

    queue: _Queue
    call: calls.Invocation | None
    cost: float


class _Permit(NamedTuple):
    """The permit of a running task.

    :ivar start: for `Membership.correct`; None: the task was already running.
    """

    membership: Membership
    cost: float
    start: float | None


class PermitGate(base.Gate):
    """Delays a flow and its tasks until they have permits.

    :param limits: limits of nodes; the limit of node 0 may be that of the flow itself.
    :param arguments: returns the arguments of a task, for the key of its limit.
    :param renewer: returns the source of permits.
    :param timers: wake the run when the next permit may be used.
    :param is_running: returns whether an earlier run began a node. It is in flight, or its result
        must be looked up, so it takes a permit but does not wait.
    :param fail: called with a node whose key or cost raised an exception, or whose cost is above
        the limit; the node then begins and fails.
    :param end: called with a call that has ended, and its outcome.
    :param on_granted: called in another thread when permits may have been granted.
    :param max_requests: maximum number of permits that are requested or in use.
    :param park_after: time without a permit after which a flow whose tasks all wait for one limit
        is parked; None: never.
    :param inherited: names of limits for which a parent of the flow has a permit. The flow itself
        needs none, so that it does not wait for its parent, which waits for it.
    """

    controls_admission = True

    def __init__(
        self,
        limits: Mapping[int, limit_attributes.Limit],
        plan: plans.Plan,
        renewer: Callable[[], PermitRenewer],
        member: Member,
        timers: deadlines.Timers,
        clock: clocks.Clock,
        *,
        arguments: Callable[[int], Mapping[str, Any]],
        is_running: Callable[[int], bool],
        fail: Callable[[int, Exception], object],
        end: Callable[[calls.Invocation, calls.Outcome], object],
        on_granted: Callable[[], object],
        max_requests: int | None = None,
        park_after: float | None = None,
        inherited: Collection[str] = (),
    ) -> None:
        self._inherited: Final = inherited
        self._limits: Final = limits
        self._plan: Final = plan
        self._renewer = renewer
        self._member = member
        self._timers: Final = timers
        self._clock: Final = clock
        self._arguments = arguments
        self._is_running = is_running
        self._fail = fail
        self._end = end
        self._on_granted = on_granted
        self._max_requests = max_requests
        self._park_after = park_after
        self._limits_flow: Final = 0 in limits and plan.kinds[0] == plans.FLOW
        # Whether the flow itself (node 0) has no permit yet.
        self._flow_waits = self._limits_flow
        self._queues: dict[str, _Queue] = {}
        # Queues that changed since permits were requested.
        self._changed: set[_Queue] = set()
        self._waiting: dict[_Key, _Wait] = {}
        self._items: Counter[int] = Counter()
        self._running: dict[_Key, _Permit] = {}
        self._flow_permit: Membership | None = None
        self._arrivals = itertools.count()
        #: False until a step has a limit, if the plan has none.
        self.is_active = bool(limits)

    @property
    def delays_flow(self) -> bool:
        return self._flow_waits

    def admit_flow(self) -> bool:
        if self._flow_waits:
            if self._inherited and self._flow_limit_name() in self._inherited:
                self._flow_waits = False
                return True
            if _FLOW not in self._waiting:
                self._admit_or_queue(0, 0)
                self._waiting[_FLOW].queue.membership.tells_refusal = True
                self._request_permits()
            self._take_permitted()
        return not self._flow_waits

    def _flow_limit_name(self) -> str:
        limit = self._limits[0]
        return limit.id_of(self._arguments(0) if limit.needs_arguments else {})

    @property
    def parkable(self) -> int | None:
        """None while it is unknown whether the flow itself gets a permit now."""
        if not self._flow_waits:
            return len(self._waiting) if self._delaying_queue() is not None else 0
        waiting = self._waiting.get(_FLOW)
        return 0 if waiting is not None and waiting.queue.membership.is_refused else None

    def _delaying_queue(self) -> _Queue | None:
        """Return the queue in which all tasks of the flow have waited for a long time."""
        queues = {wait.queue for wait in self._waiting.values()}
        if self._park_after is None or len(queues) != 1:
            return None
        (queue,) = queues
        is_long = queue.membership.seconds_to_long_wait(self._park_after) == 0
        return queue if is_long else None

    @property
    def flow_limit(self) -> tuple[str, limit_attributes.Quota] | None:
        permit = self._flow_permit
        return None if permit is None else (permit.name, permit.quota_in_force or permit.quota)

    @property
    def delaying_limit(self) -> tuple[str, float] | None:
        waiting = self._waiting.get(_FLOW) if self._limits_flow else None
        if waiting is None and (queue := self._delaying_queue()) is not None:
            keys = (key for _, _, key in queue.entries if self._is_waiting(key, queue))
            waiting = self._waiting[next(keys)]
        return None if waiting is None else (waiting.queue.membership.name, waiting.cost)

    def admit_nodes(self, nodes: Sequence[int]) -> Sequence[int]:
        permitted = []
        for node in nodes:
            item: Any = self._plan.items[node]
            try:
                if (
                    node not in self._limits
                    or item.fans_out
                    or self._admit_or_queue(node, item.priority, is_running=self._is_running(node))
                ):
                    permitted.append(node)
            except Exception as error:
                self._fail(node, error)
                permitted.append(node)
        self._request_permits()
        return permitted

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        permitted = []
        for call in tasks:
            try:
                if (
                    (call.index < 0 and call.step is None)
                    or call.action != calls.EXECUTE
                    or self._admit_or_queue(
                        call.node, call.priority, call, is_running=call.recovered
                    )
                ):
                    permitted.append(call)
            except Exception as error:
                self._end(call, calls.Outcome(ft.Failure.from_exception(error)))
        self._request_permits()
        return permitted

    def _admit_or_queue(
        self,
        node: int,
        priority: float,
        call: calls.Invocation | None = None,
        *,
        is_running: bool = False,
    ) -> bool:
        """Return whether a task, or the call of an item, may start now; otherwise it waits.

        :raises Exception: if its key or cost raises it.
        :raises ValueError: if its cost is above the limit.
        """
        key = (node, base.TASK if call is None else base.part_of(call))
        if call is None or call.step is None:
            limit = self._limits.get(node)
        else:
            limit = step_limits.limit_of(call.task)
        if limit is None or key in self._running:
            return True
        arguments: Mapping[str, Any] = {}
        if limit.needs_arguments:
            arguments = self._arguments(node) if call is None else call.arguments
        queue, cost = self._queue(limit, arguments), limit.cost_of(arguments)
        if is_running:
            queue.membership.add_running()
            self._running[key] = _Permit(queue.membership, cost, None)
            return True
        if queue.membership.quota_in_force is not None:
            limit_attributes.check_fits(limit.name, cost, queue.membership.quota_in_force)
        queue.is_weighted = queue.is_weighted or limit.cost is not None
        # `release` takes entries in this order.
        bisect.insort(queue.entries, (-priority, next(self._arrivals), key))
        self._waiting[key] = _Wait(queue, call, cost)
        queue.waiting += 1
        self._changed.add(queue)
        self._items[node] += call is not None
        return False

    def _queue(self, limit: limit_attributes.Limit, arguments: Mapping[str, Any]) -> _Queue:
        name = limit.id_of(arguments)
        queue = self._queues.get(name)
        if queue is None:
            membership = self._renewer().join(name, limit.quota, self._member, self._on_granted)
            membership.tells_refusal = self._park_after is not None
            queue = self._queues[name] = _Queue(membership)
            self.is_active = True
        return queue

    def _remove_waiting(self, key: _Key) -> calls.Invocation | None:
        queue, call, _ = self._waiting.pop(key)
        queue.waiting -= 1
        self._changed.add(queue)
        self._items[key[0]] -= call is not None
        return call

    def _request_permits(self) -> None:
        if not self._queues:
            return
        changed, self._changed = self._changed, set()
        if self._max_requests is not None:
            changed = {*self._queues.values()}
        for queue in changed:
            count = queue.waiting
            if self._max_requests is not None:
                count = min(count, max(0, self._max_requests - len(self._running)))
            queue.membership.set_wanted(count, self._costs(queue, count))

    def _costs(self, queue: _Queue, count: int) -> tuple[float, ...]:
        """Return the costs of the first waiting tasks; an empty tuple: each costs one unit."""
        if not queue.is_weighted:
            return ()
        keys = (key for _, _, key in queue.entries if self._is_waiting(key, queue))
        return tuple(
            self._waiting[key].cost for key in itertools.islice(keys, min(count, MAX_COSTS))
        )

    def _is_waiting(self, key: _Key, queue: _Queue) -> bool:
        return key in self._waiting and self._waiting[key].queue is queue

    def release(self, due: Iterable[Hashable]) -> base.Work:
        work = self._take_permitted()
        self._request_permits()
        return work

    def _take_permitted(self) -> base.Work:
        nodes: list[int] = []
        items: list[calls.Invocation] = []
        for queue in self._queues.values():
            nodes += self._fail_too_large(queue)
            entries, membership = queue.entries, queue.membership
            index = 0
            while index < len(entries) and membership.ready:
                _, _, key = entries[index]
                if not self._is_waiting(key, queue):
                    del entries[index]
                    continue
                cost = self._waiting[key].cost
                start = membership.use_permit(cost)
                if start is None:
                    index += 1  # The permit of a task behind it arrived before it came first.
                    continue
                del entries[index]
                call = self._remove_waiting(key)
                if self._limits_flow and key == _FLOW:
                    # The flow keeps its permit until the end of the run.
                    self._flow_waits, self._flow_permit = False, membership
                    continue
                self._running[key] = _Permit(membership, cost, start)
                if call is None:
                    nodes.append(key[0])
                else:
                    items.append(call)
        self._set_timer()
        return base.Work(nodes, items)

    def _set_timer(self) -> None:
        """Let the run call `release` when the next permit may be used, or a wait is long."""
        waiting = [queue.membership for queue in self._queues.values() if queue.waiting]
        seconds = min((membership.seconds_to_next for membership in waiting), default=math.inf)
        if self._park_after is not None and not self._flow_waits:
            waits = (membership.seconds_to_long_wait(self._park_after) for membership in waiting)
            seconds = min([seconds, *filter(None, waits)])
        if seconds < math.inf:
            self._timers.set((self, None), self._clock.monotonic() + seconds)

    def _fail_too_large(self, queue: _Queue) -> list[int]:
        """End the waiting tasks whose cost is above the limit. Return the nodes, which then begin.

        :raises ValueError: if it is the cost of the flow itself.
        """
        quota, nodes = queue.membership.quota_in_force, list[int]()
        if quota is None or quota == queue.checked:
            return nodes
        queue.checked = quota
        for key in [key for _, _, key in queue.entries if self._is_waiting(key, queue)]:
            try:
                limit_attributes.check_fits(queue.membership.name, self._waiting[key].cost, quota)
            except ValueError as error:
                if self._limits_flow and key == _FLOW:
                    raise
                call = self._remove_waiting(key)
                if call is None:
                    self._fail(key[0], error)
                    nodes.append(key[0])
                else:
                    self._end(call, calls.Outcome(ft.Failure.from_exception(error)))
        return nodes

    def on_ended(self, node: int, part: int, spent: float | None) -> None:
        permit = self._running.pop((node, part), None)
        if permit is None:
            return
        if spent is not None and (permit.start is not None or spent > permit.cost):
            permit.membership.correct(permit.start or 0.0, spent - permit.cost)
        permit.membership.release()

    def withdraw(self, selects: base.Selection) -> base.Work:
        """Remove and return selected tasks and calls. The flow itself continues to wait."""
        selected = [
            key
            for key, wait in self._waiting.items()
            if not (self._limits_flow and key == _FLOW) and selects(key[0], wait.call)
        ]
        removed = [(key[0], self._remove_waiting(key)) for key in selected]
        self._request_permits()
        return base.Work(
            [node for node, call in removed if call is None],
            [call for _, call in removed if call is not None],
        )

    def is_full(self, node: int) -> bool:
        return self._items[node] >= base.MAX_WAITING_ITEMS

    def may_delay_items(self, node: int) -> bool:
        return node in self._limits

    def close(self, parked: Parked | None = None) -> None:
        """Release all permits, except that of a parked flow."""
        queues, self._queues = self._queues, {}
        self._waiting.clear()
        self._items.clear()
        self._changed.clear()
        self._running.clear()
        if queues:
            kept, waiting = set[Membership](), dict[Membership, float]()
            if parked is not None:
                if self._flow_permit is not None:
                    kept.add(self._flow_permit)
                if parked.limit is not None:
                    waiting[queues[parked.limit].membership] = parked.units
            self._renewer().leave([queue.membership for queue in queues.values()], kept, waiting)
