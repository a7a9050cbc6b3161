"""Typed JSON: exact round trips, readable plain values, refusals that name the path."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import socket
import zoneinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbengine import _codec, _codec_tags, exceptions
from wbengine.types import codec
from wbengine.types import failure as ft


@_codec.allow
class Color(enum.Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1  # noqa: PIE796  (an alias on purpose)


@_codec.allow
class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@_codec.allow
@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0
    ready: bool = dataclasses.field(default=True, init=False)


@_codec.allow
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    items: tuple[Any, ...]


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Unknown:
    x: int


Pair = collections.namedtuple("Pair", "a b")


class Text(str):
    __slots__ = ()


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down (NaN equals NaN, 0.0 is not -0.0)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(x, y)
            for (a, x), (b, y) in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        rest = list(other)
        for item in one:
            found = next((index for index, twin in enumerate(rest) if same(item, twin)), None)
            if found is None:
                return False
            del rest[found]
        return not rest
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, decimal.Decimal):
        return one.as_tuple() == other.as_tuple()
    if isinstance(one, (dt.datetime, dt.time)):
        return (
            one.replace(tzinfo=None) == other.replace(tzinfo=None)
            and one.fold == other.fold
            and repr(one.tzinfo) == repr(other.tzinfo)
        )
    if dataclasses.is_dataclass(one):
        return all(
            same(getattr(one, field.name), getattr(other, field.name))
            for field in dataclasses.fields(one)
        )
    return bool(one == other)


# Round trips ------------------------------------------------------------------------------------

timezones = st.none() | st.sampled_from(
    [
        dt.timezone.utc,
        dt.timezone(dt.timedelta(0), "zero"),
        dt.timezone(dt.timedelta(hours=-3, minutes=-30)),
        dt.timezone(dt.timedelta(hours=2), "EET"),
        dt.timezone(dt.timedelta(seconds=5, microseconds=7)),
        # A small system may have no time zone data.
        *map(zoneinfo.ZoneInfo, zoneinfo.available_timezones() & {"Europe/Berlin", "UTC"}),
    ]
)
any_text = st.text(st.characters(exclude_categories=()))
keys = (
    any_text
    | st.integers()
    | st.booleans()
    | st.floats()
    | st.none()
    | st.binary()
    | st.uuids()
    | st.tuples(st.integers(), st.text())
    | st.frozensets(st.integers())
    | st.sampled_from(Color)
)
scalars = (
    keys
    | st.complex_numbers()
    | st.decimals(allow_nan=True)
    | st.sampled_from([decimal.Decimal("-sNaN12"), decimal.Decimal("-0E+99")])
    | st.datetimes(timezones=timezones, allow_imaginary=True)
    | st.times(timezones=timezones)
    | st.dates()
    | st.timedeltas()
    | st.sampled_from(Access)
    | st.just(Access.READ | Access.WRITE)
    | st.integers(min_value=-(10**4299), max_value=10**4299)
    | st.just("$wbe")
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(any_text | st.just("$wbe"), inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(Frozen, st.tuples(inner))
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(values)
def test_everything_comes_back_as_it_was(value: Any) -> None:
    tree = _codec.pack(value)
    json.dumps(tree, allow_nan=False)
    assert same(_codec.unpack(tree), value)
    assert same(_codec.loads(_codec.dumps(value)), value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text().filter(lambda key: key != _codec_tags.TAG), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(json_values)
def test_plain_values_stay_plain_and_are_not_copied(value: Any) -> None:
    assert _codec.pack(value) is value
    assert _codec.plain(value) is value
    assert json.loads(_codec.dumps(value)) == value
    assert _codec.unpack(value) is value
    assert same(_codec.parse(_codec.render(value)), value)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.sampled_from(["tuple", "dict", "set", "datetime", "enum", "data", "failure", "bytes"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["$wbe", "v", "c", "n", "zone", "fold", "x"]), inner)
        ),
        max_leaves=10,
    )
)
def test_rubbish_is_refused_with_one_kind_of_error(tree: Any) -> None:
    try:
        value = _codec.unpack(tree)
    except exceptions.InvalidFormat:
        return
    try:
        assert same(_codec.unpack(_codec.pack(value)), value)
    except exceptions.NotEncodable as error:
        assert "nested" in str(error)


def test_failures_come_back() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer", 1.5) from inner
    except ValueError as error:
        failure = ft.Failure.from_exception(error)
    back = _codec.loads(_codec.dumps({"a": [failure]}))["a"][0]
    assert type(back) is ft.Failure
    assert back.matches(failure)
    assert back.to_dict() == failure.to_dict()


def test_the_text_is_readable() -> None:
    assert _codec.dumps({"a": [1, 2.5, None, "é"]}) == '{"a":[1,2.5,null,"é"]}'.encode()
    assert _codec.dumps((1,)) == b'{"$wbe":"tuple","v":[1]}'
    assert _codec.pack({1: 2}) == {"$wbe": "dict", "v": [[1, 2]]}
    assert _codec.pack({"$wbe": 1}) == {"$wbe": "dict", "v": [["$wbe", 1]]}
    assert _codec.pack(Color.RED)["v"] == "RED"
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    assert _codec.pack(moment) == {"$wbe": "datetime", "v": "2024-01-02T03:04:05+00:00"}


def test_equal_sets_give_equal_bytes() -> None:
    # 0 and 8 collide in a small table, so these two iterate differently.
    assert list({0, 8}) != list({8, 0})
    assert _codec.dumps({0, 8}) == _codec.dumps({8, 0})


def test_packing_changes_nothing_and_copies_only_the_way_to_a_tag() -> None:
    untouched = {"x": [1]}
    value = {"a": untouched, "b": [(1,)]}
    tree = _codec.pack(value)
    assert value == {"a": {"x": [1]}, "b": [(1,)]}
    assert tree["a"] is untouched
    _codec.unpack(tree)
    assert tree["b"] == [{"$wbe": "tuple", "v": [1]}]


# Refusals ---------------------------------------------------------------------------------------


def deep(levels: int, kind: Any = list) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = kind([value])
    return value


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        ({"a": [0, 1, 2, object()]}, "result['a'][3]", "object"),
        ({"a": (1, {2: object()})}, "result['a'][1][2]", "object"),
        ({object(): 1}, "result<key ", "object"),
        ({"a": {object()}}, "result['a']{...}", "object"),
        (Point(object()), "result.x", "object"),
        ([print], "result[0]", "builtin_function_or_method"),
        ([Pair(1, 2)], "result[0]", "_asdict"),
        ([collections.OrderedDict()], "result[0]", "send dict(value)"),
        ([collections.defaultdict(int)], "result[0]", "send dict(value)"),
        ([Text("x")], "result[0]", "send str(value)"),
        ({Text("x"): 1}, "result<key 'x'>", "send str(value)"),
        ([Level.LOW], "result[0]", "allow(Level)"),
        ([Unknown(1)], "result[0]", "allow(Unknown)"),
        ([bytearray(b"")], "result[0]", "bytearray"),
        ([10**4300], "result[0]", "4300 digits"),
        ([-(10**4300)], "result[0]", "4300 digits"),
        (dt.datetime.min.replace(tzinfo=type("Zone", (dt.tzinfo,), {})()), "result", "Zone"),
        (deep(65), "result" + "[0]" * 64, "deeper than 64"),
        (deep(33, tuple), "result" + "[0]" * 32, "deeper than 64"),
        (deep(65, lambda items: {"k": items[0]}), "result" + "['k']" * 64, "deeper than 64"),
    ],
)
def test_refuses_with_the_path(value: Any, path: str, text: str) -> None:
    with pytest.raises(exceptions.NotEncodable) as caught:
        _codec.pack(value)
    assert caught.value.path.startswith(path)
    assert caught.value.type_name
    assert text in str(caught.value)
    assert str(caught.value).startswith(caught.value.path)


def test_names_the_root_as_told() -> None:
    with socket.socket() as value, pytest.raises(exceptions.NotEncodable) as caught:
        _codec.dumps({"conn": value}, "arguments")
    assert caught.value.path == "arguments['conn']"
    assert caught.value.type_name == "socket.socket"


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append({"again": value})
    with pytest.raises(exceptions.NotEncodable, match="contains itself"):
        _codec.pack(value)


def test_a_field_or_attribute_that_would_be_lost_is_refused() -> None:
    point = Point(1)
    point.extra = 2  # type: ignore[attr-defined]
    with pytest.raises(exceptions.NotEncodable, match="'extra'"):
        _codec.pack(point)
    frozen = Frozen.__new__(Frozen)
    with pytest.raises(exceptions.NotEncodable, match="'items'"):
        _codec.pack(frozen)


@pytest.mark.parametrize(
    "value",
    [(1,), {1}, b"", {1: 2}, float("nan"), Color.RED, "\ud800", {"\ud800": 1}, [[1, (2,)]]],
)
def test_plain_refuses_what_would_change(value: Any) -> None:
    with pytest.raises(exceptions.NotEncodable):
        _codec.plain(value)


def test_plain_knows_no_reserved_key() -> None:
    value = {"$wbe": "tuple"}
    assert _codec.plain(value) is value


@pytest.mark.parametrize("cls", [int, Pair, collections.OrderedDict, object, "Color"])
def test_only_enums_and_dataclasses_can_be_allowed(cls: Any) -> None:
    with pytest.raises(TypeError, match="only Enum classes and dataclasses"):
        _codec.allow(cls)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1,]", "Expecting|Illegal"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "not a JSON number"),
        (b'{"a":1,"b":2,"a":3}', "'a' is repeated"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"\\uDC00":1}', "surrogate"),
        ('["\ud800"]', "surrogate"),
        (b'["\xff"]', "UTF-8"),
        ("[1]".encode("utf-16"), "UTF-8"),
        (b"\xef\xbb\xbf[1]", "Expecting"),
        (b"1" * 4301, "digits"),
        (b"-" + b"1" * 4301, "digits"),
        (b"[" * 65 + b"]" * 65, "nested"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested"),
        (b"[" * 200_000, "acceptable"),
    ],
)
@pytest.mark.parametrize("read", [_codec.loads, _codec.parse])
def test_reads_strict_json_only(read: Any, text: Any, reason: str) -> None:
    with pytest.raises(exceptions.InvalidFormat, match=reason):
        read(text)


def test_reads_what_is_just_within_the_limits() -> None:
    assert _codec.render(_codec.loads(b"[" * 64 + b"]" * 64)) == b"[" * 64 + b"]" * 64
    assert _codec.dumps(deep(64)) == b"[" * 64 + b"1" + b"]" * 64
    assert same(_codec.loads(_codec.dumps(deep(32, tuple))), deep(32, tuple))
    assert _codec.loads(b"-" + b"9" * 4300) == -int("9" * 4300)
    assert _codec.loads(b'["\\ud83d\\ude00"]') == ["\U0001f600"]
    assert _codec.parse(b"[" * 80 + b"]" * 80, depth=80)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": [{"$wbe": "nope", "v": 1}]}, r"\['a'\]\[0\]: unknown tag 'nope'"),
        ({"$wbe": ["tuple"], "v": 1}, "unknown tag"),
        ({"$wbe": "tuple"}, "malformed tag 'tuple'"),
        ({"$wbe": "tuple", "v": 1}, "not a list"),
        ({"$wbe": "tuple", "v": [], "w": 1}, "'w' is not expected"),
        ({"$wbe": "bytes", "v": "?"}, "malformed tag 'bytes'"),
        ({"$wbe": "float", "v": "1.0"}, "malformed tag 'float'"),
        ({"$wbe": "dict", "v": [[1]]}, "pairs"),
        ({"$wbe": "dict", "v": [[1, 1], [1, 2]]}, "repeated"),
        ({"$wbe": "dict", "v": [[[], 1]]}, "unhashable"),
        ({"$wbe": "set", "v": [1, 1]}, "repeated"),
        ({"$wbe": "set", "v": [[]]}, "unhashable"),
        ({"$wbe": "decimal", "v": "x"}, "malformed"),
        ({"$wbe": "datetime", "v": "2024-01-01T00:00:00", "zone": "Mars/Base"}, "malformed"),
        ({"$wbe": "datetime", "v": "2024-01-01T00:00:00", "zone": "../../etc/passwd"}, "malformed"),
        ({"$wbe": "timedelta", "v": 10**30}, "malformed"),
        ({"$wbe": "failure", "v": {}}, "malformed tag 'failure'"),
        ({"$wbe": "enum", "c": "os.PathLike", "v": "x"}, "'os.PathLike' is not allowed"),
        ({"$wbe": "enum", "c": f"{__name__}.Color", "v": "BLUE"}, "malformed"),
        ({"$wbe": "enum", "c": f"{__name__}.Point", "v": "BLUE"}, "another kind"),
        ({"$wbe": "data", "c": f"{__name__}.Color", "v": {}}, "another kind"),
        ({"$wbe": "data", "c": f"{__name__}.Point", "v": {"x": 1}}, "fields of"),
        ([object()], r"\[0\]: object is not JSON"),
        ({1: 2}, "a key is not a string"),
    ],
)
def test_malformed_trees_are_refused(tree: Any, text: str) -> None:
    with pytest.raises(exceptions.InvalidFormat, match=text):
        _codec.unpack(tree)


def test_users_allow_by_the_public_module() -> None:
    assert codec.allow is _codec.allow
    assert codec.loads(codec.dumps({Color.RED: Point(1)})) == {Color.RED: Point(1)}
    with pytest.raises(exceptions.NotEncodable, match=r"wbengine\.types\.codec\.allow\(Unknown\)"):
        codec.dumps(Unknown(1))


def test_exceptions_are_more_than_their_fields() -> None:
    @dataclasses.dataclass
    class Bad(Exception):
        code: int

    with pytest.raises(TypeError, match="only Enum classes and dataclasses"):
        codec.allow(Bad)
    with pytest.raises(exceptions.NotEncodable, match=r"send Failure\.from_exception"):
        codec.dumps([Bad(1)])


@pytest.mark.parametrize("value", [Color.RED, Point(1), [Frozen(())]])
def test_plain_refuses_what_is_allowed_elsewhere(value: Any) -> None:
    with pytest.raises(exceptions.NotEncodable, match="is not plain JSON"):
        _codec.plain(value)
