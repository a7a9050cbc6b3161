"""Secrets in fields of values."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from wbengine.types import codec
from wbengine.views.redaction import Redactor

SECRET = "canary-4711"


@codec.allow
class Tuple(NamedTuple):
    password: str


@codec.allow
@dataclasses.dataclass(slots=True)
class Data:
    password: str


@codec.allow
@attrs.define
class Attrs:
    password: str


@codec.allow
class Struct(msgspec.Struct):
    password: str


@codec.allow
class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    password: str


@codec.allow
class Hidden(pydantic.BaseModel):
    _password: str = pydantic.PrivateAttr(default=SECRET)


@pytest.mark.parametrize(
    "value",
    [
        Tuple(SECRET),
        Data(SECRET),
        Attrs(SECRET),
        Struct(SECRET),
        Model(password=SECRET),
        Model.model_validate({"password": "", "token": {"inner": [SECRET]}}),
        Hidden(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_secret_in_a_field_is_masked_there_and_in_other_texts(value: Any) -> None:
    redactor = Redactor(show_values=True)
    assert SECRET not in str(redactor.value([value]))
    assert redactor.with_secrets_from({"a": [value]}).text(f"connect with {SECRET}") == (
        "connect with ***"
    )


def test_named_tuple_is_shown_with_the_names_of_its_fields() -> None:
    assert Redactor(show_values=True).value([Tuple("x")]) == [{"password": "***"}]
