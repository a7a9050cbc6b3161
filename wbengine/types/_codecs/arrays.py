"""Codecs for arrays and scalars of NumPy.

The two buffers of an array, one after the other, are a file in the npy format, version 3.0: header
and data. Arrays of objects, and of strings of variable length, are lists of values.
"""

from __future__ import annotations

import ast
import math
import struct
from typing import Any, Final, TypeAlias

import numpy as np

from wbengine.types._encoding.codecs import Codec, Encoded
from wbengine.types._encoding.installed_codecs import shape_text

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_MAGIC: Final = b"\x93NUMPY\x03\x00"
_ALIGNMENT: Final = 64
#: Maximum length of the header, which Python parses.
_MAX_HEADER_BYTES: Final = 10_000
_HEADER_KEYS: Final = {"descr", "fortran_order", "shape"}
_STRINGS: Final = "string"
_OBJECTS: Final = "object"
#: Kinds of dtypes whose text describes them completely.
_SCALAR_KINDS: Final = frozenset("biufcmM")


# Arrays. --------------------------------------------------------------------------------------


def _encode_array(array: Array) -> Encoded:
    dtype, shape = array.dtype, array.shape
    summary = f"{shape_text(*shape)} {str(dtype)[:60]}".lstrip()
    if dtype.kind == "O":
        return _encode_items(array, {"kind": _OBJECTS}, list(array.flat), summary)
    if isinstance(dtype, np.dtypes.StringDType):
        description = {"kind": _STRINGS, "coerce": dtype.coerce}
        if hasattr(dtype, "na_object"):
            description["missing"] = dtype.na_object
        texts = [each if type(each) is str else None for each in array.flat]
        return _encode_items(array, description, texts, summary)
    header = _header(dtype, shape, bool(array.flags.fnc))
    data = array if array.flags.forc else np.ascontiguousarray(array)
    return Encoded([header, _bytes_of(data)], summary=summary)


def _encode_items(
    array: Array, description: dict[str, Any], items: list[Any], summary: str
) -> Encoded:
    places = (f"[{', '.join(map(str, place))}]" for place in np.ndindex(array.shape))
    description["shape"] = list(array.shape)
    return Encoded((), [description, *items], [".dtype", *places], summary)


