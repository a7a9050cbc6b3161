"""Task messages of version 2: headers say what, the body holds arguments and signatures."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Any, Final

from wbengine import limits
from wbengine.interop.celery.protocol import fields, reading, serializers, times
from wbengine.interop.celery.protocol.message import Malformed, TaskMessage
from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["Head", "decode", "encode", "read_head"]

#: Characters of arguments that are shown to logs and monitors.
_LONGEST_REPR: Final = 1024

#: Headers that brokers add, and those that tell how the body was packed.
_TRANSPORT: Final = ("x-death", "x-delivery-", "x-first-death-", "x-last-death-", "x-acquired-")
_PACKING: Final = "compression"


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a message say, without its body; fields as in `TaskMessage`."""

    task: str
    id: str
    lang: str = "py"
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    shadow: str | None = None
    eta: datetime | None = None
    expires: datetime | None = None
    retries: int = 0
    timelimit: limits.TimeLimit = limits.UNLIMITED
    origin: str | None = None


def read_head(wire: Wire) -> Head:
    """What the headers say; the body is not decoded.

    :raises Malformed: a field is missing or wrong, or it is no message of version 2.
    """
    found = _headers(wire, wire.headers)
    return Head(**{name: found[name] for name in Head.__slots__ if name in found})


def decode(wire: Wire, accepted: serializers.Accepted, local: tzinfo = timezone.utc) -> TaskMessage:
    """Read a message that has the header `task`.

    Its body may also be a mapping as in version 1, which says what the headers leave out.

    :raises Refused: its content type is not accepted.
    :raises InvalidFormat: it is malformed, cannot be decoded, or is too large.
    """
    body = accepted.read(wire)
    source: Mapping[str, Any] = wire.headers
    zone: tzinfo = timezone.utc
    if serializers.is_raw(wire.content_type):
        inside: dict[str, Any] = {"args": (body,), "raw": True}
    elif isinstance(body, Mapping) and "args" in body:
        named = {key: body[key] for key in fields.NAMES if key in body}
        source = {**named, **wire.headers}
        zone = local if body.get("utc", True) is False else zone
        inside = _inside(body.get("args"), body.get("kwargs"), body)
        inside.pop("chain", None)
    elif isinstance(body, list | tuple) and len(body) == 3:
        inside = _inside(*body)
    else:
        raise Malformed("the body must be [args, kwargs, embed]", field="body")
    found = _headers(wire, source, zone)
    return TaskMessage(
        **found,
        **inside,
        protocol=2,
        extra=extra(wire.headers),
        content_type=wire.content_type or "application/data",
    )


def encode(message: TaskMessage, serializer: str) -> Wire:
    """The message as a sender of Celery's writes it.

    :raises NotEncodable: the arguments cannot be written by this serializer.
    """
    if message.raw:
        kind, encoding, body = raw(message)
    else:
        embed = {
            "callbacks": signatures(message.callbacks),
            "errbacks": signatures(message.errbacks),
            "chain": signatures(message.chain),
            "chord": None if message.chord is None else dict(message.chord),
        }
        kind, encoding, body = serializers.dump(
            (tuple(message.args), dict(message.kwargs), embed), serializer
        )
    return Wire(_written_headers(message), properties(message), kind, encoding, body)


def _headers(wire: Wire, source: Mapping[str, Any], zone: tzinfo = timezone.utc) -> dict[str, Any]:
    found = fields.read(fields.HEADERS, source)
    found |= read_properties(wire.properties)
    if "id" not in found:
        if "correlation_id" not in found:
            raise reading.malformed("id", None, "an id")
        found["id"] = found["correlation_id"]
    return aware(found, zone)


def _inside(args: Any, kwargs: Any, embed: Any) -> dict[str, Any]:
    if embed is not None and not isinstance(embed, Mapping):
        raise reading.malformed("embed", embed, "a mapping")
    return fields.read(fields.ARGUMENTS, {"args": args, "kwargs": kwargs}) | fields.read(
        fields.EMBED, embed or {}
    )


