"""The backward half of the scheduler: which scopes are being undone, and whose turn it is in them.

A *scope* (a retry's subflow, or the whole plan) is being reverted: `holders[n]` counts the
successors inside the scope that are not clear yet; a node is clear when neither it nor anything
after it in the scope has something left to undo; at zero it is its turn.  One sweep sets the
holders of a scope, everything else follows edges backwards.
"""

from __future__ import annotations

from typing import Final

from wbengine import states as st
from wbengine.runtime import recovery
from wbengine.runtime.marks import (
    AGAIN,
    ASKED,
    ASLEEP,
    DONE,
    DUE,
    FAILED,
    IGNORED,
    PENDING,
    READY,
    REVERTED,
    VOTE,
)
from wbengine.runtime.plan import FLOW, RETRY, Plan

#: In `holders`: not inside any scope that is being undone.
FREE: Final = -1

#: What waits to be handed out, or for an answer -> what it is once that is called off.
_CALLED_OFF: Final = {
    READY: PENDING,
    VOTE: PENDING,
    ASKED: PENDING,
    AGAIN: DONE,
    ASLEEP: DONE,
    DUE: DONE,
}
_CALL_OFF: Final = bytes(_CALLED_OFF.get(mark, mark) for mark in range(256))


class Undoing:
    """The scopes of one run.

    Of marks it changes only those of what is called off; whose turn it is, its caller marks.
    """

    __slots__ = ("_marks", "_plan", "holders", "scopes", "visits")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self.holders = [FREE] * len(plan)
        #: First node of a scope being undone -> whether that is a retry which runs again then.
        self.scopes: dict[int, bool] = {}
        #: How many edges were followed.
        self.visits = 0

    def again(self, node: int) -> bool:
        """Whether the node is a retry that runs again once its scope is undone."""
        return self._plan.kinds[node] == RETRY and self.scopes.get(node, False)

    def covers(self, scope: range, again: bool) -> bool:
        """Whether all is on its way already that undoing this scope would begin.

        REVERT replaces RETRY of the same scope, never the other way round.
        """
        if self.holders[scope.start] == FREE:
            return False
        own = self.scopes.get(scope.start)
        return own is None or own == again or again

    def call_off(self, scope: range) -> int:
        """Let nothing in a scope wait to be handed out; returns how many did."""
        marks = self._marks[scope.start : scope.stop]
        self._marks[scope.start : scope.stop] = marks.translate(_CALL_OFF)
        return sum(marks.count(mark) for mark in _CALLED_OFF)

    def sweep(self, scope: range, again: bool) -> tuple[list[tuple[int, str]], list[int]]:
        """Begin to undo a scope, and whatever was being undone inside it; `call_off` comes first.

        Returns the intentions to be saved, and the nodes whose turn it is.  O(V+E) of the scope.
        """
        low, stop = scope.start, scope.stop
        marks, holders = self._marks, self.holders
        succ, kinds = self._plan.succ, self._plan.kinds
        clear = bytearray(len(scope))
        changes = []
        for node in reversed(scope):
            self.scopes.pop(node, None)
            held = 0
            for n in succ[node]:
                if n < stop and not clear[n - low]:
                    held += 1
            self.visits += len(succ[node])
            holders[node] = held
            mark = marks[node]
            if mark == FAILED and kinds[node] == FLOW:
                mark = marks[node] = PENDING
            if mark in (DONE, FAILED):
                changes.append((node, st.REVERT))
            elif mark in (PENDING, IGNORED, REVERTED) and not held:
                clear[node - low] = 1
        self.scopes[low] = again
        freed = [
            node
            for node in scope
            if holders[node] == 0 and (node == low or marks[node] in (DONE, FAILED))
        ]
        return recovery.intentions(self._plan, changes, low, again), self.released(freed)

    def cleared(self, node: int) -> list[int]:
        """A node of a scope is clear: the nodes whose turn it is in consequence."""
        return self.released(self._let_go(node))

    def released(self, nodes: list[int]) -> list[int]:
        """Nothing holds these any more: the nodes whose turn it is in consequence."""
        marks = self._marks
        turn = []
        while nodes:
            node = nodes.pop()
            mark = marks[node]
            if mark in (DONE, FAILED) or (mark <= REVERTED and self.again(node)):
                turn.append(node)
            elif mark <= REVERTED:
                nodes += self._let_go(node)
        return turn

    def _let_go(self, node: int) -> list[int]:
        """Whatever comes before a node is held by one less: those that nothing holds any more."""
        if node in self.scopes:
            return []
        holders, before = self.holders, self._plan.pred[node]
        self.visits += len(before)
        freed = []
        for n in before:
            holders[n] -= 1
            if holders[n] == 0:
                freed.append(n)
        return freed

    def forget(self, retry: int) -> None:
        """The scope of a retry is undone, and about to run again."""
        del self.scopes[retry]
        scope = self._plan.scope(retry)
        self.holders[retry : scope.stop] = [FREE] * len(scope)
