"""Bodies and their content types: which are read here, and how."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

from kombu import serialization

from wbengine import _names, exceptions
from wbengine.interop.celery.protocol.wire import LARGEST, Undecodable, Wire

__all__ = [
    "JSON",
    "MIME_TYPES",
    "RAW",
    "Accepted",
    "Refused",
    "Undecodable",
    "dump",
    "is_raw",
    "name_of",
]

LOG = logging.getLogger(__name__)

#: The name of each serializer -> the content type of what it writes.
MIME_TYPES: Final[dict[str, str]] = {
    "json": "application/json",
    "yaml": "application/x-yaml",
    "msgpack": "application/x-msgpack",
    "pickle": "application/x-python-serialize",
}
JSON: Final = MIME_TYPES["json"]

#: Content types under which a body is bytes, or a text, as it is: reading it runs nothing.
RAW: Final = frozenset(("application/data", "application/text", "text/plain"))

#: Those whose numbers are digits.
_IN_WORDS: Final = frozenset((JSON, MIME_TYPES["yaml"]))
_NAMES: Final = {mime: name for name, mime in MIME_TYPES.items()}
#: Serializer -> the module that it needs, and what to install for it.
_NEEDS: Final = {"yaml": "yaml", "msgpack": "msgpack"}

#: How a raw body may say that it is bytes, and the encodings in which it may be a text.  Not all
#: that Python knows: some of them unpack, and some take long.
_BINARY: Final = frozenset(("", "binary", "ascii-8bit"))
_TEXTS: Final = frozenset(
    ("utf-8", "utf8", "us-ascii", "ascii", "latin-1", "latin1", "iso-8859-1", "utf-16", "utf-32")
)

#: Levels that a decoded body may have, and parts in it, however often one stands in several places.
MOST_LEVELS: Final = 1000
MOST_PARTS: Final = 5_000_000
#: PyYAML reads some 100 KB in a second, and all else waits for it.
LARGEST_YAML: Final = 1 << 20

#: Python takes long to read a number of more digits, unless it refuses to.
MOST_DIGITS: Final = 4300
_NUMBER: Final = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))
_most_digits: Callable[[], int] = getattr(sys, "get_int_max_str_digits", lambda: 0)

_PICKLE: Final = (
    "pickle is accepted: whoever may write to the broker can run any code in this process; "
    "leave it out of the accepted serializers unless all of them may"
)


class Refused(exceptions.InvalidFormat):
    """A body is of a content type that is not accepted here; it was not decoded."""


class Accepted:
    """The content types that are read here: all else is refused before it is decoded.

    `names` are serializers (`'json'`, `'yaml'`, `'msgpack'`, `'pickle'`) or their content types.
    Bytes and texts as they are (`RAW`) are always read.  Naming pickle warns of what it allows.

    :raises ValueError: a name is none of these, or what reads it is not installed.
    """

    def __init__(self, names: str | Iterable[str] = ("json",)) -> None:
        found = [_NAMES.get(name, name) for name in _names.words("accept", names)]
        for name in found:
            if name not in MIME_TYPES:
                known = [*MIME_TYPES, *_NAMES]
                raise ValueError(
                    f"{name!r} is no serializer{_names.hint(name, known)}: "
                    f"use {', '.join(MIME_TYPES)} or their content types"
                )
            if name in _NEEDS and importlib.util.find_spec(_NEEDS[name]) is None:
                raise ValueError(
                    f"{name!r} takes a package that is not installed:"
                    " pip install 'wbengine[celery]'"
                )
        #: The serializers by name, the one that answers are written in first.
        self.names: Final = tuple(dict.fromkeys(found))
        self._types: Final = frozenset(MIME_TYPES[name] for name in self.names)
        if "pickle" in self.names:
            warnings.warn(_PICKLE, UserWarning, stacklevel=2)
            LOG.warning(_PICKLE)

    def __repr__(self) -> str:
        return f"Accepted({self.names!r})"

    def accepts(self, content_type: str | None) -> bool:
        """Whether a body of this content type is read."""
        return _type(content_type) in self._types or _type(content_type) in RAW

    def read(self, wire: Wire) -> Any:
        """What the body of a message holds; see `load`."""
        kind = _type(wire.content_type)
        if not self.accepts(kind):
            raise self._refused(kind)
        return self.load(wire.unpacked(), kind, wire.content_encoding)

    def load(self, body: bytes, content_type: str | None, content_encoding: str | None) -> Any:
        """What a body holds.

        :raises Refused: its content type is not accepted; nothing of it was decoded.
        :raises Undecodable: it is not what its content type says, or has more than `MOST_LEVELS`
            levels.
        :raises TooLarge: it has too many bytes, or parts.
        """
        kind = _type(content_type)
        if kind in RAW:
            return _raw(body, content_encoding)
        if kind not in self._types:
            raise self._refused(kind)
        largest = LARGEST_YAML if kind == MIME_TYPES["yaml"] else LARGEST
        if len(body) > largest:
            raise exceptions.TooLarge(f"a body of {kind} has more than {largest} bytes")
        if not body:
            raise Undecodable(f"a body of {kind} is empty")
        if kind in _IN_WORDS and not 0 < _most_digits() <= MOST_DIGITS and _NUMBER.search(body):
            raise Undecodable(f"a body of {kind} has a number of more than {MOST_DIGITS} digits")
        try:
            value = serialization.loads(body, kind, content_encoding, accept=self._types)
        except Exception as error:
            raise Undecodable(f"a body is not {kind}: {_told(error)}") from None
        _check(value, kind)
        return value

    def _refused(self, kind: str) -> Refused:
        names = ", ".join(self.names) or "nothing"
        return Refused(f"content type {kind[:100]!r} is not accepted here, but {names}")

    def written(self, content_type: str | None) -> str:
        """The serializer for what follows from a message of this content type.

        The same, where it is accepted; else the first that is.
        """
        name = _NAMES.get(_type(content_type), "")
        return name if name in self.names else (self.names or ("json",))[0]


def name_of(content_type: str | None) -> str | None:
    """The serializer that writes this content type, None if there is none."""
    return _NAMES.get(_type(content_type))


def is_raw(content_type: str | None) -> bool:
    """Whether a body of this content type is bytes, or a text, as it is."""
    return _type(content_type) in RAW


def dump(value: Any, name: str = "json") -> tuple[str, str, bytes]:
    """`(content_type, content_encoding, body)` of `value`, as the serializer `name` writes it.

    :raises NotEncodable: it cannot be written so.
    :raises ValueError: there is no such serializer.
    """
    if name not in MIME_TYPES:
        raise ValueError(f"{name!r} is no serializer{_names.hint(name, MIME_TYPES)}")
    try:
        kind, encoding, body = serialization.dumps(value, serializer=name)
        data = body.encode("utf-8") if isinstance(body, str) else bytes(body)
    except Exception as error:
        raise exceptions.NotEncodable(
            f"cannot be written as {name}: {_told(error)}", type_name=type(value).__name__
        ) from None
    return str(kind), str(encoding), data


def _type(content_type: str | None) -> str:
    return content_type.strip().lower() if content_type else "application/data"


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def _raw(body: bytes, content_encoding: str | None) -> bytes | str:
    encoding = (content_encoding or "").lower().replace("_", "-")
    if encoding in _BINARY:
        return body
    if encoding not in _TEXTS:
        raise Undecodable(f"a raw body in {encoding[:100]!r} is not read here: use utf-8 or binary")
    try:
        return body.decode(encoding)
    except UnicodeError as error:
        raise Undecodable(f"a raw body is not {encoding}: {_told(error)}") from None


def _check(value: Any, kind: str) -> None:
    """Bounds what is decoded: what refers to itself, or to one part from many places, too."""
    level = [value]
    parts = 0
    for _ in range(MOST_LEVELS):
        inside = itertools.chain.from_iterable(
            one.values() if isinstance(one, dict) else one
            for one in level
            if isinstance(one, dict | list | tuple)
        )
        level = list(itertools.islice(inside, MOST_PARTS - parts + 1))
        parts += len(level)
        if not level:
            return
        if parts > MOST_PARTS:
            raise exceptions.TooLarge(f"a body of {kind} has more than {MOST_PARTS} parts")
    raise Undecodable(f"a body of {kind} has more than {MOST_LEVELS} levels")
