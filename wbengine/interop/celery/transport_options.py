"""The options that kombu's transports know: a name that none of them reads is a mistake."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

import kombu

from wbengine import _names

__all__ = ["check"]

#: What kombu reads for all transports, and for those that it emulates.
_COMMON: Final = frozenset(
    ("connect_retries_timeout", "interval_max", "interval_start", "interval_step", "max_retries")
)
_EMULATED: Final = frozenset(("polling_interval",))
#: What its Redis transport reads besides what its channels say.
_REDIS: Final = frozenset(("reauth_check_interval",))
#: What a connection to a RabbitMQ is told by its URL, or must not be told.
_NOT_AMQP: Final = frozenset(
    (
        "authentication", "frame_handler", "frame_writer", "host", "kwargs", "on_blocked",
        "on_open", "on_tune_ok", "on_unblocked", "password", "self", "ssl", "userid",
        "virtual_host",
    )
)  # fmt: skip
#: What we read ourselves of those of a RabbitMQ.
_OURS: Final = frozenset(("heartbeat", "ssl"))


def check(connection: kombu.Connection, options: Iterable[str], *, amqp: bool) -> None:
    """See that the transport of a connection, which need not be open, knows these options.

    Of others than Redis and RabbitMQ nobody can tell.

    :raises ValueError: it does not; the text says which, and what is near.
    """
    known = _of_amqp() if amqp else _of_redis(connection.get_transport_cls())
    if known is None:
        return
    for name in options:
        if name not in known:
            kind = "RabbitMQ" if amqp else "Redis"
            near = _names.hint(name, known) or f"; there are: {', '.join(sorted(known))}"
            raise ValueError(f"{name[:60]!r} is no option of the transport for {kind}{near}")


def _of_amqp() -> frozenset[str]:
    import amqp

    told = inspect.signature(amqp.Connection.__init__).parameters
    return frozenset(told) - _NOT_AMQP | _OURS | _COMMON


def _of_redis(transport: Any) -> frozenset[str] | None:
    if getattr(transport, "driver_type", None) != "redis":
        return None
    return frozenset(transport.Channel.from_transport_options) | _COMMON | _EMULATED | _REDIS
