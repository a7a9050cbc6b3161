"""Random schedules by seed, and reports of failing ones."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from tests.simulation.judge import Violation
from tests.simulation.steps import STEPS
from tests.simulation.world import Setting, Step, World

#: Weight of each kind of step.
WEIGHTS: Final[dict[str, int]] = {
    "submit": 60,
    "pass": 220,
    "deliver": 130,
    "hold": 40,
    "lose": 40,
    "double": 40,
    "finish": 60,
    "tell": 15,
    "worker": 45,
    "kill_worker": 18,
    "stop_worker": 10,
    "freeze_worker": 14,
    "thaw": 45,
    "kill_engine": 14,
    "freeze_engine": 14,
    "resume": 60,
    "suspend": 6,
    "trip": 60,
    "slow": 15,
    "ail_ledger": 15,
    "ail_store": 12,
    "cut": 12,
    "doubt": 12,
    "bounce": 10,
    "cancel": 15,
    "order": 10,
}
#: Steps of all schedules, and faults, of which most schedules have few kinds.
CALM: Final = ("submit", "pass", "deliver", "finish", "worker", "resume", "thaw")
TROUBLES: Final = tuple(name for name in WEIGHTS if name not in CALM)
#: Steps that are inserted in one of five schedules.
BESIDES: Final = ("block", "set_back")
assert {*WEIGHTS, *BESIDES} == set(STEPS)

LEDGER: Final = "ledger"
NONE: Final = "none"
ANY: Final = "any"


class Wrong(NamedTuple):
    """A failing schedule with its error."""

    seed: int
    setting: Setting
    trace: list[Step]
    error: Exception


def setting_of(rng: random.Random, kind: str) -> Setting:
    """Return a random setting; `kind` is "ledger", "none" or "any"."""
    ledger = kind == LEDGER or (kind != NONE and rng.random() < 0.5)
    broker = rng.choice(
        ["amqp", "amqp", "folder", "kombu"] if ledger else ["amqp", "amqp", "kombu"]
    )
    timeout = rng.choice([60.0, 60.0, 20.0, None])
    capacity = rng.choice([None, None, 2])
    more = random.Random(f"{kind}/{timeout}/{rng.random()}")
    return Setting(
        broker,
        ledger,
        timeout,
        capacity,
        on_worker_lost=more.choice(["fail", "fail", "fail", "resend"]),
        claiming=ledger and more.random() < 0.25,
        one_step=broker == "folder" and more.random() < 0.5,
    )


def steps_of(seed: int, steps: int, kind: str = ANY) -> tuple[Setting, list[Step]]:
    """Return the schedule of a seed."""
    rng = random.Random(f"{kind}/{seed}")
    setting = setting_of(rng, kind)
    names = list(CALM)
    if rng.random() < 0.3:
        names += TROUBLES
    else:
        names += rng.sample(TROUBLES, rng.choice([1, 2, 3, 5]))
    weights = [WEIGHTS[name] for name in names]
    opening = [("worker", rng.randrange(64)), ("pass", 1), ("submit", rng.randrange(4096))]
    kinds = rng.choices(names, weights, k=max(0, steps - len(opening)))
    taken = [*opening, *((name, rng.randrange(4096)) for name in kinds)]
    # a separate generator keeps other schedules unchanged
    more = random.Random(f"besides/{kind}/{seed}")
    if more.random() < 0.2:
        for _ in range(more.randrange(1, 4)):
            place = more.randrange(len(opening), len(taken) + 1)
            taken.insert(place, (more.choice(BESIDES), more.randrange(4096)))
    return setting, taken[:steps]


def attempt(setting: Setting, steps: Iterable[Step]) -> tuple[World, Exception | None]:
    """Run a schedule and heal the world; return the error, if any."""
    world = World(setting)
    try:
        for name, choice in steps:
            world.do(name, choice)
        world.heal()
    except Exception as error:
        return world, error
    return world, None


class Figures(NamedTuple):
    """Totals of several schedules."""

    schedules: int
    steps: int
    events: int
    seen: Counter[str]
    wrong: Wrong | None


def run(seeds: Iterable[int], steps: int, kind: str = ANY) -> Figures:
    """Run the schedules of these seeds until one fails."""
    logging.disable(logging.CRITICAL)
    seen: Counter[str] = Counter()
    schedules = taken = events = 0
    for seed in seeds:
        setting, plan = steps_of(seed, steps, kind)
        world, error = attempt(setting, plan)
        schedules, taken, events = schedules + 1, taken + len(plan), events + world.count
        seen += world.judge.seen
        if error is not None:
            return Figures(schedules, taken, events, seen, Wrong(seed, setting, world.trace, error))
    return Figures(schedules, taken, events, seen, None)


def shrink(wrong: Wrong, most: int = 1500) -> Wrong:
    """Return a shorter schedule that fails in the same way."""
    best, tries = wrong, 0
    size = max(1, len(best.trace) // 2)
    while size and tries < most:
        improved = False
        for trace in _shorter(best.trace, size):
            tries += 1
            _, error = attempt(best.setting, trace)
            if error is not None and like(error) == like(wrong.error):
                best, improved = best._replace(trace=trace, error=error), True
                break
            if tries >= most:
                break
        if not improved:
            size //= 2
    for place, (name, choice) in enumerate(best.trace):
        for simpler in (0, choice % 8, choice % 64):
            trace = [*best.trace[:place], (name, simpler), *best.trace[place + 1 :]]
            _, error = attempt(best.setting, trace) if simpler < choice else (None, None)
            if error is not None and like(error) == like(wrong.error):
                best = best._replace(trace=trace, error=error)
                break
    return best


def _shorter(trace: list[Step], size: int) -> Iterator[list[Step]]:
    for start in range(max(0, len(trace) - size), -1, -max(1, size // 2) if size > 1 else -1):
        yield trace[:start] + trace[start + size :]


def like(error: Exception) -> str:
    """Return the kind of an error: its message without names and numbers."""
    words = [word for word in str(error).split() if word.isalpha()]
    return f"{type(error).__name__} {' '.join(words[:12])}"


def story(wrong: Wrong) -> str:
    """Return the schedule as a test function."""
    options = ", ".join(f"{k}={v!r}" for k, v in wrong.setting.__dict__.items())
    lines: list[Any] = [
        f"def test_trace_{wrong.seed}() -> None:",
        f'    """{type(wrong.error).__name__}: {str(wrong.error)[:300]}"""',
        f"    world = World({options})",
        "    world.play([",
        *(f'        "{name} {choice}",' for name, choice in wrong.trace),
        "    ])",
    ]
    return "\n".join(lines)


def find(defect: str, seeds: Iterable[int], steps: int) -> tuple[int, Wrong | None]:
    """Find a schedule that violates an invariant with a defect, but not without it.

    Also return the number of tried schedules.
    """
    from tests.simulation import defects

    logging.disable(logging.CRITICAL)
    tried = 0
    for seed in seeds:
        tried += 1
        with defects.planted(defect) as known:
            violations = run([seed], steps, known.kind).wrong
        if violations is None or run([seed], steps, known.kind).wrong is not None:
            continue
        if not isinstance(violations.error, Violation):
            raise violations.error  # another error means that the patch does not fit
        return tried, violations
    return tried, None
