"""What of one flow is limited, and waits for permits: tasks, the items of Maps, the flow itself.

A task waits before it is begun: neither its record nor an executor knows of it, and an engine that
dies leaves nothing that might have run.  Items of a Map wait as calls.
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
from wbengine.permits import limits
from wbengine.permits.renewer import Holder, Member, PermitRenewer
from wbengine.runtime import plan as plans

__all__ = ["LimitedTasks", "limits_of"]

#: What may have a limit.
_LIMITED: Final = (plans.TASK, plans.FLOW)

#: So many items of a Map wait at most; the others are not made yet.
MOST_ITEMS: Final = 1024

#: A task (its node, and -1), or an item of a Map (its index).
_Key = tuple[int, int]

#: What stands for the flow itself.
_FLOW: Final = (0, -1)


def limits_of(plan: plans.Plan) -> dict[int, limits.Limit]:
    """What limits a flow and its tasks, by their nodes: next to always nothing.

    :raises CompilationFailure: a limit makes no sense, or two of one name say different things.
    """
    limited: list[tuple[int, Any]] = [
        (node, item)  # whatever else is called `limit`, or `concurrency_key`, is the user's own
        for node, (kind, item) in enumerate(zip(plan.kinds, plan.items, strict=True))
        if kind in _LIMITED and not (item.rate_limit is item.concurrency is None)  # type: ignore[union-attr]
    ]
    found: dict[int, limits.Limit] = {}
    by_name: dict[str, tuple[str, limits.Limit]] = {}
    for node, item in limited:
        try:
            what, limit = _limit(node, item)
        except (TypeError, ValueError) as error:
            raise exceptions.CompilationFailure(str(error)) from error
        found[node] = limit
        other, first = by_name.setdefault(limit.name, (what, limit))
        if limit.quota != first.quota:
            raise exceptions.CompilationFailure(
                f"Limit {limit.name!r} is {first.quota.label} for {other}, and {limit.quota.label}"
                f" for {what}: what shares a limit has to say the same"
            )
    return found


def _limit(node: int, item: Any) -> tuple[str, limits.Limit]:
    """What is limited, in words, and how."""
    if isinstance(item, flow.Flow):
        what = f"flow {item.name!r}"
        if node:
            raise ValueError(
                f"{what[0].upper()}{what[1:]} is part of another one: only the outermost flow, and"
                " tasks, can have a limit"
            )
        limit = limits.limit_of(item, what, item.name, None)
        return what, limit._replace(name=f"flow {limit.name}")
    owner: task.Task = item.inner if isinstance(item, task.Map) else item
    what = f"task {owner.name!r}"
    known = {*owner.rebind, *_binding.signature_of(owner._bodies()[0]).names}
    return what, limits.limit_of(owner, what, functors.code_of(owner), known)


class _Queue:
    """What waits for the permits of one limit, by priority and then in the order of its coming."""

    __slots__ = ("entries", "holder", "waiting")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        #: How many wait; a heap that may hold what does not wait any more.
        self.waiting = 0
        self.entries: list[tuple[float, int, _Key]] = []


class LimitedTasks:
    """Whether a flow, and which of its tasks, may begin; only the thread of the run calls it.

    `limits` are those of nodes.  `arguments(node)` are those of a task, for its key.  `wake` is
    called, from another thread, when there are `news`.  `of_flow`: node 0 is the flow itself.
    `most`: so many are asked for at a time.
    """

    def __init__(
        self,
        limits: Mapping[int, limits.Limit],
        renewer: PermitRenewer,
        member: Member,
        *,
        arguments: Callable[[int], Mapping[str, Any]],
        wake: Callable[[], object],
        of_flow: bool = False,
        most: int | None = None,
    ) -> None:
        self.limits: Final = limits
        #: Whether the flow itself (node 0) is limited, and has no permit yet.
        self.closed = of_flow
        #: The same for all the run.
        self.of_flow: Final = of_flow
        self._renewer = renewer
        self._member = member
        self._arguments = arguments
        self._wake = wake
        self._most = most
        #: Whether there are permits to take.
        self.news = False
        self._queues: dict[str, _Queue] = {}
        # Those in which something began or ceased to wait since permits were asked for.
        self._changed: set[_Queue] = set()
        # What waits: where, and the call of an item.
        self._waiting: dict[_Key, tuple[_Queue, calls.Invocation | None]] = {}
        self._items: Counter[int] = Counter()
        # What is under way, and on whose permit.
        self._using: dict[_Key, Holder] = {}
        self._numbers = itertools.count()

    @property
    def keeps_place(self) -> bool:
        """Whether the flow, if it were suspended, would lose its place among those that wait, or
        let others in while it is under way."""
        return self.closed or (self.of_flow and self.limits[0].quota.concurrency is not None)

    def enter(self) -> bool:
        """Whether the flow itself may begin now; else it waits.

        :raises Exception: what its key raises.
        """
        if self.closed and _FLOW not in self._waiting:
            self.begin(0, 0)
            self.ask()
        if self.closed:
            self.take()
        return not self.closed

    def begin(
        self,
        node: int,
        priority: float,
        call: calls.Invocation | None = None,
        *,
        anyway: bool = False,
    ) -> bool:
        """Whether a task, or the call of an item of a Map, may begin now; else it waits.

        `anyway`: it is under way already.

        :raises Exception: what its key raises.
        """
        limit, key = self.limits.get(node), (node, -1 if call is None else call.index)
        if limit is None or key in self._using:
            return True
        arguments: Mapping[str, Any] = {}
        if limit.key is not None:
            arguments = self._arguments(node) if call is None else call.arguments
        queue = self._queue(limit, arguments)
        if anyway:
            queue.holder.use_anyway()
            self._using[key] = queue.holder
            return True
        heapq.heappush(queue.entries, (-priority, next(self._numbers), key))
        self._waiting[key] = queue, call
        queue.waiting += 1
        self._changed.add(queue)
        self._items[node] += call is not None
        return False

    def _queue(self, limit: limits.Limit, arguments: Mapping[str, Any]) -> _Queue:
        name = limit.id_of(arguments)
        queue = self._queues.get(name)
        if queue is None:
            holder = self._renewer.join(name, limit.quota, self._member, self._tell)
            queue = self._queues[name] = _Queue(holder)
        return queue

    def _forget(self, key: _Key) -> calls.Invocation | None:
        """Something does not wait any more; the call of an item."""
        queue, call = self._waiting.pop(key)
        queue.waiting -= 1
        self._changed.add(queue)
        self._items[key[0]] -= call is not None
        return call

    def _tell(self) -> None:
        self.news = True
        self._wake()

    def ask(self) -> None:
        """Ask for permits for what waits; to be called after what began to wait in a turn."""
        changed, self._changed = self._changed, set()
        if self._most is not None:
            changed = {*self._queues.values()}
        for queue in changed:
            count = queue.waiting
            if self._most is not None:
                count = min(count, max(0, self._most - len(self._using)))
            queue.holder.want(count)

    def take(self) -> tuple[list[int], list[calls.Invocation]]:
        """The tasks, and the calls of items, that may begin now."""
        self.news = False
        nodes: list[int] = []
        items: list[calls.Invocation] = []
        for queue in self._queues.values():
            entries, holder = queue.entries, queue.holder
            while entries and holder.ready:
                _, _, key = entries[0]
                waits = key in self._waiting and self._waiting[key][0] is queue
                if waits and not holder.take():
                    break
                heapq.heappop(entries)
                if not waits:
                    continue
                call = self._forget(key)
                if self.of_flow and key == _FLOW:
                    self.closed = False  # until the end of the run
                    continue
                self._using[key] = holder
                if call is None:
                    nodes.append(key[0])
                else:
                    items.append(call)
        return nodes, items

    def ended(self, node: int, index: int = -1) -> None:
        """Something is not under way any more; without effect if it had no permit."""
        holder = self._using.pop((node, index), None)
        if holder is not None:
            holder.give_back()

    def withdraw(self, scope: Container[int]) -> list[tuple[int, calls.Invocation | None]]:
        """Take back what waits in a scope: the nodes of tasks, and those of items with the calls.

        The flow itself goes on waiting.
        """
        found = [
            key for key in self._waiting if key[0] in scope and not (self.of_flow and key == _FLOW)
        ]
        taken = [(key[0], self._forget(key)) for key in found]
        self.ask()
        return taken

    def is_full(self, node: int) -> bool:
        """Whether so many items of a Map wait that no more are to be made."""
        return self._items[node] >= MOST_ITEMS

    def close(self) -> None:
        """Give back all permits."""
        queues, self._queues = self._queues, {}
        self._waiting.clear()
        self._items.clear()
        self._changed.clear()
        self._using.clear()
        if queues:
            self._renewer.leave([queue.holder for queue in queues.values()])
