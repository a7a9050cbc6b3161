"""Values that can be sent to workers and stored, and how to add types.

In addition to the types of JSON, arguments and results may contain tuples, sets, frozensets, bytes,
complex numbers, `Decimal`, `UUID`, `datetime`, `date`, `time`, `timedelta`, paths of `pathlib`, the
classes of `ipaddress`, failures, dicts with keys that are not strings, and arrays and frames of
other libraries. They may also contain members of enumerations, and instances of dataclasses, named
tuples, attrs classes, `msgspec.Struct` and models of pydantic, if the class is allowed: by `allow`,
or because the annotations of a task, workflow, flow factory or allowed class name it::

    from wbengine.types import codec

    @codec.allow
    @dataclasses.dataclass(frozen=True)
    class Order:
        number: int
        due: datetime.date

The receiver gets equal values of the same types. All other values are rejected with their path
before they are sent. Limits: 64 levels of JSON (a list, or a dict with only string keys, is one
level; a tuple, set or instance two; any other dict three); 32 keys of a set or dict with the same
hash; 100,000 keys that are neither text nor bytes, in values sent to or from a worker.

A message never causes an import, except that of an installed `Codec`. So sender and receiver both
import the module that defines the class, calls `allow` or defines the task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import json_text
from wbengine.types._encoding import buffers as _buffers
from wbengine.types._encoding import classes, codecs, standard, walk
from wbengine.types._encoding.codecs import Codec, Encoded

__all__ = ["Codec", "Encoded", "allow", "dumps", "loads"]

#: The reserved key. No plain JSON object contains it.
TAG: Final = walk.TAG
#: Maximum nesting of JSON containers. A tag counts as the containers of which it consists.
MAX_DEPTH: Final = walk.MAX_DEPTH

_C = TypeVar("_C", bound=type)


def allow(cls: _C) -> _C:
    """Allow the members of an enumeration, or the instances of another class, as values.

    The class is an `Enum`, a dataclass, a `NamedTuple`, an attrs class, a `msgspec.Struct`, or a
    model, dataclass or URL of pydantic 2. The classes that the annotations of its fields name are
    allowed, too. Usable as a decorator. Returns `cls`.

    Decoding sets the fields without calling the class. Exceptions: the validators of pydantic and
    `__post_init__` of a `msgspec.Struct` are called, and must not change valid values.

    :raises TypeError: for any other class, also for an exception or a subclass of a builtin,
        because these have state outside of their fields.
    """
    classes.allow(cls)
    return cls


def pack(value: Any, where: str = "result") -> Any:
    """Return the JSON tree of `value`. Do not change `value` while the tree is in use.

    :raises NotEncodable: if a part of it cannot be encoded. The message begins with the path to
        this part, relative to `where` (`result['a'][3]: socket.socket ...`).
    """
    return walk.encode_tree(value, where, typed=True)


def plain(value: Any, where: str = "result") -> Any:
    """Return the JSON tree of `value` for peers that support only plain JSON.

    :raises NotEncodable: as for `pack`, and if a value needs a tag.
    """
    return walk.encode_tree(value, where, typed=False)


def dumps(value: Any, where: str = "result") -> bytes:
    """Encode a value as compact UTF-8 JSON, with `pack`.

    >>> loads(dumps({(1, 2): b"ab"}))
    {(1, 2): b'ab'}

    :raises NotEncodable: see `pack`.
    """
    return json_text.encode(pack(value, where), finite=True)


def unpack(tree: Any) -> Any:
    """Return the value of a tree that `pack` created.

    The tree is not changed, but may become part of the value.

    :raises InvalidFormat: if `pack` cannot have created the tree.
    """
    kind = type(tree)
    if tree is None or kind is int or kind is bool or (kind is str and tree.isascii()):
        return tree
    return walk.decode_tree(tree, MAX_DEPTH, typed=True)


def pack_to_send(value: Any, where: str = "result") -> Any:
    """Encode like `pack`, with the limits for data to another process."""
    before = standard.is_remote.set(True)
    try:
        return pack(value, where)
    finally:
        standard.is_remote.reset(before)


def unpack_received(tree: Any) -> Any:
    """Decode like `unpack`, with the limits for data from another process."""
    before = standard.is_remote.set(True)
    try:
        return unpack(tree)
    finally:
        standard.is_remote.reset(before)


def pack_with_buffers(value: Any, where: str = "result") -> tuple[Any, list[_buffers.Buffer]]:
    """Encode like `pack`, but keep bytes of at least 1 KiB outside of the tree.

    Return the tree and the buffers to which it refers by their index. They are not copied: do not
    change `value` while they are in use.

    :raises NotEncodable: see `pack`.
    """
    with _buffers.collecting() as buffers:
        return pack(value, where), buffers


def unpack_with_buffers(tree: Any, buffers: Sequence[_buffers.Buffer]) -> Any:
    """Return the value of a tree and buffers that `pack_with_buffers` created.

    The buffers may be any bytes-like objects. The value may use their memory.

    :raises InvalidFormat: see `unpack`; also, unless the tree uses each buffer once.
    """
    with _buffers.reading(buffers):
        return unpack(tree)


@contextlib.contextmanager
def unknown_classes_as_text(*, with_codecs: bool = False) -> Iterator[None]:
    """Decode values of unknown classes in the `with` block, in order to show them, not to use them.

    An instance becomes a dict of its fields, and a member of an enumeration its name. An array or
    frame becomes a short text, so that no library is imported. If `with_codecs` is true, this
    applies only if its codec is not installed.
    """
    before = classes.shows_unknown.set(True)
    before_codecs = codecs.shows_all.set(not with_codecs)
    try:
        yield
    finally:
        codecs.shows_all.reset(before_codecs)
        classes.shows_unknown.reset(before)


@contextlib.contextmanager
def copying(*, unknown_only: bool = False) -> Iterator[Mapping[str, int]]:
    """Keep values of classes as they are encoded in the `with` block, in order to copy them.

    These are instances, members of enumerations, arrays and frames. They are replaced by objects
    that `pack` encodes unchanged, so their classes are not used.

    :param unknown_only: decode the values of classes that this process knows.
    :returns: the number of such values so far, by the name of the class.
    """
    keeper = object_names.load("wbengine.types._encoding.undecoded:Keeper")(unknown_only)
    before = classes.keeper.set(keeper)
    try:
        yield keeper.counts
    finally:
        classes.keeper.reset(before)


def summary(value: Any) -> str | None:
    """Return an array, frame or other value with a `Codec` as a short text; None for other values.

    The text is that of `unknown_classes_as_text`.
    """
    if walk.tag_of(type(value)) is not walk.BY_NAME["codec"]:
        return None
    try:
        tree, _ = pack_with_buffers(value)
    except exceptions.NotEncodable:
        return None
    return f"{tree['c']} {tree['t']}".rstrip()


def loads(data: bytes | bytearray | memoryview | str, depth: int = MAX_DEPTH) -> Any:
    """Decode JSON text, including tags.

    :raises InvalidFormat: see `parse` and `unpack`.
    """
    return walk.decode_tree(json_text.parse(data)[0], depth, typed=True)


def parse(data: bytes | bytearray | memoryview | str, depth: int = MAX_DEPTH) -> Any:
    """Return the tree of JSON text, without decoding tags.

    :raises InvalidFormat: if it is not strict JSON in UTF-8, or contains NaN, infinities (also by
        overflow), repeated keys, lone surrogates, integers over 4,300 digits, or more than `depth`
        levels.
    """
    tree, suspect = json_text.parse(data)
    flat = type(data) is bytes and not json_text.has_more_containers(data, depth)
    if not suspect and (flat or not json_text.is_deeper(tree, depth)):
        return tree
    return walk.decode_tree(tree, depth, typed=False)
