"""Codecs: how values of further classes are written as bytes and values.

`installed_codecs` finds and uses them. It is imported with the first such value.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from wbengine._introspection import object_names
from wbengine.types._encoding import buffers, walk

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


def _later(name: str) -> Callable[..., Any]:
    """Return a function that calls the one with this name in `installed_codecs`."""
    reference = f"wbengine.types._encoding.installed_codecs:{name}"
    load = functools.cache(lambda: object_names.load(reference))
    return lambda *arguments: load()(*arguments)


_TAG: Final = walk.Tag(
    "codec", _later("write"), _later("read"), frozenset({"c", "n", "t", "v", "b"}), levels=2
)
walk.BY_NAME[_TAG.name] = _TAG
walk.FINDERS.append(_later("add_tag"))
