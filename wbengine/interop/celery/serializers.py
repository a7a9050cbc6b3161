"""Bodies of Celery's messages: content types, encodings, compression, and which are accepted.

kombu's registry writes and reads them; here is what bounds that for bodies of unknown origin.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kombu import compression, serialization

from wbengine import _names, exceptions

__all__ = [
    "JSON", "MIME_TYPES", "RAW", "Accepted", "Refused", "Undecodable", "Wire", "dump",
    "mime_type",
]  # fmt: skip

#: The name of each serializer -> the content type of its bodies.
MIME_TYPES: Final[dict[str, str]] = {
    "json": "application/json",
    "yaml": "application/x-yaml",
    "msgpack": "application/x-msgpack",
    "pickle": "application/x-python-serialize",
}
JSON: Final = MIME_TYPES["json"]
_NAMES: Final = {mime: name for name, mime in MIME_TYPES.items()}

#: Content types under which a body is bytes, or a text, as it is: reading it runs nothing.
RAW: Final = frozenset(("application/data", "application/text", "text/plain"))
#: How a raw body says that it is bytes; else it names the encoding of a text.
_BINARY: Final = frozenset(("", "binary", "ascii-8bit"))

#: Bytes of a body once it is unpacked, and of memory that unpacking may ask for.
LARGEST: Final = 64 << 20
_MEMORY: Final = 128 << 20

_PICKLE: Final = (
    "pickle is accepted: whoever may write to the broker can run any code in this process; "
    "leave it out of the accepted serializers unless all of them may"
)


class Undecodable(exceptions.InvalidFormat):
    """A body is not what its content type, or its compression, says it is."""


class Refused(exceptions.InvalidFormat):
    """A body is of a content type that is not accepted here; it was not decoded."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One message as brokers carry it; the header `compression` says how its body is packed."""

    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    content_type: str | None = None
    content_encoding: str | None = None
    body: bytes = b""

    @classmethod
    def of(cls, message: Any) -> Wire:
        """What a kombu `Message` holds; kombu has unpacked its body."""
        headers = dict(message.headers or {})
        if not message.errors:
            headers.pop("compression", None)
        body = message.body
        return cls(
            headers,
            {key: one for key, one in (message.properties or {}).items() if one is not None},
            message.content_type,
            message.content_encoding,
            body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body),
        )

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of kombu's `Producer.publish(wire.body, **arguments)`."""
        return self.properties | {
            "headers": dict(self.headers),
            "content_type": self.content_type or "application/data",
            "content_encoding": self.content_encoding or "binary",
        }

    def packed(self, name: str) -> Wire:
        """The same with its body compressed by one of kombu's methods: `gzip`, `bzip2`, ..."""
        body, kind = compression.compress(self.body, name)
        return replace(self, headers={**self.headers, "compression": kind}, body=body)

    def unpacked(self, largest: int = LARGEST) -> bytes:
        """The body, decompressed if it is compressed.

        :raises TooLarge: it has more than `largest` bytes; no more than that were unpacked.
        :raises Undecodable: it cannot be decompressed, or its compression is not known here.
        """
        name, data, whole = self.headers.get("compression"), self.body, True
        if name:
            unpacker = _unpacker(str(name)[:100])
            try:
                data = unpacker.decompress(data, largest + 1)
            except Exception as error:
                raise Undecodable(f"a body is not {name!r:.99} data: {_told(error)}") from None
            whole = unpacker.eof and not unpacker.unused_data
        if len(data) > largest:
            raise exceptions.TooLarge(f"a body has more than {largest} bytes")
        if not whole:
            raise Undecodable(f"a body is cut short, or is more than {name!r:.99} data")
        return data


