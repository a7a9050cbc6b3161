"""What is promised, and whether what was measured keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.benching.figures import Best, Table
from tools.benching.growing import Grown
from tools.benching.idling import Idle
from tools.benching.profiling import Profile
from tools.benching.systems import LOCALS, SYSTEMS

OURS, KEPT = "wbengine", "wbengine-shared"
#: Which of our ways is judged where tasks travel: `engines.run` as it is, or with a kept executor.
WIRED = OURS
TIMES = "\N{MULTIPLICATION SIGN}"
PEERS = tuple(system.name for system in SYSTEMS if system.peer and system.judged)
#: What ours is compared with, too, and what is not promised: (case, medium) -> (case, systems).
BESIDE = {
    ("wide", "redis"): [("wide", ("huey-notify",))],
    ("chain", "redis"): [
        ("chain", ("huey-notify",)),
        ("pipeline", tuple(system.name for system in SYSTEMS if system.peer)),
    ],
    ("chain", "amqp"): [("pipeline", tuple(one.name for one in SYSTEMS if one.peer))],
}
TITLES = {system.name: system.title for system in SYSTEMS}
CELERY = tuple(system.name for system in SYSTEMS if system.driver == "celery")

#: (case, medium) -> how many times the fastest peer.
FASTEST = {("wide", "redis"): 1.5, ("chain", "redis"): 1.2}
#: (case, medium) -> how many times Celery's better pool, and kombu alone.
RABBITMQ = {("wide", "amqp"): (3.0, 0.5), ("chain", "amqp"): (2.0, 0.3)}
#: (case, medium) -> tasks per second.
LEAST = {("wide", "filesystem"): 3000.0, ("chain", "filesystem"): 700.0}
#: (case, medium) -> how many times TaskFlow.
TASKFLOW = {
    **{(case, medium): 20.0 for medium in ("redis", "amqp", "filesystem")
       for case in ("wide", "chain")},
    ("wide", "serial"): 25.0, ("linear", "serial"): 600.0, ("wide", "parallel"): 25.0,
}  # fmt: skip
#: Of a flow of so many tasks: seconds from construction to end, megabytes, exponent.
LARGE, LARGE_SECONDS, LARGE_MEMORY, EXPONENT = 100_000, 4.0, 300.0, 1.1
LARGE_SHAPES = ("unordered", "linear")
IMPORT, READY = 0.25, 1.0
IDLE_PROCESSOR, IDLE_MEMORY = 1.0, 50.0


@dataclass(frozen=True)
class Check:
    """One promise; `kept` is None when it could not be judged, or (`promised` is '') is none."""

    text: str
    promised: str
    found: str
    kept: bool | None

    def told(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Measured:
    """All that was measured; what was not asked for is empty, and nothing is said of it."""

    table: Table = field(default_factory=Table)
    grown: Sequence[Grown] = ()
    #: Seconds of imports and first engines, by name.
    started: dict[str, float] = field(default_factory=dict)
    #: Median seconds until a new worker had done something, by medium and system.
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    idle: Sequence[Idle] = ()
    profiles: Sequence[Profile] = ()


def judge(found: Measured) -> list[Check]:
    """The promises of which anything was measured, in the order of the table."""
    return [
        *_against_peers(found.table),
        *_against_taskflow(found.table),
        *_large(found.grown),
        *_start(found),
        *_idle(found.idle),
    ]


def _against_peers(table: Table) -> Iterator[Check]:
    for (case, medium), times in FASTEST.items():
        yield from _times(table, case, medium, PEERS, times, "the fastest peer")
    for (case, medium), others in BESIDE.items():
        yield from _beside(table, case, medium, others)
    for (case, medium), (celery, echo) in RABBITMQ.items():
        yield from _times(table, case, medium, CELERY, celery, "Celery's better pool")
        yield from _times(table, case, medium, ("kombu",), echo, "kombu alone")
    for (case, medium), least in LEAST.items():
        if table.get(case, medium, WIRED) is None:
            continue
        rate = table.rate(case, medium, WIRED)
        said = "no runs" if rate is None else f"{rate:,.0f}/s"
        kept = rate is not None and rate >= least
        yield Check(f"{case} over {medium}", f"{least:,.0f}/s", said, kept)


def _against_taskflow(table: Table) -> Iterator[Check]:
    for (case, medium), times in TASKFLOW.items():
        yield from _times(table, case, medium, ("taskflow",), times, "TaskFlow")


def _times(
    table: Table, case: str, medium: str, systems: Sequence[str], times: float, whom: str
) -> Iterator[Check]:
    """How many times the best of some systems ours is."""
    name = OURS if medium in LOCALS else WIRED
    if table.get(case, medium, name) is None:
        return
    where = f"over {medium}" if medium not in LOCALS else f"on {medium}"
    text, promised = f"{case} {where}, against {whom}", f"{times:g} {TIMES}"
    ours, best = table.rate(case, medium, name), table.best(case, medium, systems)
    if ours is None:
        yield Check(text, promised, "no runs", False)
    elif best is None:
        yield Check(text, promised, f"{ours:,.0f}/s, and nothing to compare with", None)
    else:
        kept = ours >= times * best.rate
        # Who did not come to an end is slower than its limit, nobody knows by how much.
        judged = kept if best.known else kept or None
        yield Check(text, promised, _ratio(table, case, medium, ours, best), judged)


def _ratio(table: Table, case: str, medium: str, ours: float, best: Best) -> str:
    """How many times another one ours is, with an executor of its own and with one that is kept."""
    more, most = ("", "") if best.known else ("more than ", "at most ")
    rates, times = f"{ours:,.0f}/s", f"{more}{ours / best.rate:.2f} {TIMES}"
    if kept := table.rate(case, medium, KEPT):
        rates = f"{rates}, executor kept {kept:,.0f}/s"
        times = f"{times}, executor kept {more}{kept / best.rate:.2f} {TIMES}"
    return f"{times} ({rates}, {best.system} {most}{best.rate:,.0f}/s)"


def _beside(
    table: Table, case: str, medium: str, others: Sequence[tuple[str, Sequence[str]]]
) -> Iterator[Check]:
    """What is told and not judged."""
    ours = table.rate(case, medium, WIRED)
    for other, systems in others:
        best = table.best(other, medium, systems)
        if ours is not None and best is not None:
            title = TITLES[best.system] if case == other else f"{TITLES[best.system]}'s {other}"
            text = f"{case} over {medium}, beside {title}"
            yield Check(text, "", _ratio(table, case, medium, ours, best), None)


def _large(grown: Sequence[Grown]) -> Iterator[Check]:
    for one in grown:
        if one.tasks != LARGE or one.shape not in LARGE_SHAPES:
            continue
        text = f"{LARGE:,} tasks, {one.shape}"
        yield Check(f"{text}: seconds", f"under {LARGE_SECONDS:g} s", f"{one.all:.2f} s",
                    one.all < LARGE_SECONDS)  # fmt: skip
        yield Check(f"{text}: memory", f"under {LARGE_MEMORY:g} MB", f"{one.peak_mb:.0f} MB",
                    one.peak_mb < LARGE_MEMORY)  # fmt: skip
        if one.growth is not None:
            yield Check(f"{text}: growth exponent", f"at most {EXPONENT:g}", f"{one.growth:.2f}",
                        one.growth <= EXPONENT)  # fmt: skip


def _start(found: Measured) -> Iterator[Check]:
    if "import" in found.started:
        took = found.started["import"]
        text = "import wbengine.engines, with its names"
        yield Check(text, f"under {IMPORT:g} s", f"{took:.3f} s", took < IMPORT)
    if not found.started:
        return
    for (medium, system), took in found.ready.items():
        if system == OURS:
            yield Check(f"a new worker has done something over {medium}", f"under {READY:g} s",
                        f"{took:.2f} s", took < READY)  # fmt: skip


def _idle(found: Sequence[Idle]) -> Iterator[Check]:
    for one in found:
        if one.system == OURS:
            text = f"idle worker over {one.medium}"
            yield Check(f"{text}: processor", f"under {IDLE_PROCESSOR:g} %",
                        f"{one.processor:.2f} %", one.processor < IDLE_PROCESSOR)  # fmt: skip
            yield Check(f"{text}: memory", f"under {IDLE_MEMORY:g} MB", f"{one.memory:.1f} MB",
                        one.memory < IDLE_MEMORY)  # fmt: skip


def missed(checks: Sequence[Check]) -> list[Check]:
    return [one for one in checks if one.kept is False]
