"""Conversion of values to trees of JSON, and back.

A value is decoded as the same value of the same type. Plain values (dicts with string keys, lists,
strings, numbers, booleans, None) are written as plain JSON, so that messages stay readable and
other programs can create them. Other values become a *tag*, an object with the reserved key
`$wbe`::

    (1, 2)          {"$wbe": "tuple", "v": [1, 2]}
    {1: "a"}        {"$wbe": "dict", "v": [[1, "a"]]}       also a dict with a key "$wbe"
    b"ab"           {"$wbe": "bytes", "v": "YWI="}
    float("nan")    {"$wbe": "float", "v": "nan"}
    Color.RED       {"$wbe": "enum", "c": "colors.Color", "v": "RED"}       after `allow(Color)`

`standard` and `classes` add the tags. All other values are rejected with their path. This includes
subclasses of builtins (OrderedDict, ...), which would lose their type, and sets and dicts with too
many hash collisions.

Cost: one pass over the value. A value that needs no tag is returned unchanged, not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import json_text
from wbengine.types._encoding import kinds

#: The reserved key. No plain JSON object contains it.
TAG: Final = "$wbe"
#: Maximum nesting of JSON containers. A tag counts as the containers of which it consists.
MAX_DEPTH: Final = 64
#: Maximum number of characters of one key in the path of a rejected value.
_MAX_STEP_LENGTH: Final = 200

_TOO_BIG: Final = 10**json_text.MAX_DIGITS
_SURROGATE: Final = "a string has a lone surrogate"

Parts = dict[str, Any]


class EncodingError(Exception):
    """An error for a value that cannot be encoded or decoded.

    Each level that it passes adds a step to its path, so the steps are in reverse order.

    :ivar is_of_code: whether other code, with other classes, may decode the value.
    """

    def __init__(self, reason: str, culprit: Any = None, *, is_of_code: bool = False) -> None:
        super().__init__(reason)
        self.culprit = culprit
        self.is_of_code = is_of_code
        self._path: list[str] = []

    def inside(self, step: str) -> EncodingError:
        self._path.append(step)
        return self

    @property
    def path(self) -> str:
        return "".join(reversed(self._path))


def encode_tree(value: Any, where: str, typed: bool) -> Any:
    try:
        return pack(value, MAX_DEPTH, typed)
    except EncodingError as unfit:
        path, type_name = where + unfit.path, object_names.dotted(type(unfit.culprit))
        message = f"{path}: {type_name} {unfit}"
    raise exceptions.NotEncodable(message, path=path, type_name=type_name)


def decode_tree(tree: Any, depth: int, typed: bool) -> Any:
    try:
        return unpack(tree, depth, typed)
    except EncodingError as unfit:
        message = f"{unfit.path}: {unfit}" if unfit.path else str(unfit)
        error_class = exceptions.UndecodableValue if unfit.is_of_code else exceptions.InvalidFormat
    raise error_class(message)


# Encoding and decoding. `depth_left` is the number of containers that may still be nested. `typed`
# allows tags.

Walk = Callable[[Any, int, bool], Any]


def pack(value: Any, depth_left: int, typed: bool) -> Any:
    kind = type(value)
    if kind is str and (value.isascii() or json_text.is_text(value)):
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if -_TOO_BIG < value < _TOO_BIG:
            return value
        raise EncodingError(f"has more than {json_text.MAX_DIGITS} digits", value)
    if kind is float and value - value == 0.0:
        return value
    if kind is not list and kind is not dict:
        return _pack_tagged(value, depth_left, typed)
    if depth_left <= 0:
        raise _too_deep(value)
    if kind is list:
        return convert_items(value, enumerate(value), pack, depth_left - 1, typed)
    for key in value:
        if type(key) is not str or not (key.isascii() or json_text.is_text(key)):
            if not typed:
                step = f"<key {short(key)}>"
                raise EncodingError("is not a plain JSON key", key).inside(step)
            return _pack_tagged(value, depth_left, typed)
        if key == TAG and typed:
            return _pack_tagged(value, depth_left, typed)
    return convert_items(value, value.items(), pack, depth_left - 1, typed)


def unpack(tree: Any, depth_left: int, typed: bool) -> Any:
    kind = type(tree)
    if kind is str:
        if tree.isascii() or json_text.is_text(tree):
            return tree
        raise EncodingError(_SURROGATE)
    if tree is None or kind is int or kind is bool:
        return tree
    if kind is float:
        if tree - tree != 0.0:
            raise EncodingError(f"{tree} is not a JSON number")
        return tree
    if kind is not list and kind is not dict:
        raise EncodingError(f"{object_names.dotted(kind)} is not JSON")
    if depth_left <= 0:
        raise EncodingError("nested too deeply")
    if kind is list:
        return convert_items(tree, enumerate(tree), unpack, depth_left - 1, typed)
    if typed and TAG in tree:
        return _unpack_tagged(tree, depth_left - 1)
    return unpack_dict(tree, depth_left - 1, typed)


def unpack_dict(tree: dict[Any, Any], depth_left: int, typed: bool = True) -> dict[str, Any]:
    for key in tree:
        if type(key) is not str or not (key.isascii() or json_text.is_text(key)):
            reason = _SURROGATE if type(key) is str else "a key is not a string"
            raise EncodingError(reason).inside(f"[{short(key)}]")
    unpacked: dict[str, Any] = convert_items(tree, tree.items(), unpack, depth_left, typed)
    return unpacked


def _item_step(key: Any) -> str:
    return f"[{repr(key)[:_MAX_STEP_LENGTH]}]"


def convert_items(
    value: Any,
    items: Iterable[tuple[Any, Any]],
    walk: Walk,
    depth_left: int,
    typed: bool,
    step: Callable[[Any], str] = _item_step,
) -> Any:
    """Return the results of `walk` for the items, or the same object if nothing changes.

    :param step: returns the step from the value to an item in the path of an error.
    """
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
    except EncodingError as unfit:
        unfit.inside(step(key))
        raise
    return value if changed_copy is None else changed_copy


# Tags. ----------------------------------------------------------------------------------------


class Tag(NamedTuple):
    """An encoder and a decoder for one kind of values.

    `write` returns the content of the tag, which has only the keys `keys`. `read` receives it. A
    ValueError of `write` contains the reason for the rejection. `read` may raise the exceptions of
    constructors. `levels` is the minimum number of containers of which the tag consists.
    `is_of_code`: whether `read` depends on classes of the application.
    """

    name: str
    write: Callable[[Any, int], Parts]
    read: Callable[[Parts, int], Any]
    keys: frozenset[str] = frozenset({"v"})
    levels: int = 1
    is_of_code: bool = False


#: The tags by their name, and by the class of the values that they encode.
BY_NAME: Final[dict[str, Tag]] = {}
BY_CLASS: Final[dict[type, Tag]] = {}
#: Functions that may add the tag of a class to `BY_CLASS`, called if it has none.
FINDERS: Final[list[Callable[[type], None]]] = []


def _pack_tagged(value: Any, depth_left: int, typed: bool) -> Any:
    tag = tag_of(type(value))
    if tag is None:
        raise EncodingError(kinds.rejection_reason(value), value)
    if not typed:
        raise EncodingError("is not plain JSON, the only format that the receiver reads", value)
    if depth_left < tag.levels:
        raise _too_deep(value)
    try:
        return {TAG: tag.name, **tag.write(value, depth_left - tag.levels)}
    except ValueError as error:
        raise EncodingError(str(error), value) from None


def tag_of(cls: type) -> Tag | None:
    """Return the tag of the values of a class, or None."""
    if (known := BY_CLASS.get(cls)) is not None:
        return known
    for find in FINDERS:
        find(cls)
        if cls in BY_CLASS:
            return BY_CLASS[cls]
    return None


def _unpack_tagged(tree: Parts, depth_left: int) -> Any:
    name = tree[TAG]
    tag = BY_NAME.get(name) if isinstance(name, str) else None
    if tag is None:
        raise EncodingError(f"unknown tag {short(name)}")
    parts = {key: item for key, item in tree.items() if key != TAG}
    try:
        for key in parts:
            if key not in tag.keys:
                raise ValueError(f"key {short(key)} is not expected")
        return tag.read(parts, depth_left)
    except (ValueError, TypeError, LookupError, ArithmeticError, OSError) as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
    except exceptions.InvalidFormat as error:
        reason = str(error)
    of_class = f" of class {str(parts.get('c'))[:200]}" if tag.is_of_code else ""
    raise EncodingError(f"malformed tag {name!r}{of_class}: {reason}", is_of_code=tag.is_of_code)


def part(value: Any, depth_left: int, step: str, *place: Any) -> Any:
    try:
        return pack(value, depth_left, True)
    except EncodingError as unfit:
        unfit.inside(step % tuple(map(short, place)))
        raise


def pack_attributes(values: dict[str, Any], depth_left: int) -> dict[str, Any]:
    packed: dict[str, Any] = convert_items(
        values, values.items(), pack, depth_left, True, lambda name: f".{name}"
    )
    return packed


def unpack_attributes(tree: Any, depth_left: int) -> dict[str, Any]:
    if type(tree) is not dict:
        raise TypeError("the attributes are not an object")
    if depth_left <= 0:
        raise EncodingError("nested too deeply")
    return unpack_dict(tree, depth_left - 1)


def items(parts: Parts, depth_left: int) -> list[Any]:
    value = parts["v"]
    if type(value) is not list:
        raise TypeError("v is not a list")
    if depth_left <= 0:
        raise EncodingError("nested too deeply")
    items: list[Any] = convert_items(value, enumerate(value), unpack, depth_left - 1, True)
    return items


def whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{short(value)} is not a whole number")
    return value


def text(parts: Parts, key: str = "v") -> str:
    value = parts[key]
    if type(value) is not str:
        raise TypeError(f"{key} is not a string")
    return value


def _too_deep(value: Any) -> EncodingError:
    return EncodingError(f"is nested deeper than {MAX_DEPTH} levels, or contains itself", value)


def short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = object_names.dotted(type(value))
    return text if len(text) <= 40 else text[:37] + "..."
