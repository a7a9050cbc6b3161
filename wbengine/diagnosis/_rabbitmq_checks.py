"""Checks of RabbitMQ: alarms, and the permissions of the user."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import kombu

from wbengine.diagnosis import _broker_checks
from wbengine.diagnosis.findings import Finding, Place, bad, good
from wbengine.engines.worker_based._connections import connecting, topology
from wbengine.engines.worker_based._worker_side import describing
from wbengine.transports import Target, _reasons

__all__ = ["check", "fix"]

#: Maximum wait in seconds for a broker to report that it blocks publishers.
_BLOCKED_WAIT_SECONDS: Final = 1.0


def fix(reason: str, target: Target | None) -> str | None:
    """Return how to reach a broker that was unreachable for a reason, or None."""
    if target is not None and "no such virtual host" in reason:
        vhost = unquote(urlsplit(target.url or "").path[1:]) or "/"
        return f"run: rabbitmqctl add_vhost '{vhost}'; then give the user permissions in it"
    if _broker_checks.is_login_refused(reason):
        return f"{_broker_checks.LOGIN_FIX}, or run: rabbitmqctl change_password USER PASSWORD"
    return None


def check(place: Place) -> Iterator[Finding]:
    """Check whether the broker blocks publishers, and the permissions."""
    connection = _broker_checks.fleet(place).connect()
    try:
        blocked = _blocked_reason(connection, place.exchange)
        if blocked:
            yield bad(
                "broker settings",
                f"the broker blocks publishers: {blocked}",
                "give the broker more memory or disk space; `rabbitmqctl status` shows the alarm",
            )
            return
        yield from _check_permissions(connection, place)
    finally:
        connecting.release(connection)


def _blocked_reason(connection: kombu.Connection, exchange: str) -> str:
    causes: list[str] = []
    link = connection.connection
    link.on_blocked = causes.append
    with contextlib.suppress(*connection.channel_errors, *connection.connection_errors):
        channel = connection.channel()
        channel.basic_publish(channel.prepare_message(b"{}"), "", str(uuid.uuid4()))
        until = time.monotonic() + _BLOCKED_WAIT_SECONDS
        with contextlib.suppress(TimeoutError, OSError):
            while not causes and (remaining := until - time.monotonic()) > 0:
                link.drain_events(timeout=remaining)
    return causes[0] if causes else ""


def _check_permissions(connection: kombu.Connection, place: Place) -> Iterator[Finding]:
    """Try the operations of engines and workers, each on a separate channel."""
    exchange, own = place.exchange, describing.identity()
    layout = topology.Topology(exchange, own, (), None)
    engine_queues: list[str] = []
    steps: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
        ("configure", f"exchange {exchange!r}", layout.declare_exchange),
        ("configure", "queues of workers", lambda channel: _declare(channel, own)),
        ("write", "queues of workers, or read the exchange", lambda channel: channel.queue_bind(
            own, exchange, own)),
        ("write", f"exchange {exchange!r}", lambda channel: _publish(channel, exchange, own)),
        ("read", "queues of workers", lambda channel: channel.basic_get(own)),
        ("configure", "queues of engines", lambda channel: _declare(channel, engine_queues[0])),
    )  # fmt: skip
    engine_queues.append(str(uuid.uuid4()))
    refused: list[str] = []
    for right, object_name, step in steps:
        try:
            with connection.channel() as channel:
                step(channel)
        except connection.channel_errors as error:
            if getattr(error, "code", None) == 404 and refused:
                continue  # an earlier rejected step would have created the object
            refused.append(f"{right} {object_name}: {_reasons.explain(error)}")
    for name in (own, *engine_queues):
        with contextlib.suppress(*connection.channel_errors), connection.channel() as channel:
            channel.queue_delete(name)
    if refused:
        with contextlib.suppress(*connection.channel_errors), connection.channel() as channel:
            # exchanges are not deleted automatically
            channel.exchange_delete(exchange, if_unused=True)
        yield bad(
            "permissions",
            f"the user lacks a permission: {refused[0]}",
            _grant_command(connection, exchange),
        )
    else:
        yield good(
            "permissions", "the user has the required permissions to configure, write and read"
        )


def _declare(channel: Any, name: str) -> None:
    arguments = {"x-queue-type": "classic", "x-expires": 60_000}
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)


def _publish(channel: Any, exchange: str, key: str) -> None:
    channel.basic_publish(channel.prepare_message(b"{}"), exchange, key)
    # synchronous: a rejection of the message arrives before the answer
    channel.basic_qos(0, 1, False)


def _grant_command(connection: kombu.Connection, exchange: str) -> str:
    queues = (
        "[0-9a-f-]{36}|[A-Za-z0-9_.-]{1,100}\\.[0-9a-f]{12}|[A-Za-z0-9-]{1,60}-[0-9]+-[0-9a-f]{8}"
    )
    pattern = f"'^({re.escape(exchange)}|{queues})$'"
    vhost = connection.virtual_host or "/"
    user = connection.userid or "guest"
    return f"rabbitmqctl set_permissions -p '{vhost}' {user} {pattern} {pattern} {pattern}"
