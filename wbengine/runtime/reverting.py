"""The backward half of the scheduler: the scopes that are being reverted, and the order in them.

A *scope* (a retry's subflow, or the whole plan) is being reverted: `blockers[n]` counts the
successors inside the scope that are not clear yet; a node is clear when neither it nor anything
after it in the scope has something left to undo; at zero it is its turn.  One sweep sets the
blockers of a scope, everything else follows edges backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wbengine import states as st
from wbengine.runtime.node_states import (
    DECIDING,
    DECISION_READY,
    DONE,
    FAILED,
    IGNORED,
    PENDING,
    READY,
    RETRY_READY,
    RETRY_WAITING,
    REVERT_READY,
    REVERTED,
    Saved,
)
from wbengine.runtime.plan import FLOW, RETRY, TASK, Plan

_UNTOUCHED: Final[Saved] = (None, st.EXECUTE)
_UNDOING: Final = frozenset([st.REVERTING, st.REVERTED, st.REVERT_FAILURE])

#: In `blockers`: not inside any scope that is being undone.
FREE: Final = -1

#: What waits to be handed out, or for an answer -> what it is once that is called off.
_CALLED_OFF: Final = {
    READY: PENDING,
    DECISION_READY: PENDING,
    DECIDING: PENDING,
    RETRY_READY: DONE,
    RETRY_WAITING: DONE,
    REVERT_READY: DONE,
}
_CALL_OFF: Final = bytes(_CALLED_OFF.get(mark, mark) for mark in range(256))


class Reverting:
    """The scopes of one run.

    Of marks it changes only those of what is called off; whose turn it is, its caller marks.
    """

    __slots__ = ("_marks", "_plan", "behind", "blockers", "scopes")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self.blockers = [FREE] * len(plan)
        #: First node of a scope being undone -> whether that is a retry which runs again then.
        self.scopes: dict[int, bool] = {}
        #: First node of a scope being undone -> the nodes behind it that are undone with it.
        self.behind: dict[int, list[int]] = {}

    def again(self, node: int) -> bool:
        """Whether the node is a retry that runs again once its scope is undone."""
        return self._plan.kinds[node] == RETRY and self.scopes.get(node, False)

    def covers(self, scope: range, again: bool) -> bool:
        """Whether all is on its way already that undoing this scope would begin.

        REVERT replaces RETRY of the same scope, never the other way round.
        """
        if self.blockers[scope.start] == FREE:
            return False
        own = self.scopes.get(scope.start)
        return own is None or own == again or again

    def call_off(self, scope: range) -> int:
        """Let nothing in a scope wait to be handed out; returns how many did."""
        marks = self._marks[scope.start : scope.stop]
        self._marks[scope.start : scope.stop] = marks.translate(_CALL_OFF)
        return sum(marks.count(mark) for mark in _CALLED_OFF)

    def sweep(
        self, scope: range, again: bool, behind: Sequence[int] = ()
    ) -> tuple[list[tuple[int, str]], list[int]]:
        """Begin to undo a scope, and whatever was being undone inside it; `call_off` comes first.

        `behind` are nodes that depend on it and are undone before it, in order of their ids.
        Returns the intentions to be saved, and the nodes whose turn it is.  O(V+E) of the scope.
        """
        low = scope.start
        nodes: Sequence[int] = [*scope, *behind] if behind else scope
        stop = nodes[-1] + 1
        marks, blockers = self._marks, self.blockers
        succ, kinds = self._plan.succ, self._plan.kinds
        clear = bytearray(b"\1") * (stop - low)  # as whatever is not undone
        changes = []
        for node in reversed(nodes):
            if self.scopes.pop(node, None) is not None:
                self.behind.pop(node, None)
            clear[node - low] = 0
            blocking = 0
            for n in succ[node]:
                if n < stop and not clear[n - low]:
                    blocking += 1
            blockers[node] = blocking
            mark = marks[node]
            if mark == FAILED and kinds[node] == FLOW:
                mark = marks[node] = PENDING
            if mark in (DONE, FAILED):
                changes.append((node, st.REVERT))
            elif mark in (PENDING, IGNORED, REVERTED) and not blocking:
                clear[node - low] = 1
        self.scopes[low] = again
        if behind:
            self.behind[low] = list(behind)
        freed = [
            node
            for node in nodes
            if blockers[node] == 0 and (node == low or marks[node] in (DONE, FAILED))
        ]
        return intentions(self._plan, changes, low, again), self.released(freed)

    def cleared(self, node: int) -> list[int]:
        """A node of a scope is clear: the nodes whose turn it is in consequence."""
        return self.released(self._unblock(node))

    def released(self, nodes: list[int]) -> list[int]:
        """Nothing blocks these any more: the nodes whose turn it is in consequence."""
        marks = self._marks
        turn = []
        while nodes:
            node = nodes.pop()
            mark = marks[node]
            if mark in (DONE, FAILED) or (mark <= REVERTED and self.again(node)):
                turn.append(node)
            elif mark <= REVERTED:
                nodes += self._unblock(node)
        return turn

    def _unblock(self, node: int) -> list[int]:
        """What comes before a node has one blocker less: the nodes that have none any more."""
        if node in self.scopes:
            return []
        blockers = self.blockers
        freed = []
        for n in self._plan.pred[node]:
            if blockers[n] == FREE:  # what is behind a scope also depends on others
                continue
            blockers[n] -= 1
            if blockers[n] == 0:
                freed.append(n)
        return freed

    def forget(self, retry: int) -> Sequence[int]:
        """The scope of a retry is undone, and about to run again; returns what is behind it."""
        del self.scopes[retry]
        scope = self._plan.scope(retry)
        self.blockers[retry : scope.stop] = [FREE] * len(scope)
        behind = self.behind.pop(retry, ())
        for node in behind:
            self.blockers[node] = FREE
        return behind


def stale(plan: Plan, marks: bytearray) -> list[int]:
    """Atoms that are done, or reverted, although something before them is not done: a flow that was
    changed, or parts of which were reset, goes on with such records.  O(V+E).
    """
    settled = bytearray(len(plan))
    found = []
    for node, before in enumerate(plan.pred):
        for n in before:
            if not settled[n]:
                if marks[node] in (DONE, REVERTED):
                    found.append(node)
                break
        else:
            settled[node] = marks[node] in (DONE, IGNORED) or plan.kinds[node] not in (TASK, RETRY)
    return found


def dependants(plan: Plan, start: int) -> list[int]:
    """A node and all that come after it, in order of their ids.  O(V+E) of them."""
    found = {start}
    work = [start]
    while work:
        new = [node for node in plan.succ[work.pop()] if node not in found]
        found.update(new)
        work += new
    return sorted(found)


def intentions(
    plan: Plan, changes: list[tuple[int, str]], start: int, again: bool
) -> list[tuple[int, str]]:
    """Complete the (node, intention) to be saved of a scope, so that they tell which one is meant.

    `start` is the first node of the scope; `again`: its retry runs again then.
    """
    if plan.kinds[start] == RETRY:
        changes = [change for change in changes if change[0] != start]
        changes.append((start, st.RETRY if again else st.REVERT))
    else:
        # The whole plan: something that belongs to no retry has to say so, or else, when there is
        # no such task, the outermost retries have to, one and all.
        tops = [n for n in plan.atoms() if plan.controller[n] < 0]
        anchor = next((n for n in tops if plan.kinds[n] == TASK), None)
        known = {node for node, _ in changes}
        needed = tops if anchor is None else [anchor]
        changes += [(n, st.REVERT) for n in needed if n not in known]
    return sorted(changes)


def saved_scopes(plan: Plan, saved: Mapping[int, Saved]) -> dict[int, bool]:
    """The widest scopes that an earlier run was reverting, or reverted for good.

    First node of each -> whether its retry is to run again then.  The inverse of `intentions`.
    """
    loose: set[int] = set()
    found: dict[int, bool] = {}
    # Retry -> the nearest one, itself included, that has something to undo; -1: the whole plan has.
    answering: dict[int, int] = {-1: -1}
    for node in plan.atoms():
        state, intention = saved.get(node, _UNTOUCHED)
        undoing = intention in (st.REVERT, st.RETRY) or state in _UNDOING or state == st.RETRYING
        if plan.kinds[node] == RETRY:
            # A retry that failed itself is undone by what is around it.
            own = undoing and state != st.FAILURE
            answering[node] = node if own else answering[plan.controller[node]]
            if own:
                # A retry that waits for its time may have been overridden meanwhile.
                waits = state == st.RETRYING and intention != st.REVERT
                found[node] = intention == st.RETRY or waits
                continue
        if undoing and answering[plan.controller[node]] < 0:
            loose.add(node)
    for retry, again in found.items() if loose else ():
        if again:  # what is behind its scope may be undone with it
            loose.difference_update(dependants(plan, plan.scope(retry).stop))
    # Where there are only retries on the outermost level, all of them stand for the whole plan.
    tops = [node for node in plan.atoms() if plan.controller[node] < 0]
    if loose or (tops and all(found.get(node) is False for node in tops)):
        return {0: False}
    widest: dict[int, bool] = {}
    stop = 0
    for start in sorted(found):
        if start >= stop:
            widest[start] = found[start]
            stop = plan.scope(start).stop
    return widest
