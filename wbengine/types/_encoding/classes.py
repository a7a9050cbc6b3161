"""Tags of instances of allowed classes."""

from __future__ import annotations

import contextvars
import dataclasses
import enum
from typing import Any, Final

from wbengine._introspection import object_names
from wbengine.types._encoding import refusals, walk
from wbengine.types._encoding.walk import EncodingError, Parts, Tag

#: Whether values of unknown classes are decoded to plain values.
shows_unknown: Final = contextvars.ContextVar("shows_unknown", default=False)
#: The allowed classes by dotted name.
ALLOWED: Final[dict[str, type]] = {}


def allow(cls: type) -> None:
    """Allow the members of an Enum or the instances of a dataclass.

    A class replaces an earlier one with the same name, as after a reload of its module.

    :raises TypeError: see `wbengine.types.codec.allow`.
    """
    is_class = isinstance(cls, type)
    if is_class and issubclass(cls, enum.Enum):
        tag = _ENUM
    elif (
        is_class
        and dataclasses.is_dataclass(cls)
        and refusals.builtin_base(cls) is None
        and not issubclass(cls, BaseException)
    ):
        tag = _DATA
    else:
        raise TypeError(f"allowed class must be an Enum or a dataclass, got {cls!r}")
    name = object_names.dotted(cls)
    replaced_class = ALLOWED.get(name)
    ALLOWED[name] = cls
    walk.BY_CLASS[cls] = tag
    if replaced_class is not None and replaced_class is not cls:
        walk.BY_CLASS.pop(replaced_class, None)


def _write_enum(value: enum.Enum, depth_left: int) -> Parts:
    cls = type(value)
    if value.name in cls.__members__:
        return {"c": object_names.dotted(cls), "v": value.name}
    # A combination of flags has a value but no name.
    return {"c": object_names.dotted(cls), "n": walk.pack(value.value, depth_left, True)}


def _read_enum(parts: Parts, depth_left: int) -> enum.Enum | str:
    if _is_shown_only(parts):
        return f"{parts['c']}.{parts['v']}" if "v" in parts else f"{parts['c']}({parts['n']})"
    cls = _class(parts, _ENUM)
    if "v" in parts:
        return cls.__members__[parts["v"]]  # type: ignore[no-any-return]
    return cls(walk.unpack(parts["n"], depth_left, True))  # type: ignore[no-any-return]


def _write_data(value: Any, depth_left: int) -> Parts:
    names = [field.name for field in dataclasses.fields(value)]
    missing = [name for name in names if not hasattr(value, name)]
    extra = [name for name in getattr(value, "__dict__", ()) if name not in names]
    if missing or extra:
        if missing:
            raise ValueError(f"lacks its field {missing[0]!r}")
        raise ValueError(f"has the attribute {extra[0]!r}, which is not a field")
    packed = {name: walk.part(getattr(value, name), depth_left, f".{name}") for name in names}
    return {"c": object_names.dotted(type(value)), "v": packed}


def _read_data(parts: Parts, depth_left: int) -> Any:
    values = parts["v"]
    if _is_shown_only(parts) and type(values) is dict and depth_left > 0:
        return walk.unpack_dict(values, depth_left - 1)
    cls = _class(parts, _DATA)
    names = {field.name for field in dataclasses.fields(cls)}
    if type(values) is not dict or values.keys() != names:
        raise ValueError(f"the fields of {parts['c']} are {', '.join(sorted(names))}")
    if depth_left <= 0:
        raise EncodingError("nested too deeply")
    instance = object.__new__(cls)
    for name, value in walk.unpack_dict(values, depth_left - 1).items():
        object.__setattr__(instance, name, value)
    return instance


def _is_shown_only(parts: Parts) -> bool:
    name = parts["c"]
    return shows_unknown.get() and isinstance(name, str) and name not in ALLOWED


def _class(parts: Parts, tag: Tag) -> Any:
    name = parts["c"]
    cls = ALLOWED.get(name) if isinstance(name, str) else None
    if cls is None:
        raise EncodingError(
            f"class {walk.short(name)} is not known in this process: import the module that defines"
            " it and passes it to wbengine.types.codec.allow (commands: option -I MODULE)"
        )
    if walk.BY_CLASS.get(cls) is not tag:
        raise ValueError(f"class {name!r} has another kind")
    return cls


_CLASS: Final = frozenset({"c", "v"})
_ENUM: Final = Tag("enum", _write_enum, _read_enum, _CLASS | {"n"})
_DATA: Final = Tag("data", _write_data, _read_data, _CLASS, levels=2)
walk.BY_NAME.update({tag.name: tag for tag in (_ENUM, _DATA)})
