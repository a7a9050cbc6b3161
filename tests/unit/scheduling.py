"""Scheduler with nodes that are addressed by name."""

from __future__ import annotations

from typing import Any

from wbengine import retry, task
from wbengine._runtime import retry_decisions
from wbengine._runtime.compiler import compile
from wbengine._runtime.plan import Plan
from wbengine._runtime.scheduler import Scheduler
from wbengine.patterns import graph_flow, linear_flow, unordered_flow

LINEAR, UNORDERED, GRAPH = linear_flow.Flow, unordered_flow.Flow, graph_flow.Flow


class Step(task.Task):
    def execute(self) -> None: ...


def steps(*names: str) -> list[Step]:
    return [Step(name) for name in names]


def control(name: str) -> retry.AlwaysRevert:
    return retry.AlwaysRevert(name)


def decider(history: Any) -> bool:
    raise AssertionError("the scheduler asks nobody")


class Run:
    """Scheduler with nodes that are addressed by name."""

    def __init__(self, flow: Any, saved: dict[str, tuple[str, str]] | None = None) -> None:
        self.plan: Plan = flow if isinstance(flow, Plan) else compile(flow)
        self.id = {name: node for node, name in enumerate(self.plan.names)}
        states = None if saved is None else {self.id[n]: pair for n, pair in saved.items()}
        self.scheduler = Scheduler(self.plan, states)
        self.scheduler.start()

    def names(self, nodes: Any) -> str:
        return " ".join(self.plan.names[n] for n in nodes)

    def take(self) -> str:
        """Return the next batch as 'execute: a b; revert: c'."""
        turn = self.scheduler.take()
        found = {kind: getattr(turn, kind) for kind in ("votes", "execute", "revert", "retry")}
        parts = [f"{kind}: {self.names(nodes)}" for kind, nodes in found.items() if nodes]
        return "; ".join(parts)

    def ok(self, *names: str) -> None:
        for name in names:
            self.scheduler.succeeded(self.id[name])

    def reverted(self, *names: str) -> None:
        for name in names:
            self.scheduler.reverted(self.id[name])

    def failed(self, name: str) -> bool:
        return self.scheduler.failed(self.id[name])

    def apply(self, intention: str, controller: str | None = None) -> dict[str, str]:
        if controller is None:
            resolution = retry_decisions.everything(self.plan)
        else:
            scope = self.plan.scope(self.id[controller])
            resolution = retry_decisions.Resolution(intention, scope)
        return {self.plan.names[n]: what for n, what in self.scheduler.apply(resolution)}

    def reset(self, name: str) -> str:
        nodes = self.scheduler.reset_scope(self.id[name])
        return " ".join(sorted(self.plan.names[n] for n in nodes))

    def decide(self, name: str, *refused_by: str) -> str:
        """Return the atoms that are ignored if deciders on links from `refused_by` return False."""
        ballot = self.scheduler.ballot(self.id[name])
        refusing = [edge for edge in ballot if self.plan.names[edge.end] in refused_by]
        assert len(refusing) == len(refused_by)
        return self.names(self.scheduler.decide(self.id[name], refusing))

    def end(self) -> str:
        assert self.scheduler.done
        return self.scheduler.verdict()


def branches() -> Any:
    """Return one graph in which a decides on b, and b -> c -> (d -> e) -> g."""
    a, b, c, g = steps("a", "b", "c", "g")
    nest = LINEAR("nest").add(*steps("d", "e"))
    flow = GRAPH("f").add(a, b, c, nest, g)
    return flow.link(a, b, decider=decider).link(b, c).link(c, nest).link(nest, g)


def subflows() -> Any:
    """Return a flow with a -> (r1: b -> c) parallel to x -> y, followed by z."""
    inner = LINEAR("inner", control("r1")).add(*steps("b", "c"))
    beside = LINEAR("m").add(*steps("x", "y"))
    both = UNORDERED("both").add(LINEAR("l").add(Step("a"), inner), beside)
    return LINEAR("f").add(both, Step("z"))
