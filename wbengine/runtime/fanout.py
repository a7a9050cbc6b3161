"""One attempt of a Map: which of its items go next, and what they come to.

Pure: no I/O, no clock, no user code.  The engine's thread calls it, except for `spoil`, which is
called wherever an item ends.  O(1) for each item, but for `take`, which costs what it returns.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Final

from wbengine import exceptions, states
from wbengine import invocation as calls
from wbengine.persistence import models

__all__ = ["Fanout"]

_DONE: Final = (states.SUCCESS, states.FAILURE)
_UNDONE: Final = (states.REVERTED, states.REVERT_FAILURE)


class Fanout:
    """The executions, or the reversions, of the items of one attempt.

    `items` tells what came of them before; what is missing is to be done.  Executions go in the
    order of the items, reversions of what finished in the opposite order of finishing.  At most
    `limit` (None: any number) are under way.  When one fails, unless `collect`, no more are handed
    out; but for those that an earlier run may have under way, if there was one (`doubtful`): what
    became of them is to be found out.
    """

    __slots__ = (
        "_collects",
        "_doubtful",
        "_failures",
        "_limit",
        "_sifted",
        "_todo",
        "action",
        "done",
        "items",
        "running",
        "spoilt",
        "total",
    )

    def __init__(
        self,
        items: models.Items,
        action: calls.Action,
        limit: int | None = None,
        *,
        collect: bool = False,
        doubtful: bool = False,
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
        self._doubtful = set(itertools.islice(self._todo, limit if doubtful else 0))
        # Whether only such are left to be done.
        self._sifted = False
        #: How many there are to be done in all, and how many of them are.
        self.total = self.done + len(todo)
        #: How many were handed out and did not come back.
        self.running = 0
        # Those that failed, in the order in which they did.
        self._failures = [item for item in items if item.state == bad]
        self._failures.sort(key=lambda item: item.order)
        #: No more are handed out.
        self.spoilt = bool(self._failures) and not self._collects

    def take(self, most: int) -> list[models.ItemDetail]:
        """Hand out what may go now, at most `most` of them."""
        room = min(most, self._left)
        if self._limit is not None:
            room = min(room, self._limit - self.running)
        found = [self.items[self._todo.popleft()] for _ in range(room)]
        self.running += len(found)
        return found

    def spoil(self) -> None:
        """An item failed: hand out no more, unless that does not matter.  From any thread."""
        if not self._collects:
            self.spoilt = True

    def stop(self) -> None:
        """Hand out no more, whatever becomes of those under way."""
        self.spoilt = True

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
            self.spoil()
        return item

    def give_back(self, index: int, doubtful: bool = False) -> None:
        """What was handed out did not start after all, or not in this run (`doubtful`)."""
        self.running -= 1
        if not doubtful:
            self._doubtful.discard(index)
        if index in self._doubtful or not self._sifted:
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
    def hungry(self) -> bool:
        """`take` would hand out something."""
        return self._left > 0 and self.running != self._limit

    @property
    def in_doubt(self) -> bool:
        """Something may be under way that was not handed out."""
        return not self._doubtful.isdisjoint(self._todo)

    @property
    def _left(self) -> int:
        """How many are still to be handed out."""
        if self.spoilt and not self._sifted:
            self._sifted = True
            self._todo = deque(filter(self._doubtful.__contains__, self._todo))
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
