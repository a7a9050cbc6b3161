"""Find a smaller flow that fails, too."""

from __future__ import annotations

import copy
import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Iterator

from tests.property.lives import Composer, Life
from tests.property.oracle import ATOM, Link, Spec


def shrink(life: Life, seconds: float = 30.0, lives: int = 50) -> Life:
    """Return the shortest failing run of the smallest failing flow; its `error` is the failure.

    A flow is reduced as long as one of `lives` runs of the reduced flow fails.  The given run
    failed.
    """
    end = time.monotonic() + seconds
    best = life
    # A small flow that fails is a good start and is found quickly.
    for seed in range(100 * lives):
        small = _wrong(Composer(random.Random(seed), small=True).root(), [seed], end)
        if small is not None and _size(small) < _size(best):
            best = small
            break
    for tries in (lives // 10, lives):
        best = _shrunk(best, tries, end)
    return _wrong(best.spec, range(20 * lives), end + seconds / 3, shortest=True) or best


def _size(life: Life) -> int:
    return len(life.oracle.before)


def _shrunk(best: Life, tries: int, end: float) -> Life:
    place = 0
    while True:
        rest = list(_smaller(best.spec))
        # Continue after the last successful reduction; earlier places are required for now.
        for at in [*range(place, len(rest)), *range(min(place, len(rest)))]:
            found = _wrong(rest[at], [best.seed, *range(tries)], end)
            if found is not None:
                best, place = found, at
                break
        else:
            return best


def _wrong(spec: Spec, seeds: Iterable[int], end: float, shortest: bool = False) -> Life | None:
    found: Life | None = None
    for seed in seeds:
        if time.monotonic() > end:
            break
        life = Life(seed, copy.deepcopy(spec))
        try:
            life.run()
        except Exception as error:
            life.error = error
            if found is None or len(life.history) < len(found.history):
                found = life
            if not shortest:
                break
    return found


def _smaller(spec: Spec) -> Iterator[Spec]:
    """Yield reduced copies of a flow, the most reduced first."""
    for flow in sorted(_flows(spec)[1:], key=lambda flow: len(flow.everything())):
        yield dataclasses.replace(flow, join="ALL")
    for number, flow in enumerate(_flows(spec)):
        half = len(flow.children) // 2
        if half > 1:
            yield _changed(spec, number, lambda made, n=half: _cut(made, *range(n)))
            yield _changed(spec, number, lambda made, n=half: _cut(made, *range(n, 2 * n)))
        for place in range(len(flow.children)):
            yield _changed(spec, number, lambda made, at=place: _cut(made, at))
        for place, child in enumerate(flow.children):
            if child.children:
                yield _changed(spec, number, lambda made, at=place: _hoist(made, at))
        for place in range(len(flow.links)):
            yield _changed(spec, number, lambda made, at=place: made.links.pop(at))
        if flow.retry:
            yield _changed(spec, number, lambda made: setattr(made, "retry", None))
        for place, link in enumerate(flow.links):
            if link.depth is not None:
                yield _changed(
                    spec, number, lambda made, at=place: setattr(made.links[at], "depth", None)
                )
        for place, child in enumerate(flow.children):
            if child.join != "ALL":
                yield _changed(
                    spec, number, lambda made, at=place: setattr(made.children[at], "join", "ALL")
                )


def _flows(spec: Spec) -> list[Spec]:
    """Return the flow and its nested flows, outer ones first."""
    found = [] if spec.kind == ATOM else [spec]
    for flow in found:
        found += [child for child in flow.children if child.kind != ATOM]
    return found


def _changed(spec: Spec, number: int, change: Callable[[Spec], object]) -> Spec:
    made = copy.deepcopy(spec)
    change(_flows(made)[number])
    return made


def _cut(flow: Spec, *places: int) -> None:
    """Remove members; their predecessors and successors are not linked."""
    for place in reversed(places):
        del flow.children[place]
        flow.links = [
            Link(
                link.source - (link.source > place), link.target - (link.target > place), link.depth
            )
            for link in flow.links
            if place not in (link.source, link.target)
        ]


def _hoist(flow: Spec, place: int) -> None:
    """Replace a member by its first member."""
    child = flow.children[place]
    flow.children[place] = child.children[0]
    flow.children[place].join = child.join
