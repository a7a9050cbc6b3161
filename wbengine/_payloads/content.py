"""The content of a payload: an encoded value as JSON with buffers, and its compressed form.

The content is the length of the JSON text, the number of buffers and the length of each of them, as
8 bytes each, then the text and the buffers, each padded to a multiple of 64 bytes. A file contains
a magic number, whether the content is compressed with zstd, and its size, before the content.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from wbengine._imports import installing
from wbengine._text import json_text

try:
    import zstandard
except ImportError as _error:
    raise ImportError(installing.needs("payloads", "zstandard", "payloads")) from _error

__all__ = ["chunks_of", "packed", "read", "size_of", "split", "stored"]

_MAGIC: Final = b"wbpayl\x001"
_HEAD: Final = struct.Struct(">8sBQ")
_RAW: Final = 0
_ZSTD: Final = 1

_ALIGNMENT: Final = 64
_CHUNK: Final = 4 * 2**20
#: Number and size of the samples that show whether compression saves enough.
_SAMPLES: Final = 4
_SAMPLE: Final = 64 * 2**10
#: Compress if the result has at most this part of the size.
_WORTHWHILE: Final = 0.9
_MAX_BUFFERS: Final = 10_000_000
#: Memory for the window of a compressed content.
_MAX_WINDOW: Final = 2**27


def packed(tree: Any, buffers: Sequence[Any]) -> list[Any]:
    """Return the parts of the content of an encoded value, without copies of the buffers."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    text = json_text.encode(tree, finite=True)
    lengths = [len(text), len(views), *map(len, views)]
    parts: list[Any] = []
    for part in (struct.pack(f">{len(lengths)}Q", *lengths), text, *views):
        parts.append(part)
        padding = -len(part) % _ALIGNMENT
        if padding:
            parts.append(bytes(padding))
    return parts


def size_of(parts: Iterable[Any]) -> int:
    return sum(map(len, parts))


def chunks_of(parts: Iterable[Any]) -> Iterator[memoryview]:
    """Yield the parts in pieces of limited size."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _CHUNK):
            yield view[start : start + _CHUNK]


def split(content: bytearray) -> tuple[Any, list[memoryview]]:
    """Return the JSON tree and the buffers, which share the memory of the content.

    :raises ValueError: if the content is damaged.
    """
    view = memoryview(content)
    if len(view) < 16:
        raise ValueError("it is too short")
    text_length, count = struct.unpack_from(">2Q", view)
    if count > min(_MAX_BUFFERS, (len(view) - 16) // 8):
        raise ValueError("it names too many buffers")
    lengths = struct.unpack_from(f">{count}Q", view, 16)
    start, parts = _padded(16 + 8 * count), []
    for length in (text_length, *lengths):
        if start + length > len(view):
            raise ValueError("a part is longer than the whole")
        parts.append(view[start : start + length])
        start = _padded(start + length)
    if start != len(view):
        raise ValueError("its size does not match its parts")
    return bytes(parts[0]), parts[1:]


def _padded(length: int) -> int:
    return length + -length % _ALIGNMENT


def stored(parts: Sequence[Any]) -> Iterator[Any]:
    """Yield the content of a file."""
    size = size_of(parts)
    if not _is_compressible(parts, size):
        yield _HEAD.pack(_MAGIC, _RAW, size)
        yield from chunks_of(parts)
        return
    yield _HEAD.pack(_MAGIC, _ZSTD, size)
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=size)
    for chunk in chunks_of(parts):
        if compressed := compressor.compress(chunk):
            yield compressed
    yield compressor.flush()


def _is_compressible(parts: Sequence[Any], size: int) -> bool:
    sample = bytearray()
    if size <= _SAMPLES * _SAMPLE:
        sample += b"".join(parts)
    else:
        starts = [number * (size - _SAMPLE) // (_SAMPLES - 1) for number in range(_SAMPLES)]
        position = 0
        for part in parts:
            view = memoryview(part)
            for start in starts:
                low = max(0, start - position)
                high = min(len(view), start + _SAMPLE - position)
                if low < high:
                    sample += view[low:high]
            position += len(view)
    compressed = zstandard.ZstdCompressor(level=1).compress(bytes(sample))
    return len(compressed) <= _WORTHWHILE * len(sample)


def read(file: Any, size: int) -> bytearray:
    """Return the content of a file. This uses no more memory than the content of this size.

    :raises ValueError: if the file is damaged, or its content has another size.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise ValueError("the file is truncated")
    magic, kind, stored_size = _HEAD.unpack(head)
    if magic != _MAGIC or kind not in (_RAW, _ZSTD):
        raise ValueError("the file has an unknown format")
    if stored_size != size:
        raise ValueError(f"the file contains {stored_size:,} bytes instead of {size:,}")
    if kind == _RAW:
        return _read_exactly(file, size)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    try:
        with decompressor.stream_reader(file, closefd=False) as reader:
            return _read_exactly(reader, size)
    except zstandard.ZstdError as error:
        raise ValueError(f"the file cannot be decompressed: {error}") from None


def _read_exactly(file: Any, size: int) -> bytearray:
    content = bytearray(size)
    view, position = memoryview(content), 0
    while position < size:
        count = file.readinto(view[position : position + _CHUNK])
        if not count:
            raise ValueError("the file is truncated")
        position += count
    if file.read(1):
        raise ValueError("the file is longer than its content")
    return content
