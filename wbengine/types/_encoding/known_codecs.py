"""Names of the classes for which wbengine contains codecs. No library is imported to find them."""

from __future__ import annotations

from typing import Final

from wbengine._imports import installing

_NUMPY_SCALARS: Final = (
    "generic bool bytes_ clongdouble complex128 complex64 datetime64 float16 float32 float64 int16"
    " int32 int64 int8 longdouble longlong str_ timedelta64 uint16 uint32 uint64 uint8 ulonglong"
    " void"
)
_ARROW_ARRAYS: Final = (
    " Binary BinaryView Bool8 Boolean Date32 Date64 Decimal128 Decimal256 Decimal32 Decimal64"
    " Dictionary Double Duration Extension FixedShapeTensor FixedSizeBinary FixedSizeList Float"
    " HalfFloat Int16 Int32 Int64 Int8 Json LargeBinary LargeList LargeListView LargeString List"
    " ListView Map MonthDayNanoInterval Null Opaque RunEndEncoded String StringView Struct Time32"
    " Time64 Timestamp UInt16 UInt32 UInt64 UInt8 Union Uuid"
)

#: The place of each codec, by the dotted names of its classes.
REFERENCES: Final[dict[str, str]] = {
    "numpy.ndarray": "wbengine.types._codecs.arrays:ARRAY",
    **{f"numpy.{name}": "wbengine.types._codecs.arrays:SCALAR" for name in _NUMPY_SCALARS.split()},
    "pyarrow.lib.Table": "wbengine.types._codecs.tables:TABLE",
    "pyarrow.lib.RecordBatch": "wbengine.types._codecs.tables:BATCH",
    "pyarrow.lib.ChunkedArray": "wbengine.types._codecs.tables:CHUNKS",
    "pyarrow.lib.Schema": "wbengine.types._codecs.tables:SCHEMA",
    **{
        f"pyarrow.lib.{name}Array": "wbengine.types._codecs.tables:ARRAY"
        for name in _ARROW_ARRAYS.split(" ")
    },
}

_EXTRAS: Final[dict[str, installing.Extra]] = {
    "numpy": "numpy",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "arrow",
}


def advice(name: str, error: Exception) -> str:
    """Return why the codec of the class with this name cannot be loaded, and what to do."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in _EXTRAS:
        return installing.needs(name, missing, _EXTRAS[missing])
    return f"the codec of {name} cannot be loaded: {type(error).__name__}: {error}"
