"""Random lives of random flows: the scheduler and the recovery rules in lock step with the oracle.

After every event both must agree on what may happen next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
from wbengine import deciders, retry, task
from wbengine._core import recovery
from wbengine._core.compiler import compile
from wbengine._core.plan import FLOW, Edge
from wbengine._core.scheduler import Scheduler
from wbengine._core.turns import Turn
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

DEPTHS = ["ALL", "FLOW", "NEIGHBORS", "ATOM"]


class Step(task.Task):
    def execute(self) -> None: ...


class Urgent(Step):
    priority = 1


class Controller(retry.AlwaysRevert):
    """Never asked: the test answers in its place."""


def some_decider(history: Any) -> bool:
    raise AssertionError("the scheduler asks nobody")


class Composer:
    """Describes random flows."""

    def __init__(self, rng: random.Random, small: bool = False) -> None:
        self.rng = rng
        self.small = small
        self.count = 0
        self.left = 8 if small else rng.choice([3, 8, 24, 60])
        self.shape = rng.choice(["any", "any", "behind", "branching", "branching"])
        self.joining = rng.choice([0, 0.3, 0.7])
        #: How often something fails.
        self.failing = rng.choice(
            [0, 0.02, 0.05, 0.2, 0.5] if self.shape == "any" else [0, 0.03, 0.1]
        )

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def root(self) -> Spec:
        """Any flow; or what is rare among any: much that depends on deciders."""
        if self.shape == "any":
            return self.spec()
        return self.behind() if self.shape == "behind" else self.branching(0 if self.small else 2)

    def branching(self, depth: int) -> Spec:
        """One graph, of atoms for the most part: branches, and what comes after them."""
        rng = self.rng
        spec = Spec(GRAPH, self.name("f"), retry=rng.choice([None, self.name("r")]))
        for _ in range(rng.randint(3, 4 if self.small else 9)):
            nested = self.branching if depth and rng.random() < 0.15 else None
            spec.children.append(nested(depth - 1) if nested else self.spec(5))
        self.link(spec, rng.choice([0.2, 0.4, 0.6]), 0.6)
        return spec

    def behind(self) -> Spec:
        """A no inside a retried flow with much behind it."""
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
    """The real thing, put together in a random order."""
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


class Life:
    """One run of one flow, in lock step with the oracle."""

    def __init__(self, seed: int, spec: Spec | None = None) -> None:
        self.seed = seed
        # Apart from the flow's: another flow with the same seed lives alike.
        rng = self.rng = random.Random(-seed - 1)
        composer = Composer(random.Random(seed))
        self.spec = composer.root() if spec is None else spec
        self.plan = compile(build(self.spec, rng))
        self.id = {name: node for node, name in enumerate(self.plan.names)}
        self.oracle = Oracle(self.spec)
        self.saved: dict[int, tuple[str | None, str]] = {}
        self.scheduler = Scheduler(self.plan)
        self.scheduler.start()
        self.answers: dict[str, int] = {}
        self.rerunning: set[str] = set()  # retries handed out to run again
        # Troubles differ from flow to flow, so that some get far and some do not.
        self.failing = composer.failing
        self.naying = rng.choice([0.2, 0.6, 0.9])
        self.sticking = rng.choice([0, 0, 0, 0.05])
        self.crashing = rng.choice([0, 0, 0.03, 0.1, 0.4])
        self.suspending = rng.choice([0, 0, 0.03, 0.2])
        self.meddling = rng.choice([0, 0, 0, 0.03, 0.1])
        self.withdrawing = rng.choice([0, 0, 0.1])
        self.postponing = rng.choice([0, 0.3, 0.8])
        self.most = rng.choice([None, None, 1, 3])
        self.defer = rng.random() < 0.3
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
        done = self.scheduler.done
        assert done == self.oracle.idle()
        if done:
            assert self.scheduler.verdict() == self.oracle.verdict()
            self.history.append(f"ended {self.oracle.verdict()}")
            if self.cancelled:
                stuck = "REVERT_FAILURE" in self.oracle.state.values()
                assert self.oracle.verdict() == ("FAILURE" if stuck else "REVERTED")
        return done

    def check_plan(self) -> None:
        plan, oracle = self.plan, self.oracle
        names = plan.names
        assert set(names) == set(oracle.before)
        for node, name in enumerate(names):
            assert {names[n] for n in plan.succ[node]} == oracle.after[name]
            assert {names[n] for n in plan.pred[node]} == oracle.before[name]
            assert all(n > node for n in plan.succ[node])
            around = plan.controller[node]
            assert (names[around] if around >= 0 else None) == oracle.around[name]
            if plan.kinds[node] == FLOW:
                inside = {names[n] for n in range(node, plan.end[node] + 1)}
                assert inside == set(oracle.flows[name].everything())
        rules = {names[node]: str(rule) for node, rule in plan.joins.items()}
        assert rules == {name: rule for name, rule in oracle.rule.items() if rule != "ALL"}
        arrows = {names[node]: self.arrows(edges) for node, edges in plan.deciders.items()}
        assert arrows == {name: set(known) for name, known in oracle.arrows.items()}
        for name, scope in oracle.retry_scope.items():
            assert {names[n] for n in plan.scope(self.id[name])} == scope

    # -- in lock step

    def take(self) -> None:
        ready = self.oracle.ready()
        if self.cancelled:
            assert ready.execute <= self.oracle.must_rerun and not ready.retry | ready.votes
        turn = self.scheduler.take(self.most)
        for nodes in queues(turn):
            assert [*nodes] == sorted(nodes, key=self.place)
        if self.most is not None:
            fresh = sorted(
                (self.id[n] for n in ready.execute - self.oracle.must_rerun), key=self.place
            )
            ready.execute -= {self.plan.names[n] for n in fresh[self.most :]}
        assert self.named(turn) == ready
        if turn:
            self.history.append(f"take {ready}")
        self.oracle.hand_out(ready)
        for node in turn.execute:
            self.save(node, "RUNNING")
        for node in turn.revert:
            self.save(node, "REVERTING")
        for node in turn.retry:
            self.retry(node)
        assert self.scheduler.in_flight == len(self.oracle.out)

    def place(self, node: int) -> tuple[int, int]:
        return -getattr(self.plan.items[node], "priority", 0), node

    def retry(self, node: int) -> None:
        name = self.plan.names[node]
        if self.rng.random() < self.postponing:
            self.history.append(f"{name} postponed")
            self.scheduler.postpone(node)
            self.oracle.postpone(name)
            if name in self.oracle.asleep:
                self.save(node, "RETRYING", "EXECUTE")
            else:
                self.save(node, "SUCCESS")
            if self.rng.random() < 0.2:
                self.meddle([name])
            return
        changed = self.scheduler.reset_scope(node)
        assert {self.plan.names[n] for n in changed} == self.oracle.reset(name)
        for n in changed:
            self.save(n, "PENDING", "EXECUTE")
        self.save(node, "RUNNING", "EXECUTE")
        self.rerunning.add(name)

    def arrows(self, edges: tuple[Edge, ...] | list[Edge]) -> set[Arrow]:
        return {Arrow(self.plan.names[e.end], e.source < 0, str(e.depth)) for e in edges}

    def named(self, turn: Turn) -> Ready:
        names = self.plan.names
        return Ready(*({names[n] for n in nodes} for nodes in queues(turn)))

    def save(self, node: int, state: str, intention: str | None = None) -> None:
        """As an engine does: an intention stays what `apply` made it, until something is reset."""
        if self.plan.is_atom(node):
            _, before = self.saved.get(node, (None, "EXECUTE"))
            self.saved[node] = (state, intention or before)

    def intend(self, changes: list[tuple[int, str]]) -> None:
        for node, intention in changes:
            state, _ = self.saved.get(node, ("PENDING", "EXECUTE"))
            self.saved[node] = (state, intention)

    # -- events

    def event(self) -> None:
        rng, oracle = self.rng, self.oracle
        asleep = set() if self.scheduler.halted else oracle.asleep
        asked = set() if self.scheduler.halted else oracle.asked
        name = rng.choice(sorted(oracle.out | asked | asleep))
        node = self.id[name]
        if name in oracle.asked:
            self.vote(name, node)
        elif name in oracle.asleep:
            self.history.append(f"{name} woken")
            self.scheduler.wake(node)
            oracle.wake(name)
        elif rng.random() < self.withdrawing:
            self.give_back(name, node)
        elif oracle.state[name] == "REVERTING":
            if rng.random() < self.sticking:
                self.history.append(f"{name} stuck")
                self.scheduler.revert_failed(node)
                oracle.revert(name, "REVERT_FAILURE")
                self.save(node, "REVERT_FAILURE")
            else:
                self.history.append(f"{name} reverted")
                self.scheduler.reverted(node)
                oracle.revert(name)
                self.save(node, "REVERTED")
        elif rng.random() < self.failing:
            self.fail(name, node)
        elif rng.random() < self.cancelling or (self.cancelled and rng.random() < 0.3):
            self.fail(name, node, cancelled=True)
        else:
            self.history.append(f"{name} succeeded")
            self.rerunning.discard(name)
            self.scheduler.succeeded(node)
            oracle.succeed(name)
            self.save(node, "SUCCESS")

    def vote(self, name: str, node: int) -> None:
        rng, oracle = self.rng, self.oracle
        ballot = self.scheduler.ballot(node)
        assert self.arrows(ballot) == set(oracle.asks(name))
        if ballot and rng.random() < self.failing / 4:
            self.fail(name, node)
            return
        nays = [edge for edge in ballot if rng.random() < self.naying]
        depth = oracle.refused(name, [a for a in oracle.asks(name) if a in self.arrows(nays)])
        if depth is None:
            self.history.append(f"{name} approved")
            assert self.scheduler.decide(node, nays) == []
            oracle.approve(name)
            return
        why = "by its rule" if not ballot else "by its deciders"
        self.history.append(f"{name} ignored {why} {oracle.rule[name]} {depth}")
        ignored = self.scheduler.decide(node, nays)
        assert ignored == sorted(ignored)
        assert {self.plan.names[n] for n in ignored} == oracle.ignore(name, depth)
        for n in ignored:
            self.save(n, "IGNORE", "IGNORE")
        around = oracle.around[name]
        if around is not None and rng.random() < 0.4:
            self.meddle([around])

    def give_back(self, name: str, node: int) -> None:
        self.history.append(f"{name} given back")
        again = name in self.rerunning and self.oracle.state[name] == "RUNNING"
        self.scheduler.give_back(node)
        self.rerunning.discard(name)
        reverting = self.oracle.state[name] == "REVERTING"
        self.oracle.give_back(name, again)
        if reverting:
            self.save(node, "SUCCESS")
        elif again and name in self.oracle.again:
            self.save(node, "RETRYING", "EXECUTE")
        elif again:
            self.save(node, "SUCCESS")
        else:
            self.save(node, "PENDING")

    def fail(self, name: str, node: int, cancelled: bool = False) -> None:
        """`cancelled`: because somebody wanted it to, of this engine or of a worker."""
        self.history.append(f"{name} {'cancelled' if cancelled else 'failed'}")
        self.rerunning.discard(name)
        expected = self.oracle.fail(name)
        assert self.scheduler.failed(node) == expected
        self.save(node, "FAILURE")
        if cancelled:
            # Nobody is asked whether it is tried again.
            self.apply(recovery.everything(self.plan), "REVERT", None)
            self.cancelled = True
            return
        # Retries are asked about every failure of an atom, also where something is undone already.
        if expected or self.oracle.state.get(name) == "FAILURE":
            self.resolve(name, node)

    def resolve(self, name: str, node: int) -> None:
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

        names = self.plan.names
        resolution = recovery.resolve(
            self.plan, node, lambda r, n: answer(names[r], names[n]), defer_reverts=self.defer
        )
        intention, controller = self.oracle.resolve(name, answer, self.defer)
        assert resolution.intention == intention
        assert resolution.retry == (self.id[controller] if controller else -1)
        self.apply(resolution, intention, controller)

    def meddle(self, wanted: list[str] | None = None) -> None:
        """A resolution out of the blue; what it asks for may be under way, or overridden."""
        oracle, plan = self.oracle, self.plan
        settled = oracle.settled()
        begun = [
            name
            for name in wanted or sorted(oracle.retry_scope)
            if oracle.state[name] in ("SUCCESS", "REVERTED", "REVERTING")
            and plan.names[plan.end[plan.parent[self.id[name]]]] not in settled
        ]
        if wanted and not begun:
            return
        if not begun or self.rng.random() < 0.1:
            self.apply(recovery.everything(plan), "REVERT", None)
            return
        name = self.rng.choice(begun)
        intention = "REVERT"
        if self.answers.get(name, 0) < 3:
            self.answers[name] = self.answers.get(name, 0) + 1
            intention = self.rng.choice(["RETRY", "REVERT"])
        node = self.id[name]
        self.apply(recovery.Resolution(intention, plan.scope(node), node), intention, name)

    def apply(
        self, resolution: recovery.Resolution, intention: str, controller: str | None
    ) -> None:
        names = self.plan.names
        self.history.append(f"resolved {intention} {controller}")
        changes = self.scheduler.apply(resolution)
        self.intend(changes)
        begins = self.oracle.apply(intention, controller)
        # For a later engine "everything" and "every outermost retry's flow" may be the same.
        assert begins == bool(changes) or (controller is None and self.resumed)
        # What was asked before is called off: late answers change nothing.
        for late in self.plan.deciders:
            if names[late] not in self.oracle.asked and self.rng.random() < 0.5:
                self.scheduler.approve(late)
                assert self.scheduler.ignore(late, deciders.Depth.ALL) == []
        for late in range(len(names)):
            if names[late] not in self.oracle.asleep and self.rng.random() < 0.2:
                self.scheduler.wake(late)

    def cancel(self) -> None:
        """Somebody cancels everything, a few atoms, or what one retry answers for."""
        rng, oracle, plan = self.rng, self.oracle, self.plan
        for name in oracle.atoms:
            assert self.scheduler.ended(self.id[name]) == oracle.ended(name), name
        names: set[str] | None = None
        if rng.random() < 0.5:
            some = rng.sample(oracle.atoms, min(len(oracle.atoms), rng.randint(1, 3)))
            scopes = [set(scope) & set(oracle.atoms) for scope in oracle.retry_scope.values()]
            names = rng.choice([set(some), *scopes])
        granted = oracle.cancel(names, self.scheduler.halted)
        self.history.append(f"cancel {sorted(names or ())} {granted}")
        done = self.scheduler.done and not self.scheduler.halted
        ended = names is not None and all(self.scheduler.ended(self.id[n]) for n in names)
        assert granted == (not done and not ended)
        if not granted:
            return
        self.cancelled = True
        self.apply(recovery.everything(plan), "REVERT", None)
        # What has not started is taken back.
        for name in sorted(oracle.out):
            if oracle.state[name] == "RUNNING" and rng.random() < 0.4:
                self.give_back(name, self.id[name])

    def suspend(self) -> None:
        """Nothing more starts, what runs comes to its end; another engine goes on."""
        oracle = self.oracle
        self.history.append("suspended")
        self.scheduler.halt()
        assert not self.scheduler.take()
        while oracle.out:
            assert not self.scheduler.done
            self.event()
            if self.rng.random() < self.cancelling:
                self.cancel()
        assert self.scheduler.done
        assert self.scheduler.verdict() == oracle.verdict()
        if oracle.remembers():
            self.go_on()
        else:
            self.scheduler.halted = False

    def crash(self) -> None:
        """The engine died, perhaps with a failure saved and nothing decided."""
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
            self.save(self.id[failed], "FAILURE")
        self.scheduler = Scheduler(self.plan, dict(self.saved))
        self.scheduler.start()
        expected = [] if failed is None or oracle.undone(failed) else [self.id[failed]]
        assert self.scheduler.unresolved() == expected
        for node in expected:
            self.resolve(self.plan.names[node], node)
        assert self.scheduler.unresolved() == []


def story(life: Life) -> str:
    """The flow, and what happened to it."""
    return "\n".join([*outline(life.spec), *life.history])


def queues(turn: Turn) -> tuple[Sequence[int], ...]:
    return turn.votes, turn.execute, turn.revert, turn.retry


def outline(spec: Spec, indent: str = "") -> list[str]:
    """A flow, a line for each member."""
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
    """
    :raises AssertionError: they disagreed; tells the seed and the whole story.
    """
    life = Life(seed)
    try:
        life.run()
    except Exception as error:
        raise AssertionError(f"WBENGINE_SEED={seed}: {error!r}\n{story(life)}") from error
    return life


def first_wrong(seeds: range) -> int | None:
    """The first of these lives that goes wrong."""
    for seed in seeds:
        try:
            live(seed)
        except AssertionError:
            return seed
    return None
