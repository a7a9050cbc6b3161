"""Task messages read from, and written to, the wire in whichever version they are."""

from __future__ import annotations

from datetime import timezone, tzinfo

from wbengine.interop.celery.protocol import serializers, version1, version2
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.version2 import Head, read_head
from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["Head", "decode", "encode", "is_version_2", "read_head"]


def is_version_2(wire: Wire) -> bool:
    """Whether a message is of version 2: it has a header `task`."""
    return "task" in wire.headers


def decode(
    wire: Wire, accepted: serializers.Accepted, *, local: tzinfo = timezone.utc
) -> TaskMessage:
    """Read a task message of either version, told apart by the header `task`.

    `local`: the zone of version 1's times where it says that they are not in UTC.

    :raises Refused: its content type is not accepted; it was not decoded.
    :raises InvalidFormat: it is malformed, cannot be decoded, or is too large: whatever bytes come,
        nothing else is raised.
    """
    read = version2.decode if is_version_2(wire) else version1.decode
    return read(wire, accepted, local)


def encode(
    message: TaskMessage, protocol: int | None = None, serializer: str | None = None
) -> Wire:
    """Write a task message.

    In the version and by the serializer that it came in, unless others are named; a content type
    that no serializer writes is answered in JSON.

    :raises NotEncodable: the arguments cannot be written by the serializer.
    :raises Malformed: it is raw, and is to be sent in version 1.
    :raises ValueError: there is no such version or serializer.
    """
    protocol = message.protocol if protocol is None else protocol
    if protocol not in (1, 2):
        raise ValueError(f"there is no version {protocol!r} of the protocol: use 1 or 2")
    if serializer is None:
        serializer = serializers.name_of(message.content_type) or "json"
    write = version2.encode if protocol == 2 else version1.encode
    return write(message, serializer)
