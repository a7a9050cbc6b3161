"""Forms of instances of attrs, msgspec and pydantic.

A class of such a library is recognized by its attributes, so no library is imported here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from typing import Any, Final

from wbengine._introspection import object_names
from wbengine._text import json_text
from wbengine.types._encoding import forms, kinds, walk
from wbengine.types._encoding.walk import Parts

#: The oldest pydantic whose validators read data by the names of fields.
_MIN_PYDANTIC: Final = (2, 11)
_HASH_OF_ATTRS: Final = "_attrs_cached_hash"


def form_of(cls: Any, kind: str) -> forms.Form:
    """Return the form of a class of a library.

    :raises TypeError: if the installed library is too old.
    """
    if kind == kinds.ATTRS:
        return _Attrs(cls, [field.name for field in cls.__attrs_attrs__])
    if kind == kinds.STRUCT:
        return _Struct(cls, cls.__struct_fields__)
    version = sys.modules["pydantic"].VERSION
    if tuple(map(int, version.split(".")[:2])) < _MIN_PYDANTIC:
        raise TypeError(f"{cls!r} must be of pydantic 2.11 or later, got {version}")
    if kind == kinds.URL:
        return _Url(cls)
    if kind == kinds.MODEL:
        return _Model(cls)
    return _ValidatedDataclass(cls, [field.name for field in dataclasses.fields(cls)])


class _Attrs(forms.Fields):
    def __init__(self, cls: type, names: list[str]) -> None:
        super().__init__(cls, names)
        code = getattr(cls.__hash__, "__code__", None)
        self._caches_hash = code is not None and _HASH_OF_ATTRS in code.co_names
        if self._caches_hash:
            self.ignored = frozenset({_HASH_OF_ATTRS})

    def create(self, values: dict[str, Any]) -> Any:
        instance = super().create(values)
        if self._caches_hash:
            object.__setattr__(instance, _HASH_OF_ATTRS, None)
        return instance


class _Struct(forms.Fields):
    """Instances that only the constructor can create. It calls `__post_init__`."""

    def split(self, value: Any) -> dict[str, Any]:
        values = super().split(value)
        if hasattr(self.cls, "__post_init__"):
            self.create(values)
        return values

    def create(self, values: dict[str, Any]) -> Any:
        try:
            instance = self.cls(**values)
        except Exception as error:
            raise ValueError(f"cannot be created again: {_first_line(error)}") from None
        _check_unchanged(values, {name: getattr(instance, name) for name in self.names})
        return instance


class _ValidatedDataclass(forms.Fields):
    """Instances of a dataclass of pydantic, which are validated when they are decoded."""

    def __init__(self, cls: type, names: list[str]) -> None:
        super().__init__(cls, names)
        self._parameters = [field.name for field in dataclasses.fields(self.cls) if field.init]

    def write(self, value: Any, depth_left: int) -> Parts:
        parts = super().write(value, depth_left)
        self._create(self.split(value))
        return parts

    def read(self, parts: Parts, depth_left: int) -> Any:
        values = self.values_in(parts, depth_left)
        return self._create(values, parts)

    def _create(self, values: dict[str, Any], received: Parts | None = None) -> Any:
        instance = object.__new__(self.cls)
        arguments = {name: values[name] for name in self._parameters}
        _validate(self.cls, arguments, received, instance)
        for name in values.keys() - arguments.keys():
            object.__setattr__(instance, name, values[name])
        _check_unchanged(values, {name: getattr(instance, name) for name in values})
        return instance


class _Model(forms.Form):
    """Models of pydantic, which are validated when they are decoded.

    Fields, extra values and private attributes are encoded separately, because `model_dump` loses
    the types of values. `unset` contains the fields that had their default values. A field that is
    missing, or not known any more, is treated as pydantic treats it in data.
    """

    tag = "data"

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.name = _name_of(cls)

    def write(self, value: Any, depth_left: int) -> Parts:
        fields = self._fields_of(value)
        extra = value.__pydantic_extra__ or {}
        unset = sorted((fields.keys() | extra.keys()) - value.__pydantic_fields_set__)
        parts: Parts = {"c": self.name, "v": walk.pack_attributes(fields, depth_left)}
        if extra:
            parts["extra"] = walk.pack(extra, depth_left + 1, True)
        if unset:
            parts["unset"] = walk.pack(unset, depth_left + 1, True)
        copy = self._create(fields, extra, frozenset(unset))
        if extra.keys() != (copy.__pydantic_extra__ or {}).keys():
            raise ValueError("has extra values, which its class ignores")
        # `model_construct` does not always set it.
        private = getattr(value, "__pydantic_private__", None)
        if private is not None and not _is_equal_value(private, copy.__pydantic_private__):
            parts["private"] = walk.pack_attributes(private, depth_left)
        return parts

    def read(self, parts: Parts, depth_left: int) -> Any:
        fields = walk.unpack_attributes(parts["v"], depth_left)
        extra = walk.unpack(parts.get("extra", {}), depth_left, True)
        unset = walk.unpack(parts.get("unset", []), depth_left, True)
        if type(extra) is not dict or not all(type(name) is str for name in extra):
            raise TypeError("extra is not an object")
        if type(unset) is not list or not all(type(name) is str for name in unset):
            raise TypeError("unset is not a list of names")
        instance = self._create(fields, extra, frozenset(unset), parts)
        if "private" in parts:
            private = walk.unpack_attributes(parts["private"], depth_left)
            if not private.keys() <= self.cls.__private_attributes__.keys():
                raise ValueError(f"the private attributes of {self.name} are others")
            object.__setattr__(instance, "__pydantic_private__", private)
        return instance

    def contents(self, value: Any) -> dict[str, Any]:
        more = (value.__pydantic_extra__, getattr(value, "__pydantic_private__", None))
        return {name: each for part in (*more, vars(value)) for name, each in (part or {}).items()}

    def _fields_of(self, value: Any) -> dict[str, Any]:
        values: dict[str, Any] = vars(value)
        names = self.cls.__pydantic_fields__
        for name in names:
            if name not in values:
                raise ValueError(f"lacks its field {name!r}")
        if len(values) > len(names):
            for name in values.keys() - names.keys():
                member = inspect.getattr_static(self.cls, name, None)
                if not isinstance(member, functools.cached_property):
                    raise ValueError(f"has the attribute {name!r}, which is not a field")
            return {name: values[name] for name in names}
        return values.copy()

    def _create(
        self,
        fields: Mapping[str, Any],
        extra: Mapping[str, Any],
        unset: frozenset[str],
        received: Parts | None = None,
    ) -> Any:
        original = {**extra, **fields} if extra else fields
        data: Any = dict(original)
        for name in unset:
            if self._has_default(name, data.get(name)):
                del data[name]  # Defaults are not validated.
        if self.cls.__pydantic_root_model__:
            data = data.get("root", fields["root"])
        instance = _validate(self.cls, data, received)
        if type(instance) is not self.cls:
            raise ValueError(f"is validated as {object_names.dotted(type(instance))}")
        more = instance.__pydantic_extra__
        values = {**more, **vars(instance)} if more else vars(instance)
        _check_unchanged(original, values)
        fields_set = instance.__pydantic_fields_set__
        fields_set |= values.keys() & original.keys()
        fields_set -= unset
        return instance

    def _has_default(self, name: str, value: Any) -> bool:
        field = self.cls.__pydantic_fields__.get(name)
        return field is not None and _is_equal_value(value, field.default)


class _Url(forms.Form):
    tag = "text"

    def write(self, value: Any, depth_left: int) -> Parts:
        return {"c": self.name, "v": walk.pack(str(value), depth_left, True)}

    def read(self, parts: Parts, depth_left: int) -> Any:
        return self.cls(walk.text(parts))


def _name_of(argument: Any) -> str:
    """Return the name of a model or of an argument of a generic model.

    The `__qualname__` of a generic model with arguments lacks the modules of the arguments.
    """
    if typing.get_origin(argument) is not None or not isinstance(argument, type):
        return repr(argument)
    generic = getattr(argument, "__pydantic_generic_metadata__", None)
    if not generic or not generic["args"]:
        return object_names.dotted(argument)
    return f"{object_names.dotted(generic['origin'])}[{', '.join(map(_name_of, generic['args']))}]"


def _validate(cls: Any, data: Any, received: Parts | None, self_instance: Any = None) -> Any:
    """Return a validated instance, without conversions if this succeeds.

    :param received: the tree from which `data` was decoded, or None if this process created it.
    :raises ValueError: if a validator raises any exception.
    """
    try:
        validate = cls.__pydantic_validator__.validate_python
        try:
            return validate(
                data, strict=True, by_alias=False, by_name=True, self_instance=self_instance
            )
        except ValueError:
            if received is not None and _has_huge_decimal(received):
                raise
        return validate(data, by_alias=False, by_name=True, self_instance=self_instance)
    except Exception as error:
        raise ValueError(f"is not valid: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return the message of an exception, for one of pydantic without the invalid values."""
    if not hasattr(error, "errors"):
        return f"{type(error).__name__}: {str(error)[:200]}"
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    path = ".".join(map(str, first["loc"]))
    rest = f" (and {len(others)} more)" if others else ""
    return f"{path + ': ' if path else ''}{first['msg'][:200]}{rest}"


