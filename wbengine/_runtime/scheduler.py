"""Determine which nodes can run and which have to be reverted, in one run of a plan.

`unmet[n]` counts the predecessors of a node that have not settled. A node settles when it has
succeeded or was ignored and all its predecessors have settled; it then decrements the counters of
its successors. A node whose counter is zero is ready. Reverting is the same in the other direction,
within a scope (see `reverting`).

Pure: no I/O, no clock, no user code. Not thread-safe.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import deciders
from wbengine import states as st
from wbengine._runtime import retry_decisions, reverting
from wbengine._runtime.decisions import DecisionPoints, Ignored, restore_decisions
from wbengine._runtime.node_states import (
    DECIDING,
    DECISION_READY,
    DONE,
    ENDED,
    FAILED,
    IGNORED,
    NOT_OWNED,
    PENDING,
    READY,
    RERUN,
    RETRY_READY,
    RETRY_WAITING,
    REVERT_FAILED,
    REVERT_READY,
    REVERTED,
    REVERTING,
    RUNNING,
    Saved,
    read,
)
from wbengine._runtime.plan import FLOW, RETRY, TASK, Edge, Plan
from wbengine._runtime.reverting import FREE

#: Shared by all empty queues: most queues are empty in most iterations.
NONE: Final[Sequence[int]] = ()


@dataclass(slots=True, eq=False)
class ReadyNodes:
    """Nodes that became ready since the last call; each list by descending priority, then by id."""

    execute: Sequence[int] = NONE
    revert: Sequence[int] = NONE
    #: Retry controllers that execute again. Call `reset_scope` for each before it does.
    retry: Sequence[int] = NONE
    #: Targets of deciders: answer each with `decide`, `approve` or `failed`.
    votes: Sequence[int] = NONE


class Scheduler:
    """The scheduling state of a run.

    Call `start`, then repeatedly `take`, and report the result of each node, until `done`. A report
    costs the edges of its node (plus those of flow nodes and ignored atoms that settle because of
    it); a resolution costs the edges of its scope once.
    """

    def __init__(
        self,
        plan: Plan,
        states: Mapping[int, Saved] | None = None,
        not_owned: Collection[int] = (),
    ) -> None:
        """Create the state from saved (state, intention) pairs; missing nodes are PENDING.

        :param not_owned: nodes whose results another flow reverts. They are never reverted.
        """
        self._plan = plan
        saved = read(plan, states or {}, not_owned)
        self._marks = saved.marks
        self._scopes = reverting.saved_scopes(plan, states) if states else {}
        # Nodes that must be reverted together with a scope that precedes them. This list is almost
        # always empty.
        has_run = DONE in self._marks or REVERTED in self._marks
        self._stale = reverting.stale(plan, self._marks) if has_run else []
        self._unmet = [len(predecessors) for predecessors in plan.pred]
        self._reverting = reverting.Reverting(plan, self._marks)
        self._blockers = self._reverting.blockers
        # Queues may contain nodes that were removed from them; the marks are decisive.
        self._votes: list[int] = []
        self._execute: list[int] = []
        self._rerun = saved.rerun
        self._revert: list[int] = []
        self._retry: list[int] = []
        self._waiting = 0
        self._failed = set(saved.failed)
        self._rerunning: set[int] = set()
        self._ignored = Ignored(plan, self._marks)
        self._decisions = DecisionPoints(plan, self._marks)
        self._deciding_nodes = self._decisions.nodes
        self._begun: set[int] = set()
        if states and self._deciding_nodes:
            self._begun = restore_decisions(plan, self._decisions, self._marks, self._ignored)
        # Ready nodes above the limit of `take`, as (-priority, id). `_later` holds the first large
        # group, sorted in descending order; `_fresh` is a heap for later ones.
        self._later: list[tuple[Any, int]] = []
        self._fresh: list[tuple[Any, int]] = []
        #: Number of nodes that were submitted and have no result.
        self.in_flight = 0
        self.halted = False

    def start(self) -> None:
        """Find the nodes that are ready at the beginning. Call it once; it costs O(V+E).

        If an engine died during an earlier run, the nodes that it was running are ready, and the
        reversions that it began continue. After this call, `unresolved` returns the nodes that had
        failed and for which no reversion has begun.
        """
        self._waiting += len(self._rerun)
        for start, retries in sorted(self._scopes.items()):
            scope = range(len(self._plan)) if start == 0 else self._plan.scope(start)
            self._begin_revert(scope, retries)
        if self._arrive(0):
            self._settle(0)

    def take(self, max_nodes: int | None = None) -> ReadyNodes:
        """Return the nodes that became ready since the last call.

        Nodes in `execute`, `revert` and `retry` are in flight from now on. At most `max_nodes`
        nodes of `execute` are returned; later calls return the others.
        """
        if self.halted:
            return ReadyNodes()
        execute = self._drain_some(max_nodes)
        count = len(execute)
        ready = ReadyNodes(execute)
        if self._rerun:
            rerun = self._drain(self._rerun, RERUN, RUNNING)
            ready.execute = self._ordered(execute + rerun)
            count += len(rerun)
        if self._votes:
            ready.votes = self._drain(self._votes, DECISION_READY, DECIDING)
        if self._revert:
            ready.revert = self._drain(self._revert, REVERT_READY, REVERTING)
            count += len(ready.revert)
        if self._retry:
            ready.retry = self._drain(self._retry, RETRY_READY, RUNNING)
            self._rerunning.update(ready.retry)
            count += len(ready.retry)
        self.in_flight += count
        self._waiting -= count
        return ready

    def halt(self) -> None:
        """Return no more nodes from `take`. Nodes in flight may still be reported."""
        self.halted = True

    @property
    def done(self) -> bool:
        """True if nothing is in flight and nothing waits, or nothing that waits may start."""
        return self.in_flight == 0 and (self.halted or self._waiting == 0)

    @property
    def waiting(self) -> int:
        return self._waiting

    def verdict(self) -> str:
        """Return the final state, once `done`. O(V).

        SUCCESS; REVERTED: everything was reverted; FAILURE: a revert failed, a failure was not
        resolved, or only a part had to be reverted; SUSPENDED: halted with work left.
        """
        marks = self._marks
        atoms = [marks[node] for node in self._plan.atoms()]
        if all(mark in (DONE, IGNORED, NOT_OWNED) for mark in atoms) and not self._reverting.scopes:
            return st.SUCCESS
        if REVERT_FAILED in atoms or self.unresolved():
            return st.FAILURE
        if self._waiting:
            return st.SUSPENDED
        return st.FAILURE if DONE in atoms else st.REVERTED

    def ballot(self, node: int) -> list[Edge]:
        """Return the links to a target in `ReadyNodes.votes` whose deciders are called, if any."""
        return self._decisions.ballot(node)

    def decide(self, node: int, refusals: Sequence[Edge]) -> list[int]:
        """Approve or ignore a target; return atoms that are newly ignored."""
        depth = self._decisions.refused(node, refusals)
        if depth is not None:
            return self.ignore(node, depth)
        self.approve(node)
        return []

    def approve(self, node: int) -> None:
        """Let a target run. This has no effect if its scope is being reverted."""
        if self._marks[node] != DECIDING:
            return
        self._waiting -= 1
        self._marks[node] = PENDING
        if self._plan.kinds[node] == FLOW:
            self._settle(node)
        else:
            self._queue(node, READY, self._execute)

    def ignore(self, node: int, depth: deciders.Depth) -> list[int]:
        """Ignore a target; return the atoms that are newly ignored.

        O(edges within the reach of `depth`). This has no effect if its scope is being reverted.
        """
        if self._marks[node] != DECIDING:
            return []
        self._waiting -= 1
        self._marks[node] = PENDING
        ignored = self._ignored.refuse(node, depth)
        self._settle(node)
        return ignored

    def succeeded(self, node: int) -> None:
        self._end_flight(node, RUNNING, DONE)
        blockers = self._blockers[node]
        if blockers == FREE:
            if self._unmet[node] == 0:
                self._settle(node)
        elif blockers == 0:
            self._queue_reverts(self._reverting.released([node]))

    def failed(self, node: int) -> bool:
        """Report that an execution, or the decider of a target in `votes`, failed.

        May be called again for a node of `unresolved`.

        :returns: True if no scope covers the node: call `retry_decisions.resolve` and `apply`.
            False if its scope is already being reverted; a resolution is optional, but may widen
            the scope.
        """
        mark = self._marks[node]
        if mark == PENDING and self._blockers[node] != FREE:
            return False
        if mark == DECIDING:
            self._waiting -= 1
            self._marks[node] = FAILED
        elif mark not in (FAILED, REVERT_READY):
            self._end_flight(node, RUNNING, FAILED)
        if self._blockers[node] == FREE:
            self._failed.add(node)
            return True
        if self._blockers[node] == 0:
            self._queue_reverts(self._reverting.released([node]))
        return False

    def reverted(self, node: int) -> None:
        self._end_flight(node, REVERTING, REVERTED)
        self._queue_reverts(self._reverting.cleared(node))

    def revert_failed(self, node: int) -> None:
        """Report that a revert failed.

        Nodes before it in the scope are not reverted, unless `try_reverts_again` is called.
        """
        self._end_flight(node, REVERTING, REVERT_FAILED)

    def try_reverts_again(self) -> None:
        """Make failed reverts ready again, and then the nodes before them.

        O(V), plus the edges of nodes that become clear.
        """
        marks, blockers = self._marks, self._blockers
        failed_nodes = [node for node, mark in enumerate(marks) if mark == REVERT_FAILED]
        for node in failed_nodes:
            marks[node] = DONE
        self._queue_reverts(self._reverting.released([n for n in failed_nodes if blockers[n] == 0]))

    def undo_begin(self, node: int, has_begun: bool = False) -> None:
        """Report that a submitted node was not begun; it becomes ready again.

        In a scope that is being reverted, the node becomes PENDING instead.

        :param has_begun: a part of the node is done, so it has to end in any case.
        """
        if self._marks[node] == REVERTING:
            self._end_flight(node, REVERTING, DONE)
            self._queue(node, REVERT_READY, self._revert)
            return
        if has_begun:
            self._end_flight(node, RUNNING, PENDING)
            self._queue(node, RERUN, self._rerun)
            return
        is_retry = node in self._rerunning
        is_free = self._blockers[node] == FREE
        self._end_flight(node, RUNNING, DONE if is_retry else PENDING)
        if is_free and is_retry:
            self._queue(node, RETRY_READY, self._retry)
        elif is_free:
            self._queue(node, READY, self._execute)
        elif self._blockers[node] == 0:
            self._queue_reverts(self._reverting.released([node]))

    def postpone(self, node: int) -> None:
        """Postpone a retry controller of `ReadyNodes.retry` until `wake`.

        Call it before `reset_scope`.

        Until then the node counts as waiting, not as in flight. If a wider scope has replaced its
        own since, the node is reverted instead.

        :raises ValueError: if the node was not in `ReadyNodes.retry`.
        """
        if node not in self._rerunning:
            raise ValueError(f"{self._plan.names[node]!r} was not started as a retry")
        if self._blockers[node] != FREE and not self._reverting.retries_after(node):
            self.undo_begin(node)
            return
        self._end_flight(node, RUNNING, RETRY_WAITING)
        self._waiting += 1

    def wake(self, node: int) -> None:
        """Make a postponed retry controller ready again, unless it was replaced by a decision."""
        if self._marks[node] == RETRY_WAITING:
            self._marks[node] = RETRY_READY
            self._retry.append(node)

    def ended(self, node: int) -> bool:
        for start, retries in self._reverting.scopes.items():
            if retries and node in self._plan.scope(start):
                return False
        return self._marks[node] in ENDED

    @property
    def reverting(self) -> bool:
        return bool(self._reverting.scopes)

    def is_reverting(self, node: int) -> bool:
        return self._blockers[node] != FREE

    def unresolved(self) -> list[int]:
        """Return the failed nodes that no scope covers, ascending.

        Resolving one may cover others, so call this again. It contains the enter node of a flow if
        one of its deciders failed.
        """
        uncovered = {
            n for n in self._failed if self._marks[n] == FAILED and self._blockers[n] == FREE
        }
        self._failed = uncovered
        return sorted(uncovered)

    def apply(self, resolution: retry_decisions.Resolution) -> list[tuple[int, str]]:
        """Begin to revert a scope; return the (node, intention) pairs to save with it.

        A later engine needs them to continue with the same scope. O(V+E) of the scope. A scope
        inside one that is being reverted changes nothing. A wider scope includes those inside it;
        nodes that are reverted stay so. REVERT replaces RETRY of the same scope, never the reverse.
        """
        scope, retries = resolution.scope, resolution.intention == st.RETRY
        if self._reverting.covers(scope, retries):
            return []
        return self._begin_revert(scope, retries)

    def reset_scope(self, retry: int) -> list[int]:
        """Return the scope of a retry controller to PENDING, before the controller executes.

        O(V+E) of the scope.

        :returns: atoms whose records have to be reset: those in its flow that were reverted or
            ignored, and those behind it that were ignored by deciders inside.
        """
        if not self._reverting.retries_after(retry):
            return []
        behind = self._reverting.forget(retry)
        self._decisions.clear_cache()
        scope = self._plan.scope(retry)
        marks, pred = self._marks, self._plan.pred
        changed = []
        for node in range(retry + 1, scope.stop):
            self._unmet[node] = len(pred[node])
            if marks[node] != PENDING:
                marks[node] = PENDING
                changed.append(node)
        for node in behind:
            if marks[node] != PENDING:
                marks[node] = PENDING
                changed.append(node)
        changed += self._ignored.take_back(scope)
        # Nodes that had settled inside the flow were subtracted here.
        self._unmet[scope.stop] = len(pred[scope.stop])
        self._begun.difference_update(scope)
        return sorted(node for node in changed if self._plan.is_atom(node))

    def _settle(self, node: int) -> None:
        succ, unmet = self._plan.succ, self._unmet
        settled = [node]
        while settled:
            for n in succ[settled.pop()]:
                unmet[n] = remaining = unmet[n] - 1
                if not remaining and self._arrive(n):
                    settled.append(n)

    def _arrive(self, node: int) -> bool:
        """Handle a node whose predecessors have settled; return whether the node settles too."""
        if self._blockers[node] != FREE:
            return False
        mark, plan = self._marks[node], self._plan
        if mark != PENDING:
            return mark in (DONE, IGNORED, NOT_OWNED)
        if (
            node in self._deciding_nodes
            and node not in self._begun
            and self._decisions.must_decide(node)
        ):
            self._queue(node, DECISION_READY, self._votes)
            return False
        if plan.kinds[node] in (TASK, RETRY):
            self._queue(node, READY, self._execute)
            return False
        return True

    def _begin_revert(self, scope: range, retries: bool) -> list[tuple[int, str]]:
        self._waiting -= self._reverting.call_off(scope)
        changes, ready_nodes = self._reverting.sweep(scope, retries, self._behind(scope))
        self._queue_reverts(ready_nodes)
        return changes

    def _behind(self, scope: range) -> Sequence[int]:
        if not self._stale or scope.stop == len(self._plan):
            return NONE
        dependants = reverting.dependants(self._plan, scope.stop)
        last = max(self._stale)
        nodes = [node for node in dependants if node <= last]
        return nodes if set(self._stale).intersection(nodes) else NONE

    def _queue_reverts(self, nodes: list[int]) -> None:
        for node in nodes:
            if self._reverting.retries_after(node):
                self._queue(node, RETRY_READY, self._retry)
            else:
                self._queue(node, REVERT_READY, self._revert)

    def _queue(self, node: int, mark: int, queue: list[int]) -> None:
        self._marks[node] = mark
        self._waiting += 1
        queue.append(node)

    def _drain(self, queue: list[int], mark: int, new_mark: int) -> list[int]:
        """Empty a queue; nodes that still have `mark` get `new_mark`."""
        drained: list[int] = []
        marks = self._marks
        for node in queue:
            if marks[node] == mark:
                marks[node] = new_mark
                drained.append(node)
        queue.clear()
        return self._ordered(drained) if len(drained) > 1 else drained

    def _drain_some(self, max_nodes: int | None) -> list[int]:
        later, fresh, marks, items = self._later, self._fresh, self._marks, self._plan.items
        if not (later or fresh) and (max_nodes is None or len(self._execute) <= max_nodes):
            return self._drain(self._execute, READY, RUNNING)
        pairs = [(-getattr(items[node], "priority", 0), node) for node in self._execute]
        self._execute.clear()
        if later or fresh:
            for pair in pairs:
                heapq.heappush(fresh, pair)
        else:
            later += sorted(pairs, reverse=True)
        drained: list[int] = []
        while (later or fresh) and (max_nodes is None or len(drained) < max_nodes):
            first = not fresh or (later and later[-1] < fresh[0])
            node = (later.pop() if first else heapq.heappop(fresh))[1]
            if marks[node] == READY:  # otherwise the entry is obsolete
                marks[node] = RUNNING
                drained.append(node)
        return drained

    def _ordered(self, nodes: list[int]) -> list[int]:
        items = self._plan.items
        nodes.sort()
        nodes.sort(key=lambda node: -getattr(items[node], "priority", 0))
        return nodes

    def _end_flight(self, node: int, old_mark: int, new_mark: int) -> None:
        if self._marks[node] != old_mark:
            raise ValueError(
                f"{self._plan.names[node]!r} was not started for this, or has already ended"
            )
        self._marks[node] = new_mark
        self.in_flight -= 1
        if old_mark == RUNNING and self._rerunning:
            self._rerunning.discard(node)
