"""Flows as the engine plans and schedules them, and what it decides when something fails.

Nodes go by their names: those of atoms, that of a flow for its beginning, `name[$]` for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wbengine import deciders
from wbengine.runtime import retry_decisions
from wbengine.runtime.compiler import compile
from wbengine.runtime.plan import FLOW, RETRY, Edge, Plan
from wbengine.runtime.scheduler import Scheduler
from wbengine.testing import ManualClock

#: State and intention of an atom, as they are saved.
Saved = tuple[str | None, str]


class Vote(NamedTuple):
    """A link with a decider, as its target sees it."""

    #: The node it begins at.
    source: str
    of_flow: bool
    depth: str


class Provider(NamedTuple):
    atom: str
    #: Where in its result; None: it is the whole result.
    index: Any


class Decision(NamedTuple):
    """What follows from a failure: a flow is reverted, and with RETRY its retry runs it again."""

    intention: str
    #: The retry whose flow it is; None: everything.
    retry: str | None


EVERYTHING = Decision("REVERT", None)


@dataclass
class Turn:
    """What may begin now, in the order in which it is handed out."""

    votes: list[str] = field(default_factory=list)
    execute: list[str] = field(default_factory=list)
    revert: list[str] = field(default_factory=list)
    retry: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.votes or self.execute or self.revert or self.retry)


class Planned:
    """A flow that was compiled."""

    def __init__(self, flow: Any) -> None:
        self._plan: Plan = compile(flow)
        #: All nodes: whatever depends on others comes after them.
        self.names: Sequence[str] = self._plan.names
        self._id = {name: node for node, name in enumerate(self.names)}
        self.atoms = [self.names[node] for node in self._plan.atoms()]

    def before(self, name: str) -> set[str]:
        return self._named(self._plan.pred[self._id[name]])

    def after(self, name: str) -> set[str]:
        return self._named(self._plan.succ[self._id[name]])

    def controller(self, name: str) -> str | None:
        """The retry that answers for a failure of the node."""
        return self._name_or_none(self._plan.controller[self._id[name]])

    @property
    def flows(self) -> dict[str, set[str]]:
        """All nodes of each flow, its beginning and its end included."""
        plan = self._plan
        return {
            self.names[node]: self._named(range(node, plan.end[node] + 1))
            for node, kind in enumerate(plan.kinds)
            if kind == FLOW
        }

    @property
    def rules(self) -> dict[str, str]:
        """The join rules that are not ALL."""
        return {self.names[node]: str(rule) for node, rule in self._plan.joins.items()}

    @property
    def votes(self) -> dict[str, list[Vote]]:
        """The links with deciders, by their target."""
        return {
            self.names[node]: [self._vote(edge) for edge in edges]
            for node, edges in self._plan.deciders.items()
        }

    def scope(self, retry: str) -> set[str]:
        """What a retry runs again: itself and all that is inside its flow."""
        return self._named(self._plan.scope(self._id[retry]))

    def providers(self, atom: str, value: str) -> list[Provider]:
        """The providers of a value that an atom sees, nearest first."""
        found = self._plan.candidates(self._id[atom], value)
        return [Provider(self.names[p.node], p.index) for p in found]

    def first_provider(self, atom: str, value: str) -> Provider | None:
        """The nearest of them, as the engine looks it up."""
        found = self._plan.first(self._id[atom], value)
        return None if found is None else Provider(self.names[found.node], found.index)

    def resolve(
        self, failed: str, ask: Callable[[str, str], str], *, defer_reverts: bool
    ) -> Decision:
        """Find out what follows from a failure; `ask(retry, failed)` answers in a retry's place."""
        found = retry_decisions.resolve(
            self._plan,
            self._id[failed],
            lambda retry, node: ask(self.names[retry], self.names[node]),
            defer_reverts=defer_reverts,
        )
        start = found.scope.start
        is_retry = self._plan.kinds[start] == RETRY
        return Decision(found.intention, self.names[start] if is_retry else None)

    def _resolution(self, decision: Decision) -> retry_decisions.Resolution:
        if decision.retry is None:
            return retry_decisions.everything(self._plan)
        scope = self._plan.scope(self._id[decision.retry])
        return retry_decisions.Resolution(decision.intention, scope)

    def _named(self, nodes: Iterable[int]) -> set[str]:
        return {self.names[node] for node in nodes}

    def _name_or_none(self, node: int) -> str | None:
        return self.names[node] if node >= 0 else None

    def _vote(self, edge: Edge) -> Vote:
        return Vote(self.names[edge.end], edge.source < 0, str(edge.depth))


