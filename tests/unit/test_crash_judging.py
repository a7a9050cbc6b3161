"""The judge of the crash tests finds faults in constructed histories."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.crashing import engines, in_flight, judging, snapshots
from tests.crashing.judging import Cut, FlowHistory, Rules
from wbengine.persistence import models

FLOWS = ["main", "undone", "stepped-0", "stepped-1", "stepped-2", "stepped-3"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FlowHistory]:
    return engines.expected(tmp_path_factory.mktemp("crash") / "expected", FLOWS)


def problems(history: FlowHistory, expected: dict[str, FlowHistory], **rules: bool) -> list[str]:
    return judging.problems(history, expected[history.flow], Rules(**rules))


def attempts(history: FlowHistory, name: str, count: int) -> Any:
    """Return the end of a flow with another number of attempts of a task."""
    end = copy.deepcopy(history.end)
    assert end is not None
    end["atoms"][name]["row"]["attempt"] = count
    return end


@pytest.mark.parametrize("flow", FLOWS)
def test_undisturbed_flow_has_no_problems(flow: str, expected: dict[str, FlowHistory]) -> None:
    history = expected[flow]
    for rules in ({}, {"once": True}, {"once": True, "lost": True}):
        assert problems(history, expected, **rules) == []
    assert len(history.effects) == len(set(history.effects)) > 13
    assert snapshots.saved(history.end) <= set(history.effects)


def test_lost_flow_is_reported(expected: dict[str, FlowHistory]) -> None:
    assert problems(replace(expected["main"], end=None), expected) == ["main: it is lost"]


def test_repeated_execution_is_reported_unless_a_kill_explains_it(
    expected: dict[str, FlowHistory],
) -> None:
    history = expected["main"]
    twice = replace(history, effects=[*history.effects, "left execute 1.0"])
    assert problems(twice, expected) == [
        "main: left execute 1.0 was done 2 times",
        "main: left ran 2 times, under 1 numbers in the end",
    ]
    # A task whose result was not saved may run again once for each kill.
    killed = replace(twice, cuts=[Cut(None, 0, 3)], end=attempts(history, "left", 2))
    assert problems(killed, expected) == []
    assert problems(killed, expected, once=True) == ["main: left execute 1.0 was done 2 times"]
    assert judging.again(killed) == 1


def test_repeated_reversion_of_step_needs_a_killed_worker(
    expected: dict[str, FlowHistory],
) -> None:
    history = expected["stepped-1"]
    name, effect = "workflow/1.8-Break", "workflow/1.8-Break revert 1.0"
    twice = replace(history, effects=[*history.effects, effect], end=attempts(history, name, 3))
    assert problems(twice, expected, once=True) == [f"stepped-1: {effect} was done 2 times"]
    assert problems(twice, expected, once=True, lost=True) == []
    thrice = replace(twice, effects=[*twice.effects, effect], end=attempts(history, name, 4))
    assert problems(thrice, expected, once=True, lost=True) == [
        f"stepped-1: {effect} was done 3 times"
    ]


@pytest.mark.parametrize("attempt", [0, 2])
def test_loss_of_worker_explains_steps_of_earlier_attempts_only(
    attempt: int, expected: dict[str, FlowHistory]
) -> None:
    history = expected["stepped-1"]
    end = copy.deepcopy(history.end)
    assert end is not None
    atom = copy.deepcopy(end["atoms"]["workflow/1.9-revert-scope"])
    atom["row"]["meta"][models.STEP]["attempt"] = attempt
    end["atoms"][f"workflow/{attempt}.7-revert-scope"] = atom
    with_step = replace(history, end=end)
    assert problems(with_step, expected, once=True)
    assert bool(problems(with_step, expected, once=True, lost=True)) == (attempt == 2)


def test_steps_that_are_reverted_in_another_order_are_reported(
    expected: dict[str, FlowHistory],
) -> None:
    effects = list(expected["stepped-2"].effects)
    last = effects.index("workflow/1.0-Step revert 1.0")
    effects[last - 1 : last + 1] = reversed(effects[last - 1 : last + 1])
    (problem,) = problems(replace(expected["stepped-2"], effects=effects), expected)
    assert problem.endswith(
        "workflow/1.0-Step was reverted before workflow/1.2-Step, which completed after it"
    )


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (["begin", "do", "end", "undo"], None),
        (["begin", "begin", "do", "end", "unknown"], None),
        (["begin", "unknown"], None),
        (["begin", "do", "end"], "not undone"),
        (["begin", "do", "undo", "do"], "not undone"),
        (["begin", "undo"], "not done"),
    ],
)
def test_effects_that_remain_after_a_reversion_are_reported(
    history: list[str], problem: str | None
) -> None:
    found = in_flight.remains([(what, "key") for what in history], exact=False)
    assert [problem in text for text in found] == [True] * (problem is not None)


def test_work_that_is_undone_too_rarely_is_reported_if_counts_are_exact() -> None:
    effects = [(what, "key") for what in ("do", "do", "undo")]
    assert in_flight.remains(effects, exact=False) == []
    assert len(in_flight.remains(effects, exact=True)) == 1