def _unpacker(name: str) -> Any:
    """A decompressor that stops where it is told to; brotli has none."""
    match name.removeprefix("application/").removeprefix("x-"):
        case "gzip" | "zlib":
            return zlib.decompressobj()
        case "bz2" | "bzip2" | "bzip":
            return bz2.BZ2Decompressor()
        case "lzma" | "xz":
            return lzma.LZMADecompressor(memlimit=_MEMORY)
        case "zstd" | "zstandard":
            for module in ("compression.zstd", "backports.zstd"):
                try:
                    return importlib.import_module(module).ZstdDecompressor()
                except ImportError:
                    continue
    raise Undecodable(f"compression {name!r} is not known here")


class Accepted:
    """The content types that are read here: all else is refused before it is decoded.

    `names` are serializers (`'json'`, `'yaml'`, `'msgpack'`, `'pickle'`) or their content types.
    Bytes and texts as they are (`RAW`) are always read.  Naming pickle warns of what it allows.

    :raises ValueError: a name is none of these.
    """

    def __init__(self, names: str | Iterable[str] = ("json",)) -> None:
        found = [_NAMES.get(name, name) for name in _names.words("accept", names)]
        for name in found:
            mime_type(name)
        #: The serializers by name.
        self.names: Final = tuple(dict.fromkeys(found))
        self._types: Final = frozenset(MIME_TYPES[name] for name in self.names)
        if "pickle" in self.names:
            warnings.warn(_PICKLE, UserWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"Accepted({self.names!r})"

    def read(self, wire: Wire) -> Any:
        """The value in the body of a message.

        :raises Refused: its content type is not accepted; it was neither unpacked nor decoded.
        :raises Undecodable: it is not what its content type says.
        :raises TooLarge: it has more than `LARGEST` bytes.
        """
        kind = type_of(wire)
        if kind in RAW:
            return _raw(wire.unpacked(), wire.content_encoding)
        if kind not in self._types:
            names = ", ".join(self.names) or "nothing"
            raise Refused(f"content type {kind[:100]!r} is not accepted here, but {names}")
        body = wire.unpacked()
        if not body:
            raise Undecodable(f"a body of {kind} is empty")
        try:
            return serialization.loads(body, kind, wire.content_encoding, accept=self._types)
        except Exception as error:
            raise Undecodable(f"a body is not {kind}: {_told(error)}") from None


def type_of(wire: Wire) -> str:
    """The content type of a message; raw data where it names none."""
    return wire.content_type.strip().lower() if wire.content_type else "application/data"


def name_of(content_type: str | None) -> str | None:
    """The serializer that writes this content type, None if there is none."""
    return _NAMES.get((content_type or "").strip().lower())


def mime_type(name: str) -> str:
    """The content type of what a serializer writes.

    :raises ValueError: there is none of this name.
    """
    if name not in MIME_TYPES:
        near = _names.hint(str(name), [*MIME_TYPES, *_NAMES])
        raise ValueError(f"{name!r} is no serializer{near}: use {', '.join(MIME_TYPES)}")
    return MIME_TYPES[name]


def dump(value: Any, name: str = "json") -> tuple[str, str, bytes]:
    """`(content_type, content_encoding, body)` of `value`, as the serializer `name` writes it.

    :raises NotEncodable: it cannot be written so.
    :raises ValueError: there is no such serializer.
    """
    mime_type(name)
    try:
        kind, encoding, body = serialization.dumps(value, serializer=name)
        data = body.encode("utf-8") if isinstance(body, str) else bytes(body)
    except Exception as error:
        raise exceptions.NotEncodable(
            f"cannot be written as {name}: {_told(error)}", type_name=type(value).__name__
        ) from None
    return str(kind), str(encoding), data


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def _raw(body: bytes, content_encoding: str | None) -> bytes | str:
    encoding = (content_encoding or "").lower()
    if encoding in _BINARY:
        return body
    try:
        return body.decode(encoding)
    except (UnicodeError, LookupError) as error:
        raise Undecodable(f"a raw body is not {encoding[:100]!r}: {_told(error)}") from None
