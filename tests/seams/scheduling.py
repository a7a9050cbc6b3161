"""Plans and schedules of flows, and decisions after failures.

Nodes are identified by name: the name of an atom, the name of a flow for its beginning, and
`name[$]` for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wbengine import deciders, engines
from wbengine._concurrency.clocks import Clock
from wbengine._runtime import retry_decisions
from wbengine._runtime.compiler import compile
from wbengine._runtime.plan import FLOW, RETRY, Edge, Plan
from wbengine._runtime.scheduler import Scheduler

#: Stored state and intention of an atom.
Saved = tuple[str | None, str]


class Vote(NamedTuple):
    """A link with a decider, from the view of its target."""

    #: The node at which the link begins.
    source: str
    of_flow: bool
    depth: str


class Provider(NamedTuple):
    atom: str
    #: Key in the result, or None for the whole result.
    index: Any


class Decision(NamedTuple):
    """The decision after a failure: a flow is reverted, and with RETRY its retry controller runs it
    again.
    """

    intention: str
    #: The retry controller of that flow, or None for the whole flow.
    retry: str | None


EVERYTHING = Decision("REVERT", None)


@dataclass
class Turn:
    """The nodes that may begin now, in order."""

    votes: list[str] = field(default_factory=list)
    execute: list[str] = field(default_factory=list)
    revert: list[str] = field(default_factory=list)
    retry: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.votes or self.execute or self.revert or self.retry)


class Planned:
    """A compiled flow."""

    def __init__(self, flow: Any) -> None:
        self._plan: Plan = compile(flow)
        #: All nodes in topological order.
        self.names: Sequence[str] = self._plan.names
        self._id = {name: node for node, name in enumerate(self.names)}
        self.atoms = [self.names[node] for node in self._plan.atoms()]

    def before(self, name: str) -> set[str]:
        return self._named(self._plan.pred[self._id[name]])

    def after(self, name: str) -> set[str]:
        return self._named(self._plan.succ[self._id[name]])

    def controller(self, name: str) -> str | None:
        """Return the retry controller that decides about a failure of the node."""
        return self._name_or_none(self._plan.controller[self._id[name]])

    @property
    def flows(self) -> dict[str, set[str]]:
        """Return all nodes of each flow, including its beginning and end."""
        plan = self._plan
        return {
            self.names[node]: self._named(range(node, plan.end[node] + 1))
            for node, kind in enumerate(plan.kinds)
            if kind == FLOW
        }

    @property
    def rules(self) -> dict[str, str]:
        """Return the join rules other than ALL."""
        return {self.names[node]: str(rule) for node, rule in self._plan.joins.items()}

    @property
    def votes(self) -> dict[str, list[Vote]]:
        """Return the links with deciders by target."""
        return {
            self.names[node]: [self._vote(edge) for edge in edges]
            for node, edges in self._plan.deciders.items()
        }

    def scope(self, retry: str) -> set[str]:
        """Return the nodes that a retry controller runs again: itself and its flow."""
        return self._named(self._plan.scope(self._id[retry]))

    def providers(self, atom: str, value: str) -> list[Provider]:
        """Return the providers of a value that an atom can use, nearest first."""
        candidates = self._plan.candidates(self._id[atom], value)
        return [Provider(self.names[p.node], p.index) for p in candidates]

    def first_provider(self, atom: str, value: str) -> Provider | None:
        """Return the nearest provider as the engine selects it."""
        candidate = self._plan.first(self._id[atom], value)
        return None if candidate is None else Provider(self.names[candidate.node], candidate.index)

    def resolve(
        self, failed: str, ask: Callable[[str, str], str], *, defer_reverts: bool
    ) -> Decision:
        """Return the decision after a failure. `ask(retry, failed)` replaces the controllers."""
        resolution = retry_decisions.resolve(
            self._plan,
            self._id[failed],
            lambda retry, node: ask(self.names[retry], self.names[node]),
            defer_reverts=defer_reverts,
        )
        start = resolution.scope.start
        is_retry = self._plan.kinds[start] == RETRY
        return Decision(resolution.intention, self.names[start] if is_retry else None)

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
    """One run of a flow, from its beginning or from stored states."""

    def __init__(self, flow: Planned, saved: Mapping[str, Saved] | None = None) -> None:
        self._flow = flow
        self._id = flow._id
        states = {self._id[name]: known for name, known in (saved or {}).items()}
        self._scheduler = Scheduler(flow._plan, states)
        self._scheduler.start()

    # -- progress

    @property
    def done(self) -> bool:
        return self._scheduler.done

    @property
    def verdict(self) -> str:
        """Return the final state of a finished run."""
        return self._scheduler.verdict()

    @property
    def in_flight(self) -> int:
        """Return the number of nodes that were handed out and not completed."""
        return self._scheduler.in_flight

    @property
    def unresolved(self) -> list[str]:
        """Return the failed atoms without a decision."""
        return [self._flow.names[node] for node in self._scheduler.unresolved()]

    def ended(self, name: str) -> bool:
        """Return whether an atom has ended and will not be tried again."""
        return self._scheduler.ended(self._id[name])

    # -- handing out

    def take(self, most: int | None = None) -> Turn:
        """Hand out the nodes that may begin, with at most `most` new executions."""
        turn = self._scheduler.take(most)
        return Turn(*map(self._names, (turn.votes, turn.execute, turn.revert, turn.retry)))

    @property
    def suspended(self) -> bool:
        return self._scheduler.halted

    @suspended.setter
    def suspended(self, value: bool) -> None:
        """Stop handing out nodes, until it is set to False."""
        self._scheduler.halted = value

    def give_back(self, name: str) -> None:
        """Return a node that was handed out and not begun."""
        self._scheduler.undo_begin(self._id[name])

    def postpone(self, retry: str) -> None:
        """Let a retry controller that was handed out wait until `wake`."""
        self._scheduler.postpone(self._id[retry])

    def wake(self, retry: str) -> None:
        self._scheduler.wake(self._id[retry])

    def reset(self, retry: str) -> set[str]:
        """Reset the scope of a retry controller that was handed out. Return the atoms that become
        PENDING.
        """
        return set(self._names(self._scheduler.reset_scope(self._id[retry])))

    # -- results

    def succeeded(self, name: str) -> None:
        self._scheduler.succeeded(self._id[name])

    def failed(self, name: str) -> bool:
        """Record a failure. Return whether it needs a decision."""
        return self._scheduler.failed(self._id[name])

    def reverted(self, name: str) -> None:
        self._scheduler.reverted(self._id[name])

    def revert_failed(self, name: str) -> None:
        self._scheduler.revert_failed(self._id[name])

    def ballot(self, target: str) -> list[Vote]:
        """Return the links whose deciders must be called."""
        return [self._flow._vote(edge) for edge in self._scheduler.ballot(self._id[target])]

    def decide(self, target: str, nays: Collection[Vote]) -> list[str]:
        """Apply the deciders' answers (`nays` refused), and return the ignored atoms."""
        node = self._id[target]
        edges = [e for e in self._scheduler.ballot(node) if self._flow._vote(e) in nays]
        return self._names(self._scheduler.decide(node, edges))

    def approve(self, target: str) -> None:
        self._scheduler.approve(self._id[target])

    def ignore(self, target: str, depth: str) -> list[str]:
        return self._names(self._scheduler.ignore(self._id[target], deciders.Depth(depth)))

    def apply(self, decision: Decision) -> list[tuple[str, str]]:
        """Begin to revert according to a decision. Return the intentions to save, by name."""
        changes = self._scheduler.apply(self._flow._resolution(decision))
        return [(self._flow.names[node], intention) for node, intention in changes]

    def _names(self, nodes: Iterable[int]) -> list[str]:
        return [self._flow.names[node] for node in nodes]


def load_at(clock: Clock, flow: Any, **options: Any) -> Any:
    """Load a flow into an engine with a simulated clock."""
    return engines.load(flow, clock=clock, **options)
