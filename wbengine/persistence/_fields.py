"""Fields of records: conversion to data, loading and copying.

Each class declares the kind of each field. Data is *plain* (values of users are not converted) or
*typed* (the typed codec converts values of users to JSON and preserves their types).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine._text import json_text
from wbengine.types import codec
from wbengine.types import failure as ft

__all__ = [
    "FAILURE", "META", "MOMENT", "NUMBER", "PLAIN", "VALUE", "WORD", "Kind", "OneOf", "Record",
    "Tuples", "aware", "field", "naive",
]  # fmt: skip

_R = TypeVar("_R", bound="Record")


class Kind:
    """A kind of field. This base class returns values unchanged. All kinds keep None."""

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        """Return the value as data.

        :raises NotEncodable: if it cannot be typed.
        """
        return value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        """Return the value of the data.

        :raises ValueError, TypeError: if typed data is invalid.
        """
        return data

    def copy(self, value: Any) -> Any:
        """Return a copy that shares no mutable object with the value."""
        return value


class _Word(Kind):
    def dump(self, value: Any, name: str, typed: bool) -> Any:
        if typed and not (value.isascii() or json_text.is_text(value)):
            raise exceptions.NotEncodable(path=name, type_name="str with lone surrogates")
        return value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        if typed and not (isinstance(data, str) and json_text.is_text(data)):
            raise _invalid(data, name)
        return data


class OneOf(Kind):
    def __init__(self, words: Collection[str]) -> None:
        self._words = words

    def load(self, data: Any, name: str, typed: bool) -> Any:
        if typed and data is not None and data not in self._words:
            raise _invalid(data, name)
        return data


class _Number(Kind):
    def load(self, data: Any, name: str, typed: bool) -> Any:
        if typed and not isinstance(data, int):
            raise _invalid(data, name)
        return data


class _Value(Kind):
    def dump(self, value: Any, name: str, typed: bool) -> Any:
        return codec.pack(value, name) if typed else value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return codec.unpack(data) if typed else data

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is str or kind is int or kind is float or kind is bool:
            return value
        return copy.deepcopy(value)


class _Meta(_Value):
    """A dict of user data. An empty one is loaded as None."""

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        # A copy, because other threads may add to the dict during the dump.
        return super().dump(dict(value), name, typed) if value else {}

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return dict(super().load(data, name, typed)) if data else None


class _Failure(Kind):
    """A failure. Long texts of typed failures are shortened."""

    def dump(self, value: ft.Failure, name: str, typed: bool) -> Any:
        data = value.to_json(include_home=True)
        if typed:
            ft.shorten(data)
        return data

    def load(self, data: Any, name: str, typed: bool) -> ft.Failure | None:
        return None if data is None else ft.Failure.from_dict(data, read_home=True)


class Tuples(Kind):
    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        return [list(each) for each in value]

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return tuple([self._make(*each) for each in data or ()])


class _Moment(Kind):
    """A `datetime` in UTC without a time zone, as in TaskFlow."""

    def dump(self, value: datetime, name: str, typed: bool) -> Any:
        return aware(value).isoformat() if typed else value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return data if data is None or not typed else naive(datetime.fromisoformat(data))


def aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def naive(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment
    return moment.astimezone(UTC).replace(tzinfo=None)


def _invalid(data: Any, name: str) -> ValueError:
    return ValueError(f"invalid {name}: {data!r:.80}")


PLAIN: Final = Kind()
WORD: Final = _Word()
NUMBER: Final = _Number()
VALUE: Final = _Value()
META: Final = _Meta()
FAILURE: Final = _Failure()
MOMENT: Final = _Moment()


def field(
    kind: Kind,
    default: Any = None,
    *,
    rare: bool = False,
    given: bool = False,
    source: str | None = None,
) -> Any:
    """Declare a field that `Record.dump` includes.

    :param rare: include the field only if it is not empty.
    :param given: make the field a parameter of `__init__`.
    :param source: name of the attribute that is dumped; default: the name of the field.
    """
    metadata = {"kind": kind, "rare": rare, "source": source}
    if given:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(default=default, init=False, metadata=metadata)


class Record:
    """A record that is dumped and loaded by its fields. Fields without a kind are excluded."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the record's own fields as plain data; values of users are not converted."""
        return self.dump()

    @classmethod
    def from_dict(cls: type[_R], data: Mapping[str, Any]) -> _R:
        """Create a record from the data of `to_dict`. Missing keys have their defaults.

        :raises InvalidFormat: if the keys that identify the record are missing.
        """
        return cls.load(data)

    def dump(self, typed: bool = False) -> dict[str, Any]:
        """Return the record's own fields as data.

        :raises NotEncodable: if a value cannot be typed.
        """
        class_fields = _fields_of(type(self))
        data = class_fields.values(self)
        for key, kind in class_fields.dumpers:
            value = data[key]
            if value is not None:
                data[key] = kind.dump(value, key, typed)
        for key in class_fields.rare:
            if not data[key]:
                del data[key]
        return data

    @classmethod
    def load(cls: type[_R], data: Mapping[str, Any], typed: bool = False) -> _R:
        record = cls._from_identity(data)
        class_fields = _fields_of(cls)
        for name, key, kind in class_fields.loaders:
            if key in data:
                setattr(record, name, kind.load(data[key], key, typed))
        for name, key in class_fields.plain:
            if key in data:
                setattr(record, name, data[key])
        record._complete(data)
        return record

    @classmethod
    def _from_identity(cls: type[_R], data: Mapping[str, Any]) -> _R:
        raise NotImplementedError

    def _complete(self, data: Mapping[str, Any]) -> None:
        """Complete the fields after `load` has set them from `data`."""

    def _assign(self, other: Record) -> None:
        """Copy all fields of `other`. The values are shared."""
        _fields_of(type(self)).assign(self, other)

    def _assign_copies(self, other: Record) -> None:
        """Copy all fields of `other` without sharing mutable objects."""
        self._assign(other)
        for name, kind in _fields_of(type(self)).copiers:
            value = getattr(self, name)  # Not from `other`: another thread may modify that value.
            if value is not None:
                setattr(self, name, kind.copy(value))


