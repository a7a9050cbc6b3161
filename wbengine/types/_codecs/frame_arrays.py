"""Codecs for extension arrays and scalars of pandas, of which frames consist.

Texts and Arrow arrays are Arrow data; all other arrays consist of arrays of NumPy.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from wbengine.types._encoding.codecs import Codec, Encoded

#: A time whose time zone is that of all values.
_MOMENT: Final = dt.datetime(2000, 1, 1)


def _summary(array: Any) -> str:
    return f"{len(array):,} {str(array.dtype)[:60]}"


def _check(value: Any, *classes: type) -> Any:
    if type(value) not in classes:
        raise TypeError(f"{type(value).__name__} is not a {classes[0].__name__}")
    return value


# Arrays. --------------------------------------------------------------------------------------


def _encode_masked(array: Any) -> Encoded:
    # These two attributes are all of its state. The public methods would copy both.
    return Encoded((), [array._data, array._mask], ["", ""], _summary(array))


def _decode_masked(encoded: Encoded, version: int) -> Any:
    data, mask = (_check(each, np.ndarray) for each in encoded.values)
    kinds = {"b": pd.arrays.BooleanArray, "f": pd.arrays.FloatingArray}
    return kinds.get(data.dtype.kind, pd.arrays.IntegerArray)(data, mask)


def _encode_strings(array: Any) -> Encoded:
    dtype, data = array.dtype, pa.array(array)
    chunks = data if isinstance(data, pa.ChunkedArray) else pa.chunked_array([data])
    values = [dtype.storage, dtype.na_value, chunks]
    return Encoded((), values, [".dtype", ".dtype", ""], _summary(array))


def _decode_strings(encoded: Encoded, version: int) -> Any:
    storage, missing, data = encoded.values
    return pd.StringDtype(storage, missing).__from_arrow__(_check(data, pa.ChunkedArray))


def _encode_arrow(array: Any) -> Encoded:
    return Encoded((), [array.__arrow_array__()], [""], _summary(array))


def _decode_arrow(encoded: Encoded, version: int) -> Any:
    (data,) = encoded.values
    return pd.arrays.ArrowExtensionArray(_check(data, pa.ChunkedArray))


def _encode_categorical(array: pd.Categorical) -> Encoded:
    steps = [".categories", ".ordered", ".codes"]
    return Encoded((), [array.categories, array.ordered, array.codes], steps, _summary(array))


def _decode_categorical(encoded: Encoded, version: int) -> pd.Categorical:
    categories, ordered, codes = encoded.values
    if not isinstance(categories, pd.Index):
        raise TypeError("categories are not an index")
    dtype = pd.CategoricalDtype(categories, _check(ordered, bool))
    return pd.Categorical.from_codes(_check(codes, np.ndarray), dtype=dtype)


def _encode_times(array: Any) -> Encoded:
    zone = getattr(array, "tz", None)
    moment = None if zone is None else _MOMENT.replace(tzinfo=zone)
    data = array.asi8.view(f"{array.dtype.kind}8[{array.unit}]")
    return Encoded((), [moment, data], [".tz", ""], _summary(array))


def _decode_times(encoded: Encoded, version: int) -> Any:
    moment, data = encoded.values
    if _check(data, np.ndarray).dtype.kind not in "mM":
        raise ValueError(f"dtype {data.dtype} is not one of times")
    series = pd.Series(data, copy=False)
    if moment is not None:
        zone = _check(moment, dt.datetime).tzinfo
        series = series.dt.tz_localize("UTC").dt.tz_convert(zone)
    return series.array


def _encode_periods(array: pd.arrays.PeriodArray) -> Encoded:
    return Encoded((), [array.freqstr, array.asi8], [".freq", ""], _summary(array))


def _decode_periods(encoded: Encoded, version: int) -> pd.arrays.PeriodArray:
    freq, ordinals = encoded.values
    dtype = pd.PeriodDtype(_check(freq, str))
    return pd.arrays.PeriodArray(_check(ordinals, np.ndarray), dtype=dtype)


def _encode_intervals(array: pd.arrays.IntervalArray) -> Encoded:
    steps = [".closed", ".left", ".right"]
    return Encoded((), [array.closed, array.left, array.right], steps, _summary(array))


def _decode_intervals(encoded: Encoded, version: int) -> pd.arrays.IntervalArray:
    closed, left, right = encoded.values
    if not isinstance(left, pd.Index) or not isinstance(right, pd.Index):
        raise TypeError("bounds are not an index")
    return pd.arrays.IntervalArray.from_arrays(left, right, closed=closed)


MASKED: Final = Codec("pandas.arrays.IntegerArray", _encode_masked, _decode_masked)
STRINGS: Final = Codec("pandas.arrays.StringArray", _encode_strings, _decode_strings)
ARROW: Final = Codec("pandas.arrays.ArrowExtensionArray", _encode_arrow, _decode_arrow)
CATEGORICAL: Final = Codec("pandas.Categorical", _encode_categorical, _decode_categorical)
TIMES: Final = Codec("pandas.arrays.DatetimeArray", _encode_times, _decode_times)
PERIODS: Final = Codec("pandas.arrays.PeriodArray", _encode_periods, _decode_periods)
INTERVALS: Final = Codec("pandas.arrays.IntervalArray", _encode_intervals, _decode_intervals)


# Scalars. -------------------------------------------------------------------------------------


def _encode_timestamp(value: pd.Timestamp) -> Encoded:
    zone = value.tzinfo
    moment = None if zone is None else _MOMENT.replace(tzinfo=zone)
    return Encoded((), [value.asm8, moment], ["", ".tz"], str(value))


def _decode_timestamp(encoded: Encoded, version: int) -> Any:
    value, moment = encoded.values
    timestamp = pd.Timestamp(_check(value, np.datetime64))
    if moment is None:
        return timestamp
    return timestamp.tz_localize("UTC").tz_convert(_check(moment, dt.datetime).tzinfo)


def _encode_timedelta(value: pd.Timedelta) -> Encoded:
    return Encoded((), [value.asm8], [""], str(value))


def _decode_timedelta(encoded: Encoded, version: int) -> Any:
    (value,) = encoded.values
    return pd.Timedelta(_check(value, np.timedelta64))


def _encode_period(value: pd.Period) -> Encoded:
    return Encoded((), [value.ordinal, value.freqstr], ["", ".freq"], str(value))


def _decode_period(encoded: Encoded, version: int) -> Any:
    ordinal, freq = encoded.values
    return pd.Period(ordinal=_check(ordinal, int), freq=_check(freq, str))


def _encode_interval(value: pd.Interval) -> Encoded:
    return Encoded((), [value.left, value.right, value.closed], [".left", ".right", ".closed"])


def _decode_interval(encoded: Encoded, version: int) -> pd.Interval:
    return pd.Interval(*encoded.values)


def _constant(name: str, constant: Any) -> Codec:
    return Codec(name, lambda value: Encoded(), lambda encoded, version: constant)


TIMESTAMP: Final = Codec("pandas.Timestamp", _encode_timestamp, _decode_timestamp)
TIMEDELTA: Final = Codec("pandas.Timedelta", _encode_timedelta, _decode_timedelta)
PERIOD: Final = Codec("pandas.Period", _encode_period, _decode_period)
INTERVAL: Final = Codec("pandas.Interval", _encode_interval, _decode_interval)
NO_TIME: Final = _constant("pandas.api.typing.NaTType", pd.NaT)
NO_VALUE: Final = _constant("pandas.api.typing.NAType", pd.NA)
