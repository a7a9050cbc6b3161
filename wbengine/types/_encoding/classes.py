"""Tags of members and instances of allowed classes."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from wbengine._introspection import object_names
from wbengine.types._encoding import kinds, walk
from wbengine.types._encoding.walk import EncodingError, Parts, Tag

#: Whether values of unknown classes are decoded to plain values.
shows_unknown: Final = contextvars.ContextVar("shows_unknown", default=False)


class Form:
    """How the values of one class are encoded and decoded."""

    #: The name of the tag.
    tag: ClassVar[str]

    def __init__(self, cls: type) -> None:
        self.cls: Any = cls
        self.name = object_names.dotted(cls)

    def write(self, value: Any, depth_left: int) -> Parts:
        """Return the content of the tag, as `walk.Tag.write`."""
        raise NotImplementedError

    def read(self, parts: Parts, depth_left: int) -> Any:
        """Return the value, as `walk.Tag.read`."""
        raise NotImplementedError


class _Enumeration(Form):
    tag = "enum"

    def write(self, value: Any, depth_left: int) -> Parts:
        if value.name in self.cls.__members__:
            return {"c": self.name, "v": value.name}
        # A combination of flags has a value but no name.
        return {"c": self.name, "n": walk.pack(value.value, depth_left, True)}

    def read(self, parts: Parts, depth_left: int) -> Any:
        if "v" in parts:
            return self.cls.__members__[parts["v"]]
        return self.cls(walk.unpack(parts["n"], depth_left, True))


class Fields(Form):
    """Instances that consist of named fields. Decoding sets them without calling the class."""

    tag = "data"

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        super().__init__(cls)
        self.names: Final = tuple(names)
        self._name_set: Final = frozenset(self.names)

    def write(self, value: Any, depth_left: int) -> Parts:
        return {"c": self.name, "v": walk.pack_attributes(self.split(value), depth_left)}

    def read(self, parts: Parts, depth_left: int) -> Any:
        values = parts["v"]
        if type(values) is not dict or values.keys() != self._name_set or len(parts) != 2:
            raise ValueError(f"the fields of {self.name} are {', '.join(sorted(self.names))}")
        return self.create(walk.unpack_attributes(values, depth_left))

    def split(self, value: Any) -> dict[str, Any]:
        """Return the values of the fields.

        :raises ValueError: if a field has no value, or the instance has other attributes.
        """
        for name in self.names:
            if not hasattr(value, name):
                raise ValueError(f"lacks its field {name!r}")
        for name in getattr(value, "__dict__", ()):
            if name not in self._name_set:
                raise ValueError(f"has the attribute {name!r}, which is not a field")
        return {name: getattr(value, name) for name in self.names}

    def create(self, values: dict[str, Any]) -> Any:
        """Return an instance with these values."""
        instance = object.__new__(self.cls)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance


class _NamedTuple(Fields):
    def split(self, value: Any) -> dict[str, Any]:
        if len(value) != len(self.names):
            raise ValueError(f"has {len(value)} items, but {len(self.names)} fields")
        for name in getattr(value, "__dict__", ()):
            raise ValueError(f"has the attribute {name!r}, which is not a field")
        return dict(zip(self.names, value, strict=True))

    def create(self, values: dict[str, Any]) -> Any:
        return tuple.__new__(self.cls, [values[name] for name in self.names])


#: The form of each allowed class, by its dotted name.
ALLOWED: Final[dict[str, Form]] = {}
_FORMS: Final[dict[type, Form]] = {}


def allow(cls: Any) -> None:
    """Allow the values of a class.

    A class replaces an earlier one with the same name, as after a reload of its module.

    :raises TypeError: see `wbengine.types.codec.allow`.
    """
    form = _form_of(cls)
    if form is None:
        raise TypeError(f"allowed class must be {kinds.ALLOWABLE}, got {cls!r}")
    replaced_form = ALLOWED.get(form.name)
    ALLOWED[form.name] = form
    _FORMS[cls] = form
    walk.BY_CLASS[cls] = _TAGS[form.tag]
    if replaced_form is not None and replaced_form.cls is not cls:
        walk.BY_CLASS.pop(replaced_form.cls, None)
        _FORMS.pop(replaced_form.cls, None)


def _form_of(cls: Any) -> Form | None:
    kind = kinds.of_class(cls)
    if kind == kinds.ENUM:
        return _Enumeration(cls)
    if kind == kinds.NAMED_TUPLE:
        return _NamedTuple(cls, cls._fields)
    if kind == kinds.DATACLASS:
        return Fields(cls, [field.name for field in dataclasses.fields(cls)])
    return None


def _read_member(parts: Parts, depth_left: int) -> Any:
    form = _known_form(parts, "enum")
    if form is None:
        return f"{parts['c']}.{parts['v']}" if "v" in parts else f"{parts['c']}({parts['n']})"
    return form.read(parts, depth_left)


def _read_instance(parts: Parts, depth_left: int) -> Any:
    form = _known_form(parts, "data")
    if form is None:
        return walk.unpack_attributes(parts["v"], depth_left)
    return form.read(parts, depth_left)


def _known_form(parts: Parts, tag: str) -> Form | None:
    """Return the form of the class in `parts`, or None to show the value as text."""
    name = parts["c"]
    form = ALLOWED.get(name) if isinstance(name, str) else None
    if form is None:
        if isinstance(name, str) and shows_unknown.get():
            return None
        raise EncodingError(
            f"class {walk.short(name)} is not known in this process: import the module that defines"
            " it and passes it to wbengine.types.codec.allow (commands: option -I MODULE)"
        )
    if form.tag != tag:
        raise ValueError(f"class {name!r} has another kind")
    return form


def _write(value: Any, depth_left: int) -> Parts:
    return _FORMS[type(value)].write(value, depth_left)


_TAGS: Final[dict[str, Tag]] = {
    "enum": Tag("enum", _write, _read_member, frozenset({"c", "v", "n"})),
    "data": Tag("data", _write, _read_instance, frozenset({"c", "v"}), levels=2),
}
walk.BY_NAME.update(_TAGS)