class _Fields:
    """The stored fields of a class of records, grouped by the methods that their kinds define.

    A field whose kind has no `dump`, `load` or `copy` method of its own needs no call of it.
    """

    def __init__(self, cls: Any) -> None:
        metadata_by_name = [
            (each.name, each.metadata) for each in dataclasses.fields(cls) if each.metadata
        ]
        kinds = {name: metadata["kind"] for name, metadata in metadata_by_name}

        def with_own(method: str) -> list[str]:
            return [
                name
                for name, kind in kinds.items()
                if getattr(type(kind), method) is not getattr(Kind, method)
            ]

        # Records are copied and dumped often. Generated code is as fast as handwritten code.
        assignments = "\n".join(f"    own.{name} = other.{name}" for name in kinds)
        items = ", ".join(
            f"{_key(name)!r}: own.{metadata['source'] or name}"
            for name, metadata in metadata_by_name
        )
        namespace: dict[str, Any] = {}
        exec(
            f"def assign(own, other):\n{assignments}\ndef values(own):\n    return {{{items}}}",
            namespace,
        )
        self.assign: Callable[[Any, Any], None] = namespace["assign"]
        self.values: Callable[[Any], dict[str, Any]] = namespace["values"]
        self.rare = tuple(_key(name) for name, metadata in metadata_by_name if metadata["rare"])
        self.dumpers = tuple((_key(name), kinds[name]) for name in with_own("dump"))
        self.loaders = tuple((name, _key(name), kinds[name]) for name in with_own("load"))
        self.plain = tuple((name, _key(name)) for name in kinds if name not in with_own("load"))
        self.copiers = tuple((name, kinds[name]) for name in with_own("copy"))


_fields_by_class: Final[dict[Any, _Fields]] = {}


def _fields_of(cls: Any) -> _Fields:
    class_fields = _fields_by_class.get(cls)
    if class_fields is None:
        class_fields = _fields_by_class[cls] = _Fields(cls)
    return class_fields


def _key(name: str) -> str:
    return name.lstrip("_")
