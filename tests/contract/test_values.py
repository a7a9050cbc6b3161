"""Encoding of values with `wbengine.types.codec`: round trips, limits and refused values."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import socket
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.values import Access, Color, Frozen, Point, Span, same
from wbengine import exceptions
from wbengine.engines.worker_based._messages import envelope
from wbengine.types import codec
from wbengine.types import failure as ft


@codec.allow
class Level(enum.IntEnum):
    LOW = 1


@codec.allow
class Word(enum.StrEnum):
    YES = "yes"


class Unallowed(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Unknown:
    x: int


Pair = collections.namedtuple("Pair", "a b")


class Text(str):
    __slots__ = ()


# Round trips ------------------------------------------------------------------------------------

timezones = st.none() | st.sampled_from(
    [
        dt.UTC,
        dt.timezone(dt.timedelta(0), "zero"),
        dt.timezone(dt.timedelta(hours=-3, minutes=-30)),
        dt.timezone(dt.timedelta(hours=2), "EET"),
        dt.timezone(dt.timedelta(seconds=5, microseconds=7)),
        # A small system may have no time zone data.
        *map(zoneinfo.ZoneInfo, zoneinfo.available_timezones() & {"Europe/Berlin", "UTC"}),
    ]
)
any_text = st.text(st.characters(exclude_categories=()))
path_texts = any_text | st.sampled_from(
    ["", ".", "/", "//", "a//b/../c", "c:", "c:x", "//h/s/", "\udcff"]
)
addresses = st.ip_addresses() | st.sampled_from(["fe80::1%eth0", "::ffff:1.2.3.4"]).map(
    ipaddress.ip_address
)
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
    | st.sampled_from(Level)
    | st.sampled_from(Word)
    | st.builds(Span, st.integers(), st.none())
    | path_texts.map(pathlib.PurePosixPath)
    | path_texts.map(pathlib.Path)
    | path_texts.map(pathlib.PureWindowsPath).filter(lambda path: type(path)(str(path)) == path)
    | addresses
    | st.ip_addresses().map(ipaddress.ip_interface)
    | st.sampled_from(["10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"]).map(ipaddress.ip_network)
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
        | st.builds(Span, inner, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_decoded_value_equals_encoded_value_and_has_same_type(value: Any) -> None:
    assert same(codec.loads(codec.dumps(value)), value)


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
def test_random_json_is_decoded_or_raises_invalid_format(tree: Any) -> None:
    try:
        value = codec.loads(json.dumps(tree))
    except exceptions.InvalidFormat:
        return
    try:
        assert same(codec.loads(codec.dumps(value)), value)
    except exceptions.NotEncodable as error:
        assert "nested" in str(error)


@pytest.mark.skipif(
    pathlib.PureWindowsPath(str(pathlib.PureWindowsPath("./c:x")))
    == pathlib.PureWindowsPath("./c:x"),
    reason="this Python writes such a path unambiguously",
)
def test_path_whose_text_is_another_path_is_refused() -> None:
    with pytest.raises(exceptions.NotEncodable, match="'c:x' is the text of another path"):
        codec.dumps([pathlib.PureWindowsPath("./c:x")])


def test_concrete_path_of_another_system_is_refused() -> None:
    other = "WindowsPath" if type(pathlib.Path()) is pathlib.PosixPath else "PosixPath"
    with pytest.raises(exceptions.InvalidFormat, match=f"this system has no {other}"):
        codec.loads(json.dumps({"$wbe": other, "v": "a"}))


def test_failure_is_decoded_unchanged() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer", 1.5) from inner
    except ValueError as error:
        failure = ft.Failure.from_exception(error)
    back = codec.loads(codec.dumps({"a": [failure]}))["a"][0]
    assert type(back) is ft.Failure
    assert back.matches(failure)
    assert back.to_dict() == failure.to_dict()


def test_encoded_text_is_json_with_tags_for_other_types() -> None:
    assert codec.dumps({"a": [1, 2.5, None, "é"]}) == '{"a":[1,2.5,null,"é"]}'.encode()
    assert codec.dumps((1,)) == b'{"$wbe":"tuple","v":[1]}'
    assert codec.dumps({1: 2}) == b'{"$wbe":"dict","v":[[1,2]]}'
    assert codec.dumps({"$wbe": 1}) == b'{"$wbe":"dict","v":[["$wbe",1]]}'
    assert json.loads(codec.dumps(Color.RED))["v"] == "RED"
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert codec.dumps(moment) == b'{"$wbe":"datetime","v":"2024-01-02T03:04:05+00:00"}'


def test_equal_sets_have_equal_encoding() -> None:
    # 0 and 8 collide in a small table, so these two iterate differently.
    assert list({0, 8}) != list({8, 0})
    assert codec.dumps({0, 8}) == codec.dumps({8, 0})


# -- nesting

#: Containers, with the levels of JSON that each adds.
CONTAINERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "list": (1, lambda value: [value]),
    "dict": (1, lambda value: {"k": value}),
    "tuple": (2, lambda value: (value,)),
    "frozenset": (2, lambda value: frozenset([value])),
    "dataclass": (2, Point),
    "dict with other keys": (3, lambda value: {0: value}),
}


def nested(value: Any, times: int, put: Callable[[Any], Any] = lambda value: [value]) -> Any:
    for _ in range(times):
        value = put(value)
    return value


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_can_be_nested_64_levels_deep(kind: str) -> None:
    levels, put = CONTAINERS[kind]
    deepest = nested(nested(1, 64 // levels, put), 64 % levels)
    text = codec.dumps(deepest)
    assert same(codec.loads(text), deepest)
    assert text.count(b"{") + text.count(b"[") == 64
    with pytest.raises(exceptions.NotEncodable, match="deeper than 64"):
        codec.dumps([deepest])
    with pytest.raises(exceptions.InvalidFormat, match="nested"):
        codec.loads(b"[" + text + b"]")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_inner_and_outer_containers_count_the_same_levels(kind: str) -> None:
    levels, put = CONTAINERS[kind]
    for outside in range(60, 65):
        value = nested(put(1), outside)
        if outside + levels > 64:
            with pytest.raises(exceptions.NotEncodable, match="deeper than 64"):
                codec.dumps(value)
        else:
            assert same(codec.loads(codec.dumps(value)), value)


@pytest.mark.parametrize("value", [b"x", math.inf, Color.RED, Access.READ | Access.WRITE])
def test_tagged_scalar_counts_as_one_level(value: Any) -> None:
    assert same(codec.loads(codec.dumps(nested(value, 63))), nested(value, 63))
    with pytest.raises(exceptions.NotEncodable, match="deeper than 64"):
        codec.dumps(nested(value, 64))


# -- refused values


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        ({"a": [0, 1, 2, object()]}, "result['a'][3]", "object"),
        ({"a": (1, {2: object()})}, "result['a'][1][2]", "object"),
        ({object(): 1}, "result<key ", "object"),
        ({"a": {object()}}, "result['a']{...}", "object"),
        (Point(object()), "result.x", "object"),
        ([print], "result[0]", "builtin_function_or_method"),
        ([Pair(1, 2)], "result[0]", "allow(Pair)"),
        ([collections.OrderedDict()], "result[0]", "send dict(value)"),
        ([collections.defaultdict(int)], "result[0]", "send dict(value)"),
        ([Text("x")], "result[0]", "send str(value)"),
        ({Text("x"): 1}, "result<key 'x'>", "send str(value)"),
        ([Unallowed.LOW], "result[0]", "allow(Unallowed)"),
        ([Unknown(1)], "result[0]", "allow(Unknown)"),
        ([bytearray(b"")], "result[0]", "bytearray"),
        ([10**4300], "result[0]", "4300 digits"),
        ([-(10**4300)], "result[0]", "4300 digits"),
        (dt.datetime.min.replace(tzinfo=type("Zone", (dt.tzinfo,), {})()), "result", "Zone"),
        (nested(1, 65), "result" + "[0]" * 64, "deeper than 64"),
        (nested(1, 33, lambda value: (value,)), "result" + "[0]" * 32, "deeper than 64"),
        (nested(1, 65, lambda value: {"k": value}), "result" + "['k']" * 64, "deeper than 64"),
    ],
)
def test_error_contains_path_of_unencodable_value(value: Any, path: str, text: str) -> None:
    with pytest.raises(exceptions.NotEncodable) as caught:
        codec.dumps(value)
    assert caught.value.path.startswith(path)
    assert caught.value.type_name
    assert text in str(caught.value)
    assert str(caught.value).startswith(caught.value.path)


def test_error_path_starts_with_given_root_name() -> None:
    with socket.socket() as value, pytest.raises(exceptions.NotEncodable) as caught:
        codec.dumps({"conn": value}, "arguments")
    assert caught.value.path == "arguments['conn']"
    assert caught.value.type_name == "socket.socket"


def test_recursive_value_is_refused() -> None:
    value: list[Any] = []
    value.append({"again": value})
    with pytest.raises(exceptions.NotEncodable, match="contains itself"):
        codec.dumps(value)


def test_unknown_classes_are_text_only_in_the_with_block() -> None:
    stored = codec.dumps(Point(1)).replace(b"Point", b"Elsewhere")
    with codec.unknown_classes_as_text():
        assert codec.loads(stored) == dataclasses.asdict(Point(1))
    with pytest.raises(exceptions.InvalidFormat, match="Elsewhere"):
        codec.loads(stored)


def test_named_tuple_with_other_items_or_attributes_is_refused() -> None:
    with pytest.raises(exceptions.NotEncodable, match="has 1 items, but 2 fields"):
        codec.dumps(tuple.__new__(Span, [1]))

    @codec.allow
    class Tagged(Span):
        pass

    tagged = Tagged(1, 2)
    assert type(codec.loads(codec.dumps(tagged))) is Tagged
    tagged.label = "x"  # type: ignore[attr-defined]
    with pytest.raises(exceptions.NotEncodable, match="the attribute 'label'"):
        codec.dumps(tagged)


def test_dataclass_with_extra_or_missing_attribute_is_refused() -> None:
    point = Point(1)
    point.extra = 2  # type: ignore[attr-defined]
    with pytest.raises(exceptions.NotEncodable, match="'extra'"):
        codec.dumps(point)
    frozen = Frozen.__new__(Frozen)
    with pytest.raises(exceptions.NotEncodable, match="'items'"):
        codec.dumps(frozen)


@pytest.mark.parametrize("cls", [int, tuple, collections.OrderedDict, object, "Color"])
def test_classes_of_other_kinds_cannot_be_allowed(cls: Any) -> None:
    with pytest.raises(TypeError, match="must be an Enum, a dataclass, a NamedTuple"):
        codec.allow(cls)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1,]", "Expecting|Illegal"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "not a JSON number"),
        (b'{"b":1,"a":2,"a":3}', "'a' is repeated"),
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
def test_text_that_is_not_strict_json_is_refused(text: Any, reason: str) -> None:
    with pytest.raises(exceptions.InvalidFormat, match=reason):
        codec.loads(text)


def test_text_at_limits_is_decoded() -> None:
    assert codec.loads(b"-" + b"9" * 4300) == -int("9" * 4300)
    assert codec.loads(b'["\\ud83d\\ude00"]') == ["\U0001f600"]


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
        ({"$wbe": "enum", "c": "os.PathLike", "v": "x"}, "'os.PathLike' is not known"),
        ({"$wbe": "enum", "c": f"{Color.__module__}.Color", "v": "BLUE"}, "malformed"),
        ({"$wbe": "enum", "c": f"{Color.__module__}.Point", "v": "BLUE"}, "another kind"),
        ({"$wbe": "data", "c": f"{Color.__module__}.Color", "v": {}}, "another kind"),
        ({"$wbe": "data", "c": f"{Color.__module__}.Point", "v": {"x": 1}}, "fields of"),
        ({"$wbe": "data", "c": f"{Color.__module__}.Span", "v": {"start": 1}}, "fields of"),
        ({"$wbe": "data", "c": f"{Color.__module__}.Span", "v": [1, 2]}, "fields of"),
        ({"$wbe": "data", "c": [], "v": {}}, "is not known"),
        ({"$wbe": "PurePosixPath", "v": 3}, "not a string"),
        ({"$wbe": "IPv4Address", "v": 3}, "not a string"),
        ({"$wbe": "IPv4Address", "v": "1.2.3"}, "malformed tag"),
    ],
)
def test_malformed_tags_are_refused(tree: Any, text: str) -> None:
    with pytest.raises(exceptions.InvalidFormat, match=text):
        codec.loads(json.dumps(tree))


def test_classes_are_refused_until_they_are_allowed() -> None:
    assert codec.loads(codec.dumps({Color.RED: Point(1)})) == {Color.RED: Point(1)}
    with pytest.raises(exceptions.NotEncodable, match=r"wbengine\.types\.codec\.allow\(Unknown\)"):
        codec.dumps(Unknown(1))


def test_exception_dataclasses_are_refused() -> None:
    @dataclasses.dataclass
    class Bad(Exception):
        code: int

    with pytest.raises(TypeError, match="must be an Enum, a dataclass, a NamedTuple"):
        codec.allow(Bad)
    with pytest.raises(exceptions.NotEncodable, match=r"send Failure\.from_exception"):
        codec.dumps([Bad(1)])


# -- hash collisions

#: Modulus of the hash of numbers, which no process randomizes.
_MODULUS = 2**61 - 1


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda n: n * _MODULUS, id="numbers"),
        pytest.param(lambda n: (n * _MODULUS,), id="tuples"),
        pytest.param(lambda n: frozenset([n * _MODULUS]), id="frozensets"),
        pytest.param(lambda n: uuid.UUID(int=n * _MODULUS), id="uuids"),
    ],
)
def test_keys_with_the_same_hash_are_refused(key: Callable[[int], Any]) -> None:
    """Each insertion would take as long as all earlier ones together."""
    few = {key(n) for n in range(1, 33)}
    assert few == codec.loads(codec.dumps(few))
    for value in (few | {key(33)}, frozenset(few | {key(33)}), dict.fromkeys([*few, key(33)])):
        with pytest.raises(exceptions.NotEncodable, match="33 keys with the same hash"):
            codec.dumps(value)
    items = [json.loads(codec.dumps(key(n))) for n in range(1, 34)]
    for tag, encoded in (
        ("set", items),
        ("frozenset", items),
        ("dict", [[one, 0] for one in items]),
    ):
        with pytest.raises(exceptions.InvalidFormat, match="33 keys with the same hash"):
            codec.loads(json.dumps({"$wbe": tag, "v": encoded}))


@pytest.mark.slow
def test_number_of_unusual_keys_in_messages_is_limited() -> None:
    """A store accepts more of them."""
    send, receive, many = envelope.packer(True), envelope.unpacker(True), range(100_001)
    assert len(receive(send(dict.fromkeys(many[:-1])))) == 100_000
    assert len(receive(send({b"", *map(str, many)}))) == 100_002
    with pytest.raises(exceptions.NotEncodable, match="100,001 keys that are neither text nor"):
        send(set(many))
    with pytest.raises(exceptions.InvalidFormat, match="100,001 keys that are neither text nor"):
        receive({"$wbe": "dict", "v": [[n, 0] for n in many]})
    assert codec.loads(codec.dumps(set(many))) == set(many)
