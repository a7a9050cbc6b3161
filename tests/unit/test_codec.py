"""Typed JSON where only the package meets it: trees, plain values, text that is not typed.

What users see of it is in `tests/contract/test_values.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.values import Color, Frozen, Point
from wbengine import _codec, exceptions

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key != _codec.TAG), inner)
    ),
    max_leaves=20,
)


@given(json_values)
def test_plain_values_stay_plain_and_are_not_copied(value: Any) -> None:
    assert _codec.pack(value) is value
    assert _codec.plain(value) is value
    assert json.loads(_codec.dumps(value)) == value
    assert _codec.unpack(value) is value
    assert _codec.parse(_codec.dumps(value)) == value


def test_packing_changes_nothing_and_copies_only_the_way_to_a_tag() -> None:
    untouched = {"x": [1]}
    value = {"a": untouched, "b": [(1,)]}
    tree = _codec.pack(value)
    assert value == {"a": {"x": [1]}, "b": [(1,)]}
    assert tree["a"] is untouched
    _codec.unpack(tree)
    assert tree["b"] == [{"$wbe": "tuple", "v": [1]}]


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [(1,), {1}, b"", {1: 2}, float("nan"), Color.RED, "\ud800", {"\ud800": 1}, [[1, (2,)]]],
)
def test_plain_refuses_what_would_change(value: Any) -> None:
    with pytest.raises(exceptions.NotEncodable):
        _codec.plain(value)


def test_plain_knows_no_reserved_key() -> None:
    value = {"$wbe": "tuple"}
    assert _codec.plain(value) is value


def test_parse_may_be_told_how_deep() -> None:
    assert _codec.parse(b"[" * 80 + b"]" * 80, depth=80)


@pytest.mark.parametrize(
    ("tree", "text"),
    [([object()], r"\[0\]: object is not JSON"), ({1: 2}, "a key is not a string")],
)
def test_trees_that_are_not_json_are_refused(tree: Any, text: str) -> None:
    with pytest.raises(exceptions.InvalidFormat, match=text):
        _codec.unpack(tree)


@pytest.mark.parametrize("value", [Color.RED, Point(1), [Frozen(())]])
def test_plain_refuses_what_is_allowed_elsewhere(value: Any) -> None:
    with pytest.raises(exceptions.NotEncodable, match="is not plain JSON"):
        _codec.plain(value)
