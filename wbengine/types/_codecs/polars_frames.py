"""Codecs for frames and series of polars, in the stream format of Arrow IPC.

polars reads and writes the stream. Arrow checks a received stream first, because polars trusts it.
Columns of objects are lists of values.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from wbengine.types._codecs import ipc
from wbengine.types._encoding.codecs import Codec, Encoded
from wbengine.types._encoding.installed_codecs import shape_text

#: Arrow does not have them, so that it cannot check them.
_LARGE_INTEGERS: Final = (pl.Int128, pl.UInt128)


def _encode_frame(frame: pl.DataFrame) -> Encoded:
    objects: list[int] = []
    for position, (name, dtype) in enumerate(frame.schema.items()):
        if dtype == pl.Object:
            objects.append(position)
        else:
            _check_dtype(name, dtype)
    columns = [frame.to_series(position) for position in objects]
    stream = io.BytesIO()
    frame.drop([column.name for column in columns]).write_ipc_stream(stream)
    names = [column.name for column in columns]
    values = [names, objects, *(column.to_list() for column in columns)]
    steps = ["", "", *(f"[{name!r}]" for name in names)]
    return Encoded([stream.getbuffer()], values, steps, shape_text(*frame.shape))


def _check_dtype(name: str, dtype: Any) -> None:
    for part in _parts_of(dtype):
        if isinstance(part, _LARGE_INTEGERS):
            reason = "Arrow has no such type; cast it to Int64, Decimal or String"
        elif part == pl.Object:
            reason = "only whole columns may contain objects"
        elif isinstance(part, pl.BaseExtension):
            reason = "cast it to its storage type"
        elif isinstance(part, pl.Array) and part.size == 0:
            reason = "polars cannot read arrays without items"
        else:
            continue
        raise ValueError(f"cannot be encoded: column {name!r} contains {part}: {reason}")


def _parts_of(dtype: Any) -> Iterator[Any]:
    """Yield a dtype and the dtypes of its items and fields."""
    yield dtype
    if isinstance(dtype, pl.List | pl.Array):
        yield from _parts_of(dtype.inner)
    elif isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            yield from _parts_of(field.dtype)


def _decode_frame(encoded: Encoded, version: int) -> pl.DataFrame:
    (stream,) = encoded.buffers
    names, positions, *columns = encoded.values
    schema, _ = ipc.read(stream)
    # An extension type of polars contains addresses in the memory of the sender.
    ipc.check_no_extensions(schema)
    # Copied only if it is a part of a larger buffer.
    data = stream.obj if type(stream.obj) is bytes and len(stream.obj) == len(stream) else stream
    try:
        frame = pl.read_ipc_stream(data if type(data) is bytes else bytes(data))
    except pl.exceptions.PanicException as error:
        raise ValueError(str(error)) from None
    for name, position, values in zip(names, positions, columns, strict=True):
        frame.insert_column(position, pl.Series(name, values, dtype=pl.Object))
    return frame


def _encode_series(series: pl.Series) -> Encoded:
    encoded = _encode_frame(series.to_frame())
    summary = f"{len(series):,} {str(series.dtype)[:60]}"
    steps = ["" for _ in encoded.values]
    return Encoded(encoded.buffers, encoded.values, steps, summary)


def _decode_series(encoded: Encoded, version: int) -> pl.Series:
    (series,) = _decode_frame(encoded, version).get_columns()
    return series


FRAME: Final = Codec("polars.dataframe.frame.DataFrame", _encode_frame, _decode_frame)
SERIES: Final = Codec("polars.series.series.Series", _encode_series, _decode_series)
