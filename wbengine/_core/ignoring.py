"""What a decider's "no" reaches, and who said it."""

from __future__ import annotations

from collections.abc import Mapping

from wbengine import deciders
from wbengine._core.plan import FLOW, TASK, Plan


def reach(plan: Plan, node: int, depth: deciders.Depth) -> tuple[list[int], int]:
    """The target and what `depth` adds to it, ascending; and how many edges were followed to find
    that out.

    A flow as the target is ignored as a whole, and only ALL reaches further: it is its members that
    are in the same flow, and next to each other.
    """
    kinds = plan.kinds
    is_flow = kinds[node] == FLOW
    tail = plan.end[node] if is_flow else node
    reached = set(range(node, tail + 1))
    edges = 0
    near = depth == deciders.Depth.ATOM or (is_flow and depth != deciders.Depth.ALL)
    work = [] if near else [tail]
    while work:
        after = plan.succ[work.pop()]
        edges += len(after)
        for n in after:
            # Only ALL goes into the flows that follow, and out of the flow it began in.
            if n not in reached and (depth == deciders.Depth.ALL or kinds[n] == TASK):
                reached.add(n)
                if depth != deciders.Depth.NEIGHBORS:
                    work.append(n)
    return sorted(reached), edges


class Ignored:
    """Which target made which nodes ignored: several may have, and a retry takes some back."""

    __slots__ = ("_origins", "_reached")

    def __init__(self, origins: Mapping[int, int]) -> None:
        """`origins`: node -> target, as far as it is known from earlier runs."""
        self._reached: dict[int, list[int]] = {}
        self._origins: dict[int, tuple[int, ...]] = {}
        for node, target in origins.items():
            self._origins[node] = (target,)
            self._reached.setdefault(target, []).append(node)

    def __bool__(self) -> bool:
        return bool(self._reached)

    def add(self, target: int, reached: list[int]) -> None:
        self._reached[target] = reached
        # Most nodes have one origin: they share the tuple.
        alone = (target,)
        for node in reached:
            others = self._origins.get(node)
            self._origins[node] = (*others, target) if others else alone

    def drop(self, target: int) -> list[int]:
        """Forget what a target said; returns those that nobody else made ignored."""
        left = []
        for node in self._reached.pop(target, ()):
            others = tuple(origin for origin in self._origins[node] if origin != target)
            if others:
                self._origins[node] = others
            else:
                del self._origins[node]
                left.append(node)
        return left