class Run:
    """One run of a flow, from its beginning or from what an earlier one saved."""

    def __init__(self, flow: Planned, saved: Mapping[str, Saved] | None = None) -> None:
        self._flow = flow
        self._id = flow._id
        states = {self._id[name]: known for name, known in (saved or {}).items()}
        self._scheduler = Scheduler(flow._plan, states)
        self._scheduler.start()

    # -- how far it is

    @property
    def done(self) -> bool:
        return self._scheduler.done

    @property
    def verdict(self) -> str:
        """How it ended, once it is done."""
        return self._scheduler.verdict()

    @property
    def in_flight(self) -> int:
        """How many nodes were handed out and did not come back."""
        return self._scheduler.in_flight

    @property
    def unresolved(self) -> list[str]:
        """What failed, and nothing was decided about."""
        return [self._flow.names[node] for node in self._scheduler.unresolved()]

    def ended(self, name: str) -> bool:
        """Whether an atom has come to its end, and is not going to be tried again."""
        return self._scheduler.ended(self._id[name])

    # -- handing out

    def take(self, most: int | None = None) -> Turn:
        """Hand out what may begin; of what is new to be executed at most so many."""
        turn = self._scheduler.take(most)
        return Turn(*map(self._names, (turn.votes, turn.execute, turn.revert, turn.retry)))

    @property
    def suspended(self) -> bool:
        return self._scheduler.halted

    @suspended.setter
    def suspended(self, value: bool) -> None:
        """Nothing more is handed out, until it is False again."""
        self._scheduler.halted = value

    def give_back(self, name: str) -> None:
        """What was handed out was not begun."""
        self._scheduler.give_back(self._id[name])

    def postpone(self, retry: str) -> None:
        """A retry that was handed out waits until it is woken."""
        self._scheduler.postpone(self._id[retry])

    def wake(self, retry: str) -> None:
        self._scheduler.wake(self._id[retry])

    def reset(self, retry: str) -> set[str]:
        """A retry that was handed out is about to run its flow again: who is PENDING now."""
        return set(self._names(self._scheduler.reset_scope(self._id[retry])))

    # -- what came of it

    def succeeded(self, name: str) -> None:
        self._scheduler.succeeded(self._id[name])

    def failed(self, name: str) -> bool:
        """Whether it has to be decided what follows."""
        return self._scheduler.failed(self._id[name])

    def reverted(self, name: str) -> None:
        self._scheduler.reverted(self._id[name])

    def revert_failed(self, name: str) -> None:
        self._scheduler.revert_failed(self._id[name])

    def ballot(self, target: str) -> list[Vote]:
        """Whose deciders are asked."""
        return [self._flow._vote(edge) for edge in self._scheduler.ballot(self._id[target])]

    def decide(self, target: str, nays: Collection[Vote]) -> list[str]:
        """The deciders were asked, and these said no: who is ignored now, and was not."""
        node = self._id[target]
        edges = [e for e in self._scheduler.ballot(node) if self._flow._vote(e) in nays]
        return self._names(self._scheduler.decide(node, edges))

    def approve(self, target: str) -> None:
        self._scheduler.approve(self._id[target])

    def ignore(self, target: str, depth: str) -> list[str]:
        return self._names(self._scheduler.ignore(self._id[target], deciders.Depth(depth)))

    def apply(self, decision: Decision) -> list[tuple[str, str]]:
        """Begin to revert what a decision says; the intentions to be saved with it, by name."""
        changes = self._scheduler.apply(self._flow._resolution(decision))
        return [(self._flow.names[node], intention) for node, intention in changes]

    def _names(self, nodes: Iterable[int]) -> list[str]:
        return [self._flow.names[node] for node in nodes]


def tell_time_by(engine: Any, clock: ManualClock) -> None:
    """Let an engine that was loaded, and did not run, wait on a clock of the test's own."""
    engine._clock = clock
