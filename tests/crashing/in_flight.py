"""Kills of engines while steps of a workflow are in flight, with an oracle outside of the engine.

After the kill, another process resumes or reverts the flow, or runs changed code. In the end no
effect of a flow in REVERTED may remain, and nothing may be undone that was not done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.crashing import children, engines, in_flight_tasks, spreading, workers
from tests.crashing.children import Kill
from tests.crashing.in_flight_tasks import fail, flaky, work
from tests.seams import stores
from wbengine import engines as loading
from wbengine import exceptions, operations, states, task
from wbengine._runtime.workflows import workflow_run
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends
from wbengine.steps import AsyncSteps, Steps
from wbengine.testing import _workers as testing_workers

#: How the step in flight was called.
SHAPES = ("gather", "map", "scope", "retry", "wait", "child")

#: What happens while it is in flight, or after the kill.
ENDINGS = (
    "fail",
    "return",
    "iterable",
    "cancel",
    "deadline",
    "revert",
    "nondeterminism",
    "retries",
)

#: Engines, and transports of engines with workers.
KINDS = ("serial", "parallel", "memory", "filesystem", "redis")

#: Kinds whose ledger survives the engine: each execution and reversion happens once.
_EXACT = ("filesystem", "redis")

#: Time that a step in flight takes.
NAP = 0.3

#: Whether the workflows of this process call other steps than those of the first engine.
_is_changed = False


class InFlightHits(children.Hits):
    """Counts only the crash points that are reached while a step is in flight."""

    def __init__(self, kill: Kill | None, effects: Path) -> None:
        super().__init__(kill)
        self._effects = effects

    def _hit(self, point: str) -> None:
        if _open(in_flight_tasks.read(self._effects)):
            super()._hit(point)


@dataclass(frozen=True)
class Case:
    """A kill of the first engine, counted by `InFlightHits` or, with `any_time`, by `Hits`."""

    shape: str
    ending: str
    kind: str
    kill: Kill | None = None
    any_time: bool = False

    def __str__(self) -> str:
        when = "" if self.any_time else " in flight"
        return f"{self.kind} x {self.shape} x {self.ending}, killed at {self.kill}{when}"


def combinations(kinds: Sequence[str] = KINDS) -> list[Case]:
    """Return a case without a kill for each possible combination."""
    return [
        Case(shape, ending, kind)
        for kind, shape, ending in itertools.product(kinds, SHAPES, ENDINGS)
        if (ending != "iterable" or shape == "map") and (ending != "retries" or shape != "child")
    ]


# The flows.


def make(shape: str, ending: str) -> Any:
    """Return the flow of a case, which ends in REVERTED."""
    if ending == "iterable":
        return linear_flow.Flow("flow").add(_items())
    workflow = (_retried if ending == "retries" else _workflow)(inject={"ending": ending})
    if shape == "child":
        return unordered_flow.Flow("flow").add(workflow, fail("sibling"))
    return linear_flow.Flow("flow").add(workflow, fail("last"))


async def _call(steps: AsyncSteps, shape: str, ending: str, effects: str, nap: float) -> Any:
    common: dict[str, Any] = {"effects": effects, "nap": nap}
    if _is_changed:
        await steps.run(work, "changed", **common)
    kinds = ("slow", "fails" if ending in {"fail", "retries"} and shape != "child" else "fast")
    slow, fast = (f"{kind}-{steps.uuid4()}" for kind in kinds)
    if shape == "map":
        await steps.map(work, [slow, fast], **common)
    elif ending == "return":
        first = flaky if shape == "retry" else work
        calls = [steps.run(first, slow, **common), steps.run(work, fast, **common)]
        await asyncio.wait(map(asyncio.ensure_future, calls), return_when=asyncio.FIRST_COMPLETED)
    else:
        first = flaky if shape == "retry" else work
        calls = [steps.run(first, slow, **common), steps.run(work, fast, **common)]
        if shape == "wait":
            calls.append(steps.wait_for("never", 3 * nap, default=None))
        await asyncio.gather(*calls)
    if ending != "return":
        raise LookupError("the function fails")


async def _program(steps: AsyncSteps, shape: str, ending: str, effects: str, nap: float) -> None:
    if shape == "scope":
        async with steps.scope():
            await _call(steps, shape, ending, effects, nap)
    else:
        await _call(steps, shape, ending, effects, nap)


_workflow = task.workflow(name="workflow")(_program)
_retried = task.workflow(name="workflow", retries=1)(_program)


@task.workflow(name="workflow")
def _items(steps: Steps, effects: str, nap: float) -> None:
    def items() -> Iterator[str]:
        yield f"slow-{steps.uuid4()}"
        steps.run(work, f"fast-{steps.uuid4()}", effects=effects, nap=nap)
        raise LookupError("the iterable fails")

    steps.map(work, items(), effects=effects, nap=nap)


# The processes.


@dataclass(frozen=True)
class Bench:
    """The resources of one process that runs cases: a folder, and a URL for each transport."""

    folder: Path
    urls: Mapping[str, str]

    @property
    def topic(self) -> str:
        """The topic of the workers of this process."""
        return f"in-flight-{self.folder.name}"

    def options(self, kind: str) -> dict[str, Any]:
        if kind not in self.urls:
            return {"engine": kind}
        return {
            "engine": "worker-based",
            "url": self.urls[kind],
            "topics": [self.topic],
            "transition_timeout": 20.0,
        }


@contextlib.contextmanager
def bench(folder: Path, kinds: Sequence[str], redis: str = "") -> Iterator[Bench]:
    """Start the workers of these kinds in child processes."""
    folder.mkdir(parents=True)
    urls = {"memory": "memory://", "filesystem": f"filesystem://{folder / 'broker'}"}
    urls["redis"] = redis
    resources = Bench(folder, {kind: urls[kind] for kind in kinds if kind in urls})
    pids = []
    try:
        for kind, url in resources.urls.items():
            if kind != "memory":  # The worker of a broker in memory runs in the engine's process.
                log = folder / f"{kind}.log"
                pid = workers.start(url, log, offered=in_flight_tasks, topic=resources.topic)
                pids.append(pid)
        yield resources
    finally:
        for pid in pids:
            children.stop(pid)


def _in_child(log: Path, run: Any, hits: children.Hits, report: Path) -> int:
    """Run a function in a child that `hits` may kill; return its exit code."""

    def work() -> None:
        hits.install()
        run()
        engines.write_json(report, hits.counts)

    return children.wait(children.fork(work, log))


@contextlib.contextmanager
def _own_worker(bench: Bench, kind: str) -> Iterator[None]:
    if kind != "memory":
        yield
        return
    with testing_workers.worker_in_thread(
        bench.urls[kind], in_flight_tasks, topic=bench.topic, threads_count=4
    ):
        yield


#: What a run of an engine may raise.
_ERRORS = (ValueError, LookupError, exceptions.ExecutionFailure, exceptions.WrappedFailure)


def run(case: Case, bench: Bench, number: int) -> dict[str, Any]:
    """Run a case; return its problems and the crash points that its first engine reached."""
    folder = bench.folder / f"case-{number}"
    folder.mkdir()
    effects, report, log = folder / "effects", folder / "hits", folder / "log"
    effects.touch()
    conf, uuid = stores.conf("sqlite", folder), f"00000000-0000-4000-8000-{number:012}"

    def first() -> None:
        with backends.backend(conf) as backend, _own_worker(bench, case.kind):
            engine = loading.load_from_factory(
                make,
                [case.shape, case.ending],
                store={"shape": case.shape, "effects": str(effects), "nap": NAP},
                backend=backend,
                uuid=uuid,
                **bench.options(case.kind),
            )
            if case.ending in {"cancel", "deadline"}:
                engine.atom_notifier.register(
                    states.SUCCESS, functools.partial(_cancel, engine, case.ending)
                )
            with contextlib.suppress(*_ERRORS):
                engine.run()

    def later(do: Any, **options: Any) -> None:
        with backends.backend(conf) as backend, _own_worker(bench, case.kind):
            try:
                engine = do(backend, uuid, **bench.options(case.kind))
            except (exceptions.InvalidState, exceptions.NotFound):
                return
            with contextlib.suppress(*_ERRORS):
                engine.run(**options)

    def change() -> None:
        global _is_changed
        _is_changed = True
        later(operations.resume)

    hits = children.Hits(case.kill) if case.any_time else InFlightHits(case.kill, effects)
    codes = [_in_child(log, first, hits, report)]
    at_kill, counts_of_points = in_flight_tasks.read(effects), engines.read_json(report) or {}
    resume, revert = (
        functools.partial(later, operations.resume),
        functools.partial(later, operations.revert),
    )
    followers: dict[str, list[Any]] = {
        "nondeterminism": [change, revert],
        "revert": [revert, resume],
        "deadline": [functools.partial(resume, deadline=0)],
    }
    reached = codes[0] == -signal.SIGKILL
    if reached:
        # The loss of a worker during a reversion ends in FAILURE, until a command repeats it.
        repeated = [revert] if case.kind == "memory" else []
        for follower in [*followers.get(case.ending, [resume]), *repeated]:
            codes += [_in_child(log, follower, children.Hits(), folder / "later")]
    problems = [f"process ended with {code}" for code in codes[reached:] if code]
    if not problems:
        children.until(lambda: _is_quiet(effects, case.kind), 30.0, "a step does not end")
        problems = _judge(case, conf, uuid, effects)
    if problems:
        problems = [f"{case}: {problem} (in {folder})" for problem in problems]
    counts = Counter(in_flight_tasks.read(effects))
    if not problems:
        shutil.rmtree(folder)
    return {
        "case": [case.kind, case.shape, case.ending, case.any_time],
        "hits": counts_of_points,
        "reached": reached,
        "in_flight": sum(_open(at_kill).values()) > 0,
        "unknown": sum(count for (what, _), count in counts.items() if what == "unknown"),
        "problems": problems,
    }


def _cancel(engine: Any, ending: str, state: str, details: Mapping[str, Any]) -> None:
    """Give the flow up when the second step has succeeded."""
    if "/1.1-" in details.get("task_name", ""):
        engine.cancel()


def _open(effects: Sequence[tuple[str, str]]) -> Counter[str]:
    """Return the number of executions that began and have not ended, by key."""
    counts = Counter(effects)
    keys = {key for _, key in effects}
    return +Counter({key: counts["begin", key] - counts["end", key] for key in keys})


def _is_quiet(effects: Path, kind: str) -> bool:
    return kind not in _EXACT or not _open(in_flight_tasks.read(effects))


# The oracle.


def _judge(case: Case, conf: Any, uuid: str, effects: Path) -> list[str]:
    with (
        backends.backend(conf) as backend,
        contextlib.closing(backend.get_connection()) as connection,
    ):
        try:
            detail = connection.get_flow_details(uuid)
        except exceptions.NotFound:  # Killed before it was stored.
            return ["a step ran"] if in_flight_tasks.read(effects) else []
    if detail.state in {None, states.PENDING} and not in_flight_tasks.read(effects):
        return []
    problems = [] if detail.state == states.REVERTED else [f"the flow is in {detail.state}"]
    return problems + remains(in_flight_tasks.read(effects), exact=case.kind in _EXACT)


def remains(effects: Sequence[tuple[str, str]], *, exact: bool) -> list[str]:
    """Return the work of a reverted flow that was not undone, and what was undone without need.

    :param exact: each execution happens at most once, and its result is known.
    """
    by_key: dict[str, list[str]] = defaultdict(list)
    for what, key in effects:
        by_key[key].append(what)
    problems = []
    for key, history in sorted(by_key.items()):
        lasting = [what for what in history if what not in {"begin", "end"}]
        done, undone = lasting.count("do"), lasting.count("undo")
        unknown = lasting.count("unknown")
        if done and lasting[-1] == "do":
            problems.append(f"{key} was done and not undone: {history}")
        if undone and not done:
            problems.append(f"{key} was undone and not done: {history}")
        if exact and done != undone + unknown:
            problems.append(f"{key} was done {done} times, undone {undone + unknown}: {history}")
    return problems


# The sweep.


class InFlightSweep:
    """Kills at each crash point, in a number of processes.

    :param sample: number of random cases; None: one random hit of each point in each combination.
    """

    def __init__(
        self, kinds: Sequence[str], sample: int | None, jobs: int, seed: int, folder: Path
    ) -> None:
        self._kinds = kinds
        self._sample = sample
        self._jobs = jobs
        self._chance = random.Random(seed)
        self._folder = folder
        self.problems: list[str] = []

    def run(self) -> int:
        """Run the sweep, print the table, and return the number of problems."""
        began = time.monotonic()
        plain = combinations(self._kinds)
        if self._sample is not None and self._sample < len(plain):
            plain = self._chance.sample(plain, self._sample)
        self._kinds = sorted({case.kind for case in plain})
        with contextlib.ExitStack() as stack:
            redis = ""
            if "redis" in self._kinds:
                from tests.support import brokers

                server = stack.enter_context(brokers.redis())
                redis = stack.enter_context(server.place())
            preload()
            census = [*plain, *(replace(case, any_time=True) for case in plain)]
            cases = [
                replace(Case(shape, ending, kind, any_time=any_time), kill=Kill(name, hit))
                for report in self._spread(census, redis)
                for kind, shape, ending, any_time in [report["case"]]
                for name, count in sorted(report["hits"].items())
                for hit in [self._chance.randint(1, count)]
            ]
            if self._sample is not None:
                cases = self._chance.sample(cases, min(self._sample, len(cases)))
            reports = self._spread(cases, redis)
        self._print(reports, time.monotonic() - began)
        return len(self.problems)

    def _spread(self, cases: Sequence[Case], redis: str) -> list[dict[str, Any]]:
        folder = self._folder / f"in-flight-{len(cases)}-{time.monotonic_ns()}"

        @contextlib.contextmanager
        def enter(number: int) -> Iterator[Any]:
            with bench(folder / str(number), self._kinds, redis) as resources:
                yield lambda case: run(case[1], resources, case[0])

        return list(spreading.report(cases, self._jobs, enter, self.problems))

    def _print(self, reports: Sequence[Mapping[str, Any]], seconds: float) -> None:
        print(f"{'engine':<12}{'ending':<16}{'cases':>7}{'died':>6}{'in flight':>11}{'unknown':>9}")
        sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for report in reports:
            kind, _, ending, _ = report["case"]
            for name in ("reached", "in_flight", "unknown"):
                sums[kind, ending][name] += report[name]
            sums[kind, ending]["cases"] += 1
        for (kind, ending), sum_ in sorted(sums.items()):
            print(
                f"{kind:<12}{ending:<16}{sum_['cases']:>7}{sum_['reached']:>6}"
                f"{sum_['in_flight']:>11}{sum_['unknown']:>9}"
            )
        in_flight = sum(report["in_flight"] for report in reports)
        not_undone = sum("not undone" in problem for problem in self.problems)
        not_done = sum("not done" in problem for problem in self.problems)
        print(
            f"{len(reports)} cases, {in_flight} with a step in flight, done and not undone"
            f" {not_undone}, undone and not done {not_done}, {seconds:.0f} s,"
            f" {len(self.problems)} problems"
        )


def forget_steps() -> None:
    """Plant a fault in this process: steps in flight are dropped when their function has ended."""

    def forget(run: workflow_run.WorkflowRun, step: Any) -> None:
        run._incomplete.discard(step)

    setattr(workflow_run.WorkflowRun, "_settle", forget)  # noqa: B010


def preload() -> None:
    """Import the modules that engines import on demand, before any fork."""
    engines.preload(["sqlite"])
