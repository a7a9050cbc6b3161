"""Random nested flows with random failures on all kinds of engines.

Each flow runs twice on each kind.  *In step*, a batch ends before the next one starts: then all
kinds must cause the events of a serial engine, which must agree with the oracle.  *Free*,
results are processed as they arrive: then the final state must be the same.
`WBENGINE_KINDS=1000` runs more flows, `WBENGINE_SEED=n` a single one.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.flows import fated, kinds, trace
from tests.property import replay
from tests.property.lives import Composer, add_controllers, combined
from tests.property.oracle import ATOM, Oracle, Spec
from tests.support.amounts import amount
from wbengine import retry, states
from wbengine._concurrency import manual_clock
from wbengine.engines import base
from wbengine.types import failure as ft

FLOWS = amount(18, 300, "WBENGINE_KINDS")
SEED = os.environ.get("WBENGINE_SEED")
SEEDS = range(FLOWS) if SEED is None else [int(SEED)]
#: Number of tests that share the flows, so that no test takes minutes.
PARTS = 6

#: Maximum number of runs of a flow that is suspended repeatedly.
MOST_RUNS = 200


class Tries(retry.Retry):
    """A retry controller that retries a few times and then gives up."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name, provides=f"{name}.n")
        self.world = world
        self.tries = world.rng.choice([1, 2, 3, 4])
        self.last = world.rng.choice(["REVERT", "REVERT", "REVERT_ALL"])

    def execute(self, history: retry.History) -> int:
        count = len(history)
        if self.world.fails(self.name, count):
            raise OSError(f"{self.name} fails at {count}")
        return count

    def on_failure(self, history: retry.History) -> str:
        # In free mode REVERT_ALL depends on timing: the retry may already be reverted.
        last = "REVERT" if self.world.free else self.last
        answer = "RETRY" if len(history) < self.tries else last
        self.world.events.append((f"{replay.SAID}{answer}", self.name))
        return answer

    def revert(self, history: retry.History) -> str:
        return f"{self.name} gave up after {len(history)}"


class World:
    """A random flow with its random events."""

    def __init__(self, seed: int, folder: str, free: bool) -> None:
        rng = self.rng = random.Random(seed)
        composer = Composer(rng)
        composer.left = rng.choice([4, 9, 18])
        composer.deciding = rng.random() < 0.5
        self.seed = seed
        self.free = free
        self.spec: Spec = composer.root()
        add_controllers(self.spec, rng, 0.4)
        self.failing = rng.choice([0.05, 0.15, 0.3, 0.5])
        self.naying = rng.choice([0.2, 0.5])
        #: Suspend at these state changes, counted from the start.
        self.pauses = {rng.randrange(60) for _ in range(rng.choice([0, 0, 1, 4]))}
        self.store = {
            "seed": seed,
            "failing": self.failing,
            "sticking": 0.0 if free else rng.choice([0, 0, 0.15]),
            "folder": "" if free else folder,
        }
        self.defer = rng.random() < 0.5
        #: Events that the oracle needs.
        self.events: list[replay.Event] = []
        self.flow = self.build(self.spec, ())

    def fails(self, *what: Any) -> bool:
        return fated.draw(self.seed, *what) < self.failing / 3

    def build(self, spec: Spec, tries: tuple[str, ...]) -> Any:
        if spec.kind == ATOM:
            made = fated.Fated(spec.name, provides=(spec.name, "seen"), requires=tries)
            made.priority = int(spec.urgent)
            return made
        again = Tries(self, spec.retry) if spec.retry else None
        if spec.retry:
            tries = (*tries, f"{spec.retry}.n")
        children = [self.build(child, tries) for child in spec.children]
        return combined(spec, again, children, self.decider)

    def decider(self, name: str) -> Callable[..., bool]:
        count = 0

        def decide(history: dict[str, Any]) -> bool:
            nonlocal count
            count += 0 if self.free else 1
            if self.fails(name, count):
                self.events.append((replay.RAISED, name))
                raise KeyError(f"{name} fails at {count}")
            agrees = fated.draw(self.seed, name, count, "no") >= self.naying
            self.events.append((replay.YES if agrees else replay.NO, name))
            return agrees

        return decide


