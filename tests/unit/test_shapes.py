"""Conversion of JSON to the values that annotations describe."""

import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import jsonschema
import pydantic
import pytest

from tests.unit import shapes_of_strings as strings
from wbengine import exceptions
from wbengine._shapes import annotations
from wbengine._shapes.base import INVALID, Place, Reading

T = TypeVar("T")
NOON = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
NOON_TEXT = "2026-11-28T12:00:00Z"
AMBIGUOUS = "v: fits Car and Boat: give each of them a field with another Literal"
Number = NewType("Number", int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Corner(enum.Enum):
    NEAR = (0, 0)
    FAR = (1, 1)


@dataclasses.dataclass(frozen=True)
class Line:
    amount: decimal.Decimal
    color: Color = Color.RED


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    lines: list[Line]
    due: dt.date | None = None
    note: str = dataclasses.field(default="", kw_only=True)
    total: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError("value must be above 0")


@dataclasses.dataclass
class Node:
    name: str
    children: "list[Node]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


@dataclasses.dataclass
class Cat:
    name: str
    kind: Literal["cat"] = "cat"


@dataclasses.dataclass
class Dog:
    name: str
    kind: Literal["dog"] = "dog"


@dataclasses.dataclass
class Car:
    name: str


@dataclasses.dataclass
class Boat:
    name: str


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict):
    limit: decimal.Decimal
    tags: set[str]


@attrs.frozen
class Parcel:
    weight: float
    _code: str = "x"


class Address(pydantic.BaseModel):
    street: str
    zip: int = 0


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    addresses: list[Address]
    id: uuid.UUID = uuid.UUID(int=0)

    @pydantic.field_validator("addresses")
    @classmethod
    def check_addresses(cls, value: list[Address]) -> list[Address]:
        if len(value) > 2:
            raise ValueError("at most 2 addresses")
        return value


@pydantic.dataclasses.dataclass
class Checked:
    at: dt.datetime


def read(annotation: Any, value: Any, *, strict: bool = False) -> Any:
    """Return the converted value, or the text of its faults."""
    reading = Reading(strict=strict)
    result = annotations.shape_of(annotation).read(value, Place("v"), reading)
    assert (result is INVALID) is bool(reading.faults)
    return reading.describe() if reading.faults else result


