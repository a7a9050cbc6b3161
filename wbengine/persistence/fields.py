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
from typing import Any, Final, TypeVar

from wbengine import _codec, _codec_tags, exceptions
from wbengine.types import _description
from wbengine.types import failure as ft

__all__ = [
    "FAILURE", "META", "MOMENT", "NUMBER", "PLAIN", "VALUE", "WORD", "Kind", "OneOf", "Record",
    "Tuples", "aware", "field", "naive",
]  # fmt: skip

_R = TypeVar("_R", bound="Record")


class Kind:
    """A kind of field; this one is kept as it is.  None is told, and copied, as it is."""

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
        return super().tell(dict(value), name, typed)

    def read(self, told: Any, name: str, typed: bool) -> Any:
        return dict(super().read(told, name, typed)) if told else None


class _Failure(Kind):
    """Of the texts of one that is typed the first 65,536 characters are kept."""

    def tell(self, value: ft.Failure, name: str, typed: bool) -> Any:
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

    def tell(self, value: datetime, name: str, typed: bool) -> Any:
        return aware(value).isoformat() if typed else value

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
        known = _fields_of(type(self))
        told = known.told(self)
        for key, kind in known.tellers:
            value = told[key]
            if value is not None:
                told[key] = kind.tell(value, key, typed)
        for key in known.rare:
            if not told[key]:
                del told[key]
        return told

    @classmethod
    def read(cls: type[_R], data: Mapping[str, Any], typed: bool = False) -> _R:
        """Make the record that was told."""
        record = cls._bare(data)
        known = _fields_of(cls)
        for name, key, kind in known.readers:
            if key in data:
                setattr(record, name, kind.read(data[key], key, typed))
        for name, key in known.plain:
            if key in data:
                setattr(record, name, data[key])
        record._complete(data)
        return record

    @classmethod
    def _bare(cls: type[_R], data: Mapping[str, Any]) -> _R:
        raise NotImplementedError

    def _complete(self, data: Mapping[str, Any]) -> None:
        """Make up for what was not told yet when `data` was."""

    def _take(self, other: Record) -> None:
        """Have the fields of `other`; values are shared."""
        _fields_of(type(self)).take(self, other)

    def _take_copies(self, other: Record) -> None:
        """Have the fields of `other`, and share nothing that can change."""
        self._take(other)
        for name, kind in _fields_of(type(self)).copiers:
            value = getattr(self, name)  # of `other` a thread may just add to it
            if value is not None:
                setattr(self, name, kind.copy(value))


class _Fields:
    """The fields of a class that are told, by what is to be done with them."""

    def __init__(self, cls: Any) -> None:
        told = [(each.name, each.metadata) for each in dataclasses.fields(cls) if each.metadata]
        kinds = {name: more["kind"] for name, more in told}

        def with_own(method: str) -> list[str]:
            return [
                name
                for name, kind in kinds.items()
                if getattr(type(kind), method) is not getattr(Kind, method)
            ]

        # Records are copied and told often: as fast as if it were written out for each class.
        taken = "\n".join(f"    own.{name} = other.{name}" for name in kinds)
        items = ", ".join(f"{_key(name)!r}: own.{more['source'] or name}" for name, more in told)
        made: dict[str, Any] = {}
        exec(f"def take(own, other):\n{taken}\ndef told(own):\n    return {{{items}}}", made)
        self.take: Callable[[Any, Any], None] = made["take"]
        self.told: Callable[[Any], dict[str, Any]] = made["told"]
        self.rare = tuple(_key(name) for name, more in told if more["rare"])
        self.tellers = tuple((_key(name), kinds[name]) for name in with_own("tell"))
        self.readers = tuple((name, _key(name), kinds[name]) for name in with_own("read"))
        self.plain = tuple((name, _key(name)) for name in kinds if name not in with_own("read"))
        self.copiers = tuple((name, kinds[name]) for name in with_own("copy"))


_known: Final[dict[Any, _Fields]] = {}


def _fields_of(cls: Any) -> _Fields:
    found = _known.get(cls)
    if found is None:
        found = _known[cls] = _Fields(cls)
    return found


def _key(name: str) -> str:
    return name.lstrip("_")
