"""Depths of deciders, and join rules."""

from __future__ import annotations

import itertools

import pytest

from wbengine.deciders import Depth, Join, pick_widest

ORDER = [Depth.ALL, Depth.FLOW, Depth.NEIGHBORS, Depth.ATOM]


@pytest.mark.parametrize("depth", ORDER)
def test_translate_accepts_depths_and_their_names(depth):
    assert Depth.translate(depth) is depth
    assert Depth.translate(depth.value.lower()) is depth
    assert Depth.translate(depth.value.title()) is depth
    assert str(depth) == depth.value == depth


def test_translate_refuses_unknown_names():
    with pytest.raises(ValueError, match=r"'neighbours' \(did you mean 'NEIGHBORS'\?\)"):
        Depth.translate("neighbours")


@pytest.mark.parametrize(
    "wrong", [2, 3.4, False, None, object()], ids=["int", "float", "bool", "none", "object"]
)
def test_translate_refuses_other_types(wrong):
    with pytest.raises(TypeError, match="Depth or a str"):
        Depth.translate(wrong)


def test_pick_widest_returns_widest_depth():
    for depths in itertools.permutations(ORDER, 3):
        assert pick_widest(depths) is min(depths, key=ORDER.index)
    assert pick_widest(iter([Depth.ATOM])) is Depth.ATOM


@pytest.mark.parametrize("join", list(Join))
def test_join_translate_accepts_joins_and_their_names(join):
    assert Join.translate(join) is join
    assert Join.translate(join.value.lower()) is join
    assert str(join) == join.value == join


def test_unknown_join_rules_are_refused():
    with pytest.raises(
        ValueError, match=r"join rule 'anny' \(did you mean 'ANY'\?\); known values"
    ):
        Join.translate("anny")
    for wrong in (1, None, True, Depth):
        with pytest.raises(TypeError, match="join rule must be a Join or a str, got"):
            Join.translate(wrong)
    with pytest.raises(ValueError, match="'FLOW'"):
        Join.translate(Depth.FLOW)


@pytest.mark.parametrize("depths", [[], ["a"], {"b"}], ids=["empty", "list", "set"])
def test_pick_widest_rejects_values_that_are_not_depths(depths):
    with pytest.raises(ValueError, match="depth"):
        pick_widest(depths)
    assert pick_widest(["atom", Depth.FLOW]) is Depth.FLOW
