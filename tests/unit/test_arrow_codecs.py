"""Tables, arrays and schemas of Arrow as values."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from tests.support import fresh
from tests.support.amounts import amount
from wbengine import exceptions
from wbengine.types import codec

DICTIONARY = pa.dictionary(pa.int8(), pa.string())
#: The values whose mutations are decoded.
VALUES: list[Any] = [
    pa.table(
        {
            "number": [1, None, 3],
            "text": pa.array(["a", "b", None]).dictionary_encode(),
            "list": [[1], None, []],
            "struct": [{"a": 1.5, "b": "x"}, None, {}],
        }
    ),
    pa.record_batch({"a": pa.array(["x", None], pa.string_view())}),
    pa.array([[1, 2], [3]], pa.list_view(pa.int32())),
    pa.chunked_array([["a"], ["b"]], DICTIONARY),
    pa.schema([pa.field("a", pa.int64(), metadata={"unit": "m"})], metadata={"b": "c"}),
    pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array([1, 2])),
]


def through(value: Any) -> Any:
    """Return a value after it was encoded and decoded."""
    tree, buffers = codec.pack_with_buffers(value)
    return codec.unpack_with_buffers(json.loads(json.dumps(tree)), list(map(bytes, buffers)))


def is_valid(value: Any) -> bool:
    """Return whether Arrow accepts a value that it created."""
    try:
        value.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check(value: Any) -> None:
    if not isinstance(value, pa.Schema) and not is_valid(value):
        with pytest.raises(exceptions.NotEncodable, match="invalid data"):
            codec.pack(value)
        return
    for result in (through(value), codec.loads(codec.dumps(value))):
        assert type(result) is type(value)
        if isinstance(value, pa.Schema):
            assert result.equals(value, check_metadata=True)
            continue
        if isinstance(value, pa.Table | pa.RecordBatch):
            assert result.schema.equals(value.schema, check_metadata=True)
            assert result.num_rows == value.num_rows
        else:
            assert result.type == value.type
        assert result.to_pylist() == value.to_pylist()
        result.validate(full=True)


TIMES = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(codec="utf-8"))),
    (pa.large_string(), st.text(st.characters(codec="utf-8"))),
    (pa.string_view(), st.text(st.characters(codec="utf-8"))),
    (pa.binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(9, 2), st.decimals(-100, 100, places=2)),
    (pa.date32(), st.dates(dt.date(1970, 1, 1))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(0), dt.timedelta(9))),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", "Europe/Berlin"), TIMES.map(lambda each: each.replace(tzinfo=dt.UTC))),
    (DICTIONARY, st.sampled_from("abc")),
]


def nested(inner: tuple[Any, st.SearchStrategy[Any]]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
    kind, values = inner
    optional = st.none() | values
    return [
        inner,
        (pa.list_(kind), st.lists(optional, max_size=3)),
        (pa.large_list(kind), st.lists(optional, max_size=3)),
        (pa.list_(kind, 2), st.lists(optional, min_size=2, max_size=2)),
        (
            pa.struct({"a": kind, "b": pa.int8()}),
            st.fixed_dictionaries({"a": optional, "b": st.none()}),
        ),
        (
            pa.map_(pa.string(), kind),
            st.lists(st.tuples(st.text("ab", max_size=3), optional), max_size=3),
        ),
    ]


COLUMNS = st.sampled_from(LEAVES).map(nested).flatmap(st.sampled_from)
NAMES = st.text(st.characters(codec="utf-8"), max_size=3)


@pytest.mark.slow
@settings(max_examples=amount(40, 1500))
@given(st.data())
def test_tables_are_decoded_as_equal_tables(data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.tuples(NAMES, COLUMNS), max_size=4))
    schema = pa.schema([(name, kind) for name, (kind, _) in columns], metadata={"a": "b"})
    batches = []
    for count in data.draw(st.lists(st.integers(0, 4), max_size=3)):
        arrays = [
            pa.array(data.draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
            for _, (kind, values) in columns
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    table = pa.Table.from_batches(batches, schema)
    check(table)
    check(table.slice(1))
    check(schema)
    for batch in batches:
        check(batch)
    for column in table.columns:
        check(column)
        check(column.combine_chunks())


@pytest.mark.parametrize(
    "value",
    [
        *VALUES,
        pa.table({}),
        pa.table({"a": [1, 2]}).select([]),
        pa.table([[1], [2]], names=["a", "a"]),
        pa.array([]),
        pa.array([1, 2, 3, 4])[1:3],
        pa.array(["a", "b"], pa.dictionary(pa.int8(), pa.string(), ordered=True)),
        pa.DictionaryArray.from_arrays([0, None], ["used", "unused"]),
        pa.chunked_array(
            [pa.array(["a"]).dictionary_encode(), pa.array(["b"]).dictionary_encode()]
        ),
        pa.chunked_array([], pa.string()),
        pa.array([decimal.Decimal("1.20")], pa.decimal32(5, 2)),
        pa.array([pa.MonthDayNano([1, 2, 3])]),
        pa.array([1.5], pa.float16()),
        pa.UnionArray.from_sparse(
            pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
        ),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16))),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])),
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2]], pa.list_(pa.int32(), 2))
        ),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'type', '')}"[:60],
)
def test_kinds_of_arrow_data_are_kept(value: Any) -> None:
    check(value)


def test_unused_dictionary_values_are_kept() -> None:
    result = through(pa.DictionaryArray.from_arrays([0, None], ["used", "unused"]))
    assert result.dictionary.to_pylist() == ["used", "unused"]


def test_decoded_table_uses_the_memory_of_the_buffer() -> None:
    value = pa.table({"a": list(range(1000))})
    tree, (buffer,) = codec.pack_with_buffers(value)
    allocated = pa.total_allocated_bytes()
    table = codec.unpack_with_buffers(tree, [bytes(buffer)])
    assert pa.total_allocated_bytes() - allocated < 1000
    assert table.equals(value)


def stream(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def rejection(data: bytes) -> str:
    value = pa.table({"a": ["x" * 2000]})
    tree, buffers = codec.pack_with_buffers(value)
    codec.unpack_with_buffers(tree, buffers)
    with pytest.raises(exceptions.InvalidFormat) as caught:
        codec.unpack_with_buffers(tree, [data])
    return str(caught.value)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_compressed_buffers_are_rejected(compression: str, dictionary: bool) -> None:
    texts = pa.array(["a" * 100_000])
    table = pa.table({"a": texts.dictionary_encode() if dictionary else texts})
    data = stream(table, compression=compression)
    assert len(data) < 10_000
    assert "compressed buffers are not allowed" in rejection(data)


def test_overlapping_buffers_are_rejected() -> None:
    table = pa.table({"a": list(range(1000, 2000)), "b": list(range(2000, 3000))})
    data = stream(table)
    # The place and length of the data of the second column, in the metadata.
    place = (8000).to_bytes(8, "little") * 2
    before, after = data.rsplit(place, 1)
    grown = before + (0).to_bytes(8, "little") + (16000).to_bytes(8, "little") + after
    assert "buffers overlap" in rejection(grown)


def test_pickled_extension_types_are_rejected() -> None:
    metadata = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": "cos\nsystem\n(S'true'\ntR.",
    }
    for field in (
        pa.field("a", pa.int64(), metadata=metadata),
        pa.field("a", pa.list_(pa.field("b", pa.int64(), metadata=metadata))),
    ):
        table = pa.table([pa.array([None], field.type)], pa.schema([field]))
        assert "requires pickle" in rejection(stream(table))
        with pytest.raises(exceptions.InvalidFormat, match="requires pickle"):
            codec.loads(codec.dumps(table.schema))


def test_unregistered_extension_type_is_rejected() -> None:
    tree = codec.pack(pa.array([1]))
    tree["v"] = [["company.money"]]
    with pytest.raises(exceptions.InvalidFormat, match=r"company.money.* must be registered"):
        codec.unpack(tree)


def test_truncated_stream_is_rejected() -> None:
    data = stream(pa.table({"a": list(range(1000))}))
    for length in range(0, len(data) - 8, 97):
        rejection(data[:length])


def test_tables_are_shown_by_their_shape() -> None:
    with codec.unknown_classes_as_text():
        text = codec.loads(codec.dumps(pa.table({"a": [1, 2]})))
    assert text == "pyarrow.lib.Table 2 \N{MULTIPLICATION SIGN} 1, 296 bytes"


@pytest.mark.slow
@pytest.mark.parametrize("count", [amount(1000, 10_000)])
def test_mutations_are_rejected_without_import_and_memory(count: int) -> None:
    results = fresh.call("tests.support.mutations", "decode_mutations", __name__, count)
    assert results.keys() == {"rejected", "accepted"}
    assert results["rejected"] > count / 3


def test_names_that_are_not_text_are_rejected() -> None:
    data = stream(pa.table({"column": [1]})).replace(b"column", b"\xff\xfflumn")
    assert "UnicodeDecodeError" in rejection(data)


def test_data_that_could_not_be_decoded_are_not_encoded() -> None:
    array = pa.array([None], pa.struct({"a": DICTIONARY}))
    assert not is_valid(array)
    with pytest.raises(exceptions.NotEncodable, match=r"Column 0: .*out of bounds"):
        codec.pack(pa.table({"a": array}))
