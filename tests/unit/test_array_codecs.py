"""Arrays and scalars of NumPy as values."""

from __future__ import annotations

import base64
import json
import socket
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support import fresh
from tests.support.amounts import amount
from wbengine import exceptions
from wbengine.types import codec

STRINGS = np.dtypes.StringDType

#: The values whose mutations are decoded.
VALUES: list[Any] = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(600).reshape(20, 30)),
    np.array([(1, 2.5, "x")], dtype=[("a", "<i4"), ("b", ">f8"), ("c", "U3")]),
    np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    np.array([[1, None], ["a", [2]]], dtype=object),
    np.array(["a", None], dtype=STRINGS(na_object=None)),
    np.float32(1.5),
]


def through(value: Any) -> Any:
    """Return a value after it was encoded and decoded, checked in both forms."""
    tree, buffers = codec.pack_with_buffers(value)
    outside = codec.unpack_with_buffers(
        json.loads(json.dumps(tree)), [bytes(buffer) for buffer in buffers]
    )
    inside = codec.loads(codec.dumps(value))
    assert codec.dumps(inside) == codec.dumps(outside) == codec.dumps(value)
    return inside


def check(value: Any) -> None:
    result = through(value)
    assert type(result) is type(value)
    assert result.dtype == value.dtype
    assert repr(result.dtype) == repr(value.dtype)
    assert result.shape == value.shape
    if value.dtype.hasobject or (value.dtype.kind == "f" and value.dtype.itemsize == 16):
        assert result.tolist() == value.tolist()
    else:
        assert result.tobytes() == value.tobytes()


DTYPES = st.one_of(
    arrays.scalar_dtypes(),
    arrays.datetime64_dtypes(endianness="?"),
    arrays.timedelta64_dtypes(endianness="?"),
    arrays.byte_string_dtypes(),
    arrays.unicode_string_dtypes(),
    arrays.complex_number_dtypes(),
    arrays.array_dtypes(allow_subarrays=True),
    arrays.nested_dtypes(),
).filter(lambda dtype: "((" not in repr(dtype))  # Titles are rejected.

SHAPES = arrays.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=5)


@pytest.mark.slow
@settings(max_examples=amount(60, 1500))
@given(st.data())
def test_arrays_are_decoded_as_equal_arrays(data: st.DataObject) -> None:
    value = data.draw(arrays.arrays(data.draw(DTYPES), data.draw(SHAPES)))
    check(np.asfortranarray(value).reshape(value.shape))
    check(value)
    check(value[::2] if value.ndim else value)
    check(value.T)


@settings(max_examples=amount(40, 3000))
@given(st.data())
def test_scalars_are_decoded_as_equal_scalars(data: st.DataObject) -> None:
    value = data.draw(arrays.arrays(data.draw(arrays.scalar_dtypes()), ()))[()]
    check(value)


@pytest.mark.parametrize(
    "value",
    [
        np.array(3),
        np.empty((0, 3), ">f8"),
        np.empty((2, 0), "U7"),
        np.array(["a", "bc"], "S5"),
        np.array([1 + 2j], "c8"),
        np.array([np.nan, np.inf, -0.0], "f2"),
        np.array(["2020-02-29", "NaT"], "M8[3D]"),
        np.array([1], [("é", "<i4")]),
        np.array([((1, 2),)], [("a", [("b", "i4"), ("c", "u1")])]),
        np.zeros(2, np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4], "itemsize": 12})),
        np.array([], object),
        np.array([[1, "a"], [None, (2, {"b": b"c"})]], object),
        np.array(["a", ""], STRINGS()),
        np.array(["a", None], STRINGS(na_object=None, coerce=False)),
        np.bool(True),
        np.longlong(5),
        np.longdouble("0.1"),
        np.str_("text"),
        np.str_("zero\x00"),
        np.bytes_(b"zero\x00"),
        np.datetime64("NaT"),
        np.timedelta64(5, "ms"),
        np.void(b"abc"),
        np.array([(1, 2.0)], "i4,f8")[0],
    ],
    ids=repr,
)
def test_kinds_of_arrays_and_scalars_are_kept(value: Any) -> None:
    check(value)
    if isinstance(value, np.str_ | np.bytes_):
        assert len(through(value)) == len(value)


def test_fortran_order_and_writability_are_kept() -> None:
    result = through(np.asfortranarray(np.arange(6).reshape(2, 3)))
    assert result.flags.f_contiguous
    result[0, 0] = 7
    assert result[0, 0] == 7


