"""The scheduler and the recovery rules against an oracle that looks everything up anew.

Random nested flows live random lives; after every event both must agree on what may happen next.
`WBENGINE_FLOWS=5000` runs more of them, `WBENGINE_SEED=n` one alone.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.property.oracle import ATOM, GRAPH, LINEAR, UNORDERED, Link, Oracle, Ready, Spec
from wbengine import deciders, retry, task
from wbengine._core import recovery
from wbengine._core.compiler import compile
from wbengine._core.plan import FLOW, TASK
from wbengine._core.scheduler import Scheduler, Turn
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

FLOWS = int(os.environ.get("WBENGINE_FLOWS", "300"))
SEED = os.environ.get("WBENGINE_SEED")
DEPTHS = ["ALL", "FLOW", "NEIGHBORS", "ATOM"]


class Step(task.Task):
    def execute(self) -> None: ...


class Controller(retry.AlwaysRevert):
    """Never asked: the test answers in its place."""


def some_decider(history: Any) -> bool:
    raise AssertionError("the scheduler asks nobody")


class Composer:
    """Makes random flows, as a description and as the real thing."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0
        self.left = rng.choice([3, 8, 24, 60])
        self.deciding = rng.random() < 0.3

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def root(self) -> Spec:
        """Any flow; or what is rare among any: a no inside a retried flow with much behind it."""
        if not self.deciding:
            return self.spec()
        inner = Spec(GRAPH, self.name("f"), retry=self.name("r"))
        inner.children = [self.spec(4) for _ in range(self.rng.randint(3, 6))]
        outer = Spec(GRAPH, self.name("f"), retry=self.rng.choice([None, self.name("r")]))
        outer.children = [self.spec(4), inner, *(self.spec(4) for _ in range(4))]
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

    def spec(self, depth: int = 0) -> Spec:
        rng = self.rng
        if depth > 0 and (depth > 5 or rng.random() < 0.55):
            self.left -= 1
            return Spec(ATOM, self.name("a"))
        spec = Spec(rng.choice([LINEAR, UNORDERED, GRAPH]), self.name("f"))
        if rng.random() < 0.5:
            spec.retry = self.name("r")
        for _ in range(rng.choice([0, 1, 2, 2, 3, 4, 5] if depth else [2, 3, 5, 8])):
            if self.left > 0:
                spec.children.append(self.spec(depth + 1))
        if spec.kind == GRAPH:
            self.link(spec, rng.choice([0.2, 0.5, 0.9]), rng.choice([0, 0.3, 0.8]))
        return spec

    def build(self, spec: Spec) -> Any:
        if spec.kind == ATOM:
            return Step(spec.name)
        controller = Controller(spec.retry) if spec.retry else None
        children = [self.build(child) for child in spec.children]
        if spec.kind == LINEAR:
            return linear_flow.Flow(spec.name, controller).add(*children)
        if spec.kind == UNORDERED:
            return unordered_flow.Flow(spec.name, controller).add(*children)
        flow = graph_flow.Flow(spec.name, controller)
        flow.add(*self.rng.sample(children, len(children)))
        for link in self.rng.sample(spec.links, len(spec.links)):
            extra: dict[str, Any] = {}
            if link.depth is not None:
                extra = {"decider": some_decider, "decider_depth": link.depth.lower()}
            flow.link(children[link.source], children[link.target], **extra)
        return flow


