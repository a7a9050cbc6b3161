"""A second implementation of the scheduler's rules, without incremental state.

It uses neither plans nor node ids.  It builds its own graph from the description of a flow
(`Spec`), refers to nodes by name, and derives the possible events from the states of the atoms
after each event.  It is slow and follows the wording of the definition.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable
from dataclasses import dataclass, field

ATOM, LINEAR, UNORDERED, GRAPH = "atom", "linear", "unordered", "graph"


@dataclass
class Link:
    source: int
    target: int
    depth: str | None = None  # depth of its decider; None: no decider


@dataclass
class Spec:
    """A flow or an atom; the children of a graph are in topological order."""

    kind: str
    name: str
    children: list[Spec] = field(default_factory=list)
    retry: str | None = None
    links: list[Link] = field(default_factory=list)
    join: str = "ALL"  # join rule in the surrounding graph
    urgent: bool = False

    @property
    def first(self) -> str:
        return self.name

    @property
    def last(self) -> str:
        return self.name if self.kind == ATOM else f"{self.name}[$]"

    def is_empty(self) -> bool:
        """Return True if it contains no atom."""
        if self.kind == ATOM or self.retry:
            return False
        return all(child.is_empty() for child in self.children)

    def everything(self) -> list[str]:
        """Return the names of all its nodes."""
        if self.kind == ATOM:
            return [self.name]
        inner = [name for child in self.children for name in child.everything()]
        return [self.name, *([self.retry] if self.retry else []), *inner, self.last]


@dataclass(frozen=True)
class Arrow:
    """A link with a decider, from the view of its target."""

    end: str  # its source
    of_flow: bool
    depth: str


@dataclass
class Scope:
    nodes: frozenset[str]
    retry: str | None
    again: bool


@dataclass
class Ready:
    votes: set[str] = field(default_factory=set)
    execute: set[str] = field(default_factory=set)
    revert: set[str] = field(default_factory=set)
    retry: set[str] = field(default_factory=set)


class Oracle:
    def __init__(self, root: Spec) -> None:
        self.root = root
        self.before: dict[str, set[str]] = {}
        self.after: dict[str, set[str]] = {}
        self.flows: dict[str, Spec] = {}  # by the name of the enter node
        self.around: dict[str, str | None] = {}  # retry controller of a node
        self.retry_scope: dict[str, frozenset[str]] = {}
        self.inside: dict[str, tuple[str, ...]] = {}  # enter nodes of the flows around a node
        self.arrows: dict[str, list[Arrow]] = {}  # by target
        self.rule: dict[str, str] = {}
        self._draw(root, None)
        self.order = list(graphlib.TopologicalSorter(self.before).static_order())
        self.atoms = [n for n in self.before if n not in self.flows and not n.endswith("[$]")]

        self.state = dict.fromkeys(self.atoms, "PENDING")
        self.intention = dict.fromkeys(self.atoms, "EXECUTE")
        self.out: set[str] = set()  # atoms that were handed out
        self.asked: set[str] = set()
        self.approved: set[str] = set()
        self.must_rerun: set[str] = set()
        self.again: set[str] = set()  # retry controllers to hand out again
        self.asleep: set[str] = set()
        self.nays: list[tuple[str, frozenset[str]]] = []  # (target, nodes that its refusal ignored)
        self.lost: set[str] = set()  # ignored nodes whose refusing target is unknown
        self.scopes: list[Scope] = []

    # -- graph

    def _edge(self, u: str, v: str) -> None:
        self.after.setdefault(u, set()).add(v)
        self.before.setdefault(v, set()).add(u)

    def _draw(self, spec: Spec, retry: str | None, inside: tuple[str, ...] = ()) -> None:
        for name in (spec.first, spec.last):
            self.before.setdefault(name, set())
            self.after.setdefault(name, set())
            self.around[name] = retry
            self.inside[name] = inside
        self.rule[spec.first] = "ALL" if spec.is_empty() else spec.join
        if spec.kind == ATOM:
            return
        self.flows[spec.name] = spec
        head = spec.first
        inside = (*inside, spec.first)
        self.inside[spec.last] = inside
        if spec.retry:
            self.inside[spec.retry] = inside
            self.around[spec.retry] = retry
            self._edge(head, spec.retry)
            self.after.setdefault(spec.retry, set())
            head = retry = spec.retry
            inner = set(spec.everything()) - {spec.first, spec.last}
            self.retry_scope[spec.retry] = frozenset(inner)
        children = spec.children
        for child in children:
            self._draw(child, retry, inside)
        if not children:
            self._edge(head, spec.last)
        if spec.kind == LINEAR:
            links = [Link(i, i + 1) for i in range(len(children) - 1)]
        else:
            links = spec.links
        for link in links:
            source, target = children[link.source], children[link.target]
            self._edge(source.last, target.first)
            if link.depth is not None and not target.is_empty():
                arrow = Arrow(source.last, source.kind != ATOM, link.depth)
                self.arrows.setdefault(target.first, []).append(arrow)
        for i, child in enumerate(children):
            if all(link.target != i for link in links):
                self._edge(head, child.first)
            if all(link.source != i for link in links):
                self._edge(child.last, spec.last)

    def reachable(self, name: str, inside: Callable[[str], bool] = lambda n: True) -> set[str]:
        found: set[str] = set()
        todo = [name]
        while todo:
            for n in self.after[todo.pop()]:
                if n not in found and inside(n):
                    found.add(n)
                    todo.append(n)
        return found

    # -- definitions

    def ignored(self, name: str) -> bool:
        return name in self.lost or any(name in reached for _, reached in self.nays)

    def undone(self, name: str) -> bool:
        """Return True if the node is inside a reverted or reverting scope."""
        return any(name in scope.nodes for scope in self.scopes)

    def settled(self) -> set[str]:
        found: set[str] = set()
        for name in self.order:
            if self.before[name] <= found and self._settles(name):
                found.add(name)
        return found

    def _settles(self, name: str) -> bool:
        if self.undone(name):
            return False
        if self.ignored(name):
            return True
        if name in self.state:
            return self.state[name] == "SUCCESS" and name not in self.again | self.asleep
        return not self.must_vote(name) or name in self.approved

    def gone(self, name: str) -> bool:
        """Return True if links that begin at this node are not taken."""
        if name.endswith("[$]"):
            return all(self.gone(n) for n in self.before[name])
        return self.ignored(name)

    def asks(self, name: str) -> list[Arrow]:
        """Return the links whose deciders are called."""
        arrows = self.arrows.get(name, [])
        if self.rule.get(name, "ALL") == "ALL":
            return [a for a in arrows if a.of_flow or not self.ignored(a.end)]
        return [a for a in arrows if not self.gone(a.end)]

    def refused(self, name: str, nays: list[Arrow]) -> str | None:
        """Return the depth to which the node is ignored, or None if it runs."""
        deciding = {a.end for a in self.arrows.get(name, [])}
        ways = [n for n in self.before[name] if n not in deciding and not self.gone(n)]
        ways += [a.end for a in self.asks(name) if a not in nays]
        depths = [a.depth for a in nays]
        if self.rule.get(name) == "ANY":
            if ways:
                return None
            depths += ["ALL" for n in self.before[name] if self.gone(n)]
        return min(depths, key=["ALL", "FLOW", "NEIGHBORS", "ATOM"].index, default=None)

    def must_vote(self, name: str) -> bool:
        """Return True if the node would be ignored if all deciders refused."""
        return self.refused(name, self.asks(name)) is not None

    def ready(self) -> Ready:
        ready = Ready()
        settled = self.settled()
        for name, before in self.before.items():
            atom = name in self.state
            if not before <= settled or self.undone(name) or self.ignored(name) or name in settled:
                continue
            if atom and (self.state[name] != "PENDING" or name in self.again):
                continue
            if name in self.asked:
                continue
            if self.must_vote(name) and name not in self.approved:
                ready.votes.add(name)
            elif atom:
                ready.execute.add(name)
        ready.execute |= self.must_rerun
        for scope in self.scopes:
            busy = {
                n
                for n in scope.nodes & set(self.state)
                if self.state[n] not in ("PENDING", "REVERTED")
            }
            for name in busy:
                if scope.again and name == scope.retry:
                    continue
                if self.state[name] in ("SUCCESS", "FAILURE") and not (
                    self.reachable(name, scope.nodes.__contains__) & busy
                ):
                    ready.revert.add(name)
            if scope.again and not busy - {scope.retry}:
                assert scope.retry is not None
                if scope.retry not in self.out | self.asleep:
                    ready.retry.add(scope.retry)
        ready.retry |= {n for n in self.again if not self.undone(n)}
        return ready

    # -- events

    def hand_out(self, ready: Ready) -> None:
        self.asked |= ready.votes
        for name in ready.execute:
            self.state[name] = "RUNNING"
        for name in ready.revert:
            self.state[name] = "REVERTING"
        for name in ready.retry:
            self.state[name] = "RUNNING"
        self.must_rerun -= ready.execute
        self.again -= ready.retry
        self.out |= ready.execute | ready.revert | ready.retry

    def reset(self, retry: str) -> set[str]:
        """Reset the scope of a retry controller that executes again; return the changed atoms."""
        mine = [s for s in self.scopes if s.again and s.retry == retry]
        if not mine:
            return set()
        self.scopes.remove(mine[0])
        inside = self.retry_scope[retry] - {retry}
        ignored = {n for n in self.atoms if self.ignored(n)}
        self.nays = [(t, reached) for t, reached in self.nays if t not in inside]
        self.lost -= inside
        changed = {n for n in ignored if not self.ignored(n)}
        for name in inside & set(self.state):
            if self.state[name] != "PENDING":
                changed.add(name)
            self.state[name] = "PENDING"
        self.approved -= inside
        self.asked -= inside
        return changed

    def approve(self, name: str) -> None:
        self.asked.remove(name)
        self.approved.add(name)

    def reach(self, name: str, depth: str) -> frozenset[str]:
        """Return the nodes that a refusal ignores, by repeated application of the definition."""
        flow = self.flows.get(name)
        found = set(flow.everything()) if flow else {name}
        if depth == "ATOM" or (flow and depth != "ALL"):
            return frozenset(found)
        tasks = set(self.atoms) - set(self.retry_scope)
        while True:
            new = set()
            for n in set(self.before) - found:
                reached = bool(self.before[n] & found) and self.rule.get(n, "ALL") == "ALL"
                if depth == "ALL":
                    reached = reached or not found.isdisjoint(self.inside[n])
                else:
                    reached = reached and n in tasks
                if reached:
                    new.add(n)
            found |= new
            if not new or depth == "NEIGHBORS":
                return frozenset(found)

    def ignore(self, name: str, depth: str) -> set[str]:
        self.asked.remove(name)
        before = {n for n in self.atoms if self.ignored(n)}
        reached = self.reach(name, depth)
        assert all(self.state.get(n, "PENDING") == "PENDING" for n in reached)
        self.nays.append((name, reached))
        return {n for n in self.atoms if self.ignored(n)} - before

    def succeed(self, name: str) -> None:
        self.out.remove(name)
        self.state[name] = "SUCCESS"

    def fail(self, name: str) -> bool:
        self.out.discard(name)
        self.asked.discard(name)
        if name in self.state:
            self.state[name] = "FAILURE"
        return not self.undone(name)

    def revert(self, name: str, state: str = "REVERTED") -> None:
        self.out.remove(name)
        self.state[name] = state

    def give_back(self, name: str, again: bool) -> None:
        self.out.remove(name)
        if self.state[name] == "REVERTING" or again:
            self.state[name] = "SUCCESS"
            if again and not self.undone(name):
                self.again.add(name)
        else:
            self.state[name] = "PENDING"
            self.approved.add(name)

    def postpone(self, name: str) -> None:
        self.out.remove(name)
        self.state[name] = "SUCCESS"
        if not self.undone(name) or any(s.again and s.retry == name for s in self.scopes):
            self.asleep.add(name)

    def wake(self, name: str) -> None:
        self.asleep.remove(name)
        if not self.undone(name):
            self.again.add(name)

    def resolve(
        self, failed: str, answer: Callable[[str, str], str], defer: bool
    ) -> tuple[str, str | None]:
        """Return the decision as (intention, retry), according to the documented rules; None:
        everything.
        """
        retry = self.around[failed]
        if retry is None:
            return ("REVERT", None)
        said = answer(retry, failed)
        if said == "RETRY":
            return ("RETRY", retry)
        if said == "REVERT_ALL":
            return ("REVERT", None)
        parent = self.resolve(retry, answer, defer)
        if defer:
            return parent
        has_parent = self.around[retry] is not None
        parent_reverts_its_flow = parent[0] == "REVERT" and parent[1] is not None
        if has_parent and not parent_reverts_its_flow:
            return parent
        return ("REVERT", retry)

    def apply(self, intention: str, retry: str | None) -> bool:
        nodes = frozenset(self.before) if retry is None else self.retry_scope[retry]
        again = intention == "RETRY"
        for scope in self.scopes:
            if nodes == scope.nodes:
                if again or not scope.again:
                    return False
            elif nodes < scope.nodes:
                return False
        self.scopes = [s for s in self.scopes if not s.nodes <= nodes]
        self.scopes.append(Scope(nodes, retry, again))
        self.asked -= nodes
        self.approved -= nodes
        self.again -= nodes
        self.asleep -= nodes
        return True

    def ended(self, name: str) -> bool:
        """Return True if the atom has ended and will not be retried."""
        if any(scope.again and name in scope.nodes for scope in self.scopes):
            return False
        if self.ignored(name):
            return True
        return self.state[name] not in ("PENDING", "RUNNING") and (
            name not in self.again | self.asleep
        )

    def cancel(self, names: set[str] | None, suspended: bool) -> bool:
        """Return True if a cancellation of these atoms (None: all) is accepted.

        Afterwards only atoms that an earlier run left running are executed.
        """
        if self.idle() and not suspended:
            return False
        return names is None or not all(self.ended(name) for name in names)

    def idle(self) -> bool:
        return not (self.out or self.waits())

    def waits(self) -> bool:
        """Return True if something is ready, unanswered or sleeping."""
        ready = self.ready()
        return bool(
            self.asked or self.asleep or ready.votes or ready.execute or ready.revert or ready.retry
        )

    def verdict(self) -> str:
        if not self.scopes and all(
            self.state[n] == "SUCCESS" or self.ignored(n) for n in self.atoms
        ):
            return "SUCCESS"
        if "REVERT_FAILURE" in self.state.values():
            return "FAILURE"
        if self.waits():
            return "SUSPENDED"
        left = any(self.state[n] == "SUCCESS" for n in self.atoms)
        return "FAILURE" if left else "REVERTED"

    def remembers(self) -> bool:
        """Return True if the states of the atoms tell which nodes were ignored and approved."""
        for name, flow in self.flows.items():
            atoms = set(flow.everything()) & set(self.atoms)
            if not atoms and name in self.approved:
                return False
            if atoms and not self.ignored(name) and all(self.ignored(n) for n in atoms):
                return False
        return True

    def end(self) -> None:
        """End the run of a dead or suspended engine, so that another one can resume."""
        begun = {n for n in self.atoms if self.state[n] != "PENDING"}
        self.approved = {
            n for n in self.approved if n in self.flows and begun & set(self.flows[n].everything())
        }
        self.asked.clear()
        self.must_rerun |= {n for n in self.out if self.state[n] == "RUNNING"}
        for name in self.out:
            if self.state[name] == "REVERTING":
                self.state[name] = "SUCCESS"
        self.out.clear()
        # Retry controllers that were about to run again start from the beginning.
        for name in (self.again | self.asleep) - {s.retry for s in self.scopes}:
            self.scopes.append(Scope(self.retry_scope[name], name, True))
        self.again.clear()
        self.asleep.clear()
        self._guess()

    def _guess(self) -> None:
        """Reconstruct refusals: an ignored node outside the reach of earlier ones was refused
        itself.

        The refusing deciders were not saved: assume the widest possible depth.
        """
        ignored = {n for n in self.atoms if self.ignored(n)}
        gates = [name for name in self.before if self.ignored(name) and self.must_vote(name)]
        depths = {}
        for name in gates:
            nays = [self.asks(name), *([arrow] for arrow in self.asks(name))]
            depths[name] = {self.refused(name, nay) for nay in nays} - {None}
        self.nays, self.lost = [], set()
        for name in gates:
            if self.ignored(name):
                continue
            order = [d for d in ("ALL", "FLOW", "NEIGHBORS", "ATOM") if d in depths[name]]
            reaches = [self.reach(name, depth) for depth in order]
            fits = [r for r in reaches if r & set(self.atoms) <= ignored]
            self.nays.append((name, fits[0] if fits else reaches[-1]))
        self.lost = {n for n in ignored if not self.ignored(n)}
