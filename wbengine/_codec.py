"""Typed JSON: what goes into a message or a row comes out as the same value of the same type.

Plain values (dicts with string keys, lists, strings, numbers, booleans, None) are written as plain
JSON, so that bodies stay readable and any peer can make them.  What JSON has no word for becomes a
*tag*: an object with the reserved key `$wbe`:

    (1, 2)              {"$wbe": "tuple", "v": [1, 2]}
    {1: "a"}            {"$wbe": "dict", "v": [[1, "a"]]}       also a dict that has a key "$wbe"
    b"ab"               {"$wbe": "bytes", "v": "YWI="}
    float("nan")        {"$wbe": "float", "v": "nan"}
    Color.RED           {"$wbe": "enum", "c": "colors.Color", "v": "RED"}      after `allow(Color)`

Tags exist for tuple, set, frozenset, bytes, complex, Decimal, UUID, datetime, date, time,
timedelta, `Failure`, strings with lone surrogates, non-finite floats, and allowed enumerations and
dataclasses.  Everything else is refused when it is packed, with its path; subclasses of builtins
too (namedtuple, OrderedDict, defaultdict, IntEnum, ...): they would come out as something else.

Cost: one pass over the value; a value that needs no tag is returned as it is, not copied.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final, TypeVar

from wbengine import _codec_read, _json_text, _names, exceptions
from wbengine import _codec_tags as tags
from wbengine.types import failure as ft

_TOO_BIG: Final = 10**tags.MAX_DIGITS
_C = TypeVar("_C", bound=type)

MAX_DEPTH: Final = tags.MAX_DEPTH


def allow(cls: _C) -> _C:
    """Let members of an Enum, or instances of a dataclass, be packed and unpacked.

    Usable as a decorator.  To be called where the class is defined, so that both ends do.  Fields
    are restored as they were, without calling `__init__` or `__post_init__`.  Returns `cls`.

    :raises TypeError: it is something else; dataclasses that are exceptions, or subclasses of
        builtins, too, for they are more than their fields.
    """
    is_enum = isinstance(cls, type) and issubclass(cls, enum.Enum)
    is_data = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    if not is_enum and (not is_data or _base(cls) is not None or issubclass(cls, BaseException)):
        raise TypeError(f"only Enum classes and dataclasses can be allowed, not {cls!r}")
    tags.allowed[_names.dotted(cls)] = cls
    return cls


def pack(value: Any, where: str = "result") -> Any:
    """The JSON-able tree of `value`, which must not be changed as long as the tree is used.

    :raises NotEncodable: something in it cannot travel; the text begins with its path, from `where`
        on (`result['a'][3]: socket.socket ...`).
    """
    return _enter(value, where, typed=True)


def plain(value: Any, where: str = "result") -> Any:
    """Like `pack`, for peers that know plain JSON only.

    :raises NotEncodable: also for whatever would need a tag.
    """
    return _enter(value, where, typed=False)


def dumps(value: Any, where: str = "result") -> bytes:
    """`pack` as compact UTF-8 JSON.

    >>> loads(dumps({(1, 2): b"ab"}))
    {(1, 2): b'ab'}

    :raises NotEncodable: as `pack` does.
    """
    return render(pack(value, where))


def render(tree: Any) -> bytes:
    """Compact UTF-8 JSON of a tree made by `pack` or `plain`."""
    return _json_text.encode(tree, finite=True)


#: The same as text, which may hold lone surrogates where the tree does.
text_of: Final = _json_text.text_of


def unpack(tree: Any) -> Any:
    """The value that `pack` made `tree` of; the tree is not changed, but may be part of the value.

    :raises InvalidFormat: `pack` does not make such a tree.
    """
    kind = type(tree)
    if tree is None or kind is int or kind is bool or (kind is str and tree.isascii()):
        return tree
    return _codec_read.walk(tree, typed=True, strings=True, depth=MAX_DEPTH)


def loads(data: bytes | bytearray | memoryview | str, depth: int = MAX_DEPTH) -> Any:
    """`unpack` of JSON text.

    :raises InvalidFormat: as `parse` and `unpack` do.
    """
    tree, suspect = _json_text.parse(data)
    return _codec_read.walk(tree, typed=True, strings=suspect, depth=depth)


def parse(data: bytes | bytearray | memoryview | str, depth: int = MAX_DEPTH) -> Any:
    """The tree of JSON text, tags left as they are.

    :raises InvalidFormat: it is not strict JSON in UTF-8, or holds NaN or infinities (also by
        overflow), repeated keys, lone surrogates, integers over 4,300 digits, more than `depth`
        levels.
    """
    tree, suspect = _json_text.parse(data)
    flat = type(data) is bytes and not _json_text.opens_more(data, depth)
    if not suspect and (flat or not _json_text.is_deeper(tree, depth)):
        return tree
    return _codec_read.walk(tree, typed=False, strings=suspect, depth=depth)


# Packing ----------------------------------------------------------------------------------------


def _enter(value: Any, where: str, typed: bool) -> Any:
    try:
        return _pack(value, 0, typed)
    except tags.Unfit as unfit:
        path, type_name = where + unfit.path, _names.dotted(type(unfit.culprit))
        message = f"{path}: {type_name} {unfit}"
    raise exceptions.NotEncodable(message, path=path, type_name=type_name)


def _pack(value: Any, depth: int, typed: bool) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() or tags.is_text(value) else _pack_other(value, depth, typed)
    if value is None or kind is bool:
        return value
    if kind is int:
        if -_TOO_BIG < value < _TOO_BIG:
            return value
        raise tags.Unfit(f"has more than {tags.MAX_DIGITS} digits", value)
    if kind is float and value - value == 0.0:
        return value
    if kind is list or kind is dict:
        if depth >= tags.MAX_DEPTH:
            raise _too_deep(value)
        return _pack_list(value, depth, typed) if kind is list else _pack_dict(value, depth, typed)
    return _pack_other(value, depth, typed)


def _pack_list(value: list[Any] | tuple[Any, ...], depth: int, typed: bool) -> Any:
    packed: list[Any] | None = None
    index = 0
    try:
        for index, item in enumerate(value):
            # What follows is the first lines of `_pack`, without the call.
            kind = type(item)
            if (
                (kind is str and item.isascii())
                or (kind is int and -_TOO_BIG < item < _TOO_BIG)
                or item is None
                or kind is bool
                or (kind is float and item - item == 0.0)
            ):
                continue
            new = _pack(item, depth + 1, typed)
            if new is not item:
                if packed is None:
                    packed = list(value)
                packed[index] = new
    except tags.Unfit as unfit:
        unfit.inside(f"[{index}]")
        raise
    return value if packed is None else packed


def _pack_dict(value: dict[Any, Any], depth: int, typed: bool) -> Any:
    packed: dict[str, Any] | None = None
    key: Any = None
    try:
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or tags.is_text(key)):
                break
            if key == tags.TAG and typed:
                break
            kind = type(item)
            if (
                (kind is str and item.isascii())
                or (kind is int and -_TOO_BIG < item < _TOO_BIG)
                or item is None
                or kind is bool
                or (kind is float and item - item == 0.0)
            ):
                continue
            new = _pack(item, depth + 1, typed)
            if new is not item:
                if packed is None:
                    packed = dict(value)
                packed[key] = new
        else:
            return value if packed is None else packed
    except tags.Unfit as unfit:
        unfit.inside(f"[{key!r}]")
        raise
    if not typed:
        bad_key = tags.Unfit("is not a plain JSON key", key)
        bad_key.inside(f"<key {tags.short(key)}>")
        raise bad_key
    return {tags.TAG: "dict", "v": [_pack_pair(pair, depth + 3) for pair in value.items()]}


def _pack_pair(pair: tuple[Any, Any], depth: int) -> list[Any]:
    if depth > tags.MAX_DEPTH:
        raise _too_deep(pair[1])
    label = f"<key {tags.short(pair[0])}>"
    try:
        key = _pack(pair[0], depth, True)
        label = f"[{tags.short(pair[0])}]"
        return [key, _pack(pair[1], depth, True)]
    except tags.Unfit as unfit:
        unfit.inside(label)
        raise


def _pack_other(value: Any, depth: int, typed: bool) -> Any:
    packer = _PACKERS.get(type(value)) or _packer_of_allowed(type(value))
    if packer is None:
        raise tags.Unfit(_why_not(value), value)
    if not typed:
        raise tags.Unfit("is not plain JSON, which is all that the receiver reads", value)
    if depth >= tags.MAX_DEPTH:
        raise _too_deep(value)
    return packer(value, depth)


def _pack_sequence(value: tuple[Any, ...], depth: int) -> dict[str, Any]:
    if depth + 2 > tags.MAX_DEPTH:
        raise _too_deep(value)
    packed = _pack_list(value, depth + 1, True)
    return {tags.TAG: "tuple", "v": list(packed) if packed is value else packed}


def _pack_set(value: set[Any] | frozenset[Any], depth: int) -> dict[str, Any]:
    if depth + 2 > tags.MAX_DEPTH:
        raise _too_deep(value)
    try:
        items = [_pack(item, depth + 2, True) for item in value]
    except tags.Unfit as unfit:
        unfit.inside("{...}")
        raise
    # In an order that does not depend on the process: equal sets, equal bytes.
    return {tags.TAG: type(value).__name__, "v": sorted(items, key=text_of)}


def _pack_failure(value: ft.Failure, depth: int) -> dict[str, Any]:
    try:
        return {tags.TAG: "failure", "v": _pack(value.to_json(), depth + 1, True)}
    except tags.Unfit:
        # The arguments of the exception may nest deeper than what is left of the depth.
        return {tags.TAG: "failure", "v": _pack(value.to_json(include_args=False), depth + 1, True)}


def _pack_leaf(name: str, write: Callable[[Any], dict[str, Any]]) -> Callable[[Any, int], Any]:
    def packer(value: Any, depth: int) -> dict[str, Any]:
        try:
            return {tags.TAG: name, **write(value)}
        except ValueError as error:
            raise tags.Unfit(str(error), value) from None

    return packer


def _pack_enum(value: enum.Enum, depth: int) -> dict[str, Any]:
    tagged = {tags.TAG: "enum", "c": _names.dotted(type(value))}
    if value.name in type(value).__members__:
        return {**tagged, "v": value.name}
    # A combination of flags has no name of its own.
    return {**tagged, "n": _pack(value.value, depth + 1, True)}


def _pack_data(value: Any, depth: int) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value)]
    missing = [name for name in names if not hasattr(value, name)]
    extra = [name for name in getattr(value, "__dict__", ()) if name not in names]
    if missing or extra:
        what = "lacks its field" if missing else "has, besides its fields, an attribute"
        raise tags.Unfit(f"{what} {(missing or extra)[0]!r}", value)
    if depth + 2 > tags.MAX_DEPTH:
        raise _too_deep(value)
    packed = {}
    for name in names:
        try:
            packed[name] = _pack(getattr(value, name), depth + 2, True)
        except tags.Unfit as unfit:
            unfit.inside(f".{name}")
            raise
    return {tags.TAG: "data", "c": _names.dotted(type(value)), "v": packed}


_PACKERS: Final[dict[type, Callable[[Any, int], Any]]] = {
    tuple: _pack_sequence,
    set: _pack_set,
    frozenset: _pack_set,
    ft.Failure: _pack_failure,
    **{leaf.cls: _pack_leaf(leaf.name, leaf.write) for leaf in tags.LEAVES},
}


def _packer_of_allowed(cls: type) -> Callable[[Any, int], Any] | None:
    if tags.allowed.get(_names.dotted(cls)) is not cls:
        return None
    return _pack_enum if issubclass(cls, enum.Enum) else _pack_data


def _why_not(value: Any) -> str:
    cls = type(value)
    base = _base(cls)
    if isinstance(value, BaseException):
        return "cannot be encoded; send Failure.from_exception(error)"
    if isinstance(value, enum.Enum) or (dataclasses.is_dataclass(cls) and base is None):
        how = f"wbengine.types.codec.allow({cls.__name__})"
        return f"cannot be encoded unless its class is allowed where it is defined: {how}"
    if base is tuple and hasattr(value, "_asdict"):
        return "cannot be encoded: it would lose its type; send tuple(value) or value._asdict()"
    if base is not None:
        return f"cannot be encoded: it would lose its type; send {base.__name__}(value)"
    return "cannot be encoded; send what the other side needs to make one"


def _base(cls: type) -> type | None:
    """The builtin that `cls` is a subclass of, if any."""
    return next((base for base in tags.BUILTINS if issubclass(cls, base)), None)


def _too_deep(value: Any) -> tags.Unfit:
    return tags.Unfit(f"is nested deeper than {tags.MAX_DEPTH} levels, or contains itself", value)
