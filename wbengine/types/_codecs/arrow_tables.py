"""Codecs for tables, arrays and schemas of Arrow, in the stream format of Arrow IPC.

They share the memory of the decoded buffer: like all objects of Arrow, they cannot be changed.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc as arrow_ipc

from wbengine.types._codecs import ipc
from wbengine.types._encoding.codecs import Codec, Encoded
from wbengine.types._encoding.installed_codecs import shape_text


def _encode(table: Any, summary: str) -> Encoded:
    # A process in which an extension type is not registered would decode its storage type.
    return Encoded([ipc.write(table)], [ipc.extensions(table.schema)], summary=summary)


def _decode(encoded: Encoded) -> tuple[Any, list[Any]]:
    (stream,) = encoded.buffers
    (extensions,) = encoded.values
    schema, batches = ipc.read(stream)
    _check_extensions(schema, extensions)
    return schema, batches


def _check_extensions(schema: Any, extensions: Any) -> None:
    if ipc.extensions(schema) != extensions:
        raise ValueError(f"the extension types {extensions} must be registered in this process")


def _encode_table(table: Any) -> Encoded:
    return _encode(table, shape_text(*table.shape))


def _decode_table(encoded: Encoded, version: int) -> Any:
    schema, batches = _decode(encoded)
    return pa.Table.from_batches(batches, schema)


def _decode_batch(encoded: Encoded, version: int) -> Any:
    (batch,) = _decode(encoded)[1]
    return batch


def _encode_chunks(chunks: Any) -> Encoded:
    return _encode(pa.table([chunks], names=[""]), f"{len(chunks):,} {str(chunks.type)[:60]}")


def _decode_chunks(encoded: Encoded, version: int) -> Any:
    schema, batches = _decode(encoded)
    (field,) = schema
    return pa.chunked_array([batch.column(0) for batch in batches], type=field.type)


def _encode_array(array: Any) -> Encoded:
    batch = pa.record_batch([array], names=[""])
    return _encode(batch, f"{len(array):,} {str(array.type)[:60]}")


def _decode_array(encoded: Encoded, version: int) -> Any:
    (array,) = _decode_batch(encoded, version).columns
    return array


def _encode_schema(schema: Any) -> Encoded:
    summary = f"{len(schema)} fields"
    return Encoded([memoryview(schema.serialize())], [ipc.extensions(schema)], summary=summary)


def _decode_schema(encoded: Encoded, version: int) -> Any:
    (buffer,) = encoded.buffers
    (extensions,) = encoded.values
    schema = arrow_ipc.read_schema(pa.py_buffer(buffer))
    ipc.check_schema(schema)
    _check_extensions(schema, extensions)
    return schema


TABLE: Final = Codec("pyarrow.lib.Table", _encode_table, _decode_table)
BATCH: Final = Codec("pyarrow.lib.RecordBatch", _encode_table, _decode_batch)
CHUNKS: Final = Codec("pyarrow.lib.ChunkedArray", _encode_chunks, _decode_chunks)
ARRAY: Final = Codec("pyarrow.lib.Array", _encode_array, _decode_array)
SCHEMA: Final = Codec("pyarrow.lib.Schema", _encode_schema, _decode_schema)
