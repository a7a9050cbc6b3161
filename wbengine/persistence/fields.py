"""The fields of records: how each is told as plain data, read from that, and copied.

A field is declared where its class is, with its kind.  What is told is *plain* (values of users are
left as they are), or *typed*: then they are written by the typed codec, and all of it is what
`json` can write and what comes back equal and of the same type.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, TypeVar

from wbengine import _codec, _codec_tags, exceptions
from wbengine.types import _description
from wbengine.types import failure as ft

__all__ = [
    "FAILURE", "META", "MOMENT", "NUMBER", "PLAIN", "VALUE", "WORD", "Kind", "OneOf", "Record",
    "Tuples", "aware", "field", "naive",
]  # fmt: skip

_R = TypeVar("_R", bound="Record")


class Kind:
    """A kind of field; this one is kept as it is."""

    def tell(self, value: Any, name: str, typed: bool) -> Any:
        """:raises NotEncodable: it cannot be typed."""
        return value

    def read(self, told: Any, name: str, typed: bool) -> Any:
        """:raises ValueError, TypeError: of a typed one, it was never told."""
        return told

    def copy(self, value: Any) -> Any:
        """A copy that shares nothing that can change."""
        return value


class _Word(Kind):
    """A text that users give."""

    def tell(self, value: Any, name: str, typed: bool) -> Any:
        if typed and not (value.isascii() or _codec_tags.is_text(value)):
            raise exceptions.NotEncodable(path=name, type_name="str with lone surrogates")
        return value

    def read(self, told: Any, name: str, typed: bool) -> Any:
        if typed and not (isinstance(told, str) and _codec_tags.is_text(told)):
            raise _wrong(told, name)
        return told


class OneOf(Kind):
    """One of some words, or None."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = known

    def read(self, told: Any, name: str, typed: bool) -> Any:
        if typed and told is not None and told not in self._known:
            raise _wrong(told, name)
        return told


class _Number(Kind):
    def read(self, told: Any, name: str, typed: bool) -> Any:
        if typed and not isinstance(told, int):
            raise _wrong(told, name)
        return told


class _Value(Kind):
    """A value of users."""

    def tell(self, value: Any, name: str, typed: bool) -> Any:
        return _codec.pack(value, name) if typed else value

    def read(self, told: Any, name: str, typed: bool) -> Any:
        return _codec.unpack(told) if typed else told

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is str or kind is int or kind is float or kind is bool:
            return value
        return copy.deepcopy(value)


class _Meta(_Value):
    """What listeners and users attach, by key; None where that is nothing."""

    def tell(self, value: Any, name: str, typed: bool) -> Any:
        # Of a copy: other threads may be adding to it.
        return super().tell(dict(value) if value else {}, name, typed)

    def read(self, told: Any, name: str, typed: bool) -> Any:
        return dict(super().read(told, name, typed)) if told else None


class _Failure(Kind):
    """Of the texts of one that is typed the first 65,536 characters are kept."""

    def tell(self, value: ft.Failure | None, name: str, typed: bool) -> Any:
        if value is None:
            return None
        told = value.to_json()
        if typed:
            _description.shorten(told)
        return told

    def read(self, told: Any, name: str, typed: bool) -> ft.Failure | None:
        return None if told is None else ft.Failure.from_dict(told)


class Tuples(Kind):
    """A tuple of named tuples."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def tell(self, value: Any, name: str, typed: bool) -> Any:
        return [list(each) for each in value]

    def read(self, told: Any, name: str, typed: bool) -> Any:
        return tuple([self._make(*each) for each in told or ()])


class _Moment(Kind):
    """A `datetime` in UTC that does not say so, as TaskFlow's: the two kinds cannot be compared."""

    def tell(self, value: datetime | None, name: str, typed: bool) -> Any:
        return value if value is None or not typed else aware(value).isoformat()

    def read(self, told: Any, name: str, typed: bool) -> Any:
        return told if told is None or not typed else naive(datetime.fromisoformat(told))


def aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def naive(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment
    return moment.astimezone(timezone.utc).replace(tzinfo=None)


def _wrong(told: Any, name: str) -> ValueError:
    return ValueError(f"its {name} is {told!r:.80}")


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
    """A field of a record that is told.

    :param rare: only if it is not empty.
    :param given: to `__init__`.
    :param source: the attribute that is told (default: the field).
    """
    told = {"kind": kind, "rare": rare, "source": source}
    if given:
        return dataclasses.field(default=default, metadata=told)
    return dataclasses.field(default=default, init=False, metadata=told)


class Record:
    """What is told of itself by its fields.  Fields without a kind are not told."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Describe the record's own row as plain data; values of users are left as they are."""
        return self.tell()

    @classmethod
    def from_dict(cls: type[_R], data: Mapping[str, Any]) -> _R:
        """Make the record that `to_dict` described; keys that are missing keep their defaults.

        :raises InvalidFormat: it is not said which record this is.
        """
        return cls.read(data)

    def tell(self, typed: bool = False) -> dict[str, Any]:
        """Describe the record's own row.

        :raises NotEncodable: a value cannot be typed.
        """
        told = {}
        for _, key, kind, rare, source in _told_fields(type(self)):
            value = getattr(self, source)
            if value or not rare:
                told[key] = kind.tell(value, key, typed)
        return told

    @classmethod
    def read(cls: type[_R], data: Mapping[str, Any], typed: bool = False) -> _R:
        """Make the record that was told."""
        record = cls._bare(data)
        for name, key, kind, *_ in _told_fields(cls):
            if key in data:
                setattr(record, name, kind.read(data[key], key, typed))
        record._complete(data)
        return record

    @classmethod
    def _bare(cls: type[_R], data: Mapping[str, Any]) -> _R:
        raise NotImplementedError

    def _complete(self, data: Mapping[str, Any]) -> None:
        """Make up for what was not told yet when `data` was."""

    def _take(self, other: Record, *, without: Collection[str] = ()) -> None:
        """Have the told fields of `other`; values are shared, but for a dict of its own."""
        for name, key, *_ in _told_fields(type(self)):
            if key not in without:
                value = getattr(other, name)
                # Other threads may be adding to theirs.
                setattr(self, name, dict(value) if name == "_meta" and value is not None else value)

    def _take_copies(self, other: Record) -> None:
        """Have the told fields of `other`, and share nothing that can change."""
        for name, _, kind, *_ in _told_fields(type(self)):
            setattr(self, name, kind.copy(getattr(other, name)))


class _Told(NamedTuple):
    """A field that is told: its name, key and kind, whether it is rare, and its source."""

    name: str
    key: str
    kind: Kind
    rare: bool
    source: str


_FIELDS: Final[dict[Any, tuple[_Told, ...]]] = {}


def _told_fields(cls: Any) -> tuple[_Told, ...]:
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = tuple(
            _Told(name, name.lstrip("_"), told["kind"], told["rare"], told["source"] or name)
            for name, told in ((each.name, each.metadata) for each in dataclasses.fields(cls))
            if told
        )
    return found