class Life:
    """The runs of one world on one kind of engine, until the flow ends."""

    def __init__(self, world: World, kind: kinds.Kind) -> None:
        self.world = world
        # A serial engine polls in a long batch: with a manual clock no batch is long.
        clock = manual_clock.ManualClock() if kind.name == "serial" else None
        self.engine = kind.load(
            world.flow, store=world.store, defer_reverts=world.defer, clock=clock
        )
        self.recorder = trace.Recorder(self.engine)
        self.changes = 0
        self.suspended = False
        self.error = ""
        self.engine.atom_notifier.register("*", self._on_change)

    def _on_change(self, state: str, details: dict[str, Any]) -> None:
        name = details.get("task_name") or details["retry_name"]
        self.world.events.append((state, name))
        if self.changes in self.world.pauses:
            self.suspended = True
            self.engine.suspend()
        self.changes += 1

    def run(self) -> Life:
        for _ in range(MOST_RUNS):
            try:
                self.engine.run()
            except Exception as error:
                self.error = type(error).__name__
            if self.state != states.SUSPENDED:
                return self
        raise AssertionError("it never ends")

    @property
    def state(self) -> str:
        return self.engine.storage.get_flow_state()

    def check_by_the_oracle(self) -> None:
        if self.suspended:
            return  # other tests cover the decisions of a suspended flow
        played = replay.Replay(self.world.spec, self.world.defer)
        played.run(self.world.events)
        played.check(self.states(), self.state)

    def everything(self) -> dict[str, Any]:
        """Return all values that must be equal for identical runs."""
        storage = self.engine.storage
        return {
            "story": " ".join(self.recorder.words),
            "flow": self.recorder.flow,
            "told": dict(self.recorder.told),
            "states": self.states(),
            "results": storage.fetch_all(),
            "attempts": {name: _number(self.engine, name) for name in self.states()},
            "histories": {
                name: [(n, {k: str(v) for k, v in failed.items()}) for n, failed in history]
                for name, history in storage.get_retry_histories()
            },
            "failures": {k: str(v) for k, v in storage.get_execute_failures().items()},
            "stuck": {k: str(v) for k, v in storage.get_revert_failures().items()},
        }

    def states(self) -> dict[str, str]:
        found = self.engine.storage.get_atoms_states(Oracle(self.world.spec).atoms)
        return {name: state for name, (state, _) in found.items()}

    def end(self) -> dict[str, Any]:
        """Return the values that do not depend on timing: all except remains of reverted atoms."""
        storage = self.engine.storage
        found, results = self.states(), storage.fetch_all()
        if self.state != states.SUCCESS:
            found = {n: s if s == states.SUCCESS else "undone" for n, s in found.items()}
            # Which retry controllers failed before the revert depends on timing.
            results = {n: v for n, v in results.items() if not isinstance(v, ft.Failure)}
        return {
            "state": self.state,
            "failed": bool(self.error),
            "states": found,
            "results": results,
            "histories": {
                name: list(history.provided_iter())
                for name, history in storage.get_retry_histories()
                if found[name] == states.SUCCESS
            },
            "failures": storage.has_failures(),
        }


def _number(engine: base.Engine, name: str) -> int:
    attempt = engine.storage.get_attempt(name)
    return attempt.attempt if attempt is not None else 0


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[kinds.Kind]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                kinds.kind(name, tmp_path_factory.mktemp(name), "tests.contract.flows.fated")
            )
            for name in kinds.NAMES
        ]


@pytest.fixture(params=[True, False], ids=["in step", "free"])
def all_kinds(request: pytest.FixtureRequest, started: list[kinds.Kind]) -> list[kinds.Kind]:
    for kind in started:
        if kind.executor is not None:
            kind.executor.in_step = request.param
    return started


def compare(seed: int, all_kinds: list[kinds.Kind], folder: Path, free: bool) -> Life:
    lives: list[Life] = []
    for kind in all_kinds:
        place = folder / f"{seed}-{kind.name}"
        place.mkdir()
        life = Life(World(seed, str(place), free), kind)
        lives.append(life)
        try:
            life.run()
            _compare(lives[0], life, free)
            if life is lives[0] or free:
                life.check_by_the_oracle()
        except Exception as error:
            raise AssertionError(
                f"WBENGINE_SEED={seed} on {kind.name}: {error}\n{life.world.spec!r}\n"
                f"{lives[0].recorder.words}\n{life.recorder.words}"
            ) from error
    return lives[0]


def _compare(serial: Life, other: Life, free: bool) -> None:
    mine, theirs = (life.end() if free else life.everything() for life in (serial, other))
    folder = mine["results"].pop("folder"), theirs["results"].pop("folder")
    assert (folder[0] == "") == (folder[1] == "")
    for key, value in mine.items():
        assert value == theirs[key], f"{key}: {value!r} is not {theirs[key]!r}"
    assert other.engine.compilation is not None
    trace.check_links(other.recorder.words, other.engine.compilation.execution_graph)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_flow_runs_the_same_on_all_engines(
    part: int, all_kinds: list[kinds.Kind], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    free = "free" in request.node.name
    for seed in SEEDS[part::PARTS]:
        compare(seed, all_kinds, tmp_path, free)


@pytest.mark.slow
def test_random_runs_cover_all_cases(tmp_path: Path) -> None:
    """Without diverse flows the comparison above would prove little."""
    seen: Counter[str] = Counter()
    with kinds.kind("serial", tmp_path, "tests.contract.flows.fated") as serial:
        for seed in range(60):
            place = tmp_path / str(seed)
            place.mkdir()
            life = Life(World(seed, str(place), free=False), serial).run()
            seen[life.state] += 1
            seen["suspended"] += life.suspended
            seen["tasks"] += len(life.states())
            seen.update({what for what, _ in life.world.events})
            seen["joined"] += "join='ANY'" in repr(life.world.spec)
            said = Counter(name for what, name in life.world.events if what.startswith(replay.SAID))
            seen["several tries"] += any(count > 3 for count in said.values())
    few = {what: seen[what] for what in WANTED if seen[what] < 3}
    assert not few, f"{few} of {seen}"
    assert seen["tasks"] > 500


#: Events that must occur in at least three of sixty flows.
WANTED = (
    "SUCCESS", "REVERTED", "FAILURE", "REVERT_FAILURE", "IGNORE", "PENDING", "RETRYING",
    "said RETRY", "said REVERT", "said REVERT_ALL", "yes", "no", "raised",
    "suspended", "joined", "several tries",
)  # fmt: skip
