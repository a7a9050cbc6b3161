"""The reading half of typed JSON: from a tree to its value."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final

from wbengine import _codec_tags as tags
from wbengine import _names, exceptions
from wbengine.types import failure as ft


def walk(tree: Any, typed: bool, strings: bool, depth: int) -> Any:
    """The value of a tree (`typed`), or the tree itself once it is checked.

    `strings` says whether strings may have lone surrogates, `depth` how many levels are acceptable.
    """
    try:
        return _Unpacker(typed, strings).unpack(tree, depth)
    except tags.Unfit as unfit:
        message = f"{unfit.path}: {unfit}" if unfit.path else str(unfit)
    raise exceptions.InvalidFormat(message)


class _Unpacker:
    """One walk; `left` is how many levels of containers may still open."""

    __slots__ = ("_strings", "_typed")

    def __init__(self, typed: bool, strings: bool) -> None:
        self._typed = typed
        self._strings = strings

    def unpack(self, tree: Any, left: int) -> Any:
        kind = type(tree)
        if kind is str:
            if self._strings and not tree.isascii():
                self._check_text(tree)
            return tree
        if tree is None or kind is int or kind is bool:
            return tree
        if kind is float:
            if tree - tree != 0.0:
                raise tags.Unfit(f"{tree} is not a JSON number")
            return tree
        if kind is not list and kind is not dict:
            raise tags.Unfit(f"{_names.dotted(kind)} is not JSON")
        if left <= 0:
            raise tags.Unfit("nested too deeply")
        if kind is list:
            return self._list(tree, left - 1)
        if self._typed and tags.TAG in tree:
            return self._tagged(tree, left - 1)
        return self._dict(tree, left - 1)

    def _check_text(self, text: str) -> None:
        if not tags.is_text(text):
            raise tags.Unfit("a string has a lone surrogate")

    def _list(self, tree: list[Any], left: int) -> list[Any]:
        result = tree
        index = 0
        try:
            for index, item in enumerate(tree):
                kind = type(item)  # the first lines of `unpack`, without the call
                if (
                    (kind is str and item.isascii())
                    or item is None
                    or kind is int
                    or (kind is float and item - item == 0.0)
                ):
                    continue
                new = self.unpack(item, left)
                if new is not item:
                    if result is tree:
                        result = list(tree)
                    result[index] = new
        except tags.Unfit as unfit:
            unfit.inside(f"[{index}]")
            raise
        return result

    def _dict(self, tree: dict[Any, Any], left: int) -> dict[str, Any]:
        result = tree
        key: Any = None
        try:
            for key, item in tree.items():
                if type(key) is not str:
                    raise tags.Unfit("a key is not a string")
                if self._strings and not key.isascii():
                    self._check_text(key)
                kind = type(item)
                if (
                    (kind is str and item.isascii())
                    or item is None
                    or kind is int
                    or (kind is float and item - item == 0.0)
                ):
                    continue
                new = self.unpack(item, left)
                if new is not item:
                    if result is tree:
                        result = dict(tree)
                    result[key] = new
        except tags.Unfit as unfit:
            unfit.inside(f"[{tags.short(key)}]")
            raise
        return result

    def _tagged(self, tree: dict[str, Any], left: int) -> Any:
        name = tree[tags.TAG]
        try:
            if not isinstance(name, str) or name not in _TAGS:
                raise tags.Unfit(f"unknown tag {tags.short(name)}")
            parts = {key: item for key, item in tree.items() if key != tags.TAG}
            keys, read = _TAGS[name]
            for key in parts:
                if key not in keys:
                    raise ValueError(f"key {tags.short(key)} is not expected")
            return read(self, parts, left)
        except (ValueError, TypeError, LookupError, ArithmeticError, OSError) as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise tags.Unfit(f"malformed tag {tags.short(name)}: {reason}") from None
        except exceptions.InvalidFormat as error:
            raise tags.Unfit(f"malformed tag {tags.short(name)}: {error}") from None

    def _items(self, tree: dict[str, Any], left: int) -> list[Any]:
        value = tree["v"]
        if type(value) is not list:
            raise TypeError("v is not a list")
        if left <= 0:
            raise tags.Unfit("nested too deeply")
        return self._list(value, left - 1)

    def read_tuple(self, tree: dict[str, Any], left: int) -> tuple[Any, ...]:
        return tuple(self._items(tree, left))

    def read_set(self, tree: dict[str, Any], left: int) -> set[Any]:
        items = self._items(tree, left)
        result = set(items)
        if len(result) != len(items):
            raise ValueError("an item is repeated")
        return result

    def read_frozenset(self, tree: dict[str, Any], left: int) -> frozenset[Any]:
        return frozenset(self.read_set(tree, left))

    def read_dict(self, tree: dict[str, Any], left: int) -> dict[Any, Any]:
        items = self._items(tree, left)
        if any(type(item) is not list or len(item) != 2 for item in items):
            raise ValueError("v is not a list of pairs")
        result = {key: item for key, item in items}  # noqa: C416  (the pairs are lists)
        if len(result) != len(items):
            raise ValueError("a key is repeated")
        return result

    def read_failure(self, tree: dict[str, Any], left: int) -> ft.Failure:
        data = self.unpack(tree["v"], left)
        ft.Failure.validate(data)
        return ft.Failure.from_dict(data)

    def read_enum(self, tree: dict[str, Any], left: int) -> enum.Enum:
        cls = self._class(tree, enum.Enum)
        if "v" in tree:
            return cls.__members__[tree["v"]]  # type: ignore[no-any-return]
        return cls(self.unpack(tree["n"], left))  # type: ignore[no-any-return]

    def read_data(self, tree: dict[str, Any], left: int) -> Any:
        cls = self._class(tree, object)
        values = tree["v"]
        names = {field.name for field in dataclasses.fields(cls)}
        if type(values) is not dict or values.keys() != names:
            raise ValueError(f"the fields of {tree['c']} are {', '.join(sorted(names))}")
        if left <= 0:
            raise tags.Unfit("nested too deeply")
        values = self._dict(values, left - 1)
        result = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(result, name, value)
        return result

    @staticmethod
    def _class(tree: dict[str, Any], base: type) -> Any:
        name = tree["c"]
        cls = tags.allowed.get(name) if isinstance(name, str) else None
        if cls is None:
            raise ValueError(f"class {name!r} is not allowed here: see wbengine.types.codec.allow")
        if issubclass(cls, enum.Enum) is not (base is enum.Enum):
            raise ValueError(f"class {name!r} is of another kind")
        return cls


def _leaf(read: Callable[[tags.Parts], Any]) -> _Read:
    return lambda _, parts, left: read(parts)


_Read = Callable[[_Unpacker, tags.Parts, int], Any]

#: Tag -> the keys that it may have, and what reads them.
_TAGS: Final[dict[str, tuple[frozenset[str], _Read]]] = {
    **{leaf.name: (leaf.keys, _leaf(leaf.read)) for leaf in tags.LEAVES},
    "tuple": (tags.ONE_KEY, _Unpacker.read_tuple),
    "set": (tags.ONE_KEY, _Unpacker.read_set),
    "frozenset": (tags.ONE_KEY, _Unpacker.read_frozenset),
    "dict": (tags.ONE_KEY, _Unpacker.read_dict),
    "failure": (tags.ONE_KEY, _Unpacker.read_failure),
    "enum": (frozenset({"c", "v", "n"}), _Unpacker.read_enum),
    "data": (frozenset({"c", "v"}), _Unpacker.read_data),
}
