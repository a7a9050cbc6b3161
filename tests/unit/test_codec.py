"""Internal functions of typed JSON; `tests/contract/test_values.py` covers the public ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.values import Color, Frozen, Point
from wbengine import exceptions
from wbengine.types import codec

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key != codec.TAG), inner)
    ),
    max_leaves=20,
)


@given(json_values)
def test_plain_values_stay_plain_and_are_not_copied(value: Any) -> None:
    assert codec.pack(value) is value
    assert codec.plain(value) is value
    assert json.loads(codec.dumps(value)) == value
    assert codec.unpack(value) is value
    assert codec.parse(codec.dumps(value)) == value


def test_pack_copies_only_containers_of_tagged_values() -> None:
    untouched = {"x": [1]}
    value = {"a": untouched, "b": [(1,)]}
    tree = codec.pack(value)
    assert value == {"a": {"x": [1]}, "b": [(1,)]}
    assert tree["a"] is untouched
    codec.unpack(tree)
    assert tree["b"] == [{"$wbe": "tuple", "v": [1]}]


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        pytest.param((1,), id="tuple"),
        pytest.param({1}, id="set"),
        pytest.param(b"", id="bytes"),
        pytest.param({1: 2}, id="int-key"),
        pytest.param(float("nan"), id="nan"),
        pytest.param(Color.RED, id="enum"),
        pytest.param(Point(1), id="dataclass"),
        pytest.param([Frozen(())], id="nested-dataclass"),
        pytest.param("\ud800", id="surrogate"),
        pytest.param({"\ud800": 1}, id="surrogate-key"),
        pytest.param([[1, (2,)]], id="nested-tuple"),
    ],
)
def test_plain_rejects_values_that_json_changes(value: Any) -> None:
    with pytest.raises(exceptions.NotEncodable):
        codec.plain(value)


def test_plain_accepts_reserved_key() -> None:
    value = {"$wbe": "tuple"}
    assert codec.plain(value) is value


def test_parse_accepts_maximum_depth() -> None:
    assert codec.parse(b"[" * 80 + b"]" * 80, depth=80)


@pytest.mark.parametrize(
    ("tree", "text"),
    [([object()], r"\[0\]: object is not JSON"), ({1: 2}, "a key is not a string")],
    ids=["object", "int-key"],
)
def test_unpack_rejects_trees_that_are_not_json(tree: Any, text: str) -> None:
    with pytest.raises(exceptions.InvalidFormat, match=text):
        codec.unpack(tree)