ORDER = {"number": 1, "lines": [{"amount": "1.10", "color": "blue"}], "due": "2026-11-28"}
DECIMAL = decimal.Decimal("1.10")


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (bool, True, True),
        (int, 5.0, 5),
        (float, 3, 3.0),
        (bytes, "YWI=", b"ab"),
        (decimal.Decimal, "1.10", DECIMAL),
        (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
        (decimal.Decimal, 7, decimal.Decimal(7)),
        (dt.date, "2026-11-28", dt.date(2026, 11, 28)),
        (dt.datetime, "2026-11-28T10:00:00Z", dt.datetime(2026, 11, 28, 10, tzinfo=dt.UTC)),
        (dt.time, "10:30", dt.time(10, 30)),
        (dt.timedelta, 90, dt.timedelta(seconds=90)),
        (dt.timedelta, "1.5h", dt.timedelta(hours=1.5)),
        (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
        (ipaddress.IPv4Address, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")),
        (ipaddress.IPv4Network, "10.0.0.0/8", ipaddress.IPv4Network("10.0.0.0/8")),
        (pathlib.PurePosixPath, "a/b", pathlib.PurePosixPath("a/b")),
        (Number, 3, 3),
        (Annotated[Color, "unused"], "red", Color.RED),
        (Level, 2, Level.HIGH),
        (Corner, "FAR", Corner.FAR),
        (Literal["a", 1], 1, 1),
        (Literal[Color.RED], "red", Color.RED),
        (set[int], [1, 2, 2], {1, 2}),
        (frozenset[Color], ["red"], frozenset({Color.RED})),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[()], [], ()),
        (Sequence[dt.date], ["2026-11-28"], [dt.date(2026, 11, 28)]),
        (Mapping[Color, Line], {"red": {"amount": 1}}, {Color.RED: Line(decimal.Decimal(1))}),
        (dict[int, str], {"-3": "a"}, {-3: "a"}),
        (list, [1, "a"], [1, "a"]),
        (dict, {"a": 1}, {"a": 1}),
        (Order, ORDER, Order(1, [Line(DECIMAL, Color.BLUE)], dt.date(2026, 11, 28))),
        (Order | None, None, None),
        (list[Order], [], []),
        (dict[str, Line], {"a": {"amount": "1.10"}}, {"a": Line(DECIMAL)}),
        (Node, {"name": "a", "children": [{"name": "b"}]}, Node("a", [Node("b")])),
        (Page[Line], {"items": [{"amount": 2}]}, Page([Line(decimal.Decimal(2))])),
        (Cat | Dog, {"name": "Rex", "kind": "dog"}, Dog("Rex")),
        (Point, {"x": 1}, Point(1)),
        (Point, [1, 2.5], Point(1, 2.5)),
        (Options, {"limit": "1.10", "tags": ["a"]}, {"limit": DECIMAL, "tags": {"a"}}),
        (Parcel, {"weight": 1.5, "code": "y"}, Parcel(1.5, "y")),
        (Customer, {"addresses": [{"street": "A"}], "id": str(uuid.UUID(int=3))},
         Customer(addresses=[Address(street="A")], id=uuid.UUID(int=3))),
        (list[Address], [{"street": "A", "zip": 3}], [Address(street="A", zip=3)]),
        (Checked, {"at": NOON_TEXT}, Checked(NOON)),
        (Any, {"a": [1]}, {"a": [1]}),
        (Callable[..., Order], 3, 3),
        # Values of unions are not converted where one of the types fits.
        (int | bool, True, True),
        (int | float | str, 1.1, 1.1),
        (float | str | int, 1, 1),
        (str | dt.date, "2026-11-28", "2026-11-28"),
        (dt.date | Color, "red", Color.RED),
    ],
)  # fmt: skip
def test_json_becomes_the_annotated_value(annotation: Any, value: Any, expected: Any) -> None:
    result = read(annotation, value)
    assert (type(result), result) == (type(expected), expected)
    # A value that has been converted stays the same.
    assert read(annotation, result) == expected
    assert read(annotation, result, strict=True) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "faults"),
    [
        (int, True, "v: expected int, got True"),
        (bool, 1, "v: expected bool, got 1"),
        (str, False, "v: expected str, got False"),
        (int, 1.5, "v: expected int, got 1.5"),
        (int, "1", "v: expected int, got '1'"),
        (decimal.Decimal, "NaN", "v: expected Decimal, got 'NaN'"),
        (decimal.Decimal, 0.12345678901234567, "v: expected Decimal, got 0.12345678901234566"),
        (dt.date, "yesterday", "v: expected date, got 'yesterday'"),
        (dt.date, NOON, f"v: expected date, got {NOON!r}"),
        (bytes, "*", "v: expected bytes, got '*'"),
        (Color, "green", "v: expected Color ('red', 'blue'), got 'green'"),
        (Level, True, "v: expected Level (1, 2), got True"),
        (Literal["a", 1], True, "v: expected 'a', 1, got True"),
        (list[int], "12", "v: expected list[int], got '12'"),
        (set[list[int]], [[1]], "v: expected set[list[int]]: unhashable type: 'list'"),
        (tuple[int, str], [1], "v: expected 2 items (tuple[int, str]), got 1"),
        (dict[int, int], {"a": 1}, "v<key 'a'>: expected int, got 'a'"),
        (dict[int, int], {"1": 1, "01": 2}, "v['01']: key 1 is repeated"),
        (Order, [], "v: expected Order, got an array"),
        (Order, {**ORDER, "number": "1", "lines": [{"amount": "abc"}], "nots": "x"},
         ("v.nots: Order has no such field (did you mean 'note'?); v.number: expected int, got '1';"
         " v.lines[0].amount: expected Decimal, got 'abc'")),
        (Order, {"lines": []}, "v.number: missing, expected int"),
        (Order, {**ORDER, "total": 3}, "v.total: Order has no such field"),
        (Order | None, {"number": 1, "lines": 2}, "v.lines: expected list[Line], got 2"),
        (Positive, {"value": 0}, "v: Positive raised ValueError: value must be above 0"),
        (Cat | Dog, {"nam": "Rex", "kind": "dog"},
         "v.nam: Dog has no such field (did you mean 'name'?); v.name: missing, expected str"),
        (Car | Boat, {"name": "Rex"}, AMBIGUOUS),
        (int | None, "x", "v: expected int | None, got 'x'"),
        (Point, [1, 2, 3], "v: expected 2 items, got 3"),
        (Options, {"limit": 1, "tags": [], "tag": 1},
         "v['tag']: Options has no such field (did you mean 'tags'?)"),
        (Node, {"name": "a", "children": [{"name": 3}]}, "v.children[0].name: expected str, got 3"),
        (list[Address], [{"street": "A"}, {}], "v[1].street: Field required"),
        (Customer, {"addresses": [{"street": "A"}] * 3},
         "v.addresses: Value error, at most 2 addresses, got an array"),
        (dict[str, int], {"password": "hunter2"}, "v['password']: expected int, got ***"),
        (type(json), 3, "v: expected module, which has no form in JSON, got 3"),
    ],
)  # fmt: skip
def test_faults_name_the_path_and_the_expected_type(
    annotation: Any, value: Any, faults: str
) -> None:
    assert read(annotation, value) == faults


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, ORDER),
        (Color, "red"),
        (Point, (1, 2.0)),
        (list[Line], [{"amount": 1}]),
        (Order | None, ORDER),
        (Options, {"limit": "1", "tags": {"a"}}),
        (Address, {"street": "A"}),
        (dict[str, Line], {"a": None}),
        (tuple[int, ...], [1]),
        (dt.date, "2026-11-28"),
        (int, 5.0),
    ],
)
def test_strict_reading_converts_nothing(annotation: Any, value: Any) -> None:
    assert str(read(annotation, value, strict=True)).startswith("v")


