"""Random runs of random flows: scheduler and recovery rules in lock step with the oracle.

After every event both must agree on the possible next events.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tests.property.oracle import (
    ATOM,
    GRAPH,
    LINEAR,
    UNORDERED,
    Arrow,
    Link,
    Oracle,
    Ready,
    Spec,
)
from tests.seams.scheduling import EVERYTHING, Decision, Planned, Run, Saved, Turn, Vote
from wbengine import retry, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

DEPTHS = ["ALL", "FLOW", "NEIGHBORS", "ATOM"]


class Step(task.Task):
    def execute(self) -> None: ...


class Urgent(Step):
    priority = 1


class Controller(retry.AlwaysRevert):
    """A retry controller that is not called: the test answers instead."""


def some_decider(history: Any) -> bool:
    raise AssertionError("the scheduler asks nobody")


class Composer:
    """Creates descriptions of random flows."""

    def __init__(self, rng: random.Random, small: bool = False) -> None:
        self.rng = rng
        self.small = small
        self.count = 0
        self.left = 8 if small else rng.choice([3, 8, 24, 60])
        self.shape = rng.choice(["any", "any", "behind", "branching", "branching", "sides"])
        self.joining = rng.choice([0, 0.3, 0.7])
        #: Probability of a failure.
        self.failing = rng.choice(
            [0, 0.02, 0.05, 0.2, 0.5] if self.shape == "any" else [0, 0.03, 0.1]
        )

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def root(self) -> Spec:
        """Return a random flow, often of a rare shape that depends on deciders."""
        if self.shape == "any":
            return self.spec()
        if self.shape == "sides":
            return self.sides(0 if self.small else 1)
        return self.behind() if self.shape == "behind" else self.branching(0 if self.small else 2)

    def sides(self, depth: int) -> Spec:
        """Return parallel chains of flows with retry controllers."""
        rng = self.rng
        spec = Spec(rng.choice([UNORDERED, GRAPH]), self.name("f"))
        for _ in range(rng.randint(2, 3)):
            chain = Spec(LINEAR, self.name("f"))
            chain.children = [self.retried(depth) for _ in range(rng.choice([1, 1, 2, 3]))]
            spec.children.append(chain)
        return spec

    def retried(self, depth: int) -> Spec:
        if depth and self.rng.random() < 0.2:
            spec = self.sides(depth - 1)
        else:
            spec = Spec(self.rng.choice([LINEAR, UNORDERED]), self.name("f"))
            spec.children = [self.spec(6) for _ in range(self.rng.randint(1, 3))]
        spec.retry = self.name("r")
        return spec

    def branching(self, depth: int) -> Spec:
        """Return a graph, mostly of atoms, with branches and their successors."""
        rng = self.rng
        spec = Spec(GRAPH, self.name("f"), retry=rng.choice([None, self.name("r")]))
        for _ in range(rng.randint(3, 4 if self.small else 9)):
            nested = self.branching if depth and rng.random() < 0.15 else None
            spec.children.append(nested(depth - 1) if nested else self.spec(5))
        self.link(spec, rng.choice([0.2, 0.4, 0.6]), 0.6)
        return spec

    def behind(self) -> Spec:
        """Return a flow with a decider inside a retried flow and many successors."""
        inner = Spec(GRAPH, self.name("f"), retry=self.name("r"))
        most = 3 if self.small else 6
        inner.children = [self.spec(4) for _ in range(self.rng.randint(3, most))]
        outer = Spec(GRAPH, self.name("f"), retry=self.rng.choice([None, self.name("r")]))
        outer.children = [self.spec(4), inner, *(self.spec(4) for _ in range(most - 2))]
        for spec in (inner, outer):
            self.link(spec, 0.4, 0.5)
        return outer

    def link(self, spec: Spec, density: float, deciding: float) -> None:
        rng = self.rng
        for target in range(1, len(spec.children)):
            for source in range(target):
                if rng.random() < density:
                    depth = rng.choice([*DEPTHS, "ALL"]) if rng.random() < deciding else None
                    spec.links.append(Link(source, target, depth))
        for child in spec.children:
            if rng.random() < self.joining:
                child.join = rng.choice(["ANY", "NONE_FAILED"])

    def spec(self, depth: int = 0) -> Spec:
        rng = self.rng
        if depth > 0 and (depth > 5 or rng.random() < 0.55):
            self.left -= 1
            return Spec(ATOM, self.name("a"), urgent=rng.random() < 0.1)
        spec = Spec(rng.choice([LINEAR, UNORDERED, GRAPH]), self.name("f"))
        if rng.random() < 0.5:
            spec.retry = self.name("r")
        for _ in range(rng.choice([0, 1, 2, 2, 3, 4, 5] if depth else [2, 3, 5, 8])):
            if self.left > 0:
                spec.children.append(self.spec(depth + 1))
        if spec.kind == GRAPH:
            self.link(spec, rng.choice([0.2, 0.5, 0.9]), rng.choice([0, 0.3, 0.8]))
        return spec


def build(spec: Spec, rng: random.Random) -> Any:
    """Build the flow, adding its members in a random order."""
    if spec.kind == ATOM:
        return (Urgent if spec.urgent else Step)(spec.name)
    controller = Controller(spec.retry) if spec.retry else None
    children = [build(child, rng) for child in spec.children]
    if spec.kind == LINEAR:
        return linear_flow.Flow(spec.name, controller).add(*children)
    if spec.kind == UNORDERED:
        return unordered_flow.Flow(spec.name, controller).add(*children)
    flow = graph_flow.Flow(spec.name, controller)
    flow.add(*rng.sample(children, len(children)))
    for link in rng.sample(spec.links, len(spec.links)):
        extra: dict[str, Any] = {}
        if link.depth is not None:
            extra = {"decider": some_decider, "decider_depth": link.depth.lower()}
        flow.link(children[link.source], children[link.target], **extra)
    for child, made in zip(spec.children, children, strict=True):
        if child.join != "ALL" or rng.random() < 0.1:
            flow.join(made, child.join)
    return flow


def combined(
    spec: Spec, controller: Any, children: Sequence[Any], decider: Callable[[str], Any]
) -> Any:
    """Return a flow of these members; `decider` returns the decider of a link by its name."""
    if spec.kind == LINEAR:
        return linear_flow.Flow(spec.name, controller).add(*children)
    if spec.kind == UNORDERED:
        return unordered_flow.Flow(spec.name, controller).add(*children)
    flow = graph_flow.Flow(spec.name, controller)
    flow.add(*children)
    for link in spec.links:
        extra: dict[str, Any] = {}
        if link.depth is not None:
            where = f"{spec.children[link.source].last} -> {spec.children[link.target].first}"
            extra = {"decider": decider(where), "decider_depth": link.depth}
        flow.link(children[link.source], children[link.target], **extra)
    for child, made in zip(spec.children, children, strict=True):
        if child.join != "ALL":
            flow.join(made, child.join)
    return flow


def add_controllers(spec: Spec, rng: random.Random, probability: float) -> None:
    """Add retry controllers to flows, so that they are reverted and retried."""
    if spec.kind != ATOM and not spec.retry and rng.random() < probability:
        spec.retry = f"r{spec.name}"
    for child in spec.children:
        add_controllers(child, rng, probability)


class Life:
    """One run of one flow in lock step with the oracle."""

    def __init__(self, seed: int, spec: Spec | None = None) -> None:
        self.seed = seed
        # A separate generator: another flow with the same seed has the same events.
        rng = self.rng = random.Random(-seed - 1)
        composer = Composer(random.Random(seed))
        self.spec = composer.root() if spec is None else spec
        self.flow = Planned(build(self.spec, rng))
        self.oracle = Oracle(self.spec)
        # Urgent atoms are first, then the order of the flow applies.
        urgent = urgent_ones(self.spec)
        self.position = {name: n for n, name in enumerate(self.flow.names)}
        self.place = {name: (name not in urgent, n) for name, n in self.position.items()}
        self.saved: dict[str, Saved] = {}
        self.engine = Run(self.flow)
        self.answers: dict[str, int] = {}
        self.rerunning: set[str] = set()  # retry controllers that were returned to execute again
        # The probabilities differ between flows, so that some runs are long and others are short.
        self.failing = composer.failing
        self.naying = rng.choice([0.2, 0.6, 0.9])
        self.sticking = rng.choice([0, 0, 0, 0.05])
        self.crashing = rng.choice([0, 0, 0.03, 0.1, 0.4])
        self.suspending = rng.choice([0, 0, 0.03, 0.2])
        self.meddling = rng.choice([0, 0, 0, 0.03, 0.1])
        self.withdrawing = rng.choice([0, 0, 0.1])
        self.postponing = rng.choice([0, 0.3, 0.8])
        self.most = rng.choice([None, None, 1, 3])
        self.defer = rng.random() < 0.5
        self.resumed = False
        self.cancelling = rng.choice([0, 0, 0.01, 0.05])
        self.cancelled = False
        self.error: Exception | None = None
        self.history: list[str] = []

    def run(self) -> None:
        rng = self.rng
        self.check_plan()
        for _ in range(2000):
            self.take()
            if self.check_end():
                break
            if rng.random() < self.crashing and self.oracle.remembers():
                self.crash()
            elif rng.random() < self.suspending and self.oracle.remembers():
                self.suspend()
            else:
                if rng.random() < self.meddling:
                    self.meddle()
                if rng.random() < self.cancelling:
                    self.cancel()
                if self.oracle.out or self.oracle.asked or self.oracle.asleep:
                    self.event()
        else:
            raise AssertionError("it never ends")
        for scope in self.oracle.scopes:
            if "REVERT_FAILURE" not in self.oracle.state.values():
                left = {self.oracle.state.get(n, "PENDING") for n in scope.nodes}
                assert left <= {"PENDING", "REVERTED"}

    def check_end(self) -> bool:
        done = self.engine.done
        assert done == self.oracle.idle()
        if done:
            assert self.engine.verdict == self.oracle.verdict()
            self.history.append(f"ended {self.oracle.verdict()}")
            if self.cancelled:
                stuck = "REVERT_FAILURE" in self.oracle.state.values()
                assert self.oracle.verdict() == ("FAILURE" if stuck else "REVERTED")
        return done

    def check_plan(self) -> None:
        flow, oracle = self.flow, self.oracle
        assert set(flow.names) == set(oracle.before)
        for name in flow.names:
            assert flow.after(name) == oracle.after[name]
            assert flow.before(name) == oracle.before[name]
            assert all(self.position[other] > self.position[name] for other in flow.after(name))
            assert flow.controller(name) == oracle.around[name]
        assert flow.flows == {name: set(f.everything()) for name, f in oracle.flows.items()}
        assert flow.rules == {name: rule for name, rule in oracle.rule.items() if rule != "ALL"}
        arrows = {name: arrows_of(votes) for name, votes in flow.votes.items()}
        assert arrows == {name: set(known) for name, known in oracle.arrows.items()}
        for name, scope in oracle.retry_scope.items():
            assert flow.scope(name) == scope

    # -- lock step

    def take(self) -> None:
        ready = self.oracle.ready()
        if self.cancelled:
            assert ready.execute <= self.oracle.must_rerun and not ready.retry | ready.votes
        turn = self.engine.take(self.most)
        for names in (turn.votes, turn.execute, turn.revert, turn.retry):
            assert names == sorted(names, key=self.place.__getitem__)
        if self.most is not None:
            fresh = sorted(ready.execute - self.oracle.must_rerun, key=self.place.__getitem__)
            ready.execute -= set(fresh[self.most :])
        assert named(turn) == ready
        if turn:
            self.history.append(f"take {ready}")
        self.oracle.hand_out(ready)
        for name in turn.execute:
            self.save(name, "RUNNING")
        for name in turn.revert:
            self.save(name, "REVERTING")
        postponed = [name for name in turn.retry if self.retry(name)]
        # only after the batch has started, because nothing is resolved before
        for name in postponed:
            if self.rng.random() < 0.2:
                self.meddle([name])
        assert self.engine.in_flight == len(self.oracle.out)

    def retry(self, name: str) -> bool:
        """Execute a retry controller again or postpone it; return True if it is postponed."""
        if self.rng.random() < self.postponing:
            self.history.append(f"{name} postponed")
            self.engine.postpone(name)
            self.oracle.postpone(name)
            if name in self.oracle.asleep:
                self.save(name, "RETRYING", "EXECUTE")
            else:
                self.save(name, "SUCCESS")
            return True
        changed = self.engine.reset(name)
        assert changed == self.oracle.reset(name)
        for other in changed:
            self.save(other, "PENDING", "EXECUTE")
        self.save(name, "RUNNING", "EXECUTE")
        self.rerunning.add(name)
        return False

    def save(self, name: str, state: str, intention: str | None = None) -> None:
        """Save a state like an engine: the intention stays as set by `apply` until a reset."""
        if name in self.oracle.state:
            _, before = self.saved.get(name, (None, "EXECUTE"))
            self.saved[name] = (state, intention or before)

    def intend(self, changes: list[tuple[str, str]]) -> None:
        for name, intention in changes:
            state, _ = self.saved.get(name, ("PENDING", "EXECUTE"))
            self.saved[name] = (state, intention)

    # -- events

    def event(self) -> None:
        rng, oracle = self.rng, self.oracle
        asleep = set() if self.engine.suspended else oracle.asleep
        asked = set() if self.engine.suspended else oracle.asked
        name = rng.choice(sorted(oracle.out | asked | asleep))
        if name in oracle.asked:
            self.vote(name)
        elif name in oracle.asleep:
            self.history.append(f"{name} woken")
            self.engine.wake(name)
            oracle.wake(name)
        elif rng.random() < self.withdrawing:
            self.give_back(name)
        elif oracle.state[name] == "REVERTING":
            if rng.random() < self.sticking:
                self.history.append(f"{name} stuck")
                self.engine.revert_failed(name)
                oracle.revert(name, "REVERT_FAILURE")
                self.save(name, "REVERT_FAILURE")
            else:
                self.history.append(f"{name} reverted")
                self.engine.reverted(name)
                oracle.revert(name)
                self.save(name, "REVERTED")
        elif rng.random() < self.failing:
            self.fail(name)
        elif rng.random() < self.cancelling or (self.cancelled and rng.random() < 0.3):
            self.fail(name, cancelled=True)
        else:
            self.history.append(f"{name} succeeded")
            self.rerunning.discard(name)
            self.engine.succeeded(name)
            oracle.succeed(name)
            self.save(name, "SUCCESS")

    def vote(self, name: str) -> None:
        rng, oracle = self.rng, self.oracle
        ballot = self.engine.ballot(name)
        assert arrows_of(ballot) == set(oracle.asks(name))
        if ballot and rng.random() < self.failing / 4:
            self.fail(name)
            return
        nays = [vote for vote in ballot if rng.random() < self.naying]
        depth = oracle.refused(name, [a for a in oracle.asks(name) if a in arrows_of(nays)])
        if depth is None:
            self.history.append(f"{name} approved")
            assert self.engine.decide(name, nays) == []
            oracle.approve(name)
            return
        why = "by its rule" if not ballot else "by its deciders"
        self.history.append(f"{name} ignored {why} {oracle.rule[name]} {depth}")
        ignored = self.engine.decide(name, nays)
        assert ignored == sorted(oracle.ignore(name, depth), key=self.position.__getitem__)
        for n in ignored:
            self.save(n, "IGNORE", "IGNORE")
        around = oracle.around[name]
        if around is not None and rng.random() < 0.4:
            self.meddle([around])

    def give_back(self, name: str) -> None:
        self.history.append(f"{name} given back")
        again = name in self.rerunning and self.oracle.state[name] == "RUNNING"
        self.engine.give_back(name)
        self.rerunning.discard(name)
        reverting = self.oracle.state[name] == "REVERTING"
        self.oracle.give_back(name, again)
        if reverting:
            self.save(name, "SUCCESS")
        elif again and name in self.oracle.again:
            self.save(name, "RETRYING", "EXECUTE")
        elif again:
            self.save(name, "SUCCESS")
        else:
            self.save(name, "PENDING")

    def fail(self, name: str, cancelled: bool = False) -> None:
        """Fail an atom; `cancelled`: because its engine or worker cancelled it."""
        self.history.append(f"{name} {'cancelled' if cancelled else 'failed'}")
        self.rerunning.discard(name)
        expected = self.oracle.fail(name)
        assert self.engine.failed(name) == expected
        self.save(name, "FAILURE")
        if cancelled:
            # No retry controller decides about a cancelled atom.
            self.apply(EVERYTHING)
            self.cancelled = True
            return
        # Retry controllers decide about each failure of an atom, also inside a reverted scope.
        if expected or self.oracle.state.get(name) == "FAILURE":
            self.resolve(name)

    def resolve(self, name: str) -> None:
        said: dict[tuple[str, str], str] = {}

        def answer(controller: str, failed: str) -> str:
            key = (controller, failed)
            if key not in said:
                self.answers[controller] = self.answers.get(controller, 0) + 1
                tired = self.answers[controller] > 3
                said[key] = self.rng.choice(
                    ["REVERT", "REVERT", "REVERT_ALL"] if tired else ["RETRY", "RETRY", "REVERT"]
                )
            return said[key]

        decision = self.flow.resolve(name, answer, defer_reverts=self.defer)
        assert decision == self.oracle.resolve(name, answer, self.defer)
        self.apply(decision)

    def meddle(self, wanted: list[str] | None = None) -> None:
        """Apply a random decision, which may already be in progress or overridden."""
        oracle = self.oracle
        settled = oracle.settled()
        begun = [
            name
            for name in wanted or sorted(oracle.retry_scope)
            if oracle.state[name] in ("SUCCESS", "REVERTED", "REVERTING")
            and oracle.flows[oracle.inside[name][-1]].last not in settled
        ]
        if wanted and not begun:
            return
        if not begun or self.rng.random() < 0.1:
            self.apply(EVERYTHING)
            return
        name = self.rng.choice(begun)
        intention = "REVERT"
        if self.answers.get(name, 0) < 3:
            self.answers[name] = self.answers.get(name, 0) + 1
            intention = self.rng.choice(["RETRY", "REVERT"])
        self.apply(Decision(intention, name))

    def apply(self, decision: Decision) -> None:
        self.history.append(f"resolved {decision.intention} {decision.retry}")
        changes = self.engine.apply(decision)
        self.intend(changes)
        begins = self.oracle.apply(*decision)
        # After a resume, "everything" and "the flows of all outermost retries" may be equal.
        assert begins == bool(changes) or (decision.retry is None and self.resumed)
        # Earlier queries are obsolete: late answers have no effect.
        for late in self.flow.votes:
            if late not in self.oracle.asked and self.rng.random() < 0.5:
                self.engine.approve(late)
                assert self.engine.ignore(late, "ALL") == []
        for late in self.flow.names:
            if late not in self.oracle.asleep and self.rng.random() < 0.2:
                self.engine.wake(late)

    def cancel(self) -> None:
        """Cancel everything, a few atoms, or the scope of one retry controller."""
        rng, oracle = self.rng, self.oracle
        for name in oracle.atoms:
            assert self.engine.ended(name) == oracle.ended(name), name
        names: set[str] | None = None
        if rng.random() < 0.5:
            some = rng.sample(oracle.atoms, min(len(oracle.atoms), rng.randint(1, 3)))
            scopes = [set(scope) & set(oracle.atoms) for scope in oracle.retry_scope.values()]
            names = rng.choice([set(some), *scopes])
        granted = oracle.cancel(names, self.engine.suspended)
        self.history.append(f"cancel {sorted(names or ())} {granted}")
        done = self.engine.done and not self.engine.suspended
        ended = names is not None and all(self.engine.ended(n) for n in names)
        assert granted == (not done and not ended)
        if not granted:
            return
        self.cancelled = True
        self.apply(EVERYTHING)
        # Withdraw tasks that have not started.
        for name in sorted(oracle.out):
            if oracle.state[name] == "RUNNING" and rng.random() < 0.4:
                self.give_back(name)

    def suspend(self) -> None:
        """Suspend: no task starts, running ones end, and another engine resumes."""
        oracle = self.oracle
        self.history.append("suspended")
        self.engine.suspended = True
        assert not self.engine.take()
        while oracle.out:
            assert not self.engine.done
            self.event()
            if self.rng.random() < self.cancelling:
                self.cancel()
        assert self.engine.done
        assert self.engine.verdict == oracle.verdict()
        if oracle.remembers():
            self.go_on()
        else:
            self.engine.suspended = False

    def crash(self) -> None:
        """Let the engine die, possibly after it saved a failure and before it decided."""
        running = sorted(n for n in self.oracle.out if self.oracle.state[n] == "RUNNING")
        self.history.append("crash")
        self.go_on(self.rng.choice(running) if running and self.rng.random() < 0.3 else None)

    def go_on(self, failed: str | None = None) -> None:
        oracle = self.oracle
        self.resumed = True
        oracle.end()
        self.rerunning.clear()
        if failed is not None:
            self.history.append(f"{failed} had failed")
            oracle.must_rerun.remove(failed)
            oracle.state[failed] = "FAILURE"
            self.save(failed, "FAILURE")
        self.engine = Run(self.flow, dict(self.saved))
        expected = [] if failed is None or oracle.undone(failed) else [failed]
        assert self.engine.unresolved == expected
        for name in expected:
            self.resolve(name)
        assert self.engine.unresolved == []


def story(life: Life) -> str:
    """Return the flow and its events as text."""
    return "\n".join([*outline(life.spec), *life.history])


def named(turn: Turn) -> Ready:
    return Ready(*map(set, (turn.votes, turn.execute, turn.revert, turn.retry)))


def arrows_of(votes: Collection[Vote]) -> set[Arrow]:
    return {Arrow(*vote) for vote in votes}


def urgent_ones(spec: Spec) -> set[str]:
    return ({spec.name} if spec.urgent else set()).union(*map(urgent_ones, spec.children))


def outline(spec: Spec, indent: str = "") -> list[str]:
    """Return a line for each member of a flow."""
    extra = [] if spec.join == "ALL" else [spec.join]
    extra += ["urgent"] if spec.urgent else []
    extra += [f"retry {spec.retry}"] if spec.retry else []
    for link in spec.links:
        arrow = f"{spec.children[link.source].name} -> {spec.children[link.target].name}"
        extra.append(arrow if link.depth is None else f"{arrow} {link.depth}")
    lines = [f"{indent}{spec.kind} {spec.name}{': ' if extra else ''}{', '.join(extra)}"]
    for child in spec.children:
        lines += outline(child, indent + "  ")
    return lines


def live(seed: int) -> Life:
    """Run the flow of a seed.

    :raises AssertionError: if scheduler and oracle disagree; contains the seed and all events
    """
    life = Life(seed)
    try:
        life.run()
    except Exception as error:
        raise AssertionError(f"WBENGINE_SEED={seed}: {error!r}\n{story(life)}") from error
    return life


def first_wrong(seeds: range) -> int | None:
    """Return the first seed whose run fails."""
    for seed in seeds:
        try:
            live(seed)
        except AssertionError:
            return seed
    return None
