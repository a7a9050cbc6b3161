"""Models of pydantic with content that `==` does not show."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic

from wbengine.types import codec


@codec.allow
@dataclasses.dataclass
class Note:
    number: int = 0
    text: str = dataclasses.field(default="", compare=False)


@codec.allow
class Private(pydantic.BaseModel):
    _note: Note = pydantic.PrivateAttr(default_factory=Note)
    _any: Any = pydantic.PrivateAttr(default=0)


@codec.allow
class Default(pydantic.BaseModel):
    note: Note = Note()


def again(value: Any) -> Any:
    return codec.loads(codec.dumps(value))


def test_private_values_that_equal_those_of_a_new_instance_are_kept() -> None:
    model = Private()
    model._note.text = "x"
    assert again(model)._note.text == "x"
    for value in (False, 0.0, -0.0):
        model._any = value
        assert repr(again(model)._any) == repr(value)


def test_changed_default_is_kept() -> None:
    model = Default()
    model.note.text = "x"
    assert again(model).note.text == "x"
    assert again(Default()).model_fields_set == set()
