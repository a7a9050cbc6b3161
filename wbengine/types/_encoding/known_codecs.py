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
_PANDAS_MASKED: Final = "Boolean Floating Integer"
_PANDAS_INDEXES: Final = " Categorical Datetime Interval Multi Period Range Timedelta"

#: Names of the classes of each codec, without that of their package, by the place of the codec.
_NAMES: Final = {
    "numpy": {
        "arrays:ARRAY": ["ndarray"],
        "arrays:SCALAR": _NUMPY_SCALARS.split(),
    },
    "pyarrow": {
        "arrow_tables:TABLE": ["lib.Table"],
        "arrow_tables:BATCH": ["lib.RecordBatch"],
        "arrow_tables:CHUNKS": ["lib.ChunkedArray"],
        "arrow_tables:ARRAY": [f"lib.{name}Array" for name in _ARROW_ARRAYS.split(" ")],
        "arrow_tables:SCHEMA": ["lib.Schema"],
    },
    "pandas": {
        "frames:FRAME": ["DataFrame"],
        "frames:SERIES": ["Series"],
        "frames:INDEX": [f"{name}Index" for name in _PANDAS_INDEXES.split(" ")],
        "frame_arrays:MASKED": [f"arrays.{name}Array" for name in _PANDAS_MASKED.split()],
        "frame_arrays:STRINGS": ["arrays.ArrowStringArray", "arrays.StringArray"],
        "frame_arrays:ARROW": ["arrays.ArrowExtensionArray"],
        "frame_arrays:CATEGORICAL": ["Categorical"],
        "frame_arrays:TIMES": ["arrays.DatetimeArray", "arrays.TimedeltaArray"],
        "frame_arrays:PERIODS": ["arrays.PeriodArray"],
        "frame_arrays:INTERVALS": ["arrays.IntervalArray"],
        "frame_arrays:TIMESTAMP": ["Timestamp"],
        "frame_arrays:TIMEDELTA": ["Timedelta"],
        "frame_arrays:PERIOD": ["Period"],
        "frame_arrays:INTERVAL": ["Interval"],
        "frame_arrays:NO_TIME": ["api.typing.NaTType"],
        "frame_arrays:NO_VALUE": ["api.typing.NAType"],
    },
    "polars": {
        "polars_frames:FRAME": ["dataframe.frame.DataFrame"],
        "polars_frames:SERIES": ["series.series.Series"],
    },
}
#: The place of each codec, by the dotted names of its classes.
REFERENCES: Final[dict[str, str]] = {
    f"{package}.{name}": f"wbengine.types._codecs.{place}"
    for package, places in _NAMES.items()
    for place, names in places.items()
    for name in names
}
#: What to send instead of values that cannot be encoded.
HINTS: Final = {
    "pandas.arrays.SparseArray": "send series.sparse.to_dense()",
    "polars.lazyframe.frame.LazyFrame": "it is a query; send its result, frame.collect()",
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
