"""Values that can be sent to workers and stored, and how to add types.

In addition to the types of JSON, arguments and results may contain tuples, sets, frozensets, bytes,
complex numbers, `Decimal`, `UUID`, `datetime`, `date`, `time`, `timedelta`, failures, dicts with
keys that are not strings, and, after `allow`, enumerations and dataclasses::

    from wbengine.types import codec

    @codec.allow
    @dataclasses.dataclass(frozen=True)
    class Order:
        number: int
        due: datetime.date

The receiver gets equal values of the same types. All other values are rejected with their path
before they are sent. Limits: 64 levels of JSON (a list, or a dict with only string keys, is one
level; a tuple, set or dataclass two; any other dict three); 32 keys of a set or dict with the same
hash; 100,000 keys that are neither text nor bytes, in values sent to or from a worker.

Call `allow` in the module that defines the class, so that sender and receiver both allow it. A
message never causes an import.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import contextvars
import dataclasses
import datetime as dt
import decimal
import enum
import uuid
import zoneinfo
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import json_text
from wbengine.types import failure as ft

__all__ = ["allow", "dumps", "loads"]

# A value is decoded as the same value of the same type.
#
# Plain values (dicts with string keys, lists, strings, numbers, booleans, None) are written as
# plain JSON, so that messages stay readable and other programs can create them. Other values
# become a *tag*, an object with the reserved key `$wbe`:
#
#     (1, 2)          {"$wbe": "tuple", "v": [1, 2]}
#     {1: "a"}        {"$wbe": "dict", "v": [[1, "a"]]}       also a dict with a key "$wbe"
#     b"ab"           {"$wbe": "bytes", "v": "YWI="}
#     float("nan")    {"$wbe": "float", "v": "nan"}
#     Color.RED       {"$wbe": "enum", "c": "colors.Color", "v": "RED"}       after `allow(Color)`
#
# Tags exist for tuple, set, frozenset, bytes, complex, Decimal, UUID, datetime, date, time,
# timedelta, `Failure`, strings with lone surrogates, non-finite floats, and allowed enumerations
# and dataclasses. All other values are rejected with their path. This includes subclasses of
# builtins (namedtuple, OrderedDict, IntEnum, ...), which would lose their type, and sets and
# dicts with too many hash collisions.
#
# Cost: one pass over the value. A value that needs no tag is returned unchanged, not copied.

#: The reserved key. No plain JSON object contains it.
TAG: Final = "$wbe"
#: Maximum nesting of JSON containers. A tag counts as the containers of which it consists.
MAX_DEPTH: Final = 64
#: Limits for dict keys and set items in data from or to another process: the number of keys other
#: than text and bytes, and the number of keys with the same hash. Python salts only the hashes of
#: text and bytes. With other keys, a malicious peer could make decoding take quadratic time.
MAX_KEYS: Final = 100_000
MAX_EQUAL_HASHES: Final = 32
#: Whether a value is exchanged with another process, so that `MAX_KEYS` applies.
_is_remote: Final = contextvars.ContextVar("travels", default=False)
#: Whether values of unknown classes are decoded to plain values.
_shows_unknown: Final = contextvars.ContextVar("shows_unknown", default=False)
#: Maximum number of characters of one key in the path of a rejected value.
_MAX_STEP_LENGTH: Final = 200

_TOO_BIG: Final = 10**json_text.MAX_DIGITS
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_SURROGATE: Final = "a string has a lone surrogate"
_FLOATS: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}

_C = TypeVar("_C", bound=type)
_Parts = dict[str, Any]

#: The allowed classes by dotted name.
_allowed: Final[dict[str, type]] = {}


def allow(cls: _C) -> _C:
    """Allow the members of an Enum, or the instances of a dataclass, to be encoded and decoded.

    Usable as a decorator. Call it where the class is defined, so that sender and receiver both
    allow the class. Decoding does not call `__init__` or `__post_init__`. Returns `cls`.

    :raises TypeError: for any other class, and for a dataclass that is an exception or a subclass
        of a builtin, because these have state outside of their fields.
    """
    is_enum = isinstance(cls, type) and issubclass(cls, enum.Enum)
    is_data = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    if not is_enum and (not is_data or _base(cls) is not None or issubclass(cls, BaseException)):
        raise TypeError(f"allowed class must be an Enum or a dataclass, got {cls!r}")
    _allowed[object_names.dotted(cls)] = cls
    return cls


def pack(value: Any, where: str = "result") -> Any:
    """Return the JSON tree of `value`. Do not change `value` while the tree is in use.

    :raises NotEncodable: if a part of it cannot be encoded. The message begins with the path to
        this part, relative to `where` (`result['a'][3]: socket.socket ...`).
    """
    return _encode_tree(value, where, typed=True)


def plain(value: Any, where: str = "result") -> Any:
    """Return the JSON tree of `value` for peers that support only plain JSON.

    :raises NotEncodable: as for `pack`, and if a value needs a tag.
    """
    return _encode_tree(value, where, typed=False)


def dumps(value: Any, where: str = "result") -> bytes:
    """Encode a value as compact UTF-8 JSON, with `pack`.

    >>> loads(dumps({(1, 2): b"ab"}))
    {(1, 2): b'ab'}

    :raises NotEncodable: see `pack`.
    """
    return json_text.encode(pack(value, where), finite=True)


def unpack(tree: Any) -> Any:
    """Return the value of a tree that `pack` created.

    The tree is not changed, but may become part of the value.

    :raises InvalidFormat: if `pack` cannot have created the tree.
    """
    kind = type(tree)
    if tree is None or kind is int or kind is bool or (kind is str and tree.isascii()):
        return tree
    return _decode_tree(tree, MAX_DEPTH, typed=True)


def pack_to_send(value: Any, where: str = "result") -> Any:
    """Encode like `pack`, with the limits for data to another process."""
    before = _is_remote.set(True)
    try:
        return pack(value, where)
    finally:
        _is_remote.reset(before)


def unpack_received(tree: Any) -> Any:
    """Decode like `unpack`, with the limits for data from another process."""
    before = _is_remote.set(True)
    try:
        return unpack(tree)
    finally:
        _is_remote.reset(before)


@contextlib.contextmanager
def unknown_classes_as_text() -> Iterator[None]:
    """Decode values of unknown classes in the `with` block, in order to show them, not to use them.

    An instance becomes a dict of its fields, and a member of an enumeration its name.
    """
    before = _shows_unknown.set(True)
    try:
        yield
    finally:
        _shows_unknown.reset(before)


def loads(data: bytes | bytearray | memoryview | str, depth: int = MAX_DEPTH) -> Any:
    """Decode JSON text, including tags.

    :raises InvalidFormat: see `parse` and `unpack`.
    """
    return _decode_tree(json_text.parse(data)[0], depth, typed=True)


def parse(data: bytes | bytearray | memoryview | str, depth: int = MAX_DEPTH) -> Any:
    """Return the tree of JSON text, without decoding tags.

    :raises InvalidFormat: if it is not strict JSON in UTF-8, or contains NaN, infinities (also by
        overflow), repeated keys, lone surrogates, integers over 4,300 digits, or more than `depth`
        levels.
    """
    tree, suspect = json_text.parse(data)
    flat = type(data) is bytes and not json_text.has_more_containers(data, depth)
    if not suspect and (flat or not json_text.is_deeper(tree, depth)):
        return tree
    return _decode_tree(tree, depth, typed=False)


class _CodecError(Exception):
    """An error for a value that cannot be encoded or decoded.

    Each level that it passes adds a step to its path, so the steps are in reverse order.
    """

    def __init__(self, reason: str, culprit: Any = None) -> None:
        super().__init__(reason)
        self.culprit = culprit
        self._path: list[str] = []

    def inside(self, step: str) -> _CodecError:
        self._path.append(step)
        return self

    @property
    def path(self) -> str:
        return "".join(reversed(self._path))


def _encode_tree(value: Any, where: str, typed: bool) -> Any:
    try:
        return _pack(value, MAX_DEPTH, typed)
    except _CodecError as unfit:
        path, type_name = where + unfit.path, object_names.dotted(type(unfit.culprit))
        message = f"{path}: {type_name} {unfit}"
    raise exceptions.NotEncodable(message, path=path, type_name=type_name)


def _decode_tree(tree: Any, depth: int, typed: bool) -> Any:
    try:
        return _unpack(tree, depth, typed)
    except _CodecError as unfit:
        message = f"{unfit.path}: {unfit}" if unfit.path else str(unfit)
    raise exceptions.InvalidFormat(message)


# Encoding and decoding. `depth_left` is the number of containers that may still be nested. `typed`
# allows tags.

_Walk = Callable[[Any, int, bool], Any]


def _pack(value: Any, depth_left: int, typed: bool) -> Any:
    kind = type(value)
    if kind is str and (value.isascii() or json_text.is_text(value)):
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if -_TOO_BIG < value < _TOO_BIG:
            return value
        raise _CodecError(f"has more than {json_text.MAX_DIGITS} digits", value)
    if kind is float and value - value == 0.0:
        return value
    if kind is not list and kind is not dict:
        return _pack_tagged(value, depth_left, typed)
    if depth_left <= 0:
        raise _too_deep(value)
    if kind is list:
        return _convert_items(value, enumerate(value), _pack, depth_left - 1, typed)
    for key in value:
        if type(key) is not str or not (key.isascii() or json_text.is_text(key)):
            if not typed:
                step = f"<key {_short(key)}>"
                raise _CodecError("is not a plain JSON key", key).inside(step)
            return _pack_tagged(value, depth_left, typed)
        if key == TAG and typed:
            return _pack_tagged(value, depth_left, typed)
    return _convert_items(value, value.items(), _pack, depth_left - 1, typed)


def _unpack(tree: Any, depth_left: int, typed: bool) -> Any:
    kind = type(tree)
    if kind is str:
        if tree.isascii() or json_text.is_text(tree):
            return tree
        raise _CodecError(_SURROGATE)
    if tree is None or kind is int or kind is bool:
        return tree
    if kind is float:
        if tree - tree != 0.0:
            raise _CodecError(f"{tree} is not a JSON number")
        return tree
    if kind is not list and kind is not dict:
        raise _CodecError(f"{object_names.dotted(kind)} is not JSON")
    if depth_left <= 0:
        raise _CodecError("nested too deeply")
    if kind is list:
        return _convert_items(tree, enumerate(tree), _unpack, depth_left - 1, typed)
    if typed and TAG in tree:
        return _unpack_tagged(tree, depth_left - 1)
    return _unpack_dict(tree, depth_left - 1, typed)


def _unpack_dict(tree: dict[Any, Any], depth_left: int, typed: bool = True) -> dict[str, Any]:
    for key in tree:
        if type(key) is not str or not (key.isascii() or json_text.is_text(key)):
            reason = _SURROGATE if type(key) is str else "a key is not a string"
            raise _CodecError(reason).inside(f"[{_short(key)}]")
    unpacked: dict[str, Any] = _convert_items(tree, tree.items(), _unpack, depth_left, typed)
    return unpacked


def _convert_items(
    value: Any, items: Iterable[tuple[Any, Any]], walk: _Walk, depth_left: int, typed: bool
) -> Any:
    """Return the results of `walk` for the items, or the same object if nothing changes."""
    changed_copy: Any = None
    key: Any = None
    try:
        for key, item in items:
            kind = type(item)  # Avoid a call for values that do not change.
            if (
                (kind is str and item.isascii())
                or (kind is int and -_TOO_BIG < item < _TOO_BIG)
                or item is None
                or kind is bool
                or (kind is float and item - item == 0.0)
            ):
                continue
            new = walk(item, depth_left, typed)
            if new is not item:
                if changed_copy is None:
                    changed_copy = value.copy()
                changed_copy[key] = new
    except _CodecError as unfit:
        unfit.inside(f"[{repr(key)[:_MAX_STEP_LENGTH]}]")
        raise
    return value if changed_copy is None else changed_copy


# Tags. ----------------------------------------------------------------------------------------


class _Tag(NamedTuple):
    """An encoder and a decoder for one kind of values.

    `write` returns the content of the tag, which has only the keys `keys`. `read` receives it. A
    ValueError of `write` contains the reason for the rejection. `read` may raise the exceptions of
    constructors. `levels` is the minimum number of containers of which the tag consists.
    """

    name: str
    write: Callable[[Any, int], _Parts]
    read: Callable[[_Parts, int], Any]
    keys: frozenset[str] = frozenset({"v"})
    levels: int = 1


def _pack_tagged(value: Any, depth_left: int, typed: bool) -> Any:
    cls = type(value)
    tag = _BY_CLASS.get(cls)
    if tag is None and _allowed.get(object_names.dotted(cls)) is cls:
        tag = _BY_NAME["enum" if issubclass(cls, enum.Enum) else "data"]
    if tag is None:
        raise _CodecError(_rejection_reason(value), value)
    if not typed:
        raise _CodecError("is not plain JSON, the only format that the receiver reads", value)
    if depth_left < tag.levels:
        raise _too_deep(value)
    try:
        return {TAG: tag.name, **tag.write(value, depth_left - tag.levels)}
    except ValueError as error:
        raise _CodecError(str(error), value) from None


def _unpack_tagged(tree: _Parts, depth_left: int) -> Any:
    name = tree[TAG]
    try:
        tag = _BY_NAME.get(name) if isinstance(name, str) else None
        if tag is None:
            raise _CodecError(f"unknown tag {_short(name)}")
        parts = {key: item for key, item in tree.items() if key != TAG}
        for key in parts:
            if key not in tag.keys:
                raise ValueError(f"key {_short(key)} is not expected")
        return tag.read(parts, depth_left)
    except (ValueError, TypeError, LookupError, ArithmeticError, OSError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise _CodecError(f"malformed tag {_short(name)}: {reason}") from None
    except exceptions.InvalidFormat as error:
        raise _CodecError(f"malformed tag {_short(name)}: {error}") from None


def _part(value: Any, depth_left: int, step: str, *place: Any) -> Any:
    try:
        return _pack(value, depth_left, True)
    except _CodecError as unfit:
        unfit.inside(step % tuple(map(_short, place)))
        raise


def _items(parts: _Parts, depth_left: int) -> list[Any]:
    value = parts["v"]
    if type(value) is not list:
        raise TypeError("v is not a list")
    if depth_left <= 0:
        raise _CodecError("nested too deeply")
    items: list[Any] = _convert_items(value, enumerate(value), _unpack, depth_left - 1, True)
    return items


def _write_tuple(value: tuple[Any, ...], depth_left: int) -> _Parts:
    return {"v": _convert_items(list(value), enumerate(value), _pack, depth_left, True)}


def _check_hashes(keys: Collection[Any]) -> None:
    """Check that a set or dict of these keys is built in linear time.

    :raises ValueError: if this is not certain.
    :raises TypeError: if a key is not hashable.
    """
    if len(keys) > MAX_KEYS and _is_remote.get():
        unsalted_count = sum(type(key) is not str and type(key) is not bytes for key in keys)
        if unsalted_count > MAX_KEYS:
            raise ValueError(
                f"has {unsalted_count:,} keys that are neither text nor bytes, over {MAX_KEYS:,}"
            )
    if len(keys) > MAX_EQUAL_HASHES:
        max_collisions = max(collections.Counter(map(hash, keys)).values())
        if max_collisions > MAX_EQUAL_HASHES:
            raise ValueError(
                f"has {max_collisions:,} keys with the same hash, over {MAX_EQUAL_HASHES}"
            )


def _write_set(value: Collection[Any], depth_left: int) -> _Parts:
    _check_hashes(value)
    packed = [_part(item, depth_left, "{...}") for item in value]
    # Sorted, so that equal sets have equal bytes in all processes.
    return {"v": sorted(packed, key=json_text.text_of)}


def _read_set(parts: _Parts, depth_left: int) -> set[Any]:
    items = _items(parts, depth_left)
    _check_hashes(items)
    members = set(items)
    if len(members) != len(items):
        raise ValueError("an item is repeated")
    return members


def _write_pairs(value: dict[Any, Any], depth_left: int) -> _Parts:
    _check_hashes(value)
    return {
        "v": [
            [_part(key, depth_left, "<key %s>", key), _part(item, depth_left, "[%s]", key)]
            for key, item in value.items()
        ]
    }


def _read_pairs(parts: _Parts, depth_left: int) -> dict[Any, Any]:
    items = _items(parts, depth_left)
    if any(type(item) is not list or len(item) != 2 for item in items):
        raise ValueError("v is not a list of pairs")
    _check_hashes([key for key, _ in items])
    pairs = {key: item for key, item in items}  # noqa: C416  (the pairs are lists)
    if len(pairs) != len(items):
        raise ValueError("a key is repeated")
    return pairs


def _write_failure(value: ft.Failure, depth_left: int) -> _Parts:
    try:
        return {"v": _pack(value.to_json(), depth_left, True)}
    except _CodecError:
        # The arguments of the exception may be nested too deeply.
        return {"v": _pack(value.to_json(include_args=False), depth_left, True)}


def _read_failure(parts: _Parts, depth_left: int) -> ft.Failure:
    data = _unpack(parts["v"], depth_left, True)
    ft.Failure.validate(data)
    return ft.Failure.from_dict(data)


def _write_enum(value: enum.Enum, depth_left: int) -> _Parts:
    cls = type(value)
    if value.name in cls.__members__:
        return {"c": object_names.dotted(cls), "v": value.name}
    # A combination of flags has a value but no name.
    return {"c": object_names.dotted(cls), "n": _pack(value.value, depth_left, True)}


def _read_enum(parts: _Parts, depth_left: int) -> enum.Enum | str:
    if _is_shown_only(parts):
        return f"{parts['c']}.{parts['v']}" if "v" in parts else f"{parts['c']}({parts['n']})"
    cls = _class(parts, is_enum=True)
    if "v" in parts:
        return cls.__members__[parts["v"]]  # type: ignore[no-any-return]
    return cls(_unpack(parts["n"], depth_left, True))  # type: ignore[no-any-return]


def _write_data(value: Any, depth_left: int) -> _Parts:
    names = [field.name for field in dataclasses.fields(value)]
    missing = [name for name in names if not hasattr(value, name)]
    extra = [name for name in getattr(value, "__dict__", ()) if name not in names]
    if missing or extra:
        if missing:
            raise ValueError(f"lacks its field {missing[0]!r}")
        raise ValueError(f"has the attribute {extra[0]!r}, which is not a field")
    packed = {name: _part(getattr(value, name), depth_left, f".{name}") for name in names}
    return {"c": object_names.dotted(type(value)), "v": packed}


def _read_data(parts: _Parts, depth_left: int) -> Any:
    values = parts["v"]
    if _is_shown_only(parts) and type(values) is dict and depth_left > 0:
        return _unpack_dict(values, depth_left - 1)
    cls = _class(parts, is_enum=False)
    names = {field.name for field in dataclasses.fields(cls)}
    if type(values) is not dict or values.keys() != names:
        raise ValueError(f"the fields of {parts['c']} are {', '.join(sorted(names))}")
    if depth_left <= 0:
        raise _CodecError("nested too deeply")
    instance = object.__new__(cls)
    for name, value in _unpack_dict(values, depth_left - 1).items():
        object.__setattr__(instance, name, value)
    return instance


def _is_shown_only(parts: _Parts) -> bool:
    name = parts["c"]
    return _shows_unknown.get() and isinstance(name, str) and name not in _allowed


def _class(parts: _Parts, is_enum: bool) -> Any:
    name = parts["c"]
    cls = _allowed.get(name) if isinstance(name, str) else None
    if cls is None:
        raise _CodecError(
            f"class {_short(name)} is not known in this process: import the module that defines it"
            " and passes it to wbengine.types.codec.allow (commands: option -I MODULE)"
        )
    if issubclass(cls, enum.Enum) is not is_enum:
        raise ValueError(f"class {name!r} has another kind")
    return cls


def _write_moment(value: dt.datetime | dt.time, depth_left: int) -> _Parts:
    zone = value.tzinfo
    parts: _Parts = {"v": value.replace(tzinfo=None).isoformat()}
    if value.fold:
        parts["fold"] = 1
    if type(zone) is zoneinfo.ZoneInfo:
        if zone.key is None:
            raise ValueError("cannot be encoded: its time zone has no key")
        parts["zone"] = zone.key
    elif type(zone) is dt.timezone:
        # The offset of a fixed zone, and its name if it has one.
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if name:
            (parts["name"],) = name
        if isinstance(value, dt.datetime):
            parts["v"] = value.isoformat()
        else:
            # A text that contains the offset is exact in all Python versions only for a datetime.
            parts["offset"] = offset // _MICROSECOND
    elif zone is not None:
        raise ValueError(f"cannot be encoded: its tzinfo is a {type(zone).__qualname__}")
    return parts


def _read_moment(cls: type[dt.datetime] | type[dt.time]) -> Callable[[_Parts, int], Any]:
    def read(parts: _Parts, depth_left: int) -> Any:
        value = cls.fromisoformat(parts["v"])
        zone = value.tzinfo
        if "zone" in parts:
            zone = zoneinfo.ZoneInfo(_text(parts, "zone"))
        elif "offset" in parts or "name" in parts:
            offset = parts["offset"] * _MICROSECOND if "offset" in parts else value.utcoffset()
            if offset is None:
                raise ValueError("a name without an offset")
            zone = dt.timezone(offset, *([_text(parts, "name")] if "name" in parts else []))
        return value.replace(tzinfo=zone, fold=_whole(parts.get("fold", 0)))

    return read


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{_short(value)} is not a whole number")
    return value


def _text(parts: _Parts, key: str = "v") -> str:
    value = parts[key]
    if type(value) is not str:
        raise TypeError(f"{key} is not a string")
    return value


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _leaf(name: str, write: Callable[[Any], Any], read: Callable[[str], Any]) -> _Tag:
    return _Tag(
        name,
        lambda value, depth_left: {"v": write(value)},
        lambda parts, depth_left: read(_text(parts)),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_CLASS: Final = frozenset({"c", "v"})
_DATETIME_KEYS: Final = frozenset({"v", "zone", "name", "offset", "fold"})

_BY_CLASS: Final[dict[type, _Tag]] = {
    tuple: _Tag(
        "tuple", _write_tuple, lambda parts, depth_left: tuple(_items(parts, depth_left)), levels=2
    ),
    set: _Tag("set", _write_set, _read_set, levels=2),
    frozenset: _Tag(
        "frozenset",
        _write_set,
        lambda parts, depth_left: frozenset(_read_set(parts, depth_left)),
        levels=2,
    ),
    dict: _Tag("dict", _write_pairs, _read_pairs, levels=3),
    ft.Failure: _Tag("failure", _write_failure, _read_failure),
    str: _leaf(
        "str",
        lambda value: _base64(value.encode("utf-8", "surrogatepass")),
        lambda text: _bytes_of(text).decode("utf-8", "surrogatepass"),
    ),
    float: _leaf("float", repr, _FLOATS.__getitem__),
    bytes: _leaf("bytes", _base64, _bytes_of),
    complex: _leaf("complex", repr, complex),
    decimal.Decimal: _leaf("decimal", str, decimal.Decimal),
    uuid.UUID: _leaf("uuid", str, uuid.UUID),
    dt.datetime: _Tag("datetime", _write_moment, _read_moment(dt.datetime), _DATETIME_KEYS),
    dt.time: _Tag("time", _write_moment, _read_moment(dt.time), _DATETIME_KEYS),
    dt.date: _leaf("date", str, dt.date.fromisoformat),
    dt.timedelta: _Tag(
        "timedelta",
        lambda value, depth_left: {"v": value // _MICROSECOND},
        lambda parts, depth_left: _whole(parts["v"]) * _MICROSECOND,
    ),
}
_BY_NAME: Final[dict[str, _Tag]] = {
    **{tag.name: tag for tag in _BY_CLASS.values()},
    "enum": _Tag("enum", _write_enum, _read_enum, _CLASS | {"n"}),
    "data": _Tag("data", _write_data, _read_data, _CLASS, levels=2),
}

#: Builtins, most specific first. Error messages suggest the first base class of a value's class.
_BUILTINS: Final[tuple[type, ...]] = (
    *(bool, int, float, complex, str, bytes, bytearray, dict, list, tuple, set, frozenset),
    *(dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID),
)


def _base(cls: type) -> type | None:
    return next((base for base in _BUILTINS if issubclass(cls, base)), None)


def _rejection_reason(value: Any) -> str:
    cls = type(value)
    base = _base(cls)
    if isinstance(value, BaseException):
        return "cannot be encoded; send Failure.from_exception(error)"
    if isinstance(value, enum.Enum) or (dataclasses.is_dataclass(cls) and base is None):
        how = f"wbengine.types.codec.allow({cls.__name__})"
        return f"cannot be encoded; allow its class where it is defined: {how}"
    if base is tuple and hasattr(value, "_asdict"):
        return "cannot be encoded: it would lose its type; send tuple(value) or value._asdict()"
    if base is not None:
        return f"cannot be encoded: it would lose its type; send {base.__name__}(value)"
    return "cannot be encoded; send the values from which the receiver can create one"


def _too_deep(value: Any) -> _CodecError:
    return _CodecError(f"is nested deeper than {MAX_DEPTH} levels, or contains itself", value)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object_names.dotted(type(value))
    return text if len(text) <= 40 else text[:37] + "..."
