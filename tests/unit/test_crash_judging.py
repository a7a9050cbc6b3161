"""Those who judge flows that were killed see what went wrong, whatever it is."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.crashing import engines, judging, pictures
from tests.crashing.judging import Cut, Rules, Story


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    return engines.expected(tmp_path_factory.mktemp("crash") / "expected", ["main", "undone"])


def problems(story: Story, expected: dict[str, Story], **rules: bool) -> list[str]:
    return judging.problems(story, expected[story.flow], Rules(**rules))


def attempts(story: Story, name: str, count: int) -> Any:
    """The end of a flow, with another number of attempts of a task."""
    end = copy.deepcopy(story.end)
    assert end is not None
    end["atoms"][name]["row"]["attempt"] = count
    return end


@pytest.mark.parametrize("flow", ["main", "undone"])
def test_nothing_is_wrong_with_what_nobody_disturbs(flow: str, expected: dict[str, Story]) -> None:
    story = expected[flow]
    for rules in ({}, {"once": True}, {"once": True, "lost": True}):
        assert problems(story, expected, **rules) == []
    assert len(story.deeds) == len(set(story.deeds)) > 15
    assert pictures.saved(story.end) <= set(story.deeds)


def test_a_lost_flow_is_seen(expected: dict[str, Story]) -> None:
    assert problems(replace(expected["main"], end=None), expected) == ["main: it is lost"]


def test_what_runs_twice_is_seen(expected: dict[str, Story]) -> None:
    story = expected["main"]
    twice = replace(story, deeds=[*story.deeds, "left execute 1.0"])
    assert problems(twice, expected) == [
        "main: left execute 1.0 was done 2 times",
        "main: left ran 2 times, under 1 numbers in the end",
    ]
    # Where a task may run again that was not saved, it may once for each kill.
    killed = replace(twice, cuts=[Cut(None, 0, 3)], end=attempts(story, "left", 2))
    assert problems(killed, expected) == []
    assert problems(killed, expected, once=True) == ["main: left execute 1.0 was done 2 times"]
    assert judging.again(killed) == 1
