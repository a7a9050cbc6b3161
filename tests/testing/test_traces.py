"""Patterns of traces."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from wbengine.testing import _traces


def matches(told: Any, *events: str) -> bool:
    return _traces.match(_traces.parse(told), events) is None


def test_word_matches_running_and_success() -> None:
    assert matches("a", "a RUNNING", "a SUCCESS")
    assert not matches("a", "a RUNNING")
    assert not matches("a", "a SUCCESS", "a RUNNING")
    assert matches("a FAILURE", "a FAILURE")
    assert matches("my task", "my task RUNNING", "my task SUCCESS")


def test_members_of_sets_match_in_any_order() -> None:
    events = ["a RUNNING", "a SUCCESS", "b RUNNING", "b SUCCESS"]
    for order in itertools.permutations(events):
        right = all(order.index(f"{n} RUNNING") < order.index(f"{n} SUCCESS") for n in "ab")
        assert matches([{"a", "b"}], *order) == right
    assert not matches(["a", "b"], *events[2:], *events[:2])
    assert matches(["a", "b"], *events)


def test_sets_and_sequences_may_be_nested() -> None:
    told = [{("a", "b"), frozenset({"c", "d"})}, "e"]
    row = [f"{n} {s}" for n in "cabde" for s in ("RUNNING", "SUCCESS")]
    assert matches(told, *row)
    swapped = [f"{n} {s}" for n in "cbade" for s in ("RUNNING", "SUCCESS")]
    assert not matches(told, *swapped)


def test_ambiguous_alternatives_are_all_tried() -> None:
    """The first of two alternatives with the same beginning may be the wrong one."""
    told = [{("a FAILURE", "b FAILURE"), ("a FAILURE", "c FAILURE")}]
    assert matches(told, "a FAILURE", "c FAILURE", "a FAILURE", "b FAILURE")
    assert matches(told, "a FAILURE", "a FAILURE", "c FAILURE", "b FAILURE")
    assert not matches(told, "a FAILURE", "c FAILURE", "b FAILURE", "a FAILURE")


def test_mismatch_contains_position_and_expected_events() -> None:
    pattern = _traces.parse([{"a", "b"}, "c"])
    found = _traces.match(pattern, ["a RUNNING", "c RUNNING"])
    assert found == _traces.Mismatch(1, ("a SUCCESS", "b RUNNING"))
    assert _traces.match(pattern, []) == _traces.Mismatch(0, ("a RUNNING", "b RUNNING"))
    assert _traces.match(_traces.parse([]), ["x RUNNING"]) == _traces.Mismatch(0, ())
    assert _traces.match(_traces.parse([]), []) is None


def test_set_of_400_tasks_is_matched() -> None:
    names = [f"t{n}" for n in range(400)]
    events = [f"{n} RUNNING" for n in names] + [f"{n} SUCCESS" for n in reversed(names)]
    assert matches([set(names)], *events)


@pytest.mark.parametrize("wrong", [1, ["a", None], {1}], ids=str)
def test_invalid_pattern_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="Expected trace must consist of"):
        _traces.parse(wrong)