def _written_headers(message: TaskMessage) -> dict[str, Any]:
    """All headers that Celery writes, those that say nothing too, and what travels on."""
    shown = None if message.raw else _short.repr
    written = {
        "lang": message.lang,
        "task": message.task,
        "id": message.id,
        "shadow": message.shadow,
        "eta": times.text(message.eta),
        "expires": times.text(message.expires),
        "group": message.group,
        "group_index": message.group_index,
        "retries": message.retries,
        "timelimit": [message.timelimit.hard, message.timelimit.soft],
        "root_id": message.root_id or message.id,
        "parent_id": message.parent_id,
        "argsrepr": message.argsrepr or (shown and shown(tuple(message.args))),
        "kwargsrepr": message.kwargsrepr or (shown and shown(dict(message.kwargs))),
        "origin": message.origin,
        "ignore_result": message.ignore_result,
        "replaced_task_nesting": message.replaced_task_nesting,
        "stamped_headers": None
        if message.stamped_headers is None
        else list(message.stamped_headers),
        "stamps": dict(message.stamps),
    }
    if message.meth is not None:
        written["meth"] = message.meth
    return {**message.extra, **written}


# What both versions share. -----------------------------------------------------------------------


def aware(found: dict[str, Any], zone: tzinfo) -> dict[str, Any]:
    """`found` with its times in UTC; those without a zone are in `zone`.

    :raises Malformed: there is no such time.
    """
    for name in ("eta", "expires"):
        if name in found:
            try:
                found[name] = times.utc(found[name], zone)
            except ValueError:
                raise reading.malformed(name, str(found[name]), "a time in UTC") from None
    return found


def extra(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that are not the protocol's, the broker's, or the transport's."""
    return {
        name: value
        for name, value in headers.items()
        if isinstance(name, str)
        and name not in fields.NAMES
        and name != _PACKING
        and not name.startswith(_TRANSPORT)
    }


def read_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What properties say.

    :raises Malformed: a field is not what it must be.
    """
    found = fields.read(fields.PROPERTIES, properties)
    priority = properties.get("priority")
    if type(priority) is int and 0 < priority <= 255:
        found["priority"] = priority
    return found


def properties(message: TaskMessage) -> dict[str, Any]:
    """The properties of a message that is sent."""
    found: dict[str, Any] = {
        "correlation_id": message.correlation_id or message.id,
        "delivery_mode": 2,
    }
    if message.reply_to is not None:
        found["reply_to"] = message.reply_to
    if message.priority is not None:
        found["priority"] = message.priority
    return found


def raw(message: TaskMessage) -> tuple[str, str, bytes]:
    """Content type, encoding and body of a message whose single argument is its body.

    :raises Malformed: it has other arguments.
    """
    if len(message.args) != 1 or not isinstance(message.args[0], bytes | str) or message.kwargs:
        raise Malformed("a raw message has bytes or a text as its single argument", field="args")
    [data] = message.args
    if isinstance(data, bytes):
        return "application/data", "binary", data
    try:
        return "text/plain", "utf-8", data.encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed("a raw message cannot hold half of a pair", field="args") from None


def signatures(given: Any) -> list[dict[str, Any]] | None:
    """A list as it is written: nothing for none."""
    return [dict(one) for one in given] or None


class _Short(reprlib.Repr):
    """What is shown of arguments: never long, and never an error."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxtuple = self.maxlist = self.maxdict = 50
        self.maxstring = self.maxother = self.maxlong = 200

    def repr(self, x: Any) -> str:
        try:
            words = super().repr(x)
        except Exception:  # of somebody's class
            return "..."
        words = words.encode("utf-8", "backslashreplace").decode()
        return words if len(words) <= _LONGEST_REPR else f"{words[: _LONGEST_REPR - 3]}..."


_short: Final = _Short()
