"""What may run now, and what has to be reverted: the bookkeeping of one run of a plan.

`unmet[n]` counts the predecessors of a node that have not settled; a node that settles (succeeded
or ignored, and everything before it settled) decrements its successors, and at zero a node is
ready.  Reverting is the same in the other direction, within a scope (see
`reverting`).  Nothing is ever looked for: counters and edges tell.

Pure: no I/O, no clock, no user code.  One thread calls it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import deciders
from wbengine import states as st
from wbengine.runtime import retry_decisions, reverting
from wbengine.runtime.decisions import DecisionPoints, Ignored, recall
from wbengine.runtime.node_states import (
    DECIDING,
    DECISION_READY,
    DONE,
    ENDED,
    FAILED,
    IGNORED,
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
from wbengine.runtime.plan import FLOW, RETRY, TASK, Edge, Plan
from wbengine.runtime.reverting import FREE

#: Most queues are empty in most turns.
NONE: Final[Sequence[int]] = ()


@dataclass(slots=True, eq=False)
class Turn:
    """What became possible since the last turn; each list by priority (bigger first), then id."""

    execute: Sequence[int] = NONE
    revert: Sequence[int] = NONE
    #: Retries that execute again; call `reset_scope` of each before it does.
    retry: Sequence[int] = NONE
    #: Targets to be voted on: answer each with `decide`, `approve` or `failed`.
    votes: Sequence[int] = NONE


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
        found = read(plan, states or {})
        self._marks = found.marks
        # What an earlier run was reverting.
        self._scopes = reverting.saved_scopes(plan, states) if states else {}
        # What is to be undone with a scope before it; there is next to never any.
        ran = DONE in self._marks or REVERTED in self._marks
        self._stale = reverting.stale(plan, self._marks) if ran else []
        self._unmet = [len(before) for before in plan.pred]
        self._reverting = reverting.Reverting(plan, self._marks)
        self._blockers = self._reverting.blockers
        # Queues may hold what was called off meanwhile; the marks tell.
        self._votes: list[int] = []
        self._execute: list[int] = []
        self._rerun = found.rerun
        self._revert: list[int] = []
        self._retry: list[int] = []
        # How many nodes wait to be handed out or answered.
        self._waiting = 0
        self._failed = set(found.failed)
        # Retries handed out to run again.
        self._rerunning: set[int] = set()
        self._ignored = Ignored(plan, self._marks)
        self._decisions = DecisionPoints(plan, self._marks)
        self._deciding_nodes = self._decisions.nodes
        # Flows that were let in by an earlier run.
        self._begun: set[int] = set()
        if states and self._deciding_nodes:
            self._begun = recall(plan, self._decisions, self._marks, self._ignored)
        # What had no room in its turn: priorities times -1, and ids.  The first of it, much where
        # a flow begins wide, is sorted, the first last; what comes later is a heap.
        self._later: list[tuple[Any, int]] = []
        self._fresh: list[tuple[Any, int]] = []
        #: How many nodes were handed out and have not come back.
        self.in_flight = 0
        self.halted = False

    # -- turns

    def start(self) -> None:
        """Find what is ready to begin with; call it once.  O(V+E).

        What ran when the last engine died is ready at once, scopes that were half reverted go on,
        failures nobody decided upon are in `unresolved`.
        """
        self._waiting += len(self._rerun)
        for start, again in sorted(self._scopes.items()):
            scope = range(len(self._plan)) if start == 0 else self._plan.scope(start)
            self._undo(scope, again)
        if self._arrive(0):
            self._settle(0)

    def take(self, most: int | None = None) -> Turn:
        """Hand out what became ready since the last turn.

        What is in `execute`, `revert` and `retry` is in flight from now on.  Of what is to be
        executed at most `most` are handed out, the rest with the next turns.
        """
        if self.halted:
            return Turn()
        execute = self._drain_some(most)
        handed = len(execute)
        turn = Turn(execute)
        if self._rerun:
            again = self._drain(self._rerun, RERUN, RUNNING)
            turn.execute = self._ordered(execute + again)
            handed += len(again)
        if self._votes:
            turn.votes = self._drain(self._votes, DECISION_READY, DECIDING)
        if self._revert:
            turn.revert = self._drain(self._revert, REVERT_READY, REVERTING)
            handed += len(turn.revert)
        if self._retry:
            turn.retry = self._drain(self._retry, RETRY_READY, RUNNING)
            self._rerunning.update(turn.retry)
            handed += len(turn.retry)
        self.in_flight += handed
        self._waiting -= handed
        return turn

    def halt(self) -> None:
        """Hand out nothing any more; what is in flight may come back."""
        self.halted = True

    @property
    def done(self) -> bool:
        """Nothing is in flight, and nothing waits to be handed out (or it will not be)."""
        return self.in_flight == 0 and (self.halted or self._waiting == 0)

    @property
    def waiting(self) -> int:
        """How many nodes wait to be handed out, answered, or woken."""
        return self._waiting

    def verdict(self) -> str:
        """How it ended, once `done`.  O(V).

        SUCCESS; REVERTED: nothing that was done is left; FAILURE: a reversion failed, a failure was
        never resolved, or only a part was to be reverted; SUSPENDED: halted with work left.
        """
        marks = self._marks
        atoms = [marks[node] for node in self._plan.atoms()]
        if all(mark in (DONE, IGNORED) for mark in atoms) and not self._reverting.scopes:
            return st.SUCCESS
        if REVERT_FAILED in atoms or self.unresolved():
            return st.FAILURE
        if self._waiting:
            return st.SUSPENDED
        return st.FAILURE if DONE in atoms else st.REVERTED

    # -- votes

    def ballot(self, node: int) -> list[Edge]:
        """The links of a target in `Turn.votes` whose deciders are to be asked; perhaps none."""
        return self._decisions.ballot(node)

    def decide(self, node: int, refusals: Sequence[Edge]) -> list[int]:
        """`approve` or `ignore` a target, now that those of its ballot that said no are known.

        Returns the atoms that are ignored now and were not.
        """
        depth = self._decisions.refused(node, refusals)
        if depth is not None:
            return self.ignore(node, depth)
        self.approve(node)
        return []

    def approve(self, node: int) -> None:
        """A target may run.  Without effect when it was called off meanwhile."""
        if self._marks[node] != DECIDING:
            return
        self._waiting -= 1
        self._marks[node] = PENDING
        if self._plan.kinds[node] == FLOW:
            self._settle(node)
        else:
            self._queue(node, READY, self._execute)

    def ignore(self, node: int, depth: deciders.Depth) -> list[int]:
        """A target may not run; returns the atoms that are ignored now and were not.

        O(edges within the reach of `depth`).  Without effect when it was called off meanwhile.
        """
        if self._marks[node] != DECIDING:
            return []
        self._waiting -= 1
        self._marks[node] = PENDING
        ignored = self._ignored.refuse(node, depth)
        self._settle(node)
        return ignored

    # -- outcomes

    def succeeded(self, node: int) -> None:
        """What was handed out to execute did it."""
        self._landed(node, RUNNING, DONE)
        held = self._blockers[node]
        if held == FREE:
            if self._unmet[node] == 0:
                self._settle(node)
        elif held == 0:
            self._turn_to_undo(self._reverting.released([node]))

    def failed(self, node: int) -> bool:
        """What was handed out to execute failed, or the decider of a target in `votes` did.

        True: nobody decided yet what follows, ask `retry_decisions.resolve` and `apply` its answer.
        False: it is inside a scope that is being reverted anyway; nothing needs to be done, but an
        answer may widen the scope.
        May be called again for a node of `unresolved`.
        """
        mark = self._marks[node]
        if mark == PENDING and self._blockers[node] != FREE:
            # A vote that was called off.
            return False
        if mark == DECIDING:
            self._waiting -= 1
            self._marks[node] = FAILED
        elif mark not in (FAILED, REVERT_READY):
            self._landed(node, RUNNING, FAILED)
        if self._blockers[node] == FREE:
            self._failed.add(node)
            return True
        if self._blockers[node] == 0:
            self._turn_to_undo(self._reverting.released([node]))
        return False

    def reverted(self, node: int) -> None:
        """What was handed out to be reverted is."""
        self._landed(node, REVERTING, REVERTED)
        self._turn_to_undo(self._reverting.cleared(node))

    def revert_failed(self, node: int) -> None:
        """A reversion failed: what comes before it in the scope is not reverted, unless
        `try_reverts_again` is called.
        """
        self._landed(node, REVERTING, REVERT_FAILED)

    def try_reverts_again(self) -> None:
        """What could not be reverted is to be reverted again, and then what comes before it.

        O(V), and the edges of what is clear in consequence.
        """
        marks, blockers = self._marks, self._blockers
        stuck = [node for node, mark in enumerate(marks) if mark == REVERT_FAILED]
        for node in stuck:
            marks[node] = DONE
        self._turn_to_undo(self._reverting.released([n for n in stuck if blockers[n] == 0]))

    def give_back(self, node: int, begun: bool = False) -> None:
        """What was handed out was not begun, and waits again to be handed out.

        Inside a scope that is being reverted there is nothing to execute any more: it then counts
        as PENDING.  `begun`: a part of it is done, so that it has to come to its end anyway.
        """
        if self._marks[node] == REVERTING:
            self._landed(node, REVERTING, DONE)
            self._queue(node, REVERT_READY, self._revert)
            return
        if begun:
            self._landed(node, RUNNING, PENDING)
            self._queue(node, RERUN, self._rerun)
            return
        again = node in self._rerunning
        free = self._blockers[node] == FREE
        self._landed(node, RUNNING, DONE if again else PENDING)
        if free and again:
            self._queue(node, RETRY_READY, self._retry)
        elif free:
            self._queue(node, READY, self._execute)
        elif self._blockers[node] == 0:
            self._turn_to_undo(self._reverting.released([node]))

    # -- retries that wait for their time

    def postpone(self, node: int) -> None:
        """A retry of `Turn.retry` is not to execute yet: until `wake` it is neither in flight nor
        handed out, and it counts as waiting.  Call it before `reset_scope`.

        If it was overridden since the turn, it is given back instead, to be undone.

        :raises ValueError: it was not handed out as a retry.
        """
        if node not in self._rerunning:
            raise ValueError(f"{self._plan.names[node]!r} was not handed out to be tried again")
        if self._blockers[node] != FREE and not self._reverting.again(node):
            self.give_back(node)
            return
        self._landed(node, RUNNING, RETRY_WAITING)
        self._waiting += 1

    def wake(self, node: int) -> None:
        """Hand a postponed retry out again with the next turn.

        Without effect when it was called off meanwhile: a wider scope, or a REVERT of its own,
        took it over.
        """
        if self._marks[node] == RETRY_WAITING:
            self._marks[node] = RETRY_READY
            self._retry.append(node)

    # -- reverting

    def ended(self, node: int) -> bool:
        """Whether an atom has come to its end, and is not going to be tried again."""
        for start, again in self._reverting.scopes.items():
            if again and node in self._plan.scope(start):
                return False
        return self._marks[node] in ENDED

    @property
    def reverting(self) -> bool:
        """Whether any scope is being undone."""
        return bool(self._reverting.scopes)

    def undoes(self, node: int) -> bool:
        """Whether a node is in a scope that is being undone."""
        return self._blockers[node] != FREE

    def unresolved(self) -> list[int]:
        """Failed nodes that no scope covers, ascending.  Resolving one may cover others: ask anew.

        A flow's enter node is among them when a decider of the flow failed.
        """
        left = {n for n in self._failed if self._marks[n] == FAILED and self._blockers[n] == FREE}
        self._failed = left
        return sorted(left)

    def apply(self, resolution: retry_decisions.Resolution) -> list[tuple[int, str]]:
        """Begin to revert a scope; returns the (node, intention) that are to be saved with it.

        They are what a later engine needs in order to go on with the same scope.  O(V+E) of the
        scope.  A scope inside one that is being reverted changes nothing; a wider one takes over
        those inside it, and what is reverted already stays so.  REVERT replaces RETRY of the same
        scope, never the other way round.
        """
        scope, again = resolution.scope, resolution.intention == st.RETRY
        if self._reverting.covers(scope, again):
            return []
        return self._undo(scope, again)

    def reset_scope(self, retry: int) -> list[int]:
        """Make the scope of a retry in `Turn.retry` PENDING again, before the retry executes.

        Returns the atoms whose saved state has to follow: those in its flow that were reverted or
        ignored, and those behind it that were ignored from inside.  O(V+E) of the scope.
        """
        if not self._reverting.again(retry):
            return []
        behind = self._reverting.forget(retry)
        self._decisions.forget()
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
        # What was settled inside had been counted off here.
        self._unmet[scope.stop] = len(pred[scope.stop])
        self._begun.difference_update(scope)
        return sorted(node for node in changed if self._plan.is_atom(node))

    # -- forward

    def _settle(self, node: int) -> None:
        succ, unmet = self._plan.succ, self._unmet
        work = [node]
        while work:
            for n in succ[work.pop()]:
                unmet[n] = left = unmet[n] - 1
                if not left and self._arrive(n):
                    work.append(n)

    def _arrive(self, node: int) -> bool:
        """Everything before the node is settled; True when the node thereby is."""
        if self._blockers[node] != FREE:
            return False
        mark, plan = self._marks[node], self._plan
        if mark != PENDING:
            return mark in (DONE, IGNORED)
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

    # -- backward

    def _undo(self, scope: range, again: bool) -> list[tuple[int, str]]:
        """Begin to undo a scope; what waited in it is called off."""
        self._waiting -= self._reverting.call_off(scope)
        changes, turn = self._reverting.sweep(scope, again, self._behind(scope))
        self._turn_to_undo(turn)
        return changes

    def _behind(self, scope: range) -> Sequence[int]:
        """What is after a scope and to be undone with it: all up to the last stale dependant."""
        if not self._stale or scope.stop == len(self._plan):
            return NONE
        after = reverting.dependants(self._plan, scope.stop)
        last = max(self._stale)
        found = [node for node in after if node <= last]
        return found if set(self._stale).intersection(found) else NONE

    def _turn_to_undo(self, nodes: list[int]) -> None:
        for node in nodes:
            if self._reverting.again(node):
                self._queue(node, RETRY_READY, self._retry)
            else:
                self._queue(node, REVERT_READY, self._revert)

    # -- queues

    def _queue(self, node: int, mark: int, queue: list[int]) -> None:
        self._marks[node] = mark
        self._waiting += 1
        queue.append(node)

    def _drain(self, queue: list[int], mark: int, then: int) -> list[int]:
        """Empty a queue; what still has the mark gets the next one."""
        found: list[int] = []
        marks = self._marks
        for node in queue:
            if marks[node] == mark:
                marks[node] = then
                found.append(node)
        queue.clear()
        return self._ordered(found) if len(found) > 1 else found

    def _drain_some(self, most: int | None) -> list[int]:
        """`_drain` for what is to be executed; what is left over stays in order."""
        later, fresh, marks, items = self._later, self._fresh, self._marks, self._plan.items
        if not (later or fresh) and (most is None or len(self._execute) <= most):
            return self._drain(self._execute, READY, RUNNING)
        pairs = [(-getattr(items[node], "priority", 0), node) for node in self._execute]
        self._execute.clear()
        if later or fresh:
            for pair in pairs:
                heapq.heappush(fresh, pair)
        else:
            later += sorted(pairs, reverse=True)
        found: list[int] = []
        while (later or fresh) and (most is None or len(found) < most):
            first = not fresh or (later and later[-1] < fresh[0])
            node = (later.pop() if first else heapq.heappop(fresh))[1]
            if marks[node] == READY:  # else it was called off meanwhile
                marks[node] = RUNNING
                found.append(node)
        return found

    def _ordered(self, nodes: list[int]) -> list[int]:
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
        if flying == RUNNING and self._rerunning:
            self._rerunning.discard(node)
