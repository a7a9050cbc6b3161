"""Tags of values of Python's own types."""

from __future__ import annotations

import base64
import collections
import contextvars
import datetime as dt
import decimal
import ipaddress
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable, Collection
from typing import Any, Final

from wbengine._text import json_text
from wbengine.types import _encrypted, _references
from wbengine.types import failure as ft
from wbengine.types._encoding import classes, walk
from wbengine.types._encoding.walk import EncodingError, Parts, Tag

#: Limits for dict keys and set items in data from or to another process: the number of keys other
#: than text and bytes, and the number of keys with the same hash. Python salts only the hashes of
#: text and bytes. With other keys, a malicious peer could make decoding take quadratic time.
MAX_KEYS: Final = 100_000
MAX_EQUAL_HASHES: Final = 32
#: Whether a value is exchanged with another process, so that `MAX_KEYS` applies.
is_remote: Final = contextvars.ContextVar("is_remote", default=False)

_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FLOATS: Final = ("nan", "inf", "-inf")


def _read_float(text: str) -> float:
    """Return a new object: a set or dict may contain several NaNs, which differ by identity."""
    if text not in _FLOATS:
        raise ValueError(f"{walk.short(text)} is not a special number")
    return float(text)


def _write_tuple(value: tuple[Any, ...], depth_left: int) -> Parts:
    return {"v": walk.convert_items(list(value), enumerate(value), walk.pack, depth_left, True)}


def _check_hashes(keys: Collection[Any]) -> None:
    """Check that a set or dict of these keys is built in linear time.

    :raises ValueError: if this is not certain.
    :raises TypeError: if a key is not hashable.
    """
    if len(keys) > MAX_KEYS and is_remote.get():
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


def _are_shown_as_list(keys: Collection[Any]) -> bool:
    """Return whether no set or dict can have these keys, because they are shown as other values.

    An instance of an unknown class is shown as a dict, and a value with a codec as a short text.
    """
    if not classes.shows_unknown.get():
        return False
    try:
        _check_hashes(keys)
        return len(set(keys)) < len(keys)
    except TypeError:
        return True


def _write_set(value: Collection[Any], depth_left: int) -> Parts:
    _check_hashes(value)
    packed = [walk.part(item, depth_left, "{...}") for item in value]
    # Sorted, so that equal sets have equal bytes in all processes.
    return {"v": sorted(packed, key=json_text.text_of)}


def _read_set(make: Callable[[list[Any]], Collection[Any]]) -> Callable[[Parts, int], Any]:
    def read(parts: Parts, depth_left: int) -> Collection[Any]:
        items = walk.items(parts, depth_left)
        if _are_shown_as_list(items):
            return items
        _check_hashes(items)
        members = make(items)
        if len(members) != len(items):
            raise ValueError("an item is repeated")
        return members

    return read


def _write_pairs(value: dict[Any, Any], depth_left: int) -> Parts:
    _check_hashes(value)
    return {
        "v": [
            [walk.part(key, depth_left, "<key %s>", key), walk.part(item, depth_left, "[%s]", key)]
            for key, item in value.items()
        ]
    }


def _read_pairs(parts: Parts, depth_left: int) -> dict[Any, Any] | list[Any]:
    items = walk.items(parts, depth_left)
    if any(type(item) is not list or len(item) != 2 for item in items):
        raise ValueError("v is not a list of pairs")
    keys = [key for key, _ in items]
    if _are_shown_as_list(keys):
        return items
    _check_hashes(keys)
    pairs = {key: item for key, item in items}  # noqa: C416  (the pairs are lists)
    if len(pairs) != len(items):
        raise ValueError("a key is repeated")
    return pairs


def _write_failure(value: ft.Failure, depth_left: int) -> Parts:
    try:
        return {"v": walk.pack(value.to_json(), depth_left, True)}
    except EncodingError:
        # The arguments of the exception may be nested too deeply.
        return {"v": walk.pack(value.to_json(include_args=False), depth_left, True)}


def _read_failure(parts: Parts, depth_left: int) -> ft.Failure:
    data = walk.unpack(parts["v"], depth_left, True)
    ft.Failure.validate(data)
    return ft.Failure.from_dict(data)


def _write_reference(value: _references.Reference, depth_left: int) -> Parts:
    return {"v": value.address, "n": value.size, "c": value.kind, "k": value.key}


def _read_reference(parts: Parts, depth_left: int) -> _references.Reference:
    kind, key = walk.text(parts, "c"), walk.text(parts, "k")
    return _references.checked(walk.text(parts), parts["n"], kind, key)


def _write_encrypted(value: _encrypted.Encrypted, depth_left: int) -> Parts:
    raise ValueError("was read without the key that decrypts it")


