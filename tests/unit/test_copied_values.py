"""Values of classes that are kept as they are encoded, in order to copy them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.values import Color, Frozen, Point
from wbengine import exceptions
from wbengine.types import codec

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
