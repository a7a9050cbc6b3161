"""Task messages of version 1: the body holds everything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone, tzinfo
from typing import Any

from wbengine.interop.celery.protocol import fields, serializers, times, version2
from wbengine.interop.celery.protocol.message import Malformed, TaskMessage
from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["decode", "encode"]


def decode(wire: Wire, accepted: serializers.Accepted, local: tzinfo = timezone.utc) -> TaskMessage:
    """Read a message that has no header `task`.

    Times without a zone are in UTC, unless the body says `utc: false`: then they are in `local`.

    :raises Refused: its content type is not accepted.
    :raises InvalidFormat: it is malformed, cannot be decoded, or is too large.
    """
    body = accepted.read(wire)
    if not isinstance(body, Mapping):
        raise Malformed("the body must be a mapping, or there must be a header task", field="body")
    found = fields.read(fields.VERSION_1, body)
    utc = fields.read((fields.UTC,), body).get("", True)
    version2.aware(found, timezone.utc if utc else local)
    found |= version2.read_properties(wire.properties)
    return TaskMessage(
        **found,
        protocol=1,
        extra=version2.extra(wire.headers),
        content_type=wire.content_type or "application/data",
    )


def encode(message: TaskMessage, serializer: str) -> Wire:
    """The message in version 1, which has no field for the rest of a chain: that becomes one
    callback inside another.

    What version 1 has no field for (`shadow`, `root_id`, stamps and others) stays behind.

    :raises NotEncodable: the arguments cannot be written by this serializer.
    :raises Malformed: its body is raw, which version 1 has no way to say.
    """
    if message.raw:
        raise Malformed("a raw message cannot be sent in version 1", field="body")
    callbacks = list(message.callbacks)
    following: Mapping[str, Any] | None = None
    for one in message.chain:  # the last to be called comes first
        following = one if following is None else _linked(one, following)
    if following is not None:
        callbacks.append(following)
    body = {
        "task": message.task,
        "id": message.id,
        "args": tuple(message.args),
        "kwargs": dict(message.kwargs),
        "group": message.group,
        "group_index": message.group_index,
        "retries": message.retries,
        "eta": times.text(message.eta),
        "expires": times.text(message.expires),
        "utc": True,
        "callbacks": version2.signatures(callbacks),
        "errbacks": version2.signatures(message.errbacks),
        "timelimit": (message.timelimit.hard, message.timelimit.soft),
        "taskset": message.group,
        "chord": None if message.chord is None else dict(message.chord),
    }
    kind, encoding, data = serializers.dump(body, serializer)
    return Wire(dict(message.extra), version2.properties(message), kind, encoding, data)


def _linked(signature: Mapping[str, Any], callback: Mapping[str, Any]) -> dict[str, Any]:
    """`signature`, with one more callback."""
    options = dict(signature.get("options") or {})
    links = options.get("link") or []
    options["link"] = [*([links] if isinstance(links, Mapping) else links), callback]
    return {**signature, "options": options}
