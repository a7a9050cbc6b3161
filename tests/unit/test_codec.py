"""Typed JSON beyond `tests/contract/test_values.py`: internals, buffers, and copied values."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from typing import Any

import numpy as np
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


LARGE = bytes(range(256)) * 8
OTHER = LARGE[::-1]
SMALL = b"small"


def test_large_bytes_become_buffers_and_small_ones_stay() -> None:
    value = {"a": LARGE, "b": [SMALL, (OTHER, 1)]}
    tree, buffers = codec.pack_with_buffers(value)
    assert len(buffers) == 2
    assert buffers[0] is LARGE
    assert buffers[1] is OTHER
    assert len(json.dumps(tree)) < 200
    assert codec.unpack_with_buffers(json.loads(json.dumps(tree)), buffers) == value


def test_bytes_of_other_buffers_are_bytes() -> None:
    tree, _ = codec.pack_with_buffers([LARGE])
    (value,) = codec.unpack_with_buffers(tree, [memoryview(bytearray(LARGE))])
    assert type(value) is bytes
    assert value == LARGE


def test_pack_beside_buffers_writes_bytes_into_the_tree() -> None:
    codec.pack_with_buffers(LARGE)
    tree = codec.pack(LARGE)
    assert codec.unpack(tree) == LARGE
    assert "i" not in tree


TAG = {"$wbe": "bytes", "i": 0}


@pytest.mark.parametrize(
    ("tree", "buffers"),
    [
        ([TAG, TAG], [LARGE]),
        ([TAG], []),
        ([TAG], [LARGE, OTHER]),
        ([], [LARGE]),
        ([{"$wbe": "bytes", "i": True}], [LARGE, OTHER]),
        ([{"$wbe": "bytes", "i": "QQ=="}], []),
        ([{"$wbe": "bytes", "v": 0}], [LARGE]),
        ([{"$wbe": "bytes", "v": "QQ==", "i": 0}], [LARGE]),
        ([{"$wbe": "bytes"}], []),
    ],
)
def test_trees_that_do_not_use_each_buffer_once_are_rejected(tree: Any, buffers: Any) -> None:
    with pytest.raises(exceptions.InvalidFormat):
        codec.unpack_with_buffers(tree, buffers)


def test_tree_without_buffers_is_rejected_by_unpack() -> None:
    with pytest.raises(exceptions.InvalidFormat, match="buffer 0 does not exist"):
        codec.unpack(TAG)


VALUES = [
    Point(1, 2),
    {"point": Point(1, 2), "colors": [Color.RED, (Color.RED, 5)]},
    {Color.RED: {Frozen((1,))}, 3: b"x"},
    np.arange(6).reshape(2, 3),
    [1, "text", None, (1.5, {"a"})],
]


def of_another_process(text: bytes) -> bytes:
    """Return an encoded value whose classes are unknown in this process."""
    return text.replace(b"tests.support.values", b"elsewhere.values").replace(
        b"numpy.ndarray", b"nothing.ndarray"
    )


@pytest.mark.parametrize("value", VALUES, ids=["instance", "nested", "keys", "array", "plain"])
@pytest.mark.parametrize("unknown_only", [False, True])
def test_copied_value_is_encoded_unchanged(value: Any, unknown_only: bool) -> None:
    for text in (codec.dumps(value), of_another_process(codec.dumps(value))):
        with codec.copying(unknown_only=unknown_only):
            copied = codec.loads(text)
        assert json.loads(codec.dumps(copied)) == json.loads(text)


@pytest.mark.parametrize(
    "make",
    [float, complex, decimal.Decimal, np.float64, lambda text: (float(text),)],
    ids=["float", "complex", "decimal", "numpy", "tuple"],
)
def test_set_and_keys_with_several_nan_are_decoded(make: Callable[[str], Any]) -> None:
    members, pairs = {make("nan"), make("nan")}, {make("nan"): 1, make("nan"): 2}
    assert str(codec.loads(codec.dumps(members))) == str(members)
    assert list(codec.loads(codec.dumps(pairs)).values()) == [1, 2]
    with codec.copying():
        copied = codec.loads(codec.dumps(members))
    assert str(codec.loads(codec.dumps(copied))) == str(members)


ONE = Frozen((1,))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({ONE, Frozen((2,))}, [{"items": (1,)}, {"items": (2,)}]),
        (frozenset({(ONE,)}), [({"items": (1,)},)]),
        ({ONE: "a"}, [[{"items": (1,)}, "a"]]),
        ({np.float64("nan"), np.float64("nan")}, ["numpy.generic nan, 8 bytes"] * 2),
    ],
    ids=["set", "frozenset", "keys", "equal texts"],
)
def test_set_and_keys_of_unknown_classes_are_shown_as_lists(value: Any, shown: list[Any]) -> None:
    stored = of_another_process(codec.dumps(value))
    with codec.unknown_classes_as_text():
        assert codec.loads(stored) == shown


def test_only_values_of_unknown_classes_are_counted() -> None:
    known, unknown = codec.dumps([Point(1, 2)]), of_another_process(codec.dumps([Point(1, 2)] * 3))
    with codec.copying(unknown_only=True) as counts:
        assert codec.loads(known) == [Point(1, 2)]
        codec.loads(unknown)
    assert counts == {"elsewhere.values.Point": 3}
    with codec.copying() as counts:
        codec.loads(known)
    assert counts == {"tests.support.values.Point": 1}


def test_values_are_decoded_again_after_copying() -> None:
    text = codec.dumps(Point(1, 2))
    with codec.copying():
        pass
    assert codec.loads(text) == Point(1, 2)
    with pytest.raises(exceptions.UndecodableValue, match="option -I MODULE"):
        codec.loads(of_another_process(text))


def test_damaged_values_of_known_classes_are_refused() -> None:
    text = codec.dumps(Point(1, 2)).replace(b'"x"', b'"nothing"')
    with pytest.raises(exceptions.InvalidFormat), codec.copying(unknown_only=True):
        codec.loads(text)


def test_summary_is_that_of_values_that_are_not_decoded() -> None:
    array = np.arange(6).reshape(2, 3)
    with codec.unknown_classes_as_text():
        assert codec.summary(array) == codec.loads(codec.dumps(array))
    assert codec.summary(array).startswith("numpy.ndarray 2 \N{MULTIPLICATION SIGN} 3 int64")  # type: ignore[union-attr]
    assert codec.summary(Point(1, 2)) is None
    assert codec.summary([array]) is None
    assert codec.summary(object()) is None
