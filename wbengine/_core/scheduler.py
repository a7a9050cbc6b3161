"""What may run now, and what has to be undone: the bookkeeping of one run of a plan.

Forward, `unmet[n]` counts the predecessors of a node that have not settled; a node that settles
(succeeded or ignored, and everything before it settled) decrements its successors, and at zero a
node is ready.  Backward, a *scope* (a retry's subflow, or the whole plan) is being reverted:
`holders[n]` counts the successors inside the scope that are not clear yet; a node is clear when
neither it nor anything after it in the scope has something left to undo; at zero it is its turn.
Nothing is ever looked for: one sweep sets the holders of a scope, everything else follows edges.

Pure: no I/O, no clock, no user code.  One thread calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from wbengine import deciders
from wbengine import states as st
from wbengine._core import recovery
from wbengine._core.ignoring import Ignored, reach
from wbengine._core.later import Later
from wbengine._core.plan import FLOW, RETRY, TASK, Plan
from wbengine._core.progress import (
    AGAIN,
    ASKED,
    DONE,
    DUE,
    FAILED,
    IGNORED,
    PENDING,
    READY,
    RERUN,
    REVERTED,
    REVERTING,
    RUNNING,
    STUCK,
    VOTE,
    Saved,
    read,
)

# Not inside any scope that is being reverted.
_FREE: Final = -1


class Turn(NamedTuple):
    """What became possible since the last turn; each list by priority (bigger first), then id."""

    #: Targets whose deciders have to be asked: answer each with `approve`, `ignore` or `failed`.
    votes: list[int]
    execute: list[int]
    revert: list[int]
    #: Retries that execute again; call `reset_scope` of each before it does.
    retry: list[int]

    def __bool__(self) -> bool:
        return bool(self.votes or self.execute or self.revert or self.retry)


class Scheduler:
    """The state of one run.

    `start` it, then `take` turns and report what became of everything handed out, until `done`.
    Every report costs the edges of its node (and of flow nodes, ignored atoms and the like that
    settle in consequence), a resolution the edges of its scope, once.
    """

    def __init__(self, plan: Plan, states: Mapping[int, Saved] | None = None) -> None:
        """`states` holds (state, intention) per atom node as they were saved; what is missing in it
        is PENDING.
        """
        self._plan = plan
        self._progress = read(plan, states or {})
        self._marks = self._progress.marks
        self._unmet = [len(before) for before in plan.pred]
        self._holders = [_FREE] * len(plan)
        # First node of a scope being reverted -> whether that is a retry which runs again then.
        self._scopes: dict[int, bool] = {}
        # Queues may hold what was called off meanwhile; the marks tell.
        self._votes: list[int] = []
        self._execute: list[int] = []
        self._rerun = self._progress.rerun
        self._revert: list[int] = []
        self._retry: list[int] = []
        # How many nodes wait to be handed out or answered.
        self._waiting = 0
        self._failed = set(self._progress.failed)
        # Retries handed out to run again.
        self._rerunning: set[int] = set()
        self._ignored = Ignored(self._progress.origins)
        self._later = Later(plan, self._marks)
        #: How many nodes were handed out and have not come back.
        self.in_flight = 0
        #: How many edges were followed.
        self.visits = 0
        self.halted = False

    # -- turns

    def start(self) -> None:
        """Find what is ready to begin with; call it once.  O(V+E).

        What ran when the last engine died is ready at once, scopes that were half reverted go on,
        failures nobody decided upon are in `unresolved`.
        """
        progress = self._progress
        self._waiting += len(self._rerun)
        for start, again in sorted(progress.scopes.items()):
            scope = range(len(self._plan)) if start == 0 else self._plan.scope(start)
            self._sweep(scope, again)
        if self._arrive(0):
            self._settle(0)

    def take(self, most: int | None = None) -> Turn:
        """Hand out what became ready since the last turn.

        What is in `execute`, `revert` and `retry` is in flight from now on.  Of what is to be
        executed at most `most` are handed out, the rest with the next turns.
        """
        if self.halted:
            return Turn([], [], [], [])
        votes = self._drain(self._votes, VOTE, ASKED)
        execute = self._drain_some(most)
        if self._rerun:
            execute = self._ordered(execute + self._drain(self._rerun, RERUN, RUNNING))
        revert = self._drain(self._revert, DUE, REVERTING)
        retry = self._drain(self._retry, AGAIN, RUNNING)
        self._rerunning.update(retry)
        handed = len(execute) + len(revert) + len(retry)
        self.in_flight += handed
        self._waiting -= handed
        return Turn(votes, execute, revert, retry)

    def halt(self) -> None:
        """Hand out nothing any more; what is in flight may come back."""
        self.halted = True

    @property
    def done(self) -> bool:
        """Nothing is in flight, and nothing waits to be handed out (or it will not be)."""
        return self.in_flight == 0 and (self.halted or self._waiting == 0)

    def verdict(self) -> str:
        """How it ended, once `done`: SUCCESS, REVERTED, FAILURE (a reversion failed, or a failure
        was never resolved) or SUSPENDED (halted with work left).  O(V).
        """
        marks = self._marks
        atoms = [marks[node] for node in self._plan.atoms()]
        if all(mark in (DONE, IGNORED) for mark in atoms) and not self._scopes:
            return st.SUCCESS
        if STUCK in atoms or self.unresolved():
            return st.FAILURE
        return st.SUSPENDED if self._waiting else st.REVERTED

    # -- votes

    def approve(self, node: int) -> None:
        """The deciders of a target let it run.  Without effect when it was called off meanwhile."""
        if self._marks[node] != ASKED:
            return
        self._waiting -= 1
        self._marks[node] = PENDING
        if self._plan.kinds[node] == FLOW:
            self._settle(node)
        else:
            self._queue(node, READY, self._execute)

    def ignore(self, node: int, depth: deciders.Depth) -> list[int]:
        """The deciders of a target said no; returns the atoms that are ignored now and were not.

        O(edges within the reach of `depth`).  Without effect when it was called off meanwhile.
        """
        marks, kinds = self._marks, self._plan.kinds
        if marks[node] != ASKED:
            return []
        self._waiting -= 1
        marks[node] = PENDING
        ignored = []
        reached, edges = reach(self._plan, node, depth)
        self.visits += edges
        reached = [n for n in reached if marks[n] in (PENDING, IGNORED)]
        for n in reached:
            if kinds[n] in (TASK, RETRY) and marks[n] == PENDING:
                ignored.append(n)
            marks[n] = IGNORED
        self._ignored.add(node, reached)
        self._settle(node)
        return sorted(ignored)

    # -- outcomes

    def succeeded(self, node: int) -> None:
        """What was handed out to execute did it."""
        self._landed(node, RUNNING, DONE)
        if self._holders[node] == _FREE:
            if self._unmet[node] == 0:
                self._settle(node)
        elif self._holders[node] == 0:
            self._freed(node)

    def failed(self, node: int) -> bool:
        """What was handed out to execute failed, or the decider of a target in `votes` did.

        True: nobody decided yet what follows, ask `recovery.resolve` and `apply` its answer.
        False: it is inside a scope that is being reverted anyway; nothing needs to be done, but an
        answer may widen the scope.
        May be called again for a node of `unresolved`.
        """
        mark = self._marks[node]
        if mark == PENDING and self._holders[node] != _FREE:
            # A vote that was called off.
            return False
        if mark == ASKED:
            self._waiting -= 1
            self._marks[node] = FAILED
        elif mark not in (FAILED, DUE):
            self._landed(node, RUNNING, FAILED)
        if self._holders[node] == _FREE:
            self._failed.add(node)
            return True
        if self._holders[node] == 0:
            self._freed(node)
        return False

    def reverted(self, node: int) -> None:
        """What was handed out to be reverted is."""
        self._landed(node, REVERTING, REVERTED)
        self._clear(node)

    def revert_failed(self, node: int) -> None:
        """A reversion failed: what comes before it in the scope is never reverted."""
        self._landed(node, REVERTING, STUCK)

    def give_back(self, node: int) -> None:
        """What was handed out was not begun, and waits again to be handed out.

        Inside a scope that is being reverted there is nothing to execute any more: it then counts
        as PENDING.
        """
        if self._marks[node] == REVERTING:
            self._landed(node, REVERTING, DONE)
            self._queue(node, DUE, self._revert)
            return
        again = node in self._rerunning
        free = self._holders[node] == _FREE
        self._landed(node, RUNNING, DONE if again else PENDING)
        if free and again:
            self._queue(node, AGAIN, self._retry)
        elif free:
            self._queue(node, READY, self._execute)
        elif self._holders[node] == 0 and self._freed(node):
            self._clear(node)

    # -- undoing

    def unresolved(self) -> list[int]:
        """Failed nodes that no scope covers, ascending.  Resolving one may cover others: ask anew.

        A flow's enter node is among them when a decider of the flow failed.
        """
        left = {n for n in self._failed if self._marks[n] == FAILED and self._holders[n] == _FREE}
        self._failed = left
        return sorted(left)

    def apply(self, resolution: recovery.Resolution) -> list[tuple[int, str]]:
        """Begin to revert a scope; returns the (node, intention) that are to be saved with it.

        They are what a later engine needs in order to go on with the same scope.  O(V+E) of the
        scope.  A scope inside one that is being reverted changes nothing; a wider one takes over
        those inside it, and what is reverted already stays so.  REVERT replaces RETRY of the same
        scope, never the other way round.
        """
        scope, again = resolution.scope, resolution.intention == st.RETRY
        if self._holders[scope.start] != _FREE:
            own = self._scopes.get(scope.start)
            if own is None or own == again or again:
                return []
        return self._sweep(scope, again)

    def reset_scope(self, retry: int) -> list[int]:
        """Make the scope of a retry in `Turn.retry` PENDING again, before the retry executes.

        Returns the atoms whose saved state has to follow: those in its flow that were reverted or
        ignored, and those behind it that were ignored from inside.  O(V+E) of the scope.
        """
        if not self._scopes.get(retry):
            return []
        del self._scopes[retry]
        scope = self._plan.scope(retry)
        marks, pred = self._marks, self._plan.pred
        self._holders[retry] = _FREE
        changed = []
        for node in range(retry + 1, scope.stop):
            self._holders[node] = _FREE
            self._unmet[node] = len(pred[node])
            if marks[node] != PENDING:
                marks[node] = PENDING
                changed.append(node)
            if self._ignored:
                for n in self._ignored.drop(node):
                    if n >= scope.stop and marks[n] == IGNORED:
                        marks[n] = PENDING
                        changed.append(n)
        # What was settled inside had been counted off here.
        self._unmet[scope.stop] = len(pred[scope.stop])
        self._progress.begun.difference_update(scope)
        return sorted(node for node in changed if self._plan.is_atom(node))

    # -- forward

    def _settle(self, node: int) -> None:
        succ, unmet = self._plan.succ, self._unmet
        work = [node]
        while work:
            after = succ[work.pop()]
            self.visits += len(after)
            for n in after:
                unmet[n] -= 1
                if unmet[n] == 0 and self._arrive(n):
                    work.append(n)

    def _arrive(self, node: int) -> bool:
        """Everything before the node is settled; True when the node thereby is."""
        if self._holders[node] != _FREE:
            return False
        mark, plan = self._marks[node], self._plan
        if mark != PENDING:
            return mark in (DONE, IGNORED)
        is_atom = plan.kinds[node] in (TASK, RETRY)
        edges = plan.deciders.get(node)
        if (
            edges is not None
            and node not in self._progress.begun
            and any(e.source < 0 or self._marks[e.source] != IGNORED for e in edges)
        ):
            self._queue(node, VOTE, self._votes)
            return False
        if is_atom:
            self._queue(node, READY, self._execute)
        return not is_atom

    # -- backward

    def _sweep(self, scope: range, again: bool) -> list[tuple[int, str]]:
        """Count the holders of every node of a scope, last one first; free what nobody holds."""
        low, stop = scope.start, scope.stop
        marks, holders = self._marks, self._holders
        succ, kinds = self._plan.succ, self._plan.kinds
        clear = bytearray(len(scope))
        changes = []
        for node in reversed(scope):
            self._scopes.pop(node, None)
            held = 0
            for n in succ[node]:
                if n < stop and not clear[n - low]:
                    held += 1
            self.visits += len(succ[node])
            holders[node] = held
            mark = marks[node]
            if mark in (READY, VOTE, ASKED, AGAIN, DUE):
                self._waiting -= 1
                mark = marks[node] = DONE if mark in (AGAIN, DUE) else PENDING
            elif mark == FAILED and kinds[node] == FLOW:
                mark = marks[node] = PENDING
            if mark in (DONE, FAILED):
                changes.append((node, st.REVERT))
            elif mark in (PENDING, IGNORED, REVERTED) and not held:
                clear[node - low] = 1
        self._scopes[low] = again
        for node in scope:
            if holders[node] == 0 and (node == low or marks[node] in (DONE, FAILED)):
                self._freed(node)
        return recovery.intentions(self._plan, changes, low, again)

    def _clear(self, node: int) -> None:
        """A node of a scope is clear: whatever comes before it is held by one less."""
        pred, holders = self._plan.pred, self._holders
        work = [node]
        while work:
            n = work.pop()
            if n in self._scopes:
                continue
            before = pred[n]
            self.visits += len(before)
            for p in before:
                holders[p] -= 1
                if holders[p] == 0 and self._freed(p):
                    work.append(p)

    def _freed(self, node: int) -> bool:
        """Nothing holds a node of a scope any more; True when it thereby is clear."""
        mark = self._marks[node]
        if mark in (RUNNING, RERUN, REVERTING, STUCK, DUE, AGAIN):
            return False
        if self._scopes.get(node) and self._plan.kinds[node] == RETRY:
            self._queue(node, AGAIN, self._retry)
            return False
        if mark in (DONE, FAILED):
            self._queue(node, DUE, self._revert)
            return False
        return True

    # -- queues

    def _queue(self, node: int, mark: int, queue: list[int]) -> None:
        self._marks[node] = mark
        self._waiting += 1
        queue.append(node)

    def _drain(self, queue: list[int], mark: int, then: int) -> list[int]:
        """Empty a queue; what still has the mark gets the next one."""
        found = []
        marks = self._marks
        for node in queue:
            if marks[node] == mark:
                marks[node] = then
                found.append(node)
        queue.clear()
        return self._ordered(found)

    def _drain_some(self, most: int | None) -> list[int]:
        """`_drain` for what is to be executed; what is left over stays in a heap, in order."""
        if not self._later.heap and (most is None or len(self._execute) <= most):
            return self._drain(self._execute, READY, RUNNING)
        found = self._later.take(self._execute, most)
        self._execute.clear()
        return found

    def _ordered(self, nodes: list[int]) -> list[int]:
        if len(nodes) > 1:
            items = self._plan.items
            nodes.sort()
            nodes.sort(key=lambda node: -getattr(items[node], "priority", 0))
        return nodes

    def _landed(self, node: int, flying: int, then: int) -> None:
        if self._marks[node] != flying:
            raise ValueError(
                f"{self._plan.names[node]!r} was not handed out for this, or came back"
            )
        self._marks[node] = then
        self.in_flight -= 1
        if flying == RUNNING:
            self._rerunning.discard(node)
