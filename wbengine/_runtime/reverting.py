"""The backward part of the scheduler: scopes that are being reverted, and the order within them.

A scope is the flow of a retry controller, or the whole plan. While it is reverted, `blockers[n]`
counts the successors inside the scope that are not clear. A node is clear if neither it nor any
node after it in the scope has something left to revert. A node without blockers is reverted next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wbengine import states as st
from wbengine._runtime.node_states import (
    DECIDING,
    DECISION_READY,
    DONE,
    FAILED,
    IGNORED,
    NOT_OWNED,
    PENDING,
    READY,
    RETRY_READY,
    RETRY_WAITING,
    REVERT_READY,
    REVERTED,
    Saved,
)
from wbengine._runtime.plan import FLOW, RETRY, TASK, Plan

_UNTOUCHED: Final[Saved] = (None, st.EXECUTE)
_UNDOING: Final = frozenset([st.REVERTING, st.REVERTED, st.REVERT_FAILURE])

#: Value in `blockers` of nodes outside all scopes that are being reverted.
FREE: Final = -1

#: Marks of waiting nodes, and their marks after they are called off.
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
    """The scopes of a run that are being reverted.

    It changes only marks of nodes that are called off. The caller marks the nodes that are returned
    as ready to revert.
    """

    __slots__ = ("_marks", "_plan", "behind", "blockers", "scopes")

    def __init__(self, plan: Plan, marks: bytearray) -> None:
        self._plan = plan
        self._marks = marks
        self.blockers = [FREE] * len(plan)
        #: First node of a scope to whether it is a retry controller that then runs again.
        self.scopes: dict[int, bool] = {}
        #: First node of a scope to the nodes behind the scope that are reverted with it.
        self.behind: dict[int, list[int]] = {}

    def retries_after(self, node: int) -> bool:
        """Return whether this retry controller runs again after its scope is reverted."""
        return self._plan.kinds[node] == RETRY and self.scopes.get(node, False)

    def covers(self, scope: range, retries: bool) -> bool:
        """Return whether everything that reverting this scope would begin has begun already.

        REVERT replaces RETRY of the same scope, never the reverse.
        """
        if self.blockers[scope.start] == FREE:
            return False
        will_retry = self.scopes.get(scope.start)
        return will_retry is None or will_retry == retries or retries

    def call_off(self, scope: range) -> int:
        marks = self._marks[scope.start : scope.stop]
        self._marks[scope.start : scope.stop] = marks.translate(_CALL_OFF)
        return sum(marks.count(mark) for mark in _CALLED_OFF)

    def sweep(
        self, scope: range, retries: bool, behind: Sequence[int] = ()
    ) -> tuple[list[tuple[int, str]], list[int]]:
        """Begin to revert a scope, including scopes inside it. Call `call_off` first.

        O(V+E) of the scope.

        :param behind: nodes that depend on the scope and are reverted before it, ascending.
        :returns: intentions to save, and the nodes to revert next.
        """
        low = scope.start
        nodes: Sequence[int] = [*scope, *behind] if behind else scope
        stop = nodes[-1] + 1
        marks, blockers = self._marks, self.blockers
        succ, kinds = self._plan.succ, self._plan.kinds
        clear = bytearray(b"\1") * (stop - low)  # nodes outside the scope count as clear
        changes = []
        for node in reversed(nodes):
            if self.scopes.pop(node, None) is not None:
                self.behind.pop(node, None)
            clear[node - low] = 0
            blocking_count = 0
            for n in succ[node]:
                if n < stop and not clear[n - low]:
                    blocking_count += 1
            blockers[node] = blocking_count
            mark = marks[node]
            if mark == FAILED and kinds[node] == FLOW:
                mark = marks[node] = PENDING
            if mark in (DONE, FAILED):
                changes.append((node, st.REVERT))
            elif mark in (PENDING, IGNORED, NOT_OWNED, REVERTED) and not blocking_count:
                clear[node - low] = 1
        self.scopes[low] = retries
        if behind:
            self.behind[low] = list(behind)
        freed = [
            node
            for node in nodes
            if blockers[node] == 0 and (node == low or marks[node] in (DONE, FAILED))
        ]
        return intentions(self._plan, changes, low, retries), self.released(freed)

    def cleared(self, node: int) -> list[int]:
        return self.released(self._unblock(node))

    def released(self, nodes: list[int]) -> list[int]:
        marks = self._marks
        ready_nodes = []
        while nodes:
            node = nodes.pop()
            mark = marks[node]
            if mark in (DONE, FAILED) or (mark <= REVERTED and self.retries_after(node)):
                ready_nodes.append(node)
            elif mark <= REVERTED:
                nodes += self._unblock(node)
        return ready_nodes

    def _unblock(self, node: int) -> list[int]:
        if node in self.scopes:
            return []
        blockers = self.blockers
        freed = []
        for n in self._plan.pred[node]:
            if blockers[n] == FREE:  # nodes behind a scope also depend on others
                continue
            blockers[n] -= 1
            if blockers[n] == 0:
                freed.append(n)
        return freed

    def forget(self, retry: int) -> Sequence[int]:
        """Remove a reverted scope that is about to run again; return the nodes behind it."""
        del self.scopes[retry]
        scope = self._plan.scope(retry)
        self.blockers[retry : scope.stop] = [FREE] * len(scope)
        behind = self.behind.pop(retry, ())
        for node in behind:
            self.blockers[node] = FREE
        return behind


def stale(plan: Plan, marks: bytearray) -> list[int]:
    """Return atoms that are done, or reverted, although a predecessor is not done. O(V+E).

    Such records result from a changed flow or from partial resets.
    """
    settled = bytearray(len(plan))
    stale_nodes = []
    for node, predecessors in enumerate(plan.pred):
        for n in predecessors:
            if not settled[n]:
                if marks[node] in (DONE, REVERTED):
                    stale_nodes.append(node)
                break
        else:
            settled[node] = marks[node] in (DONE, IGNORED, NOT_OWNED) or plan.kinds[node] not in (
                TASK,
                RETRY,
            )
    return stale_nodes


def dependants(plan: Plan, start: int) -> list[int]:
    """Return a node and all nodes after it, ascending. O(V+E) of these nodes."""
    nodes = {start}
    pending = [start]
    while pending:
        new_nodes = [node for node in plan.succ[pending.pop()] if node not in nodes]
        nodes.update(new_nodes)
        pending += new_nodes
    return sorted(nodes)


def intentions(
    plan: Plan, changes: list[tuple[int, str]], start: int, retries: bool
) -> list[tuple[int, str]]:
    """Return the (node, intention) pairs of a scope, extended so that they identify the scope.

    :param start: the first node of the scope.
    :param retries: whether its retry controller then runs again.
    """
    if plan.kinds[start] == RETRY:
        changes = [change for change in changes if change[0] != start]
        changes.append((start, st.RETRY if retries else st.REVERT))
    else:
        # The whole plan is identified by the intention of a task outside all retry controllers or,
        # without such a task, by the intentions of all outermost controllers.
        tops = [n for n in plan.atoms() if plan.controller[n] < 0]
        anchor = next((n for n in tops if plan.kinds[n] == TASK), None)
        changed_nodes = {node for node, _ in changes}
        needed = tops if anchor is None else [anchor]
        changes += [(n, st.REVERT) for n in needed if n not in changed_nodes]
    return sorted(changes)


def saved_scopes(plan: Plan, saved: Mapping[int, Saved]) -> dict[int, bool]:
    """Return the widest scopes that an earlier run was reverting or had reverted.

    This is the inverse of `intentions`.

    :returns: the first node of each scope, with True if its retry controller then runs again.
    """
    uncontrolled: set[int] = set()
    scopes: dict[int, bool] = {}
    # For each retry controller: the innermost controller, itself or one around it, whose scope was
    # being reverted or had been reverted. -1 stands for the whole plan.
    responsible: dict[int, int] = {-1: -1}
    for node in plan.atoms():
        state, intention = saved.get(node, _UNTOUCHED)
        undoing = intention in (st.REVERT, st.RETRY) or state in _UNDOING or state == st.RETRYING
        if plan.kinds[node] == RETRY:
            # A failed retry controller is reverted with the scope around it.
            reverts_itself = undoing and state != st.FAILURE
            responsible[node] = node if reverts_itself else responsible[plan.controller[node]]
            if reverts_itself:
                # A later decision may have overridden a retry controller that waits for its time.
                waits = state == st.RETRYING and intention != st.REVERT
                scopes[node] = intention == st.RETRY or waits
                continue
        if undoing and responsible[plan.controller[node]] < 0:
            uncontrolled.add(node)
    for retry, retries in scopes.items() if uncontrolled else ():
        if retries:  # nodes behind its scope may be reverted with it
            uncontrolled.difference_update(dependants(plan, plan.scope(retry).stop))
    # If the outermost level has only retry controllers, all of them together stand for the whole
    # plan.
    tops = [node for node in plan.atoms() if plan.controller[node] < 0]
    if uncontrolled or (tops and all(scopes.get(node) is False for node in tops)):
        return {0: False}
    outermost_scopes: dict[int, bool] = {}
    stop = 0
    for start in sorted(scopes):
        if start >= stop:
            outermost_scopes[start] = scopes[start]
            stop = plan.scope(start).stop
    return outermost_scopes
