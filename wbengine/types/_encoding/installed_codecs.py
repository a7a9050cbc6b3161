"""The codecs that are installed, and the tag of their values.

A codec is found by the dotted name of a class, in `known_codecs` or among the entry points of the
group `wbengine.codecs`, so that no library is imported to find it. The tag of a value::

    {"$wbe": "codec", "c": "shapes.Shape", "n": 1, "v": [values], "b": [buffers], "t": "1.2 kB"}

A message causes the import of a codec only if it contains the name of one that is installed.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from wbengine._configuration import plugins
from wbengine._introspection import object_names
from wbengine.types._encoding import buffers, classes, codecs, known_codecs, walk
from wbengine.types._encoding.walk import EncodingError, Parts

GROUP: Final = "wbengine.codecs"
_MAX_SUMMARY_LENGTH: Final = 200


#: Return the object with a dotted name. An error is not cached.
_load: Final = functools.cache(object_names.load)


def _find(name: str) -> codecs.Codec | None:
    """Return the codec of the class with this name, or None.

    :raises ValueError: if it cannot be loaded, or is invalid.
    """
    try:
        if name in known_codecs.REFERENCES:
            codec = _load(known_codecs.REFERENCES[name])
        elif _is_known(name):
            codec = plugins.find(GROUP, name)
        else:
            return None
    except Exception as error:
        raise ValueError(known_codecs.advice(name, error)) from error
    if not isinstance(codec, codecs.Codec):
        raise ValueError(f"the codec of {name} must be a Codec, got {type(codec).__name__}")
    return codec


def _is_at_its_name(cls: type) -> bool:
    """Return whether the dotted name of a class leads to it, in the loaded modules."""
    target: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        target = getattr(target, name, None)
    return target is cls


def _is_known(name: str) -> bool:
    return name in known_codecs.REFERENCES or name in plugins.names(GROUP)


def add_tag(cls: type) -> None:
    """Add the tag of a class that has a codec.

    The tag is also that of classes with such a base class, and rejects their values with a hint.
    """
    names = [object_names.class_name(base) for base in cls.__mro__]
    if names[0] in known_codecs.HINTS or any(map(_is_known, names)):
        walk.BY_CLASS[cls] = walk.BY_NAME["codec"]


def write(value: Any, depth_left: int) -> Parts:
    cls = type(value)
    name = object_names.class_name(cls)
    codec = _find(name) if _is_at_its_name(cls) else None
    if codec is None:
        bases = map(object_names.class_name, cls.__mro__[1:])
        base = next(filter(_is_known, bases), None)
        lost = f"it would lose its type; send a {base}"
        raise ValueError(f"cannot be encoded: {known_codecs.HINTS.get(name, lost)}")
    if codec.name != name and _find(codec.name) is not codec:
        raise ValueError(f"the codec of {name} is not installed under its name {codec.name}")
    try:
        encoded = codec.encode(value)
        views = [memoryview(buffer) for buffer in encoded.buffers]
        if not all(view.contiguous for view in views):
            raise ValueError("a buffer of its codec is not contiguous")
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"cannot be encoded: {type(error).__name__}: {error}") from error
    steps = encoded.steps or [f"<value {number}>" for number in range(len(encoded.values))]
    values = [
        walk.part(each, depth_left, step.replace("%", "%%"))
        for each, step in zip(encoded.values, steps, strict=True)
    ]
    size = sum(view.nbytes for view in views) if encoded.size is None else encoded.size
    text = ", ".join(filter(None, [encoded.summary, _size(size) if size else ""]))
    text = text.encode(errors="replace").decode()[:_MAX_SUMMARY_LENGTH]
    parts: Parts = {"c": codec.name, "n": codec.version, "t": text}
    if values:
        parts["v"] = values
    if views:
        parts["b"] = [buffers.write(buffer) for buffer in encoded.buffers]
    return parts


def read(parts: Parts, depth_left: int) -> Any:
    name, version = walk.text(parts, "c"), walk.whole(parts["n"])
    summary = parts.get("t", "")
    if type(summary) is not str or len(summary) > _MAX_SUMMARY_LENGTH:
        raise ValueError("t is not a short string")
    is_shown, kept_by = classes.shows_unknown.get(), classes.keeper.get()
    if kept_by is not None and not kept_by.unknown_only:
        return kept_by.keep("codec", parts)
    if is_shown and codecs.shows_all.get():
        return f"{name} {summary}".rstrip()
    try:
        codec = _find(name)
        if codec is None or codec.name != name:
            raise ValueError(f"no codec for {walk.short(name)} is installed in this process")
    except ValueError as error:
        if kept_by is not None:
            return kept_by.keep("codec", parts)
        if is_shown:
            return f"{name} {summary}".rstrip()
        raise EncodingError(str(error), is_of_code=True) from None
    if version < 1:
        raise ValueError("n is less than 1")
    if version > codec.version:
        raise EncodingError(
            f"version {version} of the codec for {name} is required, and version {codec.version} is"
            " installed: update the package that contains it",
            is_of_code=True,
        )
    written = parts.get("b", [])
    if type(written) is not list:
        raise TypeError("b is not a list")
    views = [memoryview(buffers.read(each)).cast("B").toreadonly() for each in written]
    values = walk.items(parts, depth_left) if "v" in parts else []
    try:
        value = codec.decode(codecs.Encoded(views, values), version)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise EncodingError(f"malformed {name}: {reason}") from None
    cls = type(value)
    if not _is_at_its_name(cls) or _find(object_names.class_name(cls)) is not codec:
        raise EncodingError(f"malformed {name}: its codec returned a {object_names.dotted(cls)}")
    return value


def shape_text(*shape: int) -> str:
    """Return a shape, for the summary of a value."""
    return " \N{MULTIPLICATION SIGN} ".join(f"{length:,}" for length in shape)


def _size(count: float) -> str:
    """Return a number of bytes, such as `1.2 kB`."""
    if count == 1:
        return "1 byte"
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"
