"""Depths of deciders, and join rules."""

from __future__ import annotations

import itertools

import pytest

from wbengine.deciders import Depth, Join, pick_widest

ORDER = [Depth.ALL, Depth.FLOW, Depth.NEIGHBORS, Depth.ATOM]


@pytest.mark.parametrize("value", [*ORDER, *Join])
def test_translate_accepts_values_and_their_names(value):
    translate = type(value).translate
    assert translate(value) is translate(value.value.lower()) is value
    assert translate(value.value.title()) is value
    assert str(value) == value.value == value


@pytest.mark.parametrize(
    ("translate", "wrong", "text"),
    [
        (Depth.translate, "neighbours", r"'neighbours' \(did you mean 'NEIGHBORS'\?\)"),
        (Join.translate, "anny", r"join rule 'anny' \(did you mean 'ANY'\?\); known values"),
        (Join.translate, Depth.FLOW, "'FLOW'"),
    ],
)
def test_translate_refuses_unknown_names(translate, wrong, text):
    with pytest.raises(ValueError, match=text):
        translate(wrong)


@pytest.mark.parametrize(
    "wrong",
    [2, 3.4, False, None, object(), Depth],
    ids=["int", "float", "bool", "none", "object", "class"],
)
def test_translate_refuses_other_types(wrong):
    with pytest.raises(TypeError, match="Depth or a str"):
        Depth.translate(wrong)
    with pytest.raises(TypeError, match="join rule must be a Join or a str, got"):
        Join.translate(wrong)


def test_pick_widest_returns_widest_depth():
    for depths in itertools.permutations(ORDER, 3):
        assert pick_widest(depths) is min(depths, key=ORDER.index)
    assert pick_widest(iter([Depth.ATOM])) is Depth.ATOM


@pytest.mark.parametrize("depths", [[], ["a"], {"b"}], ids=["empty", "list", "set"])
def test_pick_widest_rejects_values_that_are_not_depths(depths):
    with pytest.raises(ValueError, match="depth"):
        pick_widest(depths)
    assert pick_widest(["atom", Depth.FLOW]) is Depth.FLOW
