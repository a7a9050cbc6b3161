"""Random schedules, reproducible by their seeds.

`WBENGINE_SCHEDULES=N` sets the number of schedules of each kind.  `tools/simulate wire` runs many
more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation import defects, schedules
from tests.simulation.steps import STEPS
from tests.support.amounts import amount

SCHEDULES = amount(25, 200, "WBENGINE_SCHEDULES")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Enable logging again, which the schedules disable."""
    yield
    logging.disable(logging.NOTSET)


def run(count: int, steps: int, kind: str) -> schedules.Figures:
    outcome = schedules.run(range(count), steps, kind)
    if outcome.wrong is not None:
        pytest.fail(schedules.story(schedules.shrink(outcome.wrong)))
    return outcome


@pytest.mark.parametrize("kind", [schedules.LEDGER, schedules.NONE])
def test_short_random_schedule_violates_no_invariant(kind: str) -> None:
    run(amount(15, 150), 30, kind)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [schedules.LEDGER, schedules.NONE])
def test_random_schedule_violates_no_invariant(kind: str) -> None:
    outcome = run(SCHEDULES, 100, kind)
    # The schedules must cause these events.
    assert outcome.seen["results"] > SCHEDULES
    for what in ("lost, and alive", "runs again", "WorkerLost", "sent again: idle"):
        assert outcome.seen[what], what


@pytest.mark.slow
def test_same_seed_gives_same_world() -> None:
    for seed in range(5):
        setting, plan = schedules.steps_of(seed, 60)
        first, _ = schedules.attempt(setting, plan)
        again, _ = schedules.attempt(*schedules.steps_of(seed, 60))
        assert first.judge.seen == again.judge.seen
        assert (first.count, first.now) == (again.count, again.now)


def test_required_defects_are_registered() -> None:
    assert set(defects.FOUR) <= set(defects.DEFECTS)


def test_every_kind_of_step_has_a_weight() -> None:
    assert {*schedules.WEIGHTS, *schedules.BESIDES} == set(STEPS)


@pytest.mark.parametrize(
    ("name", "first"),
    # Seeds close to one that finds the defect; `tools/simulate --defect all` starts with 0.
    [("epoch-check", 10), ("missing-row", 0), ("running-after-success", 1010), ("time-alone", 0)],
)
def test_planted_defect_is_found(name: str, first: int) -> None:
    tried, wrong = schedules.find(name, range(first, first + 1000), 100)
    assert wrong is not None, f"not in {tried} schedules"


def test_planted_defect_is_removed_afterwards() -> None:
    for name, defect in defects.DEFECTS.items():
        before = [(owner, what, getattr(owner, what)) for owner, what, _ in defect.patches]
        with defects.planted(name):
            assert any(getattr(owner, what) is not was for owner, what, was in before)
        assert all(getattr(owner, what) is was for owner, what, was in before)