def _read_encrypted(parts: Parts, depth_left: int) -> _encrypted.Encrypted:
    return _encrypted.received()


def _write_moment(value: dt.datetime | dt.time, depth_left: int) -> Parts:
    zone = value.tzinfo
    parts: Parts = {"v": value.replace(tzinfo=None).isoformat()}
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


def _read_moment(cls: type[dt.datetime] | type[dt.time]) -> Callable[[Parts, int], Any]:
    def read(parts: Parts, depth_left: int) -> Any:
        value = cls.fromisoformat(parts["v"])
        zone = value.tzinfo
        if "zone" in parts:
            zone = zoneinfo.ZoneInfo(walk.text(parts, "zone"))
        elif "offset" in parts or "name" in parts:
            offset = parts["offset"] * _MICROSECOND if "offset" in parts else value.utcoffset()
            if offset is None:
                raise ValueError("a name without an offset")
            zone = dt.timezone(offset, *([walk.text(parts, "name")] if "name" in parts else []))
        return value.replace(tzinfo=zone, fold=walk.whole(parts.get("fold", 0)))

    return read


def _write_path(value: pathlib.PurePath, depth_left: int) -> Parts:
    text = str(value)
    if type(value)(text) != value:
        raise ValueError(f"cannot be encoded: {text!r} is the text of another path")
    return {"v": walk.pack(text, depth_left, True)}


def _read_path(cls: type[pathlib.PurePath]) -> Callable[[Parts, int], Any]:
    def read(parts: Parts, depth_left: int) -> Any:
        path_text = walk.unpack(parts["v"], depth_left, True)
        if type(path_text) is not str:
            raise TypeError("v is not a string")
        try:
            return cls(path_text)
        except NotImplementedError:  # a concrete path of another system
            raise ValueError(f"this system has no {cls.__name__}") from None

    return read


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _leaf(name: str, write: Callable[[Any], Any], read: Callable[[str], Any]) -> Tag:
    return Tag(
        name,
        lambda value, depth_left: {"v": write(value)},
        lambda parts, depth_left: read(walk.text(parts)),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


_DATETIME_KEYS: Final = frozenset({"v", "zone", "name", "offset", "fold"})

_ADDRESSES: Final[tuple[type, ...]] = (
    *(ipaddress.IPv4Address, ipaddress.IPv4Network, ipaddress.IPv4Interface),
    *(ipaddress.IPv6Address, ipaddress.IPv6Network, ipaddress.IPv6Interface),
)
_PATHS: Final[tuple[type[pathlib.PurePath], ...]] = (
    *(pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath),
)

_TAGS: Final[dict[type, Tag]] = {
    **{cls: _leaf(cls.__name__, str, cls) for cls in _ADDRESSES},
    **{cls: Tag(cls.__name__, _write_path, _read_path(cls)) for cls in _PATHS},
    tuple: Tag(
        "tuple",
        _write_tuple,
        lambda parts, depth_left: tuple(walk.items(parts, depth_left)),
        levels=2,
    ),
    set: Tag("set", _write_set, _read_set(set), levels=2),
    frozenset: Tag("frozenset", _write_set, _read_set(frozenset), levels=2),
    dict: Tag("dict", _write_pairs, _read_pairs, levels=3),
    ft.Failure: Tag("failure", _write_failure, _read_failure),
    _references.Reference: Tag("payload", _write_reference, _read_reference, frozenset("vnck")),
    _encrypted.Encrypted: Tag("encrypted", _write_encrypted, _read_encrypted, frozenset("kv")),
    str: _leaf(
        "str",
        lambda value: _base64(value.encode("utf-8", "surrogatepass")),
        lambda text: _bytes_of(text).decode("utf-8", "surrogatepass"),
    ),
    float: _leaf("float", repr, _read_float),
    complex: _leaf("complex", repr, complex),
    decimal.Decimal: _leaf("decimal", str, decimal.Decimal),
    uuid.UUID: _leaf("uuid", str, uuid.UUID),
    dt.datetime: Tag("datetime", _write_moment, _read_moment(dt.datetime), _DATETIME_KEYS),
    dt.time: Tag("time", _write_moment, _read_moment(dt.time), _DATETIME_KEYS),
    dt.date: _leaf("date", str, dt.date.fromisoformat),
    dt.timedelta: Tag(
        "timedelta",
        lambda value, depth_left: {"v": value // _MICROSECOND},
        lambda parts, depth_left: walk.whole(parts["v"]) * _MICROSECOND,
    ),
}
walk.BY_CLASS.update(_TAGS)
walk.BY_NAME.update({tag.name: tag for tag in _TAGS.values()})
