"""A message as brokers carry it: headers, properties, and a body that nobody has read yet."""

from __future__ import annotations

import bz2
import functools
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kombu import message as kombu_message

from wbengine import exceptions

__all__ = ["LARGEST", "Undecodable", "Wire", "is_celery", "keep_packed"]

#: Bytes that a body may have once it is unpacked.
LARGEST: Final = 64 << 20

#: Memory that unpacking may ask for.
_MEMORY: Final = 128 << 20

#: What a transport of kombu says of a message that a broker marked, in its headers.
_MARK: Final = "redelivered"

#: The properties that a sender chooses; all others are the broker's or the transport's.
_CARRIED: Final = (
    "correlation_id",
    "reply_to",
    "priority",
    "delivery_mode",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)

_COMPRESSION: Final = "compression"

#: What the properties and headers of wbengine's own messages say.
_OUR_TYPES: Final = frozenset(("NOTIFY", "REQUEST", "RESPONSE"))
_OUR_HEADER: Final = "wbe-version"


class Undecodable(exceptions.InvalidFormat):
    """A body is not what its content type, or its compression, says it is."""


@dataclass(slots=True)
class Wire:
    """One message; `body` may be compressed, as the header `compression` says."""

    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    content_type: str | None = None
    content_encoding: str | None = None
    body: bytes = b""

    @classmethod
    def of(cls, message: Any) -> Wire:
        """What a kombu `Message` holds, whatever the transport made of it; never raises.

        The body of a message of a channel that was given to `keep_packed` is as it came.  kombu
        has unpacked others, and cannot be stopped by a limit.
        """
        headers = dict(message.headers) if isinstance(message.headers, dict) else {}
        given = message.properties if isinstance(message.properties, dict) else {}
        # kombu keeps what it failed to unpack.
        if headers.get(_COMPRESSION) and not isinstance(message, _Packed) and not message.errors:
            del headers[_COMPRESSION]
        return cls(
            headers,
            {key: given[key] for key in _CARRIED if given.get(key) is not None},
            _word(message.content_type),
            _word(message.content_encoding),
            _bytes(message.body),
        )

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of kombu's `Producer.publish(wire.body, **arguments)`.

        Where it goes (exchange, routing key) is not among them.
        """
        carried = {key: self.properties[key] for key in _CARRIED if key in self.properties}
        if "expiration" in carried:  # kombu takes seconds, and brokers milliseconds as text
            try:
                carried["expiration"] = int(carried["expiration"]) / 1000
            except (TypeError, ValueError, OverflowError):
                del carried["expiration"]
        return carried | {
            "headers": dict(self.headers),
            "content_type": self.content_type or "application/data",
            "content_encoding": self.content_encoding or "binary",
        }

    def unmarked(self) -> Wire:
        """The same message, as nobody has delivered it yet."""
        headers = {key: value for key, value in self.headers.items() if key != _MARK}
        return replace(self, headers=headers, properties=dict(self.properties))

    def unpacked(self, largest: int = LARGEST) -> bytes:
        """The body, decompressed if it is compressed.

        :raises TooLarge: it has more than `largest` bytes; no more than that were unpacked.
        :raises Undecodable: it cannot be decompressed, or nobody here knows how.
        """
        name = self.headers.get(_COMPRESSION)
        if not name:
            if len(self.body) > largest:
                raise _too_large(largest)
            return self.body
        unpack = _unpacker(name) if isinstance(name, str) else None
        if unpack is None:
            raise Undecodable(f"compression {str(name)[:100]!r} is not known here")
        try:
            data, whole = unpack(self.body, largest + 1)
        except Exception as error:
            raise Undecodable(f"a body is not {name!r} data: {str(error)[:200]}") from None
        if len(data) > largest:
            raise _too_large(largest)
        if not whole:
            raise Undecodable(f"a body is cut short, or is more than {name!r} data")
        return data


def is_celery(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Whether a message is one of Celery's, and none of wbengine's own.

    Ours are told first: both may carry a header `task`.
    """
    kind = properties.get("type")
    return not (_OUR_HEADER in headers or (isinstance(kind, str) and kind in _OUR_TYPES))


def keep_packed(channel: Any) -> None:
    """Have a kombu channel hand over compressed bodies as they came.

    Otherwise kombu unpacks each as it arrives, however large it gets.
    """
    channel.Message = _packed(channel.Message)


class _Packed(kombu_message.Message):  # type: ignore[misc]
    """A message that does not unpack its body."""

    def __init__(self, body: Any = None, headers: Any = None, **others: Any) -> None:
        kept = dict(headers) if isinstance(headers, dict) else {}
        packed = kept.pop(_COMPRESSION, None)
        super().__init__(body=body, headers=kept, **others)
        if packed is not None:
            self.headers[_COMPRESSION] = packed


@functools.cache
def _packed(base: type[Any]) -> type[Any]:
    if issubclass(base, _Packed):
        return base

    # The first asks the second, which asks kombu's own.
    class Message(base, _Packed):  # type: ignore[misc]
        def serializable(self) -> Any:
            """What a virtual transport puts back into its queue."""
            row = super().serializable()
            if _COMPRESSION in self.headers:
                row["headers"][_COMPRESSION] = self.headers[_COMPRESSION]
            return row

    return Message


def _word(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value if isinstance(value, str) and value else None


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    try:
        return bytes(memoryview(body))
    except TypeError:
        return b""


def _too_large(largest: int) -> exceptions.TooLarge:
    return exceptions.TooLarge(f"a body has more than {largest} bytes")


# How to unpack no more than so many bytes: each gives them, and whether that was all. ------------

_Unpack = Callable[[bytes, int], "tuple[bytes, bool]"]


def _zlib(body: bytes, most: int) -> tuple[bytes, bool]:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(body, most)
    return data, unpacker.eof and not unpacker.unused_data


def _bz2(body: bytes, most: int) -> tuple[bytes, bool]:
    unpacker = bz2.BZ2Decompressor()
    data = unpacker.decompress(body, most)
    return data, unpacker.eof and not unpacker.unused_data


def _lzma(body: bytes, most: int) -> tuple[bytes, bool]:
    unpacker = lzma.LZMADecompressor(memlimit=_MEMORY)
    data = unpacker.decompress(body, most)
    return data, unpacker.eof and not unpacker.unused_data


def _zstd() -> _Unpack | None:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from backports import zstd  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ImportError:
            return None

    def unpack(body: bytes, most: int) -> tuple[bytes, bool]:
        unpacker = zstd.ZstdDecompressor()
        data = unpacker.decompress(body, most)
        return data, unpacker.eof and not unpacker.unused_data

    return unpack


@functools.cache
def _unpackers() -> dict[str, _Unpack]:
    found: dict[str, _Unpack] = {}
    found |= dict.fromkeys(("application/x-gzip", "gzip", "zlib"), _zlib)
    found |= dict.fromkeys(("application/x-bz2", "bzip2", "bzip"), _bz2)
    found |= dict.fromkeys(("application/x-lzma", "lzma", "xz"), _lzma)
    zstd = _zstd()
    if zstd is not None:
        found |= dict.fromkeys(("application/zstd", "zstd", "zstandard"), zstd)
    return found


def _unpacker(name: str) -> _Unpack | None:
    """None if nobody here knows how; of brotli, which cannot be told where to stop, nobody does."""
    return _unpackers().get(name)
