"""Classes of pydantic, attrs and msgspec whose instances tests encode and decode."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import uuid
from typing import Annotated, Any, Generic, Literal, TypeVar

import attr
import attrs
import msgspec
import pydantic
from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic import dataclasses as pydantic_dataclasses

from wbengine.types import codec

_T = TypeVar("_T")


class Status(enum.StrEnum):
    NEW = "new"
    PAID = "paid"


class Item(BaseModel):
    sku: str
    count: int = 1


@codec.allow
class Order(BaseModel):
    id: uuid.UUID
    total: decimal.Decimal
    due: dt.datetime | None = None
    status: Status = Status.NEW
    items: list[Item] = []
    by_name: dict[str, Item] = Field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    size: tuple[int, float] = (1, 1.0)
    #: Defaults are not validated.
    note: str = None  # type: ignore[assignment]


class Box(BaseModel, Generic[_T]):
    content: _T


BoxOfInt = codec.allow(Box[int])
BoxOfOrders = codec.allow(Box[list[Order]])


@codec.allow
class Point(BaseModel):
    model_config = ConfigDict(frozen=True)

    x: int
    y: int = Field(default=0, alias="why")


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@codec.allow
class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


@codec.allow
class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    known: int = 1


@codec.allow
class Items(RootModel[list[Item]]):
    pass


@codec.allow
class Counter(BaseModel):
    start: int = 0
    _calls: int = 0
    _last: Any = pydantic.PrivateAttr(default=None)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.start * 2

    @functools.cached_property
    def triple(self) -> int:
        return self.start * 3

    def count(self) -> Counter:
        self._calls += 1
        return self


@codec.allow
class Node(BaseModel):
    value: Any = None
    next: Node | None = None


@codec.allow
class Site(BaseModel):
    url: pydantic.HttpUrl
    dsn: pydantic.PostgresDsn | None = None


@codec.allow
@pydantic_dataclasses.dataclass(frozen=True)
class Price:
    amount: decimal.Decimal
    unit: str = Field(default="EUR", alias="currency")
    checked: bool = dataclasses.field(default=True, init=False)


@codec.allow
@attrs.define
class Part:
    name: str
    _weight: float = 0.0


@codec.allow
@attr.s(hash=True, cache_hash=True, frozen=True)
class Key:
    text: str = attr.ib()


@codec.allow
class Frame(msgspec.Struct, rename="camel", frozen=True):
    frame_id: int
    lines: tuple[Any, ...] = ()