def _bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array without copying them."""
    if array.nbytes == 0:
        return memoryview(b"")
    return array.reshape(-1, order="A").view(np.uint8).data


def _header(dtype: np.dtype[Any], shape: tuple[int, ...], is_fortran: bool) -> bytes:
    """Return the header of a file in the npy format.

    :raises ValueError: if it cannot describe the dtype.
    """
    if dtype.hasobject:
        raise ValueError(f"cannot be encoded: its dtype {dtype} contains objects")
    if dtype.itemsize == 0 and math.prod(shape) > 0:
        raise ValueError(f"cannot be encoded: items of its dtype {dtype} have no bytes")
    reason = f"cannot be encoded: the npy format does not describe its dtype {dtype!r}"
    if _has_more_than_data(dtype):
        raise ValueError(f"{reason} (metadata, titles and alignment would be lost)")
    descr = np.lib.format.dtype_to_descr(dtype)
    if np.lib.format.descr_to_dtype(descr) != dtype:
        raise ValueError(reason)
    text = repr({"descr": descr, "fortran_order": is_fortran, "shape": shape}).encode()
    padding = -(len(_MAGIC) + 4 + len(text) + 1) % _ALIGNMENT
    text += b" " * padding + b"\n"
    if len(text) > _MAX_HEADER_BYTES:
        raise ValueError("cannot be encoded: its dtype has too many fields")
    return _MAGIC + struct.pack("<I", len(text)) + text


def _has_more_than_data(dtype: np.dtype[Any]) -> bool:
    if dtype.metadata or dtype.isalignedstruct:
        return True
    if dtype.subdtype is not None:
        return _has_more_than_data(dtype.subdtype[0])
    return any(
        len(field) > 2 or _has_more_than_data(field[0]) for field in (dtype.fields or {}).values()
    )


def _decode_array(encoded: Encoded, version: int) -> Array:
    if encoded.values:
        return _decode_items(*encoded.values)
    header, data = encoded.buffers
    dtype, shape, is_fortran = _read_header(bytes(header))
    count = math.prod(shape)
    if dtype.hasobject or (dtype.itemsize == 0 and count > 0):
        raise ValueError(f"dtype {dtype} is not allowed")
    # Checked before anything is allocated.
    if count * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are not an array of shape {shape} and dtype {dtype}")
    if len(data) == 0:
        return np.empty(shape, dtype)
    # A copy, because arrays are writable. All bytes are copied, also those between fields, so that
    # the value is encoded to the same bytes again.
    flat = np.frombuffer(data, np.uint8).copy().view(dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _read_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    start = len(_MAGIC) + 4
    if not header.startswith(_MAGIC) or len(header) > start + _MAX_HEADER_BYTES:
        raise ValueError("no header of an array")
    if struct.unpack("<I", header[len(_MAGIC) : start]) != (len(header) - start,):
        raise ValueError("the header has another length")
    content = ast.literal_eval(header[start:].decode().strip())
    if type(content) is not dict or content.keys() != _HEADER_KEYS:
        raise ValueError("the header has other keys")
    dtype = np.lib.format.descr_to_dtype(content["descr"])
    return dtype, _shape(content["shape"], tuple), content["fortran_order"] is True


def _shape(shape: Any, kind: Any) -> tuple[int, ...]:
    if type(shape) is not kind or any(type(each) is not int or each < 0 for each in shape):
        raise ValueError("a shape must consist of whole numbers")
    return tuple(shape)


def _decode_items(description: Any, *items: Any) -> Array:
    if type(description) is not dict or math.prod(_shape(description["shape"], list)) != len(items):
        raise ValueError(f"{len(items)} items are not an array of this shape")
    if description["kind"] == _OBJECTS:
        dtype = np.dtype(object)
    elif description["kind"] == _STRINGS and all(type(each) in (str, type(None)) for each in items):
        missing = {"na_object": description["missing"]} if "missing" in description else {}
        dtype = np.dtypes.StringDType(coerce=description["coerce"] is True, **missing)
        items = tuple(each if each is not None else missing["na_object"] for each in items)
    else:
        raise ValueError("an array of another kind")
    flat = np.empty(len(items), dtype)
    for index, item in enumerate(items):
        flat[index] = item
    return flat.reshape(description["shape"])


# Scalars. -------------------------------------------------------------------------------------


def _encode_scalar(scalar: np.generic) -> Encoded:
    # In an array, texts would lose zero bytes at their end.
    if isinstance(scalar, np.str_):
        return Encoded((), [str.__str__(scalar)])
    if isinstance(scalar, np.bytes_):
        return Encoded((), [bytes.__bytes__(scalar)])
    dtype = scalar.dtype
    if dtype.kind not in _SCALAR_KINDS:
        return _encode_array(np.asarray(scalar))
    # Two types of C may have the same size, and so the same text.
    text = dtype.str if np.dtype(dtype.str).char == dtype.char else dtype.char
    return Encoded([scalar.tobytes()], [text], summary=str(scalar))


def _decode_scalar(encoded: Encoded, version: int) -> Any:
    if not encoded.buffers:
        (text,) = encoded.values
        return np.str_(text) if type(text) is str else np.bytes_(text)
    if not encoded.values:
        # An array without dimensions: a `void`.
        return _decode_array(encoded, version)[()]
    (data,) = encoded.buffers
    (text,) = encoded.values
    dtype = np.dtype(text)
    if type(text) is not str or dtype.kind not in _SCALAR_KINDS or dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are not a scalar of {text!r:.40}")
    return np.frombuffer(data, dtype)[0]


ARRAY: Final = Codec("numpy.ndarray", _encode_array, _decode_array)
SCALAR: Final = Codec("numpy.generic", _encode_scalar, _decode_scalar)
