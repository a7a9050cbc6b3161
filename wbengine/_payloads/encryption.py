"""Encryption of files of payloads.

If `WBENGINE_KEYS` names a key file that encrypts, a file consists of a magic number, the id of the
key, a salt, and frames of AES-GCM. The key of a file is derived from the secret that encrypts
messages, and the salt. The frames are bound to their order, the last one, and the address of the
payload, so that such a file needs no other check of its content.
"""

from __future__ import annotations

import functools
import io
import secrets
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from wbengine._payloads.files import Files
from wbengine._security import sealing

__all__ = ["decrypting", "encrypted", "reencrypt"]

_MAGIC: Final = b"wbpenc\x001"
_SALT_BYTES: Final = 16
#: Length of a frame; the highest bit marks the last one.
_LENGTH: Final = struct.Struct(">L")
_LAST: Final = 1 << 31
_MAX_FRAME_BYTES: Final = 8 * 2**20
_CHUNK: Final = 4 * 2**20
_TAG_BYTES: Final = 16


def encrypted(chunks: Iterable[Any], address: str) -> Iterator[Any]:
    """Yield the content of a file encrypted, or unchanged if nothing is to be encrypted.

    :param chunks: pieces of at most 4 MiB.
    """
    ring, salt = sealing.ring(), secrets.token_bytes(_SALT_BYTES)
    found = None if ring is None else ring.content_key(_purpose(salt))
    if ring is None or found is None:
        yield from chunks
        return
    key_id = found[0].encode()
    yield b"".join((_MAGIC, bytes([len(key_id)]), key_id, salt))
    cipher = ring.cipher(found[1])
    number, held = 0, b""
    for chunk in chunks:
        if held:
            yield from _frame(cipher, number, address, held, is_last=False)
            number += 1
        held = chunk
    yield from _frame(cipher, number, address, held, is_last=True)


def _frame(cipher: Any, number: int, address: str, data: Any, *, is_last: bool) -> Iterator[bytes]:
    yield _LENGTH.pack(len(data) | (_LAST if is_last else 0))
    yield cipher.encrypt(number.to_bytes(12), data, _associated_data(address, is_last))


def decrypting(file: Any, address: str) -> tuple[Any, bool]:
    """Return a file with the decrypted content of a file, and whether it is encrypted.

    :raises PermissionError: if this process does not have the key.
    :raises ValueError: if the head of the file is damaged.
    """
    key_id, salt = _head(file)
    if key_id is None:
        return file, False
    ring = sealing.ring()
    found = None if ring is None else ring.content_key(_purpose(salt), key_id)
    if ring is None or found is None:
        raise PermissionError(
            f"it is encrypted with key {key_id}, which this process does not have"
        )
    return io.BufferedReader(_Decrypting(file, ring.cipher(found[1]), address)), True


def reencrypt(files: Files, folder: str) -> Iterator[bool]:
    """Encrypt each file in a folder with the current key, and yield whether it had another one.

    :raises PermissionError: if this process does not have the key of a file.
    :raises ValueError: if a file is damaged.
    :raises StorageFailure: if the folder or bucket cannot be reached.
    """
    ring = sealing.ring()
    found = None if ring is None else ring.content_key("")
    current = None if found is None else found[0]
    for file in list(files.list(folder)):
        name, address = f"{folder}/{file.name}", file.name
        try:
            is_other = files.retried(name, _key_of) != current
            if is_other:
                files.write(name, functools.partial(_reencrypted, files, name, address))
        except (PermissionError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        except FileNotFoundError:  # A sweep has deleted it.
            continue
        yield is_other


def _reencrypted(files: Files, name: str, address: str) -> Iterator[bytes]:
    return encrypted(_content(files, name, address), address)


def _key_of(file: Any) -> str | None:
    return _head(file)[0]


def _content(files: Files, name: str, address: str) -> Iterator[bytes]:
    with files.read(name) as file:
        decrypted = decrypting(file, address)[0]
        while chunk := decrypted.read(_CHUNK):
            yield chunk


def _head(file: Any) -> tuple[str | None, bytes]:
    """Read the head of an encrypted file; leave the position of another one at its start."""
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
        file.seek(0)
        return None, b""
    length = file.read(1)
    key_id = file.read(length[0]) if length else b""
    salt = file.read(_SALT_BYTES)
    if len(salt) < _SALT_BYTES:
        raise ValueError("the file is truncated")
    return key_id.decode("ascii", "replace"), salt


class _Decrypting(io.RawIOBase):
    """The decrypted content. A ValueError means that the file is damaged."""

    def __init__(self, file: Any, cipher: Any, address: str) -> None:
        self._file = file
        self._cipher = cipher
        self._address = address
        self._number = 0
        self._is_over = False
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and not self._is_over:
            self._left = memoryview(self._next_frame())
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _next_frame(self) -> bytes:
        head = self._file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise ValueError("the file is truncated")
        (length,) = _LENGTH.unpack(head)
        self._is_over = bool(length & _LAST)
        length &= ~_LAST
        if length > _MAX_FRAME_BYTES:
            raise ValueError("a frame is too long")
        data = self._file.read(length + _TAG_BYTES)
        associated = _associated_data(self._address, self._is_over)
        try:
            content: bytes = self._cipher.decrypt(self._number.to_bytes(12), data, associated)
        except Exception:  # The exception class belongs to a lazily imported library.
            raise ValueError("it cannot be decrypted: it was changed") from None
        self._number += 1
        if self._is_over and self._file.read(1):
            raise ValueError("the file is longer than its content")
        return content


def _purpose(salt: bytes) -> str:
    return f"payload content {salt.hex()}"


def _associated_data(address: str, is_last: bool) -> bytes:
    return f"{address} {int(is_last)}".encode()
