"""Values whose bytes are kept outside of the tree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wbengine import exceptions
from wbengine.types import codec

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
