"""The tasks, items of Maps and flows of one run that have permits or wait for them.

A task waits before it starts: its record is unchanged and no executor has it, so after the death of
the engine it has certainly not run. Items of a Map wait as calls.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from wbengine import _binding, exceptions, flow, task
from wbengine import invocation as calls
from wbengine._tasks import functors
from wbengine.permits import limit_attributes
from wbengine.permits.renewer import Member, Membership, PermitRenewer
from wbengine.runtime import plan as plans

__all__ = ["LimitedTasks", "limits_of"]

_LIMITED: Final = (plans.TASK, plans.FLOW)

#: Maximum number of waiting items of a Map. Others are not created yet.
MAX_WAITING_ITEMS: Final = 1024

#: Node of a task and -1, or node of a Map and index of an item.
_Key = tuple[int, int]

_FLOW: Final = (0, -1)


def limits_of(plan: plans.Plan) -> dict[int, limit_attributes.Limit]:
    """Return the limits of a flow and its tasks by node. Most flows have none.

    :raises CompilationFailure: if a limit is invalid, or two limits with the same name differ.
    """
    limited: list[tuple[int, Any]] = [
        # Without a rate or concurrency, attributes `limit` or `concurrency_key` belong to the user.
        (node, item)
        for node, (kind, item) in enumerate(zip(plan.kinds, plan.items, strict=True))
        if kind in _LIMITED and not (item.rate_limit is item.concurrency is None)  # type: ignore[union-attr]
    ]
    limits_by_node: dict[int, limit_attributes.Limit] = {}
    by_name: dict[str, tuple[str, limit_attributes.Limit]] = {}
    for node, item in limited:
        try:
            what, limit = _limit(node, item)
        except (TypeError, ValueError) as error:
            raise exceptions.CompilationFailure(str(error)) from error
        limits_by_node[node] = limit
        other, first = by_name.setdefault(limit.name, (what, limit))
        if limit.quota != first.quota:
            raise exceptions.CompilationFailure(
                f"All uses of limit {limit.name!r} must have the same value, got"
                f" {first.quota.label} for {other} and {limit.quota.label} for {what}"
            )
    return limits_by_node


def _limit(node: int, item: Any) -> tuple[str, limit_attributes.Limit]:
    if isinstance(item, flow.Flow):
        what = f"flow {item.name!r}"
        if node:
            raise ValueError(
                f"Only tasks and the outermost flow can have a limit, got nested {what}"
            )
        limit = limit_attributes.limit_of(item, what, item.name, None)
        return what, limit._replace(name=f"flow {limit.name}")
    owner: task.Task = item.inner if isinstance(item, task.Map) else item
    what = f"task {owner.name!r}"
    known = {*owner.rebind, *_binding.signature_of(owner._bodies()[0]).names}
    return what, limit_attributes.limit_of(owner, what, functors.code_of(owner), known)


class _Queue:
    """Tasks that wait for permits of one limit, by priority and then by arrival."""

    __slots__ = ("entries", "membership", "waiting")

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        #: Number of waiting tasks. `entries` may also contain others.
        self.waiting = 0
        self.entries: list[tuple[float, int, _Key]] = []


class LimitedTasks:
    """Decides whether a flow and its tasks may start. Use it only in the thread of the run.

    :param limits: limits of nodes.
    :param arguments: returns the arguments of a task, for the key of its limit.
    :param wake: called in another thread when there are `may_have_permits`.
    :param limits_flow: whether node 0 is the flow itself.
    :param max_requests: maximum number of permits that are requested at a time.
    """

    def __init__(
        self,
        limits: Mapping[int, limit_attributes.Limit],
        renewer: PermitRenewer,
        member: Member,
        *,
        arguments: Callable[[int], Mapping[str, Any]],
        wake: Callable[[], object],
        limits_flow: bool = False,
        max_requests: int | None = None,
    ) -> None:
        self.limits: Final = limits
        #: Whether the flow itself (node 0) is limited and has no permit yet.
        self.flow_waits = limits_flow
        self.limits_flow: Final = limits_flow
        self._renewer = renewer
        self._member = member
        self._arguments = arguments
        self._wake = wake
        self._max_requests = max_requests
        self.may_have_permits = False
        self._queues: dict[str, _Queue] = {}
        # Queues that changed since permits were requested.
        self._changed: set[_Queue] = set()
        # Queue of each waiting task, and the call of an item.
        self._waiting: dict[_Key, tuple[_Queue, calls.Invocation | None]] = {}
        self._items: Counter[int] = Counter()
        self._running: dict[_Key, Membership] = {}
        self._arrivals = itertools.count()

    @property
    def must_not_suspend(self) -> bool:
        """Whether the flow must not be suspended while it waits or runs.

        A suspended flow would lose its place among waiting flows, or release its permit to another
        flow.
        """
        return self.flow_waits or (
            self.limits_flow and self.limits[0].quota.concurrency is not None
        )

    def try_enter(self) -> bool:
        """Return whether the flow itself may start now; otherwise it waits.

        :raises Exception: if its key raises it.
        """
        if self.flow_waits and _FLOW not in self._waiting:
            self.try_begin(0, 0)
            self.request_permits()
        if self.flow_waits:
            self.take_permitted()
        return not self.flow_waits

    def try_begin(
        self,
        node: int,
        priority: float,
        call: calls.Invocation | None = None,
        *,
        is_running: bool = False,
    ) -> bool:
        """Return whether a task, or the call of an item, may start now; otherwise it waits.

        :raises Exception: if its key raises it.
        """
        limit, key = self.limits.get(node), (node, -1 if call is None else call.index)
        if limit is None or key in self._running:
            return True
        arguments: Mapping[str, Any] = {}
        if limit.key is not None:
            arguments = self._arguments(node) if call is None else call.arguments
        queue = self._queue(limit, arguments)
        if is_running:
            queue.membership.add_running()
            self._running[key] = queue.membership
            return True
        heapq.heappush(queue.entries, (-priority, next(self._arrivals), key))
        self._waiting[key] = queue, call
        queue.waiting += 1
        self._changed.add(queue)
        self._items[node] += call is not None
        return False

    def _queue(self, limit: limit_attributes.Limit, arguments: Mapping[str, Any]) -> _Queue:
        name = limit.id_of(arguments)
        queue = self._queues.get(name)
        if queue is None:
            membership = self._renewer.join(name, limit.quota, self._member, self._notify)
            queue = self._queues[name] = _Queue(membership)
        return queue

    def _remove_waiting(self, key: _Key) -> calls.Invocation | None:
        queue, call = self._waiting.pop(key)
        queue.waiting -= 1
        self._changed.add(queue)
        self._items[key[0]] -= call is not None
        return call

    def _notify(self) -> None:
        self.may_have_permits = True
        self._wake()

    def request_permits(self) -> None:
        """Request permits for waiting tasks. Call once after all `try_begin`."""
        changed, self._changed = self._changed, set()
        if self._max_requests is not None:
            changed = {*self._queues.values()}
        for queue in changed:
            count = queue.waiting
            if self._max_requests is not None:
                count = min(count, max(0, self._max_requests - len(self._running)))
            queue.membership.set_wanted(count)

    def take_permitted(self) -> tuple[list[int], list[calls.Invocation]]:
        """Return the tasks and the calls of items that may start now."""
        self.may_have_permits = False
        nodes: list[int] = []
        items: list[calls.Invocation] = []
        for queue in self._queues.values():
            entries, membership = queue.entries, queue.membership
            while entries and membership.ready:
                _, _, key = entries[0]
                is_waiting = key in self._waiting and self._waiting[key][0] is queue
                if is_waiting and not membership.use_permit():
                    break
                heapq.heappop(entries)
                if not is_waiting:
                    continue
                call = self._remove_waiting(key)
                if self.limits_flow and key == _FLOW:
                    self.flow_waits = False  # The flow keeps its permit until the end of the run.
                    continue
                self._running[key] = membership
                if call is None:
                    nodes.append(key[0])
                else:
                    items.append(call)
        return nodes, items

    def release(self, node: int, index: int = -1) -> None:
        """Release the permit of a task that has ended, if it had one."""
        membership = self._running.pop((node, index), None)
        if membership is not None:
            membership.release()

    def withdraw(self, scope: Container[int]) -> list[tuple[int, calls.Invocation | None]]:
        """Remove the waiting tasks of a scope. Return their nodes, and the calls of items.

        The flow itself continues to wait.
        """
        keys = [
            key
            for key in self._waiting
            if key[0] in scope and not (self.limits_flow and key == _FLOW)
        ]
        removed = [(key[0], self._remove_waiting(key)) for key in keys]
        self.request_permits()
        return removed

    def is_full(self, node: int) -> bool:
        """Return True if so many items of a Map wait that no more are created."""
        return self._items[node] >= MAX_WAITING_ITEMS

    def close(self) -> None:
        """Release all permits."""
        queues, self._queues = self._queues, {}
        self._waiting.clear()
        self._items.clear()
        self._changed.clear()
        self._running.clear()
        if queues:
            self._renewer.leave([queue.membership for queue in queues.values()])