def _check_unchanged(values: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Check that the validated values are the original ones.

    A name that is missing in `again` is ignored: the class has no such field any more.
    """
    if _is_same(values, again):
        return
    for name, value in values.items():
        if name in again and not _is_same(value, again[name]):
            raise ValueError(f"changes its field {name!r} when it is validated again")


def _is_equal_value(value: Any, other: Any) -> bool:
    """Return whether values are encoded equally. `==` may ignore a part, such as a class."""
    if value is other or type(value) is not type(other):
        return value is other
    try:
        texts = [
            json_text.text_of(walk.pack(each, walk.MAX_DEPTH, True)) for each in (value, other)
        ]
    except walk.EncodingError:
        return _is_same(value, other)
    return texts[0] == texts[1]


def _is_same(value: Any, other: Any) -> bool:
    try:
        # A list compares its items by identity first, so equal NaNs are equal.
        return bool([value] == [other])
    except Exception:  # Arrays, for example, have no single truth value.
        return False


def _has_huge_decimal(tree: Any) -> bool:
    """Return whether a Decimal in the tree has more digits than an int may have.

    pydantic converts such a number to an int in unlimited time and memory.
    """
    if type(tree) is list:
        return any(map(_has_huge_decimal, tree))
    if type(tree) is not dict:
        return False
    if tree.get(walk.TAG) == "decimal":
        value = walk.unpack(tree, walk.MAX_DEPTH, True)
        return bool(value.adjusted() > json_text.MAX_DIGITS)
    return any(map(_has_huge_decimal, tree.values()))
