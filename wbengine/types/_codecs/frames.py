"""Codecs for frames, series and indexes of pandas.

Their arrays are values with codecs of their own (`frame_arrays`). The columns of a frame that have
the same dtype of NumPy are one array with two dimensions, as pandas stores them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd

from wbengine.types._encoding.codecs import Codec, Encoded
from wbengine.types._encoding.installed_codecs import shape_text

_MAX_LABEL_LENGTH: Final = 200
_RANGE: Final = "range"
_LEVELS: Final = "levels"
_ARRAY: Final = "array"


def _is_numpy(dtype: Any) -> bool:
    """Return whether an array is stored as one of NumPy, and is not a list of objects."""
    return isinstance(dtype, np.dtype) and dtype.kind != "O"


def _array_of(data: Any) -> Any:
    """Return the array of a Series or Index: one of NumPy, if that is how it is stored."""
    return data.to_numpy() if isinstance(data.dtype, np.dtype) else data.array


def _check_array(array: Any) -> Any:
    if type(array) is not np.ndarray and not isinstance(array, pd.api.extensions.ExtensionArray):
        raise TypeError(f"{type(array).__name__} is not an array")
    if array.ndim != 1:
        raise ValueError(f"the array has {array.ndim} dimensions")
    return array


def _check_index(index: Any) -> Any:
    if not isinstance(index, pd.Index):
        raise TypeError(f"{type(index).__name__} is not an index")
    return index


def _check_attributes(attributes: Any) -> Any:
    if type(attributes) is not dict:
        raise TypeError("attrs is not a dict")
    return attributes


# Frames. --------------------------------------------------------------------------------------


def _encode_frame(frame: pd.DataFrame) -> Encoded:
    positions_by_dtype: dict[Any, list[int]] = {}
    positions: list[list[int]] = []
    arrays: list[Any] = []
    steps: list[str] = []
    for position, dtype in enumerate(frame.dtypes):
        if _is_numpy(dtype):
            positions_by_dtype.setdefault(dtype, []).append(position)
        else:
            positions.append([position])
            arrays.append(_array_of(frame.iloc[:, position]))
            steps.append(f"[{frame.columns[position]!r:.{_MAX_LABEL_LENGTH}}]")
    for places in positions_by_dtype.values():
        positions.append(places)
        first, last = places[0], places[-1]
        # A slice is not copied.
        is_slice = last - first + 1 == len(places)
        arrays.append(frame.iloc[:, slice(first, last + 1) if is_slice else places].to_numpy())
        steps.append("")
    parts = {
        ".columns": frame.columns,
        ".index": frame.index,
        ".attrs": frame.attrs,
        ".flags": frame.flags.allows_duplicate_labels,
        "": positions,
    }
    return Encoded(
        (),
        [*parts.values(), *arrays],
        [*parts, *steps],
        shape_text(*frame.shape),
        int(frame.memory_usage().sum()),
    )


def _decode_frame(encoded: Encoded, version: int) -> pd.DataFrame:
    columns, index, attributes, allows_duplicates, positions, *arrays = encoded.values
    _check_index(columns), _check_index(index), _check_attributes(attributes)
    places = [place for group in positions for place in group]
    if sorted(places) != list(range(len(columns))) or len(positions) != len(arrays):
        raise ValueError("the columns do not fit to their labels")
    if places == list(range(len(columns))) and len(arrays) == 1 and arrays[0].ndim == 2:
        frame = pd.DataFrame(_check_block(arrays[0], index, places), index=index, copy=False)
    else:
        by_place: dict[int, Any] = {}
        for group, array in zip(positions, arrays, strict=True):
            if array.ndim == 2:
                block = _check_block(array, index, group)
                by_place.update((place, block[:, number]) for number, place in enumerate(group))
            else:
                (by_place[group[0]],) = [_check_array(array)] * len(group)
        data = {place: _series(by_place[place], index) for place in range(len(columns))}
        frame = pd.DataFrame(data, index=index, copy=False)
    frame.columns = columns
    frame.attrs = attributes
    return frame.set_flags(allows_duplicate_labels=allows_duplicates is True)


def _check_block(array: Any, index: Any, places: Any) -> Any:
    if type(array) is not np.ndarray or not _is_numpy(array.dtype):
        raise TypeError("columns of a block must be an array of NumPy")
    if array.shape != (len(index), len(places)):
        raise ValueError(f"columns of a block have the shape {array.shape}")
    return array


def _series(array: Any, index: Any) -> pd.Series:
    # The dtype is explicit: pandas would infer another one for objects.
    return pd.Series(_check_array(array), index=index, dtype=array.dtype, copy=False)


# Series. --------------------------------------------------------------------------------------


def _encode_series(series: pd.Series) -> Encoded:
    parts = {
        ".index": series.index,
        ".name": series.name,
        ".attrs": series.attrs,
        ".flags": series.flags.allows_duplicate_labels,
        "": _array_of(series),
    }
    summary = f"{len(series):,} {str(series.dtype)[:60]}"
    return Encoded((), list(parts.values()), list(parts), summary, series.memory_usage())


def _decode_series(encoded: Encoded, version: int) -> pd.Series:
    index, name, attributes, allows_duplicates, array = encoded.values
    series = _series(array, _check_index(index))
    series.name = name
    series.attrs = _check_attributes(attributes)
    return series.set_flags(allows_duplicate_labels=allows_duplicates is True)


# Indexes. -------------------------------------------------------------------------------------


def _encode_index(index: pd.Index) -> Encoded:
    summary = f"{len(index):,} {str(index.dtype)[:60]}"
    if isinstance(index, pd.RangeIndex):
        values = [_RANGE, index.name, index.start, index.stop, index.step]
        return Encoded((), values, ["", ".name", "", "", ""], summary)
    if isinstance(index, pd.MultiIndex):
        levels, codes = list(index.levels), list(index.codes)
        values = [_LEVELS, list(index.names), *levels, *codes]
        level_steps = [f".levels[{number}]" for number in range(len(levels))]
        return Encoded((), values, ["", ".names", *level_steps, *level_steps], summary)
    freq = index.freq if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) else None
    if freq is not None and pd.tseries.frequencies.to_offset(freq.freqstr) != freq:
        raise ValueError(f"cannot be encoded: its freq is {freq!r}; set index.freq = None")
    values = [_ARRAY, index.name, freq and freq.freqstr, _array_of(index)]
    return Encoded((), values, ["", ".name", ".freq", ""], summary)


def _decode_index(encoded: Encoded, version: int) -> pd.Index:
    kind, name, *parts = encoded.values
    if kind == _RANGE:
        start, stop, step = map(_whole, parts)
        return pd.RangeIndex(start, stop, step, name=name)
    if kind == _LEVELS:
        count = len(name)
        if len(parts) != 2 * count:
            raise ValueError("levels and codes do not fit to their names")
        levels = [_check_index(level) for level in parts[:count]]
        return pd.MultiIndex(levels, list(map(_check_array, parts[count:])), names=name)
    freq, array = parts
    if kind != _ARRAY:
        raise ValueError("an index of another kind")
    index = pd.Index(_check_array(array), dtype=array.dtype, name=name, copy=False)
    if freq is not None:
        index.freq = freq
    return index


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError("a range must consist of whole numbers")
    return number


FRAME: Final = Codec("pandas.DataFrame", _encode_frame, _decode_frame)
SERIES: Final = Codec("pandas.Series", _encode_series, _decode_series)
INDEX: Final = Codec("pandas.Index", _encode_index, _decode_index)
