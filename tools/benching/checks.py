"""Targets of the benchmark, and their comparison with measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.benching.figures import Best, Table
from tools.benching.growing import Grown
from tools.benching.idling import Idle
from tools.benching.profiling import Profile
from tools.benching.systems import LOCALS, SYSTEMS
from tools.benching.timeline import Timeline

OURS, KEPT = "wbengine", "wbengine-shared"
#: The variant that is judged if tasks use a broker: `engines.run` with an executor per flow.
JUDGED_VARIANT = OURS
TIMES = "\N{MULTIPLICATION SIGN}"
PEERS = tuple(system.name for system in SYSTEMS if system.peer and system.judged)
NO_RESULTS = ("procrastinate", "pgqueuer", "pgqueuer-batches")
#: Further comparisons without a target: (case, medium) -> (case, systems).
COMPARED_WITHOUT_TARGET = {
    ("wide", "redis"): [("wide", ("huey-notify",))],
    ("chain", "redis"): [
        ("chain", ("huey-notify",)),
        ("pipeline", tuple(system.name for system in SYSTEMS if system.peer)),
    ],
    ("chain", "amqp"): [("pipeline", tuple(one.name for one in SYSTEMS if one.peer))],
    **{
        (case, "postgresql"): [(case, (system,)) for system in NO_RESULTS]
        for case in ("wide", "chain", "payload")
    },
}
TITLES = {system.name: system.title for system in SYSTEMS}
CELERY = tuple(system.name for system in SYSTEMS if system.driver == "celery")

#: (case, medium) -> target as a multiple of the fastest other system.
FASTEST = {
    ("wide", "redis"): 1.5, ("chain", "redis"): 1.2,
    **{(case, "postgresql"): 1.0 for case in ("wide", "chain", "payload")},
}  # fmt: skip
#: (case, medium) -> targets as multiples of Celery's faster pool and of kombu alone.
RABBITMQ = {("wide", "amqp"): (3.0, 0.5), ("chain", "amqp"): (2.0, 0.3)}
#: (case, medium) -> target in tasks per second.
MIN_RATES = {("wide", "filesystem"): 3000.0, ("chain", "filesystem"): 700.0}
#: (case, medium) -> target as a multiple of TaskFlow.
TASKFLOW = {
    **{(case, medium): 20.0 for medium in ("redis", "amqp", "filesystem")
       for case in ("wide", "chain")},
    ("wide", "serial"): 25.0, ("linear", "serial"): 600.0, ("wide", "parallel"): 25.0,
}  # fmt: skip
#: Targets of a flow with `LARGE` tasks: seconds from construction to end, megabytes, exponent.
LARGE, LARGE_SECONDS, LARGE_MEMORY, EXPONENT = 100_000, 4.0, 300.0, 1.1
LARGE_SHAPES = ("unordered", "linear")
IMPORT, READY = 0.25, 1.0
IDLE_PROCESSOR, IDLE_MEMORY = 1.0, 50.0


@dataclass(frozen=True)
class Check:
    """A target and its result.

    `kept` is None if the target could not be judged. If `promised` is empty, there is no target.
    """

    text: str
    promised: str
    found: str
    kept: bool | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Measured:
    """All measurements. Those that were not requested are empty and yield no checks."""

    table: Table = field(default_factory=Table)
    grown: Sequence[Grown] = ()
    #: Seconds of imports and first engines, by name.
    started: dict[str, float] = field(default_factory=dict)
    #: (medium, system) -> median seconds until a new worker has completed a task.
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    idle: Sequence[Idle] = ()
    profiles: Sequence[Profile] = ()
    timelines: Sequence[Timeline] = ()


def judge(measured: Measured) -> list[Check]:
    """Return the targets for which there are measurements, in the order of the table."""
    return [
        *_against_peers(measured.table),
        *_against_taskflow(measured.table),
        *_large(measured.grown),
        *_start(measured),
        *_idle(measured.idle),
    ]


def _against_peers(table: Table) -> Iterator[Check]:
    for (case, medium), times in FASTEST.items():
        yield from _times(table, case, medium, PEERS, times, "the fastest peer")
    for (case, medium), others in COMPARED_WITHOUT_TARGET.items():
        yield from _beside(table, case, medium, others)
    for (case, medium), (celery, echo) in RABBITMQ.items():
        yield from _times(table, case, medium, CELERY, celery, "Celery's faster pool")
        yield from _times(table, case, medium, ("kombu",), echo, "kombu alone")
    for (case, medium), least in MIN_RATES.items():
        if table.get(case, medium, JUDGED_VARIANT) is None:
            continue
        rate = table.rate(case, medium, JUDGED_VARIANT)
        measured = "no runs" if rate is None else f"{rate:,.0f}/s"
        is_met = rate is not None and rate >= least
        yield Check(f"{case} over {medium}", f"{least:,.0f}/s", measured, is_met)


def _against_taskflow(table: Table) -> Iterator[Check]:
    for (case, medium), times in TASKFLOW.items():
        yield from _times(table, case, medium, ("taskflow",), times, "TaskFlow")


def _times(
    table: Table, case: str, medium: str, systems: Sequence[str], times: float, whom: str
) -> Iterator[Check]:
    """Compare wbengine with the fastest of some systems."""
    name = OURS if medium in LOCALS else JUDGED_VARIANT
    if table.get(case, medium, name) is None:
        return
    where = f"over {medium}" if medium not in LOCALS else f"on {medium}"
    text, promised = f"{case} {where}, against {whom}", f"{times:g} {TIMES}"
    ours, best = table.rate(case, medium, name), table.best(case, medium, systems)
    if ours is None:
        yield Check(text, promised, "no runs", False)
    elif best is None:
        yield Check(text, promised, f"{ours:,.0f}/s, nothing to compare with", None)
    else:
        is_met = ours >= times * best.rate
        # For a run that was not completed, only a maximum of its rate is known.
        judged = is_met if best.known else is_met or None
        yield Check(text, promised, _ratio(table, case, medium, ours, best), judged)


def _ratio(table: Table, case: str, medium: str, ours: float, best: Best) -> str:
    """Return the ratio of wbengine to a system, with an executor per flow and with a shared one."""
    more_than, at_most = ("", "") if best.known else ("more than ", "at most ")
    rates, times = f"{ours:,.0f}/s", f"{more_than}{ours / best.rate:.2f} {TIMES}"
    if shared_rate := table.rate(case, medium, KEPT):
        rates = f"{rates}, shared executor {shared_rate:,.0f}/s"
        times = f"{times}, shared executor {more_than}{shared_rate / best.rate:.2f} {TIMES}"
    return f"{times} ({rates}, {best.system} {at_most}{best.rate:,.0f}/s)"


def _beside(
    table: Table, case: str, medium: str, others: Sequence[tuple[str, Sequence[str]]]
) -> Iterator[Check]:
    """Yield comparisons that have no target."""
    ours = table.rate(case, medium, JUDGED_VARIANT)
    for other, systems in others:
        best = table.best(other, medium, systems)
        if ours is not None and best is not None:
            title = TITLES[best.system] if case == other else f"{TITLES[best.system]}'s {other}"
            text = f"{case} over {medium}, beside {title}"
            yield Check(text, "", _ratio(table, case, medium, ours, best), None)


def _large(grown: Sequence[Grown]) -> Iterator[Check]:
    for flow in grown:
        if flow.tasks != LARGE or flow.shape not in LARGE_SHAPES:
            continue
        text = f"{LARGE:,} tasks, {flow.shape}"
        yield Check(f"{text}: seconds", f"under {LARGE_SECONDS:g} s", f"{flow.all:.2f} s",
                    flow.all < LARGE_SECONDS)  # fmt: skip
        yield Check(f"{text}: memory", f"under {LARGE_MEMORY:g} MB", f"{flow.peak_mb:.0f} MB",
                    flow.peak_mb < LARGE_MEMORY)  # fmt: skip
        if flow.growth is not None:
            yield Check(f"{text}: growth exponent", f"at most {EXPONENT:g}", f"{flow.growth:.2f}",
                        flow.growth <= EXPONENT)  # fmt: skip


def _start(measured: Measured) -> Iterator[Check]:
    if "import" in measured.started:
        took = measured.started["import"]
        text = "import wbengine.engines and all its names"
        yield Check(text, f"under {IMPORT:g} s", f"{took:.3f} s", took < IMPORT)
    if not measured.started:
        return
    for (medium, system), took in measured.ready.items():
        if system == OURS:
            yield Check(f"first task of a new worker over {medium}", f"under {READY:g} s",
                        f"{took:.2f} s", took < READY)  # fmt: skip


def _idle(workers: Sequence[Idle]) -> Iterator[Check]:
    for worker in workers:
        if worker.system == OURS:
            text = f"idle worker over {worker.medium}"
            yield Check(f"{text}: processor", f"under {IDLE_PROCESSOR:g} %",
                        f"{worker.processor:.2f} %", worker.processor < IDLE_PROCESSOR)  # fmt: skip
            yield Check(f"{text}: memory", f"under {IDLE_MEMORY:g} MB", f"{worker.memory:.1f} MB",
                        worker.memory < IDLE_MEMORY)  # fmt: skip


def missed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.kept is False]
