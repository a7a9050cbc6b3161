"""The limits of one run (`rate_limit`, `concurrency` of tasks and flows): what waits for a permit.

A task waits before it is begun: neither its record nor an executor knows of it, and an engine that
dies leaves nothing that might have run.  Items of a Map wait as calls.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import invocation as calls
from wbengine.fleet_limits import Limit
from wbengine.permits import renewer as renewers
from wbengine.permits.accounts import Terms

__all__ = ["LimitedTasks"]

#: So many items of a Map wait at most; the others are not made yet.
MOST_ITEMS: Final = 1024


#: The key of what stands for the flow itself.
_FLOW: Final = (0, -1)


class _Line:
    """What waits for the permits of one limit, by priority and then in the order of its coming."""

    __slots__ = ("heap", "holder", "waiting")

    def __init__(self, holder: renewers.Holder) -> None:
        self.holder = holder
        #: How many do; the heap may hold what does not any more.
        self.waiting = 0
        self.heap: list[tuple[float, int, int, calls.Invocation | None]] = []


class LimitedTasks:
    """Whether a flow, and which of its tasks, may begin; only the thread of the run calls it.

    `limits` are those of nodes.  `arguments(node)` are those of a task, for its key.  `wake` is
    called, from another thread, when there are `news`.  `of_flow`: node 0 is the flow itself.
    `most`: so many are asked for at a time.
    """

    def __init__(
        self,
        limits: Mapping[int, Limit],
        renewer: renewers.PermitRenewer,
        flow: str,
        epoch: int,
        seconds: float,
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
        self._flow = flow
        self._epoch = epoch
        self._seconds = seconds
        self._arguments = arguments
        self._wake = wake
        self._most = most
        #: Whether there are permits to take.
        self.news = False
        self._lines: dict[str, _Line] = {}
        # Those in which something began or ceased to wait since permits were asked for.
        self._changed: set[_Line] = set()
        #: What waits, a task (-1) or an item of a Map, and for which limit.
        self._waiting: dict[tuple[int, int], _Line] = {}
        self._items: Counter[int] = Counter()
        # What is under way, and on whose permit.
        self._using: dict[tuple[int, int], renewers.Holder] = {}
        self._numbers = itertools.count()

    @property
    def keeps_place(self) -> bool:
        """Whether the flow, if it were suspended, would lose its place among those that wait, or
        let others in while it is under way."""
        return self.closed or (self.of_flow and self.limits[0].concurrency is not None)

    def enter(self) -> bool:
        """Whether the flow itself may begin now; else it waits.

        :raises Exception: what its key raises.
        """
        if self.closed and (_FLOW not in self._waiting):
            self.begin(0, 0)
            self.ask()
        if self.closed:
            self.take()
        return not self.closed

    def begin(self, node: int, priority: float, *, anyway: bool = False) -> bool:
        """Whether a task may begin now; else it waits.  `anyway`: it is under way already.

        :raises Exception: what its key raises.
        """
        limit = self.limits.get(node)
        if limit is None:
            return True
        line = self._line(limit, self._arguments(node) if limit.key is not None else {})
        return self._admit(line, node, -1, priority, None, anyway=anyway)

    def begin_item(self, call: calls.Invocation) -> bool:
        """The same for an item of a Map.

        :raises Exception: what its key raises.
        """
        limit = self.limits.get(call.node)
        if limit is None or (call.node, call.index) in self._using:
            return True
        line = self._line(limit, call.arguments)
        return self._admit(line, call.node, call.index, call.priority, call, anyway=call.recovered)

    def _line(self, limit: Limit, arguments: Mapping[str, Any]) -> _Line:
        name = limit.id_of(arguments)
        line = self._lines.get(name)
        if line is None:
            terms = Terms(limit.rate, limit.interval, limit.concurrency)
            line = self._lines[name] = _Line(
                self._renewer.join(name, terms, self._flow, self._epoch, self._seconds, self._tell)
            )
        return line

    def _admit(
        self,
        line: _Line,
        node: int,
        index: int,
        priority: float,
        call: calls.Invocation | None,
        *,
        anyway: bool,
    ) -> bool:
        if anyway:
            line.holder.use_anyway()
            self._using[node, index] = line.holder
            return True
        heapq.heappush(line.heap, (-priority, next(self._numbers), node, call))
        self._waiting[node, index] = line
        line.waiting += 1
        self._changed.add(line)
        self._items[node] += index >= 0
        return False

    def _forget(self, node: int, index: int) -> bool:
        """It does not wait any more; False: it did not."""
        line = self._waiting.pop((node, index), None)
        if line is None:
            return False
        line.waiting -= 1
        self._changed.add(line)
        self._items[node] -= index >= 0
        return True

    def _tell(self) -> None:
        self.news = True
        self._wake()

    def ask(self) -> None:
        """Ask for permits for what waits; to be called after what began to wait in a turn."""
        changed, self._changed = self._changed, set()
        if self._most is not None:
            changed = {*self._lines.values()}
        for line in changed:
            count = line.waiting
            if self._most is not None:
                count = min(count, max(0, self._most - len(self._using)))
            line.holder.want(count)

    def take(self) -> tuple[list[int], list[calls.Invocation]]:
        """The tasks, and the items of Maps, that may begin now."""
        self.news = False
        nodes: list[int] = []
        items: list[calls.Invocation] = []
        for line in self._lines.values():
            while line.heap and line.holder.ready:
                _, _, node, call = line.heap[0]
                index = -1 if call is None else call.index
                if self._waiting.get((node, index)) is not line:
                    heapq.heappop(line.heap)  # it does not wait any more
                    continue
                if not line.holder.take():
                    break
                heapq.heappop(line.heap)
                self._forget(node, index)
                if self.of_flow and (node, index) == _FLOW:
                    self.closed = False  # until the end of the run
                    continue
                self._using[node, index] = line.holder
                if call is None:
                    nodes.append(node)
                else:
                    items.append(call)
        return nodes, items

    def ended(self, node: int, index: int = -1) -> None:
        """Something is not under way any more; without effect if it had no permit."""
        holder = self._using.pop((node, index), None)
        if holder is not None:
            holder.give_back()

    def waiting_nodes(self, scope: Container[int]) -> list[int]:
        """The tasks that wait, and are in a scope."""
        return [
            node
            for node, index in self._waiting
            if index < 0 and node in scope and not (self.of_flow and node == 0)
        ]

    def forget(self, nodes: Iterable[int]) -> None:
        """These tasks do not wait any more."""
        for node in nodes:
            self._forget(node, -1)

    def crowded(self, node: int) -> bool:
        """Whether so many items of a Map wait that no more are to be made."""
        return self._items[node] >= MOST_ITEMS

    def withdraw(self, scope: Container[int] | None = None) -> Sequence[calls.Invocation]:
        """Take back the items that wait: all, or those of a scope."""
        if not +self._items:
            return ()
        return [
            call
            for line in self._lines.values()
            for _, _, node, call in line.heap
            if call is not None
            and (scope is None or node in scope)
            and self._forget(node, call.index)
        ]

    def close(self) -> None:
        """Give back all permits."""
        lines, self._lines = self._lines, {}
        self._waiting.clear()
        self._items.clear()
        self._changed.clear()
        self._using.clear()
        if lines:
            self._renewer.leave([line.holder for line in lines.values()])