def test_missing_strings_are_kept_as_nan() -> None:
    result = through(np.array(["a", np.nan], STRINGS(na_object=np.nan)))
    assert result[0] == "a"
    assert np.isnan(result[1])


def test_buffers_are_the_memory_of_a_contiguous_array() -> None:
    value = np.arange(1000.0)
    _, (buffer,) = codec.pack_with_buffers(value)
    assert np.shares_memory(np.frombuffer(buffer), value)


def test_buffers_of_an_array_are_a_file_of_numpy(tmp_path: Any) -> None:
    value = np.arange(6, dtype=">i2").reshape(2, 3)
    parts = codec.pack(value)["b"]
    (tmp_path / "array.npy").write_bytes(b"".join(map(base64.b64decode, parts)))
    np.testing.assert_array_equal(np.load(tmp_path / "array.npy"), value)


class Subclass(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.arange(3).view(Subclass), r"Subclass cannot be encoded: .* send a numpy.ndarray"),
        (np.ma.array([1]), "send a numpy.ndarray"),
        (np.array([1, socket.socket], object), r"^value\[1\]: type"),
        (np.array([[1], [socket.socket]], object), r"^value\[1, 0\]: type"),
        (np.zeros(1, [("a", "O")]), "contains objects"),
        (np.zeros(1, np.dtype("i4,f8", align=True)), "alignment would be lost"),
        (np.zeros(1, np.dtype("i4", metadata={"a": 1})), "metadata"),
        (np.zeros(1, [(("title", "a"), "i4")]), "titles"),
        (np.zeros(1, "V0"), "have no bytes"),
        (np.zeros(1, [(f"field{number}", "i4") for number in range(2000)]), "too many fields"),
    ],
)
def test_arrays_that_would_change_are_rejected(value: Any, reason: str) -> None:
    with pytest.raises(exceptions.NotEncodable, match=reason):
        codec.pack(value, "value")


def test_arrays_are_rejected_for_peers_of_plain_json() -> None:
    with pytest.raises(exceptions.NotEncodable, match="not plain JSON"):
        codec.plain(np.arange(3))


def test_arrays_are_shown_without_being_decoded() -> None:
    tree = codec.pack({"a": np.zeros((3, 200)), "b": np.int8(3)})
    with codec.unknown_classes_as_text():
        value = codec.unpack(tree)
    assert value == {
        "a": "numpy.ndarray 3 \N{MULTIPLICATION SIGN} 200 float64, 4.93 kB",
        "b": "numpy.generic 3, 1 byte",
    }


def test_showing_an_array_imports_no_library() -> None:
    data = codec.dumps(np.arange(3)).decode()
    script = (
        "import sys\n"
        "from wbengine.types import codec\n"
        "with codec.unknown_classes_as_text():\n"
        f"    print(codec.loads({data!r}))\n"
        "print('numpy' in sys.modules)\n"
    )
    assert fresh.run(script).stdout == "numpy.ndarray 3 int64, 152 bytes\nFalse\n"


def header(descr: str, shape: str, order: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x03\x00" + struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    "head",
    [
        header("'<f8'", "(1000000000000,)"),
        header("'<f8'", "(-1,)"),
        header("'<f8'", "(-1, -1)"),
        header("'<f8'", "(True,)"),
        header("'<f8'", "[1]"),
        header("'|O'", "(1,)"),
        header("[('a', '|O')]", "(1,)"),
        header("'V0'", "(1000000000000,)"),
        header("'<f8'", "(0,)"),
        header("__import__('os').abort()", "(1,)"),
        header("'<f8'", "(" * 9000),
        header("'<f8'", "-" * 9000 + "1"),
        b"\x93NUMPY\x01\x00" + header("'<f8'", "(1,)")[8:],
        b"",
    ],
)
def test_malformed_headers_are_rejected(head: bytes) -> None:
    tree = codec.pack(np.array([1.0]))
    tree["b"][0] = base64.b64encode(head).decode()
    with pytest.raises(exceptions.InvalidFormat):
        codec.unpack(tree)


def test_large_empty_dtype_allocates_nothing() -> None:
    tree = codec.pack(np.empty(0))
    tree["b"][0] = base64.b64encode(header("'|V2000000000'", "(0,)")).decode()
    assert codec.unpack(tree).shape == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("count", [amount(1000, 10_000)])
def test_mutations_are_rejected_without_import_and_memory(count: int) -> None:
    results = fresh.call("tests.support.mutations", "decode_mutations", __name__, count)
    assert results.keys() == {"rejected", "accepted"}
    assert results["rejected"] > count / 2
