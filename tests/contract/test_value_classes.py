"""Values whose classes are of pydantic, attrs and msgspec."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import json
import math
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import attr
import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic import dataclasses as pydantic_dataclasses

from tests.support import value_classes as vc
from wbengine import exceptions
from wbengine.types import codec

items = st.builds(vc.Item, sku=st.text()) | st.builds(vc.Item, sku=st.text(), count=st.integers())
prices = st.builds(
    vc.Price, amount=st.decimals(allow_nan=False, allow_infinity=False), currency=st.text()
)
numbers = st.integers(-(10**6), 10**6)
hashable = (
    st.builds(vc.Point, x=numbers)
    | st.builds(lambda x, y: vc.Point(x=x, why=y), numbers, numbers)
    | prices
    | st.builds(vc.Key, st.text())
    | st.builds(vc.Frame, numbers, st.tuples(numbers))
    | st.sampled_from(vc.Status)
)
orders = st.builds(
    vc.Order,
    id=st.uuids(),
    total=st.decimals(allow_nan=False, allow_infinity=False),
    due=st.none() | st.datetimes(),
    items=st.lists(items, max_size=3),
    by_name=st.dictionaries(st.text(), items, max_size=2),
    tags=st.frozensets(st.text(), max_size=3),
    size=st.tuples(numbers, st.floats(allow_nan=False)),
)
extra_names = st.text().filter(lambda name: name not in ("known", "self") and name[:1] != "_")
flat = (
    hashable
    | items
    | orders
    | st.builds(vc.Order, id=st.uuids(), total=st.just(decimal.Decimal(1)), note=st.text())
    | st.builds(vc.BoxOfInt, content=numbers)
    | st.builds(vc.BoxOfOrders, content=st.lists(orders, max_size=2))
    | st.builds(vc.Owner, pet=st.just(vc.Dog()) | st.builds(vc.Cat, lives=numbers))
    | st.dictionaries(extra_names, st.integers() | items).map(vc.Open.model_validate)
    | st.lists(items, max_size=3).map(vc.Items)
    | st.builds(vc.Counter, start=numbers).map(vc.Counter.count)
    | st.just(vc.Site(url="http://a.example", dsn="postgresql://u@h/db"))  # type: ignore[arg-type]
    | st.builds(vc.Part, st.text(), st.floats(allow_nan=False))
)
nodes = st.none() | st.builds(vc.Node, value=numbers)
values = st.recursive(
    flat,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.builds(vc.Node, value=inner)
        | st.builds(lambda value, again: vc.Node(value=value, next=again), inner, nodes)
        | st.builds(vc.Part, inner, st.just(1.0))
        | st.builds(vc.Frame, numbers, st.tuples(inner))
    ),
    max_leaves=8,
)


def classes_in(value: Any) -> Any:
    """Return the classes in a value as a tree, and the set fields of models."""
    if isinstance(value, BaseModel):
        parts: Any = [vars(value), value.__pydantic_extra__, value.__pydantic_private__]
        names = sorted(value.model_fields_set)
    elif dataclasses.is_dataclass(value) or hasattr(value, "__attrs_attrs__"):
        names, parts = [], vars(value) if hasattr(value, "__dict__") else value.name
    elif isinstance(value, msgspec.Struct):
        names, parts = [], msgspec.structs.astuple(value)
    elif isinstance(value, dict):
        names, parts = [], sorted(map(repr, map(classes_in, value.items())))
        return type(value), parts
    elif isinstance(value, (list, tuple)):
        return type(value), [classes_in(item) for item in value]
    elif isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, map(classes_in, value)))
    else:
        return type(value)
    return type(value), names, classes_in(parts)


@given(values)
@example({vc.Point(x=1): vc.Box[int](content=2)})
def test_decoded_instance_equals_original_and_has_same_classes(value: Any) -> None:
    again = codec.loads(codec.dumps(value))
    assert again == value
    assert classes_in(again) == classes_in(value)


def test_order_of_fields_and_unset_fields_are_kept() -> None:
    order = vc.Order(id=uuid.uuid4(), total=decimal.Decimal("1.10"), items=[vc.Item(sku="a")])
    again = codec.loads(codec.dumps([order]))[0]
    assert again.model_dump(exclude_unset=True) == order.model_dump(exclude_unset=True)
    assert list(again.model_dump()) == list(order.model_dump())
    assert again.items[0].model_fields_set == {"sku"}


def test_value_of_default_factory_is_kept() -> None:
    @codec.allow
    class Stamped(BaseModel):
        at: dt.datetime = pydantic.Field(default_factory=dt.datetime.now)
        key: uuid.UUID = pydantic.Field(default_factory=uuid.uuid4)

    value = Stamped()
    again = codec.loads(codec.dumps(value))
    assert again == value and again.model_fields_set == set()


def test_private_attributes_and_extra_values_are_kept() -> None:
    counter = vc.Counter(start=1).count()
    assert counter.triple == 3
    again = codec.loads(codec.dumps(counter))
    assert (again, again._calls, again.triple) == (counter, 1, 3)
    opened = vc.Open.model_validate({"$wbe": "tuple", "v": [vc.Item(sku="a")]})
    again = codec.loads(codec.dumps(opened))
    assert again == opened and type(again.v[0]) is vc.Item
    assert again.model_fields_set == {"$wbe", "v"}


def test_model_with_unencodable_private_attribute_is_refused() -> None:
    counter = vc.Counter()
    counter._last = threading.Lock()
    with pytest.raises(exceptions.NotEncodable, match=r"result\[0\]\._last: _thread.lock"):
        codec.dumps([counter])


def test_equal_models_have_equal_encoding() -> None:
    """The set of field names iterates in another order, also in other processes."""
    one = vc.Order(id=uuid.UUID(int=1), total=decimal.Decimal(1), tags=frozenset("abc"))
    other = vc.Order(tags=frozenset("cba"), total=decimal.Decimal(1), id=uuid.UUID(int=1))
    assert codec.dumps(one) == codec.dumps(other)


def test_excluded_field_is_kept() -> None:
    @codec.allow
    class Hidden(BaseModel):
        x: int = pydantic.Field(exclude=True)

    assert codec.loads(codec.dumps(Hidden(x=3))) == Hidden(x=3)


@pytest.mark.parametrize("content", ["1", 1, 1.0, True, decimal.Decimal("1.0"), None, ("1",), [1]])
def test_value_of_union_keeps_its_type(content: Any) -> None:
    @codec.allow
    class Either(BaseModel):
        content: float | str | int | bool | decimal.Decimal | list[float] | tuple[str, ...] | None

    value = Either(content=content)
    again = codec.loads(codec.dumps(value)).content
    assert again == content and type(again) is type(content)


def test_digits_of_large_decimal_are_kept() -> None:
    order = vc.Order(id=uuid.uuid4(), total=decimal.Decimal("12345678901234567890.123456789012345"))
    assert codec.loads(codec.dumps(order)).total.as_tuple() == order.total.as_tuple()


def test_extra_values_that_the_class_does_not_accept_are_refused() -> None:
    item = vc.Item(sku="a")
    object.__setattr__(item, "__pydantic_extra__", {"more": 1})
    assert "has extra values, which its class ignores" in refused(item)


def test_instance_without_private_attributes_is_encoded() -> None:
    item = vc.Item.model_construct(sku="a")
    object.__delattr__(item, "__pydantic_private__")
    assert codec.loads(codec.dumps(item)) == vc.Item(sku="a")


def test_subclass_of_annotated_class_is_kept() -> None:
    @codec.allow
    class Bulk(vc.Item):
        boxes: int

    (item,) = codec.loads(codec.dumps(vc.Items([Bulk(sku="a", boxes=2)]))).root
    assert item == Bulk(sku="a", boxes=2) and type(item) is Bulk


def test_secrets_are_refused_with_hint() -> None:
    @codec.allow
    class Login(BaseModel):
        password: pydantic.SecretStr

    with pytest.raises(exceptions.NotEncodable, match="get_secret_value") as caught:
        codec.dumps(Login(password=pydantic.SecretStr("canary")))
    assert caught.value.path == "result.password" and "canary" not in str(caught.value)


def test_json_has_names_of_fields_and_class() -> None:
    name = f"{vc.__name__}.Point"
    assert json.loads(codec.dumps(vc.Point(x=1, why=2))) == {
        "$wbe": "data",
        "c": name,
        "v": {"x": 1, "y": 2},
    }
    tree = json.loads(codec.dumps(vc.BoxOfOrders(content=[])))
    assert tree["c"] == f"{vc.__name__}.Box[list[{vc.__name__}.Order]]"


def test_generic_model_is_refused_until_its_arguments_are_allowed() -> None:
    with pytest.raises(exceptions.NotEncodable, match=r"codec\.allow\(Box\[str\]\)"):
        codec.dumps(vc.Box[str](content="a"))
    stored = codec.dumps(vc.BoxOfInt(content=1)).replace(b"[int]", b"[float]")
    with pytest.raises(exceptions.InvalidFormat, match=r"Box\[float\]' is not known"):
        codec.loads(stored)


def test_unknown_models_are_shown_as_dicts() -> None:
    stored = codec.dumps([vc.Point(x=1), vc.Site(url="http://a.example")])  # type: ignore[arg-type]
    stored = stored.replace(b"value_classes.", b"elsewhere.").replace(b"HttpUrl", b"OtherUrl")
    with codec.unknown_classes_as_text():
        assert codec.loads(stored) == [
            {"x": 1, "y": 0},
            {"url": "http://a.example/", "dsn": None},
        ]


def test_instance_that_its_class_refuses_is_shown_as_dict() -> None:
    stored = codec.dumps(vc.Item(sku="a")).replace(b'"a"', b"3")
    with codec.unknown_classes_as_text():
        assert codec.loads(stored) == {"sku": 3, "count": 1}
    with pytest.raises(exceptions.UndecodableValue, match="is not valid: sku"):
        codec.loads(stored)


# -- validation


def refused(value: Any) -> str:
    with pytest.raises(exceptions.NotEncodable) as caught:
        codec.dumps([value])
    return str(caught.value)


def test_instance_that_is_not_valid_is_refused_when_it_is_encoded() -> None:
    item = vc.Item(sku="a")
    item.count = "canary"  # type: ignore[assignment]
    text = refused(item)
    assert text.startswith(f"result[0]: {vc.__name__}.Item is not valid: count: Input should be")
    assert "canary" not in text
    assert "lacks its field 'sku'" in refused(vc.Item.model_construct())
    vars(item)["stray"] = 1
    assert "the attribute 'stray', which is not a field" in refused(item)


def test_number_of_another_type_is_converted_as_by_the_validator() -> None:
    @codec.allow
    class Sum(BaseModel):
        total: float

    total = Sum(total=1.5)
    total.total = 0
    again = codec.loads(codec.dumps(total))
    assert again == total and type(again.total) is float


@pytest.mark.parametrize("mode", ["before", "after"], ids=["before-validator", "after-validator"])
def test_model_whose_validator_changes_valid_values_is_refused(mode: Any) -> None:
    @codec.allow
    class Cents(BaseModel):
        price: int

        @field_validator("price", mode=mode)
        @classmethod
        def convert(cls, price: int) -> int:
            return price * 100

    assert "changes its field 'price' when it is validated again" in refused(Cents(price=1))


def test_model_validated_as_another_class_is_refused() -> None:
    @codec.allow
    class Base(BaseModel):
        x: int = 1

        @model_validator(mode="wrap")
        @classmethod
        def specialize(cls, data: Any, handler: Callable[[Any], Any]) -> Any:
            return Other() if cls is Base else handler(data)

    class Other(Base):
        pass

    assert "is validated as" in refused(Base.model_construct(x=1))


def test_any_exception_of_a_validator_is_invalid_format() -> None:
    @codec.allow
    class Fragile(BaseModel):
        names: dict[str, int]

        @field_validator("names")
        @classmethod
        def needs_a(cls, names: dict[str, int]) -> dict[str, int]:
            return {"a": names["a"]}

    stored = codec.dumps(Fragile(names={"a": 1})).replace(b'"a"', b'"b"')
    with pytest.raises(exceptions.InvalidFormat, match="KeyError: 'a'"):
        codec.loads(stored)


@pytest.mark.parametrize(
    ("value", "old", "new", "text"),
    [
        (vc.Item(sku="a"), '"a"', "null", "is not valid: sku: Input should be a valid string"),
        (vc.Item(sku="a"), '"count":1', '"count":"1"', "changes its field 'count'"),
        (vc.Item(sku="a"), '"sku":"a",', "", "sku: Field required"),
        (vc.Item(sku="a"), '["count"]', "[1]", "not a list of names"),
        (vc.Item(sku="a"), '["count"]', '"count"', "not a list of names"),
        (vc.Item(sku="a"), '"unset"', '"extra"', "extra is not an object"),
        (vc.Item(sku="a"), '"unset"', '"private"', "not an object"),
        (vc.Item(sku="a"), '"unset":["count"]', '"private":{"_x":1}', "private attributes of"),
        (vc.Item(sku="a"), '{"sku":"a","count":1}', "[]", "not an object"),
        (vc.Items([]), "[]", '["a"]', "is not valid: 0: Input should be"),
        (vc.Items([]), '"root"', '"base"', "KeyError: 'root'"),
        (vc.Items([vc.Item(sku="a")]), 'Item"', 'Point"', "is not valid: x"),
        (vc.Owner(pet=vc.Cat()), '"cat"', '"dog"', "is not valid: kind"),
        (vc.Price(decimal.Decimal(1)), '"unit":"EUR"', '"unit":7', "is not valid: unit"),
        (vc.Price(decimal.Decimal(1)), '"unit":"EUR",', "", "the fields of .*Price are"),
        (vc.Site(url="http://a.b"), '"http://a.b/"', '"a"', "malformed tag 'text'"),  # type: ignore[arg-type]
        (vc.Frame(1), '"frame_id"', '"frameId"', "the fields of"),
        (vc.Part("a"), '"_weight"', '"weight"', "the fields of"),
    ],
)
def test_invalid_instances_are_refused_when_they_are_decoded(
    value: Any, old: str, new: str, text: str
) -> None:
    stored = codec.dumps(value).decode()
    assert old in stored
    with pytest.raises(exceptions.InvalidFormat, match=text):
        codec.loads(stored.replace(old, new))


def test_huge_decimal_is_not_converted_to_an_int() -> None:
    """pydantic would need unlimited time and memory for the digits."""
    huge = '{"$wbe":"decimal","v":"1E+99999999999"}'
    for value, old in ((vc.Point(x=7), '"x":7'), (vc.Price(decimal.Decimal(7)), '"unit":"EUR"')):
        name = old.split(":")[0]
        stored = codec.dumps(value).decode().replace(old, f"{name}:{huge}")
        with pytest.raises(exceptions.InvalidFormat, match="is not valid"):
            codec.loads(stored)


def test_stored_model_gets_new_fields_and_loses_old_ones() -> None:
    @codec.allow
    class Note(BaseModel):
        text: str
        size: int = 0

    stored = codec.dumps(Note(text="a", size=3))

    def renamed(version: type[BaseModel]) -> Any:
        version.__qualname__ = Note.__qualname__
        return codec.loads(stored) if codec.allow(version) else None

    class Newer(BaseModel):
        text: str
        color: str = "red"

    again = renamed(Newer)
    assert again == Newer(text="a") and again.model_fields_set == {"text"}

    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        text: str

    with pytest.raises(exceptions.InvalidFormat, match="size: Extra inputs are not permitted"):
        renamed(Strict)

    class Migrated(BaseModel):
        body: str
        size: int

        @model_validator(mode="before")
        @classmethod
        def rename(cls, data: dict[str, Any]) -> dict[str, Any]:
            return {"body" if name == "text" else name: each for name, each in data.items()}

    again = renamed(Migrated)
    assert again == Migrated(body="a", size=3)
    assert again.model_fields_set == {"body", "size"}


def test_model_that_stores_values_of_enums_round_trips() -> None:
    @codec.allow
    class Plain(BaseModel):
        model_config = ConfigDict(use_enum_values=True)
        status: vc.Status = vc.Status.NEW

    value = Plain(status=vc.Status.PAID)
    again = codec.loads(codec.dumps(value))
    assert again == value and type(again.status) is str


def test_nan_is_equal_when_it_is_validated_again() -> None:
    @codec.allow
    class Measured(BaseModel):
        values: list[float]

    again = codec.loads(codec.dumps(Measured(values=[math.nan, 1.0])))
    assert math.isnan(again.values[0])


def test_old_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["pydantic"], "VERSION", "2.10.6")
    with pytest.raises(TypeError, match=r"pydantic 2\.11 or later, got 2\.10\.6"):
        codec.allow(vc.Item)


# -- attrs and msgspec


def test_hash_of_attrs_is_not_part_of_the_value() -> None:
    key = vc.Key("a")
    assert hash(key)  # cached from now on
    again = codec.loads(codec.dumps(key))
    assert again == key and hash(again) == hash(key)


def test_struct_that_its_constructor_changes_is_refused() -> None:
    @codec.allow
    class Growing(msgspec.Struct):
        size: int

        def __post_init__(self) -> None:
            self.size += 1

    @codec.allow
    class Positive(msgspec.Struct):
        size: int

        def __post_init__(self) -> None:
            if self.size < 0:
                raise RuntimeError("negative")

    assert "changes its field 'size'" in refused(Growing(1))
    stored = codec.dumps(Positive(1)).replace(b":1", b":-1")
    with pytest.raises(exceptions.InvalidFormat, match="RuntimeError: negative"):
        codec.loads(stored)


def test_exceptions_and_subclasses_of_builtins_are_refused() -> None:
    @attr.s(auto_exc=True)
    class Bad(Exception):
        code: int = attr.ib()

    for cls in (Bad, type("Text", (str,), {"__attrs_attrs__": ()})):
        with pytest.raises(TypeError, match="or a pydantic model, got"):
            codec.allow(cls)


def test_models_nest_as_deep_as_dataclasses() -> None:
    deepest = functools.reduce(lambda inner, _: vc.Node(value=inner), range(31), vc.Node())
    text = codec.dumps(deepest)
    assert codec.loads(text) == deepest
    with pytest.raises(exceptions.NotEncodable, match="deeper than 64"):
        codec.dumps(vc.Node(value=deepest))
    with pytest.raises(exceptions.InvalidFormat, match="nested"):
        codec.loads(b"[" + text + b"]")


def test_pydantic_dataclass_in_slots_is_validated() -> None:
    @codec.allow
    @pydantic_dataclasses.dataclass(slots=True)
    class Slotted:
        x: int

    stored = codec.dumps(Slotted(1))
    assert codec.loads(stored) == Slotted(1)
    with pytest.raises(exceptions.InvalidFormat, match="is not valid: x"):
        codec.loads(stored.replace(b":1", b':"a"'))


def test_models_in_named_tuple_round_trip() -> None:
    @codec.allow
    class Pair(NamedTuple):
        first: vc.Item
        second: dict[str, vc.Item]

    value = Pair(vc.Item(sku="a"), {"b": vc.Item(sku="b")})
    assert codec.loads(codec.dumps(value)) == value
