"""Frames and series of polars as values."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import socket
from typing import Any

import polars as pl
import polars.testing as tm
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from tests.support import fresh
from tests.support.amounts import amount
from tests.support.values import Color
from wbengine import exceptions
from wbengine.types import codec

MIXED = pl.DataFrame(
    {
        "number": [1, None],
        "text": ["x", None],
        "category": pl.Series(["u", None], dtype=pl.Categorical),
        "enum": pl.Series(["u", None], dtype=pl.Enum(["v", "u"])),
        "zone": pl.Series([0, None]).cast(pl.Datetime("us", "Europe/Berlin")),
        "decimal": [decimal.Decimal("1.20"), None],
        "list": [[1, None], None],
        "struct": [{"a": 1.5, "b": ["x"]}, None],
        "array": pl.Series([[1, 2], None], dtype=pl.Array(pl.Int8, 2)),
        "object": pl.Series([{1, 2}, Color.RED], dtype=pl.Object),
    }
)
#: The values whose mutations are decoded.
VALUES: list[Any] = [
    MIXED,
    pl.DataFrame({"a": range(300), "b": ["text"] * 300}),
    pl.Series("name", [[1], None]),
    pl.Series("category", ["a", "b"], dtype=pl.Categorical),
]


def through(value: Any) -> Any:
    """Return a value after it was encoded and decoded."""
    tree, buffers = codec.pack_with_buffers(value)
    return codec.unpack_with_buffers(json.loads(json.dumps(tree)), list(map(bytes, buffers)))


def check(value: Any) -> None:
    for result in (through(value), codec.loads(codec.dumps(value))):
        assert type(result) is type(value)
        if isinstance(value, pl.Series):
            assert result.name == value.name
            check_frame(result.to_frame(), value.to_frame())
        else:
            check_frame(result, value)


def check_frame(result: Any, value: Any) -> None:
    assert result.schema == value.schema
    assert list(map(repr, result.schema.values())) == list(map(repr, value.schema.values()))
    assert result.shape == value.shape
    assert result.rows() == value.rows()
    if pl.Object not in value.dtypes:
        tm.assert_frame_equal(result, value, check_exact=True)


TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
TIMES = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pl.Null(), st.none()),
    (pl.Boolean(), st.booleans()),
    (pl.Int8(), st.integers(-128, 127)),
    (pl.UInt64(), st.integers(0, 2**64 - 1)),
    (pl.Float16(), st.floats(width=16, allow_nan=False)),
    (pl.Float64(), st.floats(allow_nan=False)),
    (pl.String(), TEXT),
    (pl.Binary(), st.binary(max_size=20)),
    (pl.Decimal(9, 2), st.decimals(-100, 100, places=2)),
    (pl.Date(), st.dates()),
    (pl.Time(), st.times()),
    (pl.Duration("ms"), st.timedeltas(dt.timedelta(0), dt.timedelta(9))),
    (pl.Datetime("ns"), TIMES),
    (pl.Datetime("us", "Asia/Tokyo"), TIMES.map(lambda each: each.replace(tzinfo=dt.UTC))),
    (pl.Categorical(), TEXT),
    (pl.Categorical(pl.Categories("named", "space")), TEXT),
    (pl.Enum(["c", "a", "b"]), st.sampled_from("abc")),
]


def nested(inner: tuple[Any, st.SearchStrategy[Any]]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
    dtype, values = inner
    optional = st.none() | values
    return [
        inner,
        (pl.List(dtype), st.lists(optional, max_size=3)),
        (pl.Array(dtype, 2), st.lists(optional, min_size=2, max_size=2)),
        (pl.Struct({"a": dtype, "b": pl.Int8}), st.fixed_dictionaries({"a": optional})),
    ]


COLUMNS = st.sampled_from(LEAVES).map(nested).flatmap(st.sampled_from)


@pytest.mark.slow
@settings(max_examples=amount(40, 1000))
@given(st.data())
def test_frames_are_decoded_as_equal_frames(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 4))
    columns = data.draw(st.dictionaries(TEXT, COLUMNS, max_size=4))
    frame = pl.DataFrame(
        [
            pl.Series(name, data.draw(st.lists(st.none() | values, min_size=count, max_size=count)),
                      dtype=dtype, strict=False)
            for name, (dtype, values) in columns.items()
        ]
    )  # fmt: skip
    check(frame)
    check(frame[1:])
    check(pl.concat([frame, frame], rechunk=False))
    for series in frame.get_columns():
        check(series)


@pytest.mark.parametrize(
    "value",
    [
        MIXED,
        MIXED[:0],
        pl.DataFrame(),
        pl.DataFrame(height=3),
        pl.DataFrame({"a": []}),
        pl.DataFrame({"b": pl.Series([1, None, "a"], dtype=pl.Object), "a": [1, 2, 3]}),
        pl.Series("o", [1, None], dtype=pl.Object),
        pl.Series([float("inf"), None, -0.0]),
        pl.Series("", [1]),
    ],
    ids=repr,
)
def test_kinds_of_frames_are_kept(value: Any) -> None:
    check(value)


def test_nan_is_not_null() -> None:
    result = through(pl.Series([float("nan"), None]))
    assert result.is_nan().to_list() == [True, None]


def test_order_of_enum_and_unused_categories_are_kept() -> None:
    result = through(pl.Series(["b"], dtype=pl.Enum(["c", "b", "a"])))
    assert result.dtype.categories.to_list() == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pl.DataFrame({"a": [1]}).lazy(), r"it is a query; .*frame.collect\(\)"),
        (
            pl.DataFrame({"big": [1]}, schema={"big": pl.Int128}),
            "'big' contains Int128: Arrow",
        ),
        (
            pl.DataFrame({"n": pl.Series([[1]], dtype=pl.List(pl.UInt128))}),
            "'n' contains UInt128",
        ),
        (
            pl.DataFrame({"a": pl.Series([[]], dtype=pl.Array(pl.Int8, 0))}),
            "'a' contains Array",
        ),
        (
            pl.DataFrame({"o": pl.Series([1, socket.socket], dtype=pl.Object)}),
            r"^value\['o'\]\[1\]: type",
        ),
    ],
)
def test_frames_that_would_change_are_rejected(value: Any, reason: str) -> None:
    with pytest.raises(exceptions.NotEncodable, match=reason):
        codec.pack(value, "value")


def with_stream(data: bytes) -> Any:
    tree, _ = codec.pack_with_buffers(pl.DataFrame({"a": ["x" * 2000]}))
    return codec.unpack_with_buffers(tree, [data])


def test_compressed_stream_is_rejected() -> None:
    stream = io.BytesIO()
    pl.DataFrame({"a": ["a" * 100_000] * 100}).write_ipc_stream(stream, compression="zstd")
    with pytest.raises(exceptions.InvalidFormat, match="compressed buffers"):
        with_stream(stream.getvalue())


def test_addresses_of_objects_are_rejected() -> None:
    metadata = {"ARROW:extension:name": "POLARS_EXTENSION_TYPE", "ARROW:extension:metadata": "1;2"}
    field = pa.field("a", pa.binary(8), metadata=metadata)
    sink = pa.BufferOutputStream()
    table = pa.table([pa.array([b"12345678"] * 200, pa.binary(8))], pa.schema([field]))
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(exceptions.InvalidFormat, match="extension type of field 'a'"):
        with_stream(bytes(sink.getvalue()))


def test_showing_a_frame_imports_no_library() -> None:
    data = codec.dumps(pl.DataFrame({"a": range(30)})).decode()
    script = (
        "import sys\n"
        "from wbengine.types import codec\n"
        "with codec.unknown_classes_as_text():\n"
        f"    print(ascii(codec.loads({data!r})))\n"
        "print({'polars', 'pyarrow'} & set(sys.modules))\n"
    )
    shown, imported = fresh.run(script).stdout.splitlines()
    assert shown.startswith(r"'polars.dataframe.frame.DataFrame 30 \xd7 1, ")
    assert imported == "set()"


@pytest.mark.slow
@pytest.mark.parametrize("count", [amount(1000, 10_000)])
def test_mutations_are_rejected_without_import_and_memory(count: int) -> None:
    results = fresh.call("tests.support.mutations", "decode_mutations", __name__, count)
    assert results.keys() == {"rejected", "accepted"}
    assert results["rejected"] > count / 2


def test_panic_of_polars_is_an_error_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(data: bytes) -> Any:
        raise pl.exceptions.PanicException("index out of bounds")

    data = codec.dumps(pl.DataFrame({"a": [1]}))
    monkeypatch.setattr(pl, "read_ipc_stream", panic)
    with pytest.raises(exceptions.InvalidFormat, match="index out of bounds"):
        codec.loads(data)