class Life:
    """One run of one flow, in lock step with the oracle."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        composer = Composer(rng)
        self.spec = composer.root()
        self.plan = compile(composer.build(self.spec))
        self.id = {name: node for node, name in enumerate(self.plan.names)}
        self.oracle = Oracle(self.spec)
        self.saved: dict[int, tuple[str | None, str]] = {}
        self.scheduler = Scheduler(self.plan)
        self.scheduler.start()
        self.answers: dict[str, int] = {}
        self.rerunning: set[str] = set()  # retries handed out to run again
        # Troubles differ from flow to flow, so that some get far and some do not.
        self.failing = rng.choice([0, 0.05, 0.2, 0.5])
        self.naying = rng.choice([0.2, 0.5, 0.9])
        self.sticking = rng.choice([0, 0, 0.05])
        self.crashing = rng.choice([0, 0, 0.03, 0.1, 0.4])
        self.meddling = rng.choice([0, 0, 0, 0.03, 0.1])
        self.withdrawing = rng.choice([0, 0, 0.1])
        self.defer = rng.random() < 0.3
        self.history: list[str] = []

    def run(self) -> None:
        self.check_plan()
        for _ in range(2000):
            self.take()
            assert self.scheduler.done == self.oracle.idle()
            if self.scheduler.done:
                break
            if self.rng.random() < self.crashing and not self.oracle.nays:
                self.crash()
            else:
                if self.rng.random() < self.meddling:
                    self.meddle()
                if self.oracle.out or self.oracle.asked:
                    self.event()
        else:
            raise AssertionError("it never ends")
        assert self.scheduler.verdict() == self.oracle.verdict()
        for scope in self.oracle.scopes:
            if "REVERT_FAILURE" not in self.oracle.state.values():
                left = {self.oracle.state.get(n, "PENDING") for n in scope.nodes}
                assert left <= {"PENDING", "REVERTED"}

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
        for name, scope in oracle.retry_scope.items():
            assert {names[n] for n in plan.scope(self.id[name])} == scope

    # -- in lock step

    def take(self) -> None:
        ready = self.oracle.ready()
        turn = self.scheduler.take()
        assert self.named(turn) == ready
        for nodes in turn:
            assert nodes == sorted(nodes)
        if turn:
            self.history.append(f"take {ready}")
        self.oracle.hand_out(ready)
        for node in turn.execute:
            self.save(node, "RUNNING")
        for node in turn.revert:
            self.save(node, "REVERTING")
        for node in turn.retry:
            changed = self.scheduler.reset_scope(node)
            assert {self.plan.names[n] for n in changed} == self.oracle.reset(self.plan.names[node])
            for n in changed:
                self.save(n, "PENDING", "EXECUTE")
            self.save(node, "RUNNING", "EXECUTE")
            self.rerunning.add(self.plan.names[node])
        assert self.scheduler.in_flight == len(self.oracle.out)

    def named(self, turn: Turn) -> Ready:
        names = self.plan.names
        return Ready(*({names[n] for n in nodes} for nodes in turn))

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
        name = rng.choice(sorted(oracle.out | oracle.asked))
        node = self.id[name]
        if name in oracle.asked:
            self.vote(name, node)
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
        else:
            self.history.append(f"{name} succeeded")
            self.rerunning.discard(name)
            self.scheduler.succeeded(node)
            oracle.succeed(name)
            self.save(node, "SUCCESS")

    def vote(self, name: str, node: int) -> None:
        if self.rng.random() < self.failing / 4:
            self.fail(name, node)
        elif self.rng.random() < self.naying:
            depth = self.rng.choice(DEPTHS)
            self.history.append(f"{name} ignored {depth}")
            ignored = self.scheduler.ignore(node, deciders.Depth.translate(depth))
            assert {self.plan.names[n] for n in ignored} == self.oracle.ignore(name, depth)
            for n in ignored:
                self.save(n, "IGNORE", "IGNORE")
            around = self.oracle.around[name]
            if around is not None and self.rng.random() < 0.4:
                self.meddle([around])
        else:
            self.history.append(f"{name} approved")
            self.scheduler.approve(node)
            self.oracle.approve(name)

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

    def fail(self, name: str, node: int) -> None:
        self.history.append(f"{name} failed")
        self.rerunning.discard(name)
        expected = self.oracle.fail(name)
        assert self.scheduler.failed(node) == expected
        self.save(node, "FAILURE")
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
        # After a crash "everything" and "every outermost retry's flow" may be the same.
        assert begins == bool(changes) or (controller is None and "crash" in self.history)
        # What was asked before is called off: late answers change nothing.
        for late in self.plan.deciders:
            if names[late] not in self.oracle.asked and self.rng.random() < 0.5:
                self.scheduler.approve(late)
                assert self.scheduler.ignore(late, deciders.Depth.ALL) == []

    def crash(self) -> None:
        """The engine died, perhaps with a failure saved and nothing decided; a new one goes on."""
        oracle = self.oracle
        # What nothing was saved of: a retry given back, and that an empty flow was let in.
        empty = (
            not set(oracle.flows[name].everything()) & set(oracle.atoms)
            for name in oracle.approved & set(oracle.flows)
        )
        if oracle.again or any(empty):
            return
        self.history.append("crash")
        oracle.crash()
        running = sorted(n for n in oracle.must_rerun)
        self.scheduler = Scheduler(self.plan, dict(self.saved))
        failed = self.rng.choice(running) if running and self.rng.random() < 0.3 else None
        self.rerunning.clear()
        if failed is not None:
            oracle.must_rerun.remove(failed)
            oracle.state[failed] = "FAILURE"
            node = self.id[failed]
            self.save(node, "FAILURE")
            self.scheduler = Scheduler(self.plan, dict(self.saved))
        self.scheduler.start()
        expected = [] if failed is None or oracle.undone(failed) else [self.id[failed]]
        assert self.scheduler.unresolved() == expected
        for node in expected:
            self.resolve(self.plan.names[node], node)
        assert self.scheduler.unresolved() == []


def live(seed: int) -> None:
    life = Life(seed)
    try:
        life.run()
    except Exception as error:
        story = "\n".join([repr(life.spec), *life.history])
        raise AssertionError(f"WBENGINE_SEED={seed}: {error!r}\n{story}") from error


@pytest.mark.timeout(3600)
def test_agrees_with_the_oracle() -> None:
    for seed in range(FLOWS) if SEED is None else [int(SEED)]:
        live(seed)


def test_histories_are_diverse() -> None:
    """What the lives above are made of; without it they could agree on nothing much."""
    seen: set[str] = set()
    tasks = 0
    for seed in range(60):
        life = Life(seed)
        life.run()
        tasks += sum(kind == TASK for kind in life.plan.kinds)
        for line in life.history:
            seen.update(line.split())
        seen.add(life.scheduler.verdict())
    wanted = {"crash", "approved", "ignored", "stuck", "RETRY", "REVERT", "None", "failed", "back"}
    assert wanted | {"SUCCESS", "REVERTED", "FAILURE", "ALL", "FLOW"} <= seen
    assert tasks > 200
