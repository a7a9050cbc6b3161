"""Large values in a folder or bucket, under addresses that are digests of their content.

Files: `data/<xx>/<address>` is a payload, where `xx` are the first digits of the address, and
`refs/<xx>/<address>.<flow>` shows that the flow with this uuid refers to it. A payload is kept
while such a file exists, so records and messages need not be searched (see `sweeping`). A writer
creates the file in `refs` before it checks whether the payload exists, so that a sweep does not
delete what the writer found.

A reader of a damaged payload creates `damaged/<address>`. The next writer of the value then writes
the payload again. Neither moves nor deletes a payload, so an error of a reader loses nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._payloads import content, encryption, files
from wbengine._security import masking, sealing
from wbengine.types import _references, codec
from wbengine.types import failure as ft
from wbengine.types._references import Reference

__all__ = [
    "MAX_INLINE_BYTES", "NO_FLOW", "Payloads", "condemned_name", "damaged_name", "data_name",
    "reference_name",
]  # fmt: skip

#: Maximum size of a value that stays in a record or message.
MAX_INLINE_BYTES: Final = 128 * 1024

#: Name of the flow of a payload whose flow is unknown.
NO_FLOW: Final = "-"

#: Maximum number of elements of a container whose elements are stored separately until the rest is
#: small. Larger containers of small elements are stored as a whole.
_MAX_SEPARATE_ELEMENTS: Final = 64

#: Maximum size of the JSON text of a number, and of JSON around an element.
_NUMBER_SIZE: Final = 24
#: Names of classes whose length is a number of rows.
_TABLES: Final = frozenset(("DataFrame", "RecordBatch", "Table"))

_SMALL_TYPES: Final = frozenset((int, float, bool, type(None)))


def data_name(address: str) -> str:
    """Return the name of the file of a payload."""
    return f"data/{address[:2]}/{address}"


def reference_name(address: str, flow: str) -> str:
    """Return the name of the file that shows that a flow refers to a payload."""
    return f"refs/{address[:2]}/{address}.{flow}"


def condemned_name(address: str) -> str:
    """Return the name of a payload while a sweep deletes it."""
    return f"condemned/{address}"


def damaged_name(address: str) -> str:
    """Return the name of the file that shows that a payload is damaged."""
    return f"damaged/{address}"


class _Encoded(NamedTuple):
    """An encoded value: its size in a record, and the parts of its content as a payload."""

    size: int
    parts: Sequence[Any] = ()


class Payloads:
    """The payloads at a location: a folder, or a URL of fsspec. Thread-safe, and picklable.

    :raises ValueError, ImportError: as `files.Files` does.
    """

    def __init__(self, location: str) -> None:
        if "://" not in location:
            location = os.path.abspath(os.path.expanduser(location))
        self.location = location
        self.files = files.Files(location)

    def __reduce__(self) -> Any:
        return Payloads, (self.location,)

    def __str__(self) -> str:
        return masking.masked(self.location)

    def store_large(self, value: Any, where: str, flow: str, limit: int = MAX_INLINE_BYTES) -> Any:
        """Return the value, or a copy in which references replace what is large.

        The elements of a dict, list or tuple are replaced first. The payloads are complete when
        this returns. Failures and references are not changed.

        :param where: start of the path in the error.
        :param flow: uuid of the flow whose records or messages will contain the result, or "".
        :param limit: maximum size of the result as JSON, except for references.
        :raises NotEncodable: if the value cannot be encoded.
        :raises StorageFailure: if a payload cannot be written.
        """
        kind = type(value)
        if kind in _SMALL_TYPES or kind is ft.Failure or kind is Reference:
            return value
        if (kind is str or kind is bytes) and len(value) * 6 < limit:
            return value
        if kind is dict:
            items: list[tuple[Any, Any]] = list(value.items())
        elif kind is list or kind is tuple:
            items = list(enumerate(value))
        else:
            encoded = _encode(value, where)
            if encoded.size <= limit:
                return value
            return self.put(value, encoded.parts, flow)
        return self._store_elements(value, items, where, flow, limit)

    def store_each(
        self, values: Mapping[str, Any], where: str, flow: str, limit: int = MAX_INLINE_BYTES
    ) -> dict[str, Any]:
        """Return the values by name as `store_large` does; never a reference for all together.

        References among the values, for example from another flow, are kept for this flow, too.
        """
        for value in values.values():
            if type(value) is Reference:
                self.keep(value, flow)
        return {
            name: self.store_large(value, f"{where}[{name!r}]", flow, limit)
            for name, value in values.items()
        }

    def _store_elements(
        self, value: Any, items: list[tuple[Any, Any]], where: str, flow: str, limit: int
    ) -> Any:
        total, references = 0, False
        elements: list[tuple[int, Any, Any, Sequence[Any]]] = []
        for key, item in items:
            total += _NUMBER_SIZE + (0 if type(key) is int else 2 * len(str(key)))
            if type(item) is Reference:
                references = True
            elif type(item) not in _SMALL_TYPES:
                encoded = _encode(item, f"{where}[{key!r:.200}]", limit)
                total += encoded.size
                elements.append((encoded.size, key, item, encoded.parts))
        separate = references or len(items) <= _MAX_SEPARATE_ELEMENTS
        large = [element for element in elements if element[0] > limit]
        rest = total - sum(element[0] for element in large)
        if rest > limit and not references and not separate:
            encoded = _encode(value, where)
            return self.put(value, encoded.parts, flow) if encoded.size > limit else value
        if rest > limit and not references:
            # The largest elements, until the rest is small.
            small = [element for element in elements if element[0] <= limit]
            for element in sorted(small, key=lambda each: each[0], reverse=True):
                if rest <= limit:
                    break
                large.append(element)
                rest -= element[0]
        if not large:
            return value
        replaced = {
            key: self.put(item, parts or _encode(item, where).parts, flow)
            for _, key, item, parts in large
        }
        if type(value) is dict:
            return {key: replaced.get(key, item) for key, item in items}
        changed = [replaced.get(key, item) for key, item in items]
        return changed if type(value) is list else tuple(changed)

    def put(self, value: Any, parts: Sequence[Any], flow: str) -> Reference:
        """Write a payload unless it exists undamaged, and return its reference."""
        key_id, digest = _new_digest()
        for chunk in content.chunks_of(parts):
            digest.update(chunk)
        address = digest.hexdigest()
        reference = _references.checked(address, content.size_of(parts), _kind_of(value), key_id)
        self.keep(reference, flow)
        name, mark = data_name(address), damaged_name(address)
        file = self.files.find(name)
        is_damaged = file is not None and (not file.size or self.files.find(mark) is not None)
        if file is None or is_damaged:
            self.files.write(name, lambda: encryption.encrypted(content.stored(parts), address))
        if is_damaged:
            self.files.delete(mark)
        return reference

    def keep(self, reference: Reference, flow: str) -> None:
        """Keep a payload while this flow exists."""
        self.files.write(reference_name(reference.address, flow or NO_FLOW), tuple)

    def load_all(self, value: Any, where: str) -> Any:
        """Return a value with the values of references in it, also in a dict, list or tuple.

        :raises PayloadUnavailable: if one is lost or damaged.
        :raises StorageFailure: if the folder or bucket cannot be reached.
        """
        kind = type(value)
        if kind is Reference:
            return self.load(value, where)
        if kind is dict:
            return {
                key: self.load(item, where) if type(item) is Reference else item
                for key, item in value.items()
            }
        if kind is list or kind is tuple:
            return kind(self.load(i, where) if type(i) is Reference else i for i in value)
        return value

    def load(self, reference: Reference, where: str) -> Any:
        """Return the value of a reference.

        :raises PayloadUnavailable, StorageFailure: as `load_all` does.
        """
        data = self.read(reference, where)
        try:
            return _decode(data)
        except (ValueError, exceptions.InvalidFormat) as error:
            raise self._unavailable(reference, where, f"cannot be decoded: {error}") from None

    def read(self, reference: Reference, where: str) -> bytearray:
        """Return the verified content of a payload. If it is damaged, the next `put` repairs it.

        :raises PayloadUnavailable, StorageFailure: as `load_all` does.
        """
        try:
            return self._read(reference)
        except ValueError as error:
            # A process that only reads may have no permission to create the file.
            with suppress(OSError, exceptions.StorageFailure):
                self.files.write(damaged_name(reference.address), tuple)
            raise self._unavailable(reference, where, f"is damaged: {error}") from None
        except FileNotFoundError:
            raise self._unavailable(reference, where, "is lost") from None
        except PermissionError as error:
            raise self._unavailable(reference, where, f"cannot be read: {error}") from None

    def check(self, reference: Reference, where: str, *, read: bool) -> None:
        """Check that a payload exists and, with `read`, that its content matches its address.

        :raises PayloadUnavailable, StorageFailure: as `load_all` does.
        """
        if read:
            self.read(reference, where)
            return
        address = reference.address
        # As in `_read`.
        for name in (data_name(address), condemned_name(address), data_name(address)):
            if self.files.find(name) is not None:
                return
        raise self._unavailable(reference, where, "is lost")

    def _read(self, reference: Reference) -> bytearray:
        address = reference.address

        def read(file: Any) -> bytearray:
            file, is_encrypted = encryption.decrypting(file, address)
            if is_encrypted and _digest_key(reference.key) is None:
                # The key of the address was removed. The encryption is bound to the address.
                return content.read(file, reference.size)
            _, digest = _new_digest(reference.key)
            data = content.read(file, reference.size)
            digest.update(data)
            if not hmac.compare_digest(digest.hexdigest(), address):
                raise ValueError("its content does not match its address")
            return data

        # A sweep may move the file to `condemned`, and back if a flow refers to it. A writer may
        # repair a damaged file.
        for name in (data_name(address), condemned_name(address)):
            with suppress(FileNotFoundError, ValueError):
                return self.files.retried(name, read)
        return self.files.retried(data_name(address), read)

    def _unavailable(
        self, reference: Reference, where: str, problem: str
    ) -> exceptions.PayloadUnavailable:
        return exceptions.PayloadUnavailable(
            f"{where}: the value ({reference.kind}, {reference.size:,} bytes) {problem}:"
            f" payload {reference.address} in {self}"
        )


def _encode(value: Any, where: str, limit: int = 0) -> _Encoded:
    """Return the size of a value, and the parts of its content if it is larger than `limit`."""
    parts = content.packed(*codec.pack_with_buffers(value, where))
    size = content.size_of(parts)
    return _Encoded(size, parts if size > limit else ())


def _decode(data: bytearray) -> Any:
    """Return the value of a content.

    :raises ValueError, InvalidFormat: if it is invalid, or contains a value of an unknown class.
    """
    text, buffers = content.split(data)
    return codec.unpack_with_buffers(codec.parse(text), buffers)


def _new_digest(key_id: str | None = None) -> tuple[str, Any]:
    """Return the id of the key, or "", and the digest of an empty content.

    :param key_id: the key of an existing digest; None: the latest key of this process.
    :raises PermissionError: if this process does not have the key.
    """
    found = _digest_key(key_id)
    if found is not None:
        return found[0], hmac.new(found[1], digestmod="sha256")
    if key_id:
        raise PermissionError(f"key {key_id} of its address is unknown to this process")
    return "", hashlib.sha256()


def _digest_key(key_id: str | None) -> tuple[str, bytes] | None:
    ring = None if key_id == "" else sealing.ring()
    return None if ring is None else ring.digest_key(key_id)


def _kind_of(value: Any) -> str:
    name = type(value).__name__[:60]
    try:
        count = len(value)
    except Exception:  # A class of the user may raise anything.
        return name
    unit = "characters" if type(value) is str else "rows" if name in _TABLES else "items"
    return f"{name}, {count:,} {unit}"[: _references.MAX_KIND_LENGTH]
