"""Bodies of Celery messages: content types, encodings, compression, and accepted types.

kombu's registry reads and writes bodies. This module restricts it for bodies of unknown origin.
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

from wbengine import exceptions
from wbengine._introspection import object_names

__all__ = [
    "JSON", "MIME_TYPES", "RAW", "Accepted", "Refused", "Undecodable", "Wire", "dump",
    "mime_type",
]  # fmt: skip

#: Content type of the bodies of each serializer.
MIME_TYPES: Final[dict[str, str]] = {
    "json": "application/json",
    "yaml": "application/x-yaml",
    "msgpack": "application/x-msgpack",
    "pickle": "application/x-python-serialize",
}
JSON: Final = MIME_TYPES["json"]
_NAMES: Final = {mime: name for name, mime in MIME_TYPES.items()}

#: Content types of plain bytes or text. Reading them executes no code.
RAW: Final = frozenset(("application/data", "application/text", "text/plain"))
#: Encodings of raw bytes; any other encoding means text.
_BINARY: Final = frozenset(("", "binary", "ascii-8bit"))

#: Maximum bytes of a decompressed body, and of memory for its decompression.
MAX_BODY_BYTES: Final = 64 << 20
_MAX_DECOMPRESSION_BYTES: Final = 128 << 20

_PICKLE: Final = (
    "pickle is accepted: any client that can write to the broker can run code in this"
    " process; remove pickle from the accepted serializers unless you trust all clients"
)


class Undecodable(exceptions.InvalidFormat):
    """A body does not match its content type or its compression."""


class Refused(exceptions.InvalidFormat):
    """The content type of a body is not accepted; the body was not decoded."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One message as brokers transmit it; the header `compression` describes the body."""

    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    content_type: str | None = None
    content_encoding: str | None = None
    body: bytes = b""

    @classmethod
    def of(cls, message: Any) -> Wire:
        """Return the content of a kombu `Message`, whose body kombu has decompressed."""
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
        """Return the keyword arguments of kombu's `Producer.publish(wire.body, **arguments)`."""
        return self.properties | {
            "headers": dict(self.headers),
            "content_type": self.content_type or "application/data",
            "content_encoding": self.content_encoding or "binary",
        }

    def packed(self, name: str) -> Wire:
        """Return a copy with a body compressed by one of kombu's methods: `gzip`, `bzip2`, ..."""
        body, kind = compression.compress(self.body, name)
        return replace(self, headers={**self.headers, "compression": kind}, body=body)

    def unpacked(self, largest: int = MAX_BODY_BYTES) -> bytes:
        """Return the body, decompressed if necessary.

        :raises TooLarge: if it has more than `largest` bytes; decompression stops at this limit.
        :raises Undecodable: if it cannot be decompressed, or its compression is unknown.
        """
        name, data, is_complete = self.headers.get("compression"), self.body, True
        if name:
            unpacker = _unpacker(str(name)[:100])
            try:
                data = unpacker.decompress(data, largest + 1)
            except Exception as error:
                raise Undecodable(
                    f"the body must be {name!r:.99} data: {_describe(error)}"
                ) from None
            is_complete = unpacker.eof and not unpacker.unused_data
        if len(data) > largest:
            raise exceptions.TooLarge(f"the body must not be larger than {largest} bytes")
        if not is_complete:
            raise Undecodable(f"the body is incomplete, or has more than the {name!r:.99} data")
        return data


def _unpacker(name: str) -> Any:
    """Return a decompressor with a size limit. Brotli is not supported, because it has no limit."""
    match name.removeprefix("application/").removeprefix("x-"):
        case "gzip" | "zlib":
            return zlib.decompressobj()
        case "bz2" | "bzip2" | "bzip":
            return bz2.BZ2Decompressor()
        case "lzma" | "xz":
            return lzma.LZMADecompressor(memlimit=_MAX_DECOMPRESSION_BYTES)
        case "zstd" | "zstandard":
            for module in ("compression.zstd", "backports.zstd"):
                try:
                    return importlib.import_module(module).ZstdDecompressor()
                except ImportError:
                    continue
    raise Undecodable(f"unknown compression {name!r}")


class Accepted:
    """The accepted content types. Other bodies are rejected before they are decoded.

    :param names: serializers (`'json'`, `'yaml'`, `'msgpack'`, `'pickle'`) or their content types.
        Raw bytes and text (`RAW`) are always accepted. `'pickle'` causes a warning.
    :raises ValueError: if a name is unknown.
    """

    def __init__(self, names: str | Iterable[str] = ("json",)) -> None:
        types = [_NAMES.get(name, name) for name in object_names.as_tuple("accept", names)]
        for name in types:
            mime_type(name)
        self.names: Final = tuple(dict.fromkeys(types))
        self._types: Final = frozenset(MIME_TYPES[name] for name in self.names)
        if "pickle" in self.names:
            warnings.warn(_PICKLE, UserWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"Accepted({self.names!r})"

    def read(self, wire: Wire) -> Any:
        """Return the decoded body of a message.

        :raises Refused: if its content type is not accepted; it was neither decompressed nor
            decoded.
        :raises Undecodable: if it does not match its content type.
        :raises TooLarge: if it has more than `MAX_BODY_BYTES` bytes.
        """
        kind = type_of(wire)
        if kind in RAW:
            return _raw(wire.unpacked(), wire.content_encoding)
        if kind not in self._types:
            names = ", ".join(self.names) or "nothing"
            raise Refused(f"content type {kind[:100]!r} is not accepted; accepted: {names}")
        body = wire.unpacked()
        if not body:
            raise Undecodable(f"a body of type {kind} must not be empty")
        try:
            return serialization.loads(body, kind, wire.content_encoding, accept=self._types)
        except Exception as error:
            raise Undecodable(f"the body must be {kind}: {_describe(error)}") from None


def type_of(wire: Wire) -> str:
    """Return the content type of a message; default: that of raw data."""
    return wire.content_type.strip().lower() if wire.content_type else "application/data"


def name_of(content_type: str | None) -> str | None:
    """Return the serializer of a content type, or None."""
    return _NAMES.get((content_type or "").strip().lower())


def mime_type(name: str) -> str:
    """Return the content type of a serializer.

    :raises ValueError: if the serializer is unknown.
    """
    if name not in MIME_TYPES:
        near = object_names.hint(str(name), [*MIME_TYPES, *_NAMES])
        raise ValueError(
            f"The serializer must be one of {', '.join(MIME_TYPES)}, got {name!r}{near}"
        )
    return MIME_TYPES[name]


def dump(value: Any, name: str = "json") -> tuple[str, str, bytes]:
    """Serialize a value and return `(content_type, content_encoding, body)`.

    :raises NotEncodable: if the serializer cannot write the value.
    :raises ValueError: if the serializer is unknown.
    """
    mime_type(name)
    try:
        kind, encoding, body = serialization.dumps(value, serializer=name)
        data = body.encode("utf-8") if isinstance(body, str) else bytes(body)
    except Exception as error:
        raise exceptions.NotEncodable(
            f"cannot be encoded as {name}: {_describe(error)}", type_name=type(value).__name__
        ) from None
    return str(kind), str(encoding), data


def _describe(error: BaseException) -> str:
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
        raise Undecodable(f"a raw body must be {encoding[:100]!r}: {_describe(error)}") from None