def test_faults_are_limited() -> None:
    faults = read(list[int], ["a"] * 30)
    assert faults.count("expected int") == 10
    assert faults.endswith("; and 20 more")


def test_optional_keys_are_found_in_annotations_that_are_strings() -> None:
    assert read(strings.Settings, {"name": "a"}) == {"name": "a"}
    assert read(strings.Settings, {"limit": 1}) == "v['name']: missing, expected str"
    assert read(strings.Settings, {"name": "a", "limit": "1"}) == {
        "name": "a",
        "limit": decimal.Decimal(1),
    }


def test_class_with_unknown_annotation_is_an_error() -> None:
    with pytest.raises(TypeError, match="annotations of Unknown cannot be evaluated: name 'Order'"):
        read(strings.Unknown, {"order": 1})


def validator_of(annotation: Any) -> jsonschema.Draft202012Validator:
    definitions: dict[str, Any] = {}
    schema = annotations.shape_of(annotation).schema(definitions)
    document = json.loads(json.dumps({**schema, "$defs": definitions}))
    validator = jsonschema.Draft202012Validator(document)
    validator.check_schema(document)
    return validator


@pytest.mark.parametrize(
    ("annotation", "valid", "invalid"),
    [
        (Order, ORDER, {**ORDER, "x": 1}),
        (Order, ORDER, {"number": 1}),
        (list[Order | None], [ORDER, None], ["a"]),
        (Node, {"name": "a", "children": [{"name": "b"}]}, {"name": "a", "children": [1]}),
        (Page[Line], {"items": [{"amount": "2"}]}, {"items": [{"amount": []}]}),
        (Cat | Dog, {"name": "a", "kind": "cat"}, {"name": "a", "kind": "cow"}),
        (Options, {"limit": 1, "tags": ["a"]}, {"limit": 1}),
        (Customer, {"addresses": [{"street": "A"}]}, {"addresses": [{}]}),
        (dict[Color, int], {"red": 1}, {"green": 1}),
        (dict[int, int], {"1": 1}, {"a": 1}),
        (tuple[int, str], [1, "a"], [1]),
        (Corner, "FAR", [0, 0]),
    ],
)
def test_schema_accepts_the_same_values(annotation: Any, valid: Any, invalid: Any) -> None:
    validator = validator_of(annotation)
    validator.validate(valid)
    assert not isinstance(read(annotation, valid), str)
    assert not validator.is_valid(invalid)
    assert isinstance(read(annotation, invalid), str)


def test_schema_contains_defaults_and_titles() -> None:
    definitions: dict[str, Any] = {}
    schema = annotations.shape_of(Order).schema(definitions)
    order = definitions[f"{__name__}.Order"]
    assert schema == {"$ref": f"#/$defs/{__name__}.Order"}
    assert order["title"] == "Order"
    assert order["required"] == ["number", "lines"]
    assert order["properties"]["note"] == {"type": "string", "default": ""}


@pytest.mark.parametrize(
    ("annotation", "value", "plain"),
    [
        (int, 3, 3),
        (Color, Color.RED, Color.RED.value),
        (Corner | None, Corner.FAR, "FAR"),
        (Color | None, None, None),
        (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
        (int | dt.datetime, dt.datetime(2026, 12, 1, tzinfo=dt.UTC), "2026-12-01T00:00:00+00:00"),
        (dt.date, dt.date(2026, 12, 1), "2026-12-01"),
        (dt.timedelta, dt.timedelta(minutes=5), 300.0),
        (bytes, b"ab", "YWI="),
        (pathlib.PurePosixPath, pathlib.PurePosixPath("/a"), "/a"),
        (list[int], [1], [1]),
    ],
)
def test_plain_form_of_a_value_is_read_as_the_value(
    annotation: Any, value: Any, plain: Any
) -> None:
    assert annotations.shape_of(annotation).plain(value) == plain
    assert read(annotation, json.loads(json.dumps(plain))) == value


def test_value_without_a_plain_form_has_no_default() -> None:
    with pytest.raises(exceptions.NotEncodable):
        annotations.shape_of(Order | None).plain(Order(1, []))
    definitions: dict[str, Any] = {}
    annotations.shape_of(Line).schema(definitions)
    assert definitions[f"{__name__}.Line"]["properties"]["color"]["default"] == "red"


def test_json_becomes_a_struct_of_msgspec() -> None:
    msgspec: Any = pytest.importorskip("msgspec")
    event_class = msgspec.defstruct("Event", [("at", dt.datetime), ("values", list[int], [])])
    event = event_class(NOON)
    assert read(list[event_class], [{"at": NOON_TEXT}]) == [event]
    assert read(event_class, event, strict=True) is event
    faulty = {"at": NOON_TEXT, "values": [1, "a"]}
    assert read(event_class, faulty) == "v.values[1]: Expected `int`, got `str`"
    validator = validator_of(event_class)
    validator.validate({"at": NOON_TEXT})
    assert not validator.is_valid({"at": NOON_TEXT, "values": ["a"]})
