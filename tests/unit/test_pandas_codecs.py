"""Frames, series, indexes and scalars of pandas as values."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import socket
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as tm
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fresh
from tests.support.amounts import amount
from tests.support.values import Color
from wbengine import exceptions
from wbengine.types import codec

MIXED = pd.DataFrame(
    {
        "integer": [1, 2],
        "float": [1.5, np.nan],
        "text": ["x", None],
        "category": pd.Categorical(["u", None], categories=["v", "u"], ordered=True),
        "nullable": pd.array([1, None], dtype="Int64"),
        "zone": pd.to_datetime(["2020-01-01", "NaT"]).tz_localize("Europe/Berlin"),
        "period": pd.period_range("2020", periods=2, freq="M"),
        "interval": pd.interval_range(0, 2),
        "arrow": pd.array([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
        "object": [{"a": (1, None)}, [Color.RED]],
        "delta": pd.to_timedelta([1, 2], unit="s"),
    }
)
#: The values whose mutations are decoded.
VALUES: list[Any] = [
    MIXED,
    pd.DataFrame(np.arange(600.0).reshape(200, 3), columns=[1, 1, "a"]),
    pd.Series([1, None], index=pd.MultiIndex.from_product([["a"], [1, 2]], names=["x", None])),
    pd.date_range("2020", periods=3, freq="D", tz="Europe/Berlin"),
    pd.RangeIndex(5),
    pd.Timestamp("2020-01-01", tz="UTC"),
]


def through(value: Any) -> Any:
    """Return a value after it was encoded and decoded."""
    tree, buffers = codec.pack_with_buffers(value)
    return codec.unpack_with_buffers(json.loads(json.dumps(tree)), list(map(bytes, buffers)))


def check_index(result: Any, value: Any) -> None:
    assert type(result) is type(value)
    tm.assert_index_equal(result, value, exact=True, check_order=True)
    assert result.identical(value)
    assert getattr(result, "freq", None) == getattr(value, "freq", None)
    if isinstance(value, pd.MultiIndex):
        for level, expected in zip(result.levels, value.levels, strict=True):
            check_index(level, expected)


def check_items(result: Any, value: Any) -> None:
    """Compare objects with their types: None, NaN, NA and NaT are different."""
    for item, expected in zip(result, value, strict=True):
        assert type(item) is type(expected)
        if isinstance(expected, float) and math.isnan(expected):
            assert math.isnan(item)
        elif expected is pd.NA or expected is pd.NaT:
            assert item is expected
        else:
            assert item == expected


def check(value: Any) -> None:
    for result in (through(value), codec.loads(codec.dumps(value))):
        assert type(result) is type(value)
        if isinstance(value, pd.Index):
            check_index(result, value)
            continue
        check_index(result.index, value.index)
        assert result.attrs == value.attrs
        assert result.flags == value.flags
        if isinstance(value, pd.DataFrame):
            check_index(result.columns, value.columns)
            tm.assert_frame_equal(result, value, check_freq=True, check_column_type=True)
            series = [(result.iloc[:, n], value.iloc[:, n]) for n in range(value.shape[1])]
        else:
            tm.assert_series_equal(result, value, check_freq=True)
            series = [(result, value)]
        for column, expected in series:
            assert column.dtype == expected.dtype
            assert repr(column.dtype) == repr(expected.dtype)
            if expected.dtype == object:
                check_items(column, expected)
            if isinstance(expected.dtype, pd.CategoricalDtype):
                check_index(column.cat.categories, expected.cat.categories)


TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
INTEGERS = st.integers(-128, 127)
FLOATS = st.floats(width=32)
TIMES = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1))
SCALARS = st.one_of(
    st.none(), st.just(float("nan")), st.just(pd.NA), st.just(pd.NaT), INTEGERS, TEXT,
    st.binary(max_size=3), st.decimals(-10, 10, places=2), TIMES, st.lists(INTEGERS, max_size=2),
    TIMES.map(lambda each: pd.Timestamp(each, tz="Europe/Paris")),
)  # fmt: skip
CATEGORIES = pd.CategoricalDtype(["c", "a", "b", "unused"], ordered=True)
COLUMNS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *((kind, INTEGERS) for kind in ("int8", "int64", ">i4", "float64", "complex128")),
    *((kind, st.integers(0, 255)) for kind in ("uint8", "uint64")),
    *((kind, FLOATS) for kind in ("float32", "float64")),
    ("bool", st.booleans()),
    *((f"datetime64[{unit}]", st.none() | TIMES) for unit in ("s", "ms", "us", "ns")),
    *((f"timedelta64[{unit}]", st.none() | st.timedeltas(dt.timedelta(0), dt.timedelta(99)))
      for unit in ("s", "ns")),
    *((f"datetime64[us, {zone}]", st.none() | TIMES) for zone in ("UTC", "Asia/Tokyo", "+05:30")),
    *((kind, st.none() | INTEGERS) for kind in ("Int8", "Int64", "Float32")),
    ("UInt16", st.none() | st.integers(0, 255)),
    ("boolean", st.none() | st.booleans()),
    *((kind, st.none() | TEXT) for kind in (
        "str", "string",
        pd.StringDtype("python"),
        pd.StringDtype("python", na_value=np.nan),
        pd.ArrowDtype(pa.string()),
    )),
    (CATEGORIES, st.none() | st.sampled_from("abc")),
    (pd.CategoricalDtype([3, 1]), st.none() | st.sampled_from([1, 3])),
    ("period[M]", st.none() | TIMES.map(lambda each: pd.Period(each, "M"))),
    (
        pd.IntervalDtype("int64", "left"),
        INTEGERS.map(lambda each: pd.Interval(each, each + 1, "left")),
    ),
    (pd.ArrowDtype(pa.int32()), st.none() | INTEGERS),
    (pd.ArrowDtype(pa.timestamp("us", "UTC")), st.none() | TIMES),
    ("object", SCALARS),
]  # fmt: skip


def array_of(kind: Any, items: list[Any]) -> Any:
    if kind == "object":
        array = np.empty(len(items), object)
        for number, item in enumerate(items):
            array[number] = item
        return array
    if isinstance(kind, str) and kind in np.sctypeDict | {">i4": None}:
        return np.array(items, kind)
    return pd.array(items, dtype=kind)


@st.composite
def arrays(draw: st.DrawFn, count: int) -> Any:
    kind, items = draw(st.sampled_from(COLUMNS))
    return array_of(kind, draw(st.lists(items, min_size=count, max_size=count)))


LABELS = st.one_of(st.none(), TEXT, INTEGERS, st.tuples(TEXT, INTEGERS), st.dates())


@st.composite
def indexes(draw: st.DrawFn, count: int) -> Any:
    kind = draw(st.sampled_from(["range", "array", "levels", "labels", "times"]))
    if kind == "range":
        start, step = draw(INTEGERS), draw(st.sampled_from([1, 2, -3]))
        return pd.RangeIndex(start, start + step * count, step, name=draw(LABELS))
    if kind == "times":
        freq = draw(st.sampled_from(["D", "2h", "ME", None]))
        zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin"]))
        index = pd.date_range("2020-05-31", periods=count, freq=freq or "D", tz=zone)
        index.freq = index.freq if freq else None
        return index
    if kind == "levels":
        numbers = st.lists(st.integers(-1, 1), min_size=count, max_size=count)
        levels = [pd.Index(["a", "unused"]), pd.CategoricalIndex([3, 1])]
        return pd.MultiIndex(levels, [draw(numbers), draw(numbers)], names=[draw(LABELS), None])
    if kind == "labels":
        labels = draw(st.lists(LABELS, min_size=count, max_size=count))
        return pd.Index(array_of("object", labels), dtype=object, tupleize_cols=False)
    array = draw(arrays(count).filter(lambda each: each.dtype not in ("object", ">i4")))
    return pd.Index(array, dtype=array.dtype, name=draw(LABELS))


@pytest.mark.slow
@settings(max_examples=amount(40, 500))
@given(st.data())
def test_frames_are_decoded_as_equal_frames(data: st.DataObject) -> None:
    rows, count = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 5))
    index = data.draw(indexes(rows))
    columns = [data.draw(arrays(rows)) for _ in range(count)]
    frame = pd.DataFrame(
        {n: pd.Series(each, index=index, dtype=each.dtype) for n, each in enumerate(columns)}, index
    )
    frame.columns = data.draw(indexes(count))
    frame.attrs = data.draw(st.dictionaries(TEXT, INTEGERS, max_size=2))
    check(frame)
    check(frame.iloc[1:, ::-1])
    check(frame.columns)
    for number in range(count):
        check(frame.iloc[:, number])


@pytest.mark.parametrize(
    "value",
    [
        MIXED,
        MIXED.iloc[:0],
        pd.DataFrame(),
        pd.DataFrame(index=[1, 2]),
        pd.DataFrame(columns=["a", "b"]),
        pd.DataFrame(np.zeros((2, 3)), columns=[0, 1, 2]),
        pd.DataFrame(np.zeros((2, 2)), columns=["a", "a"]),
        pd.DataFrame({"a": [1], 2: ["x"], ("b", 3): [None]}),
        pd.DataFrame({("a", 1): [1.5], ("a", 2): [2]}),
        pd.DataFrame({"a": [1.5]}, index=pd.Index(["a"], name="a")),
        pd.DataFrame({"a": [None, None]}),
        pd.DataFrame({"a": [None, np.nan, pd.NA]}, dtype=object),
        pd.DataFrame({"a": [0, 1]}, dtype="datetime64[s]"),
        pd.DataFrame(
            {
                "a": pd.Categorical(
                    [], categories=pd.date_range("2020", periods=2, tz="Europe/Berlin")
                )
            }
        ),
        pd.DataFrame({"a": pd.Categorical([pd.Timestamp("2020", tz="UTC")])}),
        pd.DataFrame({"a": [decimal.Decimal("1.10"), np.int8(3), Color.RED, "text"]}),
        pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
        pd.Series([1, None], name=("tuple", 1)),
        pd.Series([pd.DataFrame({"a": [1]}), 2]).iloc[1:],
        pd.Series([1.5], index=[dt.datetime(2020, 1, 1)]),
        pd.Index([1, "a", None], dtype=object),
        pd.Index([dt.date(2020, 1, 1)]),
        pd.Index([("a", 1)], tupleize_cols=False),
        pd.timedelta_range("1h", periods=3, freq="h"),
        pd.date_range("2020-03-28", periods=3, freq="D", tz="Europe/Berlin"),
        pd.DatetimeIndex([dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))]),
        pd.interval_range(pd.Timestamp("2020"), periods=2),
        pd.MultiIndex.from_arrays([["a", "b"], [1.5, None]], names=["x", "x"]),
        pd.MultiIndex.from_product([["a"], [1, 2]])[:1],
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_kinds_of_frames_are_kept(value: Any) -> None:
    check(value)


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("2020-10-25 02:30:00").tz_localize("Europe/Berlin", ambiguous=False),
        pd.Timestamp("2020-01-01", tz="+01:00"),
        pd.Timestamp("0001-01-01").as_unit("s"),
        pd.Timedelta("1h").as_unit("ms"),
        pd.Period("2020-01", "M"),
        pd.Interval(0, 1.5, closed="left"),
        pd.Categorical(["a"], categories=["b", "a"]),
    ],
    ids=str,
)
def test_scalars_and_arrays_of_pandas_are_kept(value: Any) -> None:
    result = through(value)
    assert type(result) is type(value)
    assert repr(result) == repr(value)
    if not isinstance(value, pd.Categorical):
        assert result == value
        assert getattr(result, "unit", None) == getattr(value, "unit", None)
        assert getattr(result, "fold", None) == getattr(value, "fold", None)


def test_missing_values_of_pandas_stay_the_same_objects() -> None:
    missing, no_time = through([pd.NA, pd.NaT])
    assert missing is pd.NA
    assert no_time is pd.NaT


def test_nan_in_a_nullable_column_is_not_missing() -> None:
    array = pd.arrays.FloatingArray(np.array([np.nan, 1.0]), np.array([False, True]))
    result = through(pd.Series(array)).array
    assert result._mask.tolist() == [False, True]
    assert np.isnan(result._data[0])


def test_decoded_frames_are_writable() -> None:
    frame = through(pd.DataFrame({"a": [1, 2], "b": [1.5, 2.5]}))
    frame.loc[0, "a"] = 7
    frame["b"] += 1
    assert frame.to_numpy().tolist() == [[7, 2.5], [2, 3.5]]


def test_buffers_are_the_memory_of_the_blocks_of_a_frame() -> None:
    frame = pd.DataFrame(np.arange(3000.0).reshape(1000, 3))
    frame["count"] = np.arange(1000)
    _, buffers = codec.pack_with_buffers(frame)
    assert len(buffers) == 2
    assert np.shares_memory(np.frombuffer(buffers[0]), frame[0].to_numpy())


def test_names_of_columns_are_in_errors() -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "price": [1, socket.socket]})
    with pytest.raises(exceptions.NotEncodable, match=r"^value\['price'\]\[1\]: type") as caught:
        codec.pack(frame, "value")
    assert caught.value.path == "value['price'][1]"


class Money(pd.DataFrame):  # type: ignore[misc]
    pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pd.DataFrame({"a": pd.arrays.SparseArray([1, 0])}), r"value\['a'\]: .*sparse.to_dense"),
        (Money({"a": [1]}), "send a pandas.DataFrame"),
        (pd.Series([1], index=[socket.socket]), r"value\.index\[0\]: type"),
        (pd.Series([1], name=socket.socket), r"value\.name: type"),
        (
            pd.date_range(
                "2020",
                periods=2,
                freq=pd.tseries.offsets.CustomBusinessDay(holidays=["2020-01-02"]),
            ),
            "set index.freq = None",
        ),
    ],
)
def test_frames_that_would_change_are_rejected(value: Any, reason: str) -> None:
    with pytest.raises(exceptions.NotEncodable, match=reason):
        codec.pack(value, "value")


def test_attributes_that_cannot_be_encoded_are_rejected() -> None:
    frame = pd.DataFrame({"a": [1]})
    frame.attrs["source"] = socket.socket
    with pytest.raises(exceptions.NotEncodable, match=r"value\.attrs\['source'\]"):
        codec.pack(frame, "value")


def test_time_zones_without_a_key_are_rejected() -> None:
    with open(zoneinfo.TZPATH[0] + "/Europe/Berlin", "rb") as file:
        zone = zoneinfo.ZoneInfo.from_file(file)
    frame = pd.DataFrame({"a": pd.DatetimeIndex(["2020"]).tz_localize(zone)})
    with pytest.raises(exceptions.NotEncodable, match=r"value\['a'\]\.tz: .* has no key"):
        codec.pack(frame, "value")


def test_showing_a_frame_imports_no_library() -> None:
    data = codec.dumps({"frame": pd.DataFrame(np.zeros((30, 4)))}).decode()
    script = (
        "import sys\n"
        "from wbengine.types import codec\n"
        "with codec.unknown_classes_as_text():\n"
        f"    print(ascii(codec.loads({data!r})))\n"
        "print({'numpy', 'pandas', 'pyarrow'} & set(sys.modules))\n"
    )
    shown, imported = fresh.run(script).stdout.splitlines()
    assert shown == r"{'frame': 'pandas.DataFrame 30 \xd7 4, 1.09 kB'}"
    assert imported == "set()"


def replaced(value: Any, number: int, part: Any) -> Any:
    tree = codec.pack(value)
    tree["v"][number] = codec.pack(part)
    return tree


FRAME = pd.DataFrame({"a": [1, 2], "b": [1.5, 2.5]})


@pytest.mark.parametrize(
    "tree",
    [
        replaced(FRAME, 0, ["a", "b"]),
        replaced(FRAME, 0, pd.Index(["a"])),
        replaced(FRAME, 1, pd.RangeIndex(3)),
        replaced(FRAME, 1, pd.RangeIndex(2**62)),
        replaced(FRAME, 2, 1),
        replaced(FRAME, 4, [[0], [0]]),
        replaced(FRAME, 4, [[0], [2**40]]),
        replaced(FRAME, 5, np.zeros((3, 1))),
        replaced(FRAME, 5, np.zeros((2, 1), object)),
        replaced(FRAME, 5, "text"),
        replaced(pd.Series([1]), 4, np.zeros((1, 1))),
        replaced(pd.Series([1]), 4, 1),
        replaced(pd.Series([1]), 0, [0]),
        replaced(pd.RangeIndex(3), 4, 0),
        replaced(pd.RangeIndex(3), 4, 1.5),
        replaced(pd.MultiIndex.from_arrays([["a"]]), 3, np.array([5], "int8")),
        replaced(pd.Categorical(["a"]), 2, np.array([5], "int8")),
        replaced(pd.date_range("2020", periods=3, freq="D"), 2, "h"),
    ],
)
def test_parts_that_do_not_fit_are_rejected(tree: Any) -> None:
    with pytest.raises(exceptions.InvalidFormat):
        codec.unpack(tree)


@pytest.mark.slow
@pytest.mark.parametrize("count", [amount(1000, 10_000)])
def test_mutations_are_rejected_without_import_and_memory(count: int) -> None:
    results = fresh.call("tests.support.mutations", "decode_mutations", __name__, count)
    assert results.keys() == {"rejected", "accepted"}
    assert results["rejected"] > count / 2
