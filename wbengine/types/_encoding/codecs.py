"""Codecs: how values of further classes are written as bytes and values.

A codec is found by the dotted name of a class, in `known_codecs` or among the entry points of the
group `wbengine.codecs`, so that no library is imported to find it. The tag of such a value::

    {"$wbe": "codec", "c": "shapes.Shape", "n": 1, "v": [values], "b": [buffers], "t": "1.2 kB"}

A message causes the import of a codec only if it contains the name of one that is installed.
"""

from __future__ import annotations

import contextvars
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from wbengine._configuration import plugins
from wbengine._introspection import object_names
from wbengine.types._encoding import buffers, classes, known_codecs, walk
from wbengine.types._encoding.walk import EncodingError, Parts, Tag

GROUP: Final = "wbengine.codecs"
_MAX_SUMMARY_LENGTH: Final = 200
#: Whether values are shown as text even if their codec is installed.
shows_all: Final = contextvars.ContextVar("shows_all", default=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """The content of a value.

    :ivar buffers: bytes-like objects, contiguous. They are not copied if they are stored outside of
        the message. A decoder receives memoryviews of them, which it may keep.
    :ivar values: values that wbengine can encode.
    :ivar steps: the path from the value to each of `values`, for error messages, such as `.index`.
        The default is `<value 0>`.
    :ivar summary: a text for pages that show the value without decoding it, such as `3 x 2`.
    :ivar size: number of bytes for these pages. The default is the size of the buffers.
    """

    buffers: Sequence[buffers.Buffer] = ()
    values: Sequence[Any] = ()
    steps: Sequence[str] = ()
    summary: str = ""
    size: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Codec:
    """An encoder and a decoder for values of one class, or of several.

    Install it as an entry point of the group `wbengine.codecs` for each of the classes: its name is
    the dotted name of the class, and its value refers to the codec.

    :ivar name: the name in messages: that of one of the entry points.
    :ivar encode: returns the content of a value. A ValueError contains the reason why a value
        cannot be encoded.
    :ivar decode: returns the value of a content. The second argument is the version of the codec
        that encoded it. Do not trust the content: check it before using it.
    :ivar version: version of the content, 1 or higher. `decode` must accept all earlier ones.
    """

    name: str
    encode: Callable[[Any], Encoded]
    decode: Callable[[Encoded, int], Any]
    version: int = 1


def _find(name: str) -> Codec | None:
    """Return the codec of the class with this name, or None.

    :raises ValueError: if it cannot be loaded, or is invalid.
    """
    try:
        if name in known_codecs.REFERENCES:
            codec = object_names.load(known_codecs.REFERENCES[name])
        elif _is_known(name):
            codec = plugins.find(GROUP, name)
        else:
            return None
    except Exception as error:
        raise ValueError(known_codecs.advice(name, error)) from error
    if not isinstance(codec, Codec):
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


def _tag_of(cls: type) -> Tag | None:
    """Return the tag of a class that has a codec, or whose base class has one."""
    name, *bases = [object_names.class_name(base) for base in cls.__mro__]
    if _is_known(name):
        walk.BY_CLASS[cls] = _TAG
        return _TAG
    # The tag rejects the value, with a hint.
    return _TAG if name in known_codecs.HINTS or any(map(_is_known, bases)) else None


def _write(value: Any, depth_left: int) -> Parts:
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
    parts: Parts = {"c": codec.name, "n": codec.version, "t": text[:_MAX_SUMMARY_LENGTH]}
    if values:
        parts["v"] = values
    if views:
        parts["b"] = [buffers.write(buffer) for buffer in encoded.buffers]
    return parts


def _read(parts: Parts, depth_left: int) -> Any:
    name, version = walk.text(parts, "c"), walk.whole(parts["n"])
    summary = parts.get("t", "")
    if type(summary) is not str or len(summary) > _MAX_SUMMARY_LENGTH:
        raise ValueError("t is not a short string")
    is_shown = classes.shows_unknown.get()
    if is_shown and shows_all.get():
        return f"{name} {summary}".rstrip()
    try:
        codec = _find(name)
        if codec is None or codec.name != name:
            raise ValueError(f"no codec for {walk.short(name)} is installed in this process")
    except ValueError as error:
        if is_shown:
            return f"{name} {summary}".rstrip()
        raise EncodingError(str(error)) from None
    if version < 1:
        raise ValueError("n is less than 1")
    if version > codec.version:
        raise EncodingError(
            f"version {version} of the codec for {name} is required, and version {codec.version} is"
            " installed: update the package that contains it"
        )
    written = parts.get("b", [])
    if type(written) is not list:
        raise TypeError("b is not a list")
    views = [memoryview(buffers.read(each)).cast("B").toreadonly() for each in written]
    values = walk.items(parts, depth_left) if "v" in parts else []
    try:
        value = codec.decode(Encoded(views, values), version)
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
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"


_TAG: Final = Tag("codec", _write, _read, frozenset({"c", "n", "t", "v", "b"}), levels=2)
walk.BY_NAME[_TAG.name] = _TAG


def _add_tag(cls: type) -> None:
    tag = _tag_of(cls)
    if tag is not None:
        walk.BY_CLASS[cls] = tag


walk.FINDERS.append(_add_tag)
