"""The fields of records: how each is dumped as plain data, loaded from that, and copied.

A field is declared where its class is, with its kind.  Data is *plain* (values of users are
left as they are), or *typed*: then they are written by the typed codec, and all of it is what
`json` can write and what comes back equal and of the same type.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from typing import Any, Final, TypeVar

from wbengine import _codec, _json_text, exceptions
from wbengine.types import failure as ft

__all__ = [
    "FAILURE", "META", "MOMENT", "NUMBER", "PLAIN", "VALUE", "WORD", "Kind", "OneOf", "Record",
    "Tuples", "aware", "field", "naive",
]  # fmt: skip

_R = TypeVar("_R", bound="Record")


class Kind:
    """A kind of field; this one is kept as it is.  None is dumped, and copied, as it is."""

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        """:raises NotEncodable: it cannot be typed."""
        return value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        """:raises ValueError, TypeError: of a typed one, it was never dumped."""
        return data

    def copy(self, value: Any) -> Any:
        """A copy that shares nothing that can change."""
        return value


class _Word(Kind):
    """A text that users give."""

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        if typed and not (value.isascii() or _json_text.is_text(value)):
            raise exceptions.NotEncodable(path=name, type_name="str with lone surrogates")
        return value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        if typed and not (isinstance(data, str) and _json_text.is_text(data)):
            raise _wrong(data, name)
        return data


class OneOf(Kind):
    """One of some words, or None."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = known

    def load(self, data: Any, name: str, typed: bool) -> Any:
        if typed and data is not None and data not in self._known:
            raise _wrong(data, name)
        return data


class _Number(Kind):
    def load(self, data: Any, name: str, typed: bool) -> Any:
        if typed and not isinstance(data, int):
            raise _wrong(data, name)
        return data


class _Value(Kind):
    """A value of users."""

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        return _codec.pack(value, name) if typed else value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return _codec.unpack(data) if typed else data

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is str or kind is int or kind is float or kind is bool:
            return value
        return copy.deepcopy(value)


class _Meta(_Value):
    """What listeners and users attach, by key; None where that is nothing."""

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        # Of a copy: other threads may be adding to it.
        return super().dump(dict(value), name, typed)

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return dict(super().load(data, name, typed)) if data else None


class _Failure(Kind):
    """Of the texts of one that is typed the first 65,536 characters are kept."""

    def dump(self, value: ft.Failure, name: str, typed: bool) -> Any:
        data = value.to_json()
        if typed:
            ft.shorten(data)
        return data

    def load(self, data: Any, name: str, typed: bool) -> ft.Failure | None:
        return None if data is None else ft.Failure.from_dict(data)


class Tuples(Kind):
    """A tuple of named tuples."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def dump(self, value: Any, name: str, typed: bool) -> Any:
        return [list(each) for each in value]

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return tuple([self._make(*each) for each in data or ()])


class _Moment(Kind):
    """A `datetime` in UTC that does not say so, as TaskFlow's: the two kinds cannot be compared."""

    def dump(self, value: datetime, name: str, typed: bool) -> Any:
        return aware(value).isoformat() if typed else value

    def load(self, data: Any, name: str, typed: bool) -> Any:
        return data if data is None or not typed else naive(datetime.fromisoformat(data))


def aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def naive(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment
    return moment.astimezone(timezone.utc).replace(tzinfo=None)


def _wrong(data: Any, name: str) -> ValueError:
    return ValueError(f"its {name} is {data!r:.80}")


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
    """A field of a record that is dumped.

    :param rare: only if it is not empty.
    :param given: to `__init__`.
    :param source: the attribute that is dumped (default: the field).
    """
    metadata = {"kind": kind, "rare": rare, "source": source}
    if given:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(default=default, init=False, metadata=metadata)


class Record:
    """Is dumped and loaded by its fields, but for those without a kind."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Describe the record's own row as plain data; values of users are left as they are."""
        return self.dump()

    @classmethod
    def from_dict(cls: type[_R], data: Mapping[str, Any]) -> _R:
        """Make the record that `to_dict` described; keys that are missing keep their defaults.

        :raises InvalidFormat: it is not said which record this is.
        """
        return cls.load(data)

    def dump(self, typed: bool = False) -> dict[str, Any]:
        """Describe the record's own row.

        :raises NotEncodable: a value cannot be typed.
        """
        known = _fields_of(type(self))
        data = known.values(self)
        for key, kind in known.dumpers:
            value = data[key]
            if value is not None:
                data[key] = kind.dump(value, key, typed)
        for key in known.rare:
            if not data[key]:
                del data[key]
        return data

    @classmethod
    def load(cls: type[_R], data: Mapping[str, Any], typed: bool = False) -> _R:
        """Make the record that was dumped."""
        record = cls._bare(data)
        known = _fields_of(cls)
        for name, key, kind in known.loaders:
            if key in data:
                setattr(record, name, kind.load(data[key], key, typed))
        for name, key in known.plain:
            if key in data:
                setattr(record, name, data[key])
        record._complete(data)
        return record

    @classmethod
    def _bare(cls: type[_R], data: Mapping[str, Any]) -> _R:
        raise NotImplementedError

    def _complete(self, data: Mapping[str, Any]) -> None:
        """Make up for what was not dumped yet when `data` was."""

    def _assign(self, other: Record) -> None:
        """Have the fields of `other`; values are shared."""
        _fields_of(type(self)).assign(self, other)

    def _assign_copies(self, other: Record) -> None:
        """Have the fields of `other`, and share nothing that can change."""
        self._assign(other)
        for name, kind in _fields_of(type(self)).copiers:
            value = getattr(self, name)  # of `other` a thread may just add to it
            if value is not None:
                setattr(self, name, kind.copy(value))


class _Fields:
    """The fields of a class that are dumped, by what is to be done with them."""

    def __init__(self, cls: Any) -> None:
        every = [(each.name, each.metadata) for each in dataclasses.fields(cls) if each.metadata]
        kinds = {name: more["kind"] for name, more in every}

        def with_own(method: str) -> list[str]:
            return [
                name
                for name, kind in kinds.items()
                if getattr(type(kind), method) is not getattr(Kind, method)
            ]

        # Records are copied and dumped often: as fast as if it were written out for each class.
        taken = "\n".join(f"    own.{name} = other.{name}" for name in kinds)
        items = ", ".join(f"{_key(name)!r}: own.{more['source'] or name}" for name, more in every)
        made: dict[str, Any] = {}
        exec(f"def assign(own, other):\n{taken}\ndef values(own):\n    return {{{items}}}", made)
        self.assign: Callable[[Any, Any], None] = made["assign"]
        self.values: Callable[[Any], dict[str, Any]] = made["values"]
        self.rare = tuple(_key(name) for name, more in every if more["rare"])
        self.dumpers = tuple((_key(name), kinds[name]) for name in with_own("dump"))
        self.loaders = tuple((name, _key(name), kinds[name]) for name in with_own("load"))
        self.plain = tuple((name, _key(name)) for name in kinds if name not in with_own("load"))
        self.copiers = tuple((name, kinds[name]) for name in with_own("copy"))


_known: Final[dict[Any, _Fields]] = {}


def _fields_of(cls: Any) -> _Fields:
    found = _known.get(cls)
    if found is None:
        found = _known[cls] = _Fields(cls)
    return found


def _key(name: str) -> str:
    return name.lstrip("_")
