"""Streams of Arrow IPC, uncompressed: the store of payloads compresses.

A received stream is checked before it is read. Compressed and overlapping buffers, which would let
a short stream require much memory or time, are rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

#: Header types of messages.
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
#: Numbers of the fields of the tables in a message, which is a flatbuffer.
_HEADER_TYPE: Final = 1
_HEADER: Final = 2
_DATA_OF_DICTIONARY: Final = 1
_BUFFERS: Final = 2
_COMPRESSION: Final = 3

_EXTENSION_NAME: Final = b"ARROW:extension:name"
#: Its metadata are a pickle.
_PICKLED_EXTENSION: Final = b"arrow.py_extension_type"


def write(table: Any) -> memoryview:
    """Return the stream of a Table or RecordBatch. The only copy of its data is the result.

    :raises ValueError: if `read` would reject it. Arrow itself creates such data: a dictionary
        without values in a struct that is null.
    """
    try:
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"cannot be encoded: Arrow reports invalid data: {error}") from None
    counter = pa.MockOutputStream()
    _write_to(counter, table)
    buffer = pa.allocate_buffer(counter.size())
    _write_to(pa.FixedSizeBufferWriter(buffer), table)
    return memoryview(buffer)


def _write_to(sink: Any, table: Any) -> None:
    options = ipc.IpcWriteOptions(compression=None)
    with ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write(table)


def read(stream: memoryview) -> tuple[Any, list[Any]]:
    """Return the schema and batches in a stream, which use the memory of the stream.

    :raises ValueError: if the stream is invalid, or not as `write` creates it; also other
        exceptions of Arrow.
    """
    buffer = pa.py_buffer(stream)
    for message in ipc.MessageReader.open_stream(buffer):
        body_size = 0 if message.body is None else message.body.size
        _check_message(memoryview(message.metadata), body_size)
    with ipc.open_stream(buffer) as reader:
        check_schema(reader.schema)
        schema, batches = reader.schema, list(reader)
    for batch in batches:
        batch.validate(full=True)
    return schema, batches


def check_schema(schema: Any) -> None:
    """Check what Arrow would check only when a name or type is used.

    :raises ValueError: if a name or a time zone is not text, or a type requires pickle.
    """
    for field in _fields(schema):
        _ = field.name, getattr(field.type, "tz", None)
        if (field.metadata or {}).get(_EXTENSION_NAME) == _PICKLED_EXTENSION:
            raise ValueError("an extension type that requires pickle is not allowed")


def check_no_extensions(schema: Any) -> None:
    for field in _fields(schema):
        if isinstance(field.type, pa.BaseExtensionType) or _EXTENSION_NAME in (
            field.metadata or {}
        ):
            raise ValueError(f"the extension type of field {field.name!r} is not allowed")


def extensions(schema: Any) -> list[str]:
    """Return the names of the extension types in a schema."""
    types = [field.type for field in _fields(schema)]
    return sorted({each.extension_name for each in types if isinstance(each, pa.BaseExtensionType)})


def _fields(parent: Any) -> Iterator[Any]:
    """Yield the fields of a schema or type, and all fields of their types."""
    count = len(parent) if isinstance(parent, pa.Schema) else parent.num_fields
    for number in range(count):
        field = parent.field(number)
        yield field
        yield from _fields(field.type)
        if isinstance(field.type, pa.DictionaryType):
            value_field = pa.field("", field.type.value_type)
            yield value_field
            yield from _fields(value_field.type)
        elif isinstance(field.type, pa.BaseExtensionType):
            yield from _fields(field.type.storage_type)


def _check_message(metadata: memoryview, body_size: int) -> None:
    message = _offset(metadata, 0)
    header_type_place = _place(metadata, message, _HEADER_TYPE)
    header_place = _place(metadata, message, _HEADER)
    if header_type_place is None or header_place is None:
        raise ValueError("a message has no header")
    header = _offset(metadata, header_place)
    header_type = metadata[header_type_place]
    if header_type == _DICTIONARY_BATCH:
        data_place = _place(metadata, header, _DATA_OF_DICTIONARY)
        if data_place is None:
            raise ValueError("a dictionary has no data")
        header = _offset(metadata, data_place)
    elif header_type != _RECORD_BATCH:
        return
    if _place(metadata, header, _COMPRESSION) is not None:
        raise ValueError("compressed buffers are not allowed")
    buffers_place = _place(metadata, header, _BUFFERS)
    if buffers_place is None:
        return
    start = _offset(metadata, buffers_place)
    (count,) = struct.unpack_from("<I", metadata, start)
    content = metadata[start + 4 : start + 4 + 16 * count]
    if sum(length for _, length in struct.iter_unpack("<qq", content)) > body_size:
        raise ValueError("buffers overlap")


def _offset(data: memoryview, place: int) -> int:
    """Return the place to which the relative offset at a place refers."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _place(data: memoryview, table: int, field: int) -> int | None:
    """Return the place of a field of the table at a place, or None if the table lacks it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("malformed message")
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return None
    (place,) = struct.unpack_from("<H", data, vtable + entry)
    return table + place if place else None
