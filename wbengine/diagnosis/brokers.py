"""Whether the broker can be reached, what it permits, and whether it keeps what it is given."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import kombu

from wbengine import _sqlite_files, exceptions
from wbengine.diagnosis import redis_settings
from wbengine.diagnosis.clocks import ahead
from wbengine.diagnosis.findings import Finding, Place, bad, good, line
from wbengine.engines.worker_based.connections import connecting, topology
from wbengine.engines.worker_based.worker_side import describing
from wbengine.transports import _folder, reasons
from wbengine.views import fleet as fleets

__all__ = ["fleet", "look", "reach"]

#: Seconds in which it is to be reached, however long one answer may take.
_ANSWER: Final = 5.0

#: Bytes that are to be free where messages are files.
_LEAST_FREE: Final = 100 * 1024 * 1024

#: Seconds in which a broker says that it takes no messages now.
_BLOCKED: Final = 1.0


def reach(place: Place) -> Iterator[Finding]:
    """Whether it can be reached."""
    try:
        target = place.target
        target.check()
    except (ValueError, TypeError, ImportError) as error:
        yield bad("broker", line(error), "mend the URL or the options of the broker: --url,"
                  " $WBENGINE_URL, or `url` in wbengine.toml")  # fmt: skip
        return
    except exceptions.TransportFailure as error:
        yield _of_folder(line(error), None)
        return
    began = time.monotonic()
    try:
        connection = fleet(place).connect()
    except exceptions.TransportFailure as error:
        yield _unreached(target, line(error))
        return
    connecting.release(connection)
    yield good("broker", f"{target.shown} reached in {(time.monotonic() - began) * 1000:.0f} ms")


def fleet(place: Place) -> fleets.Fleet:
    """Who works there, not opened."""
    return fleets.Fleet(
        timeout=min(place.timeout, _ANSWER), keys=place.keys, **place.engine_options
    )


def _unreached(target: Any, words: str) -> Finding:
    if target.folders is not None:
        return _of_folder(words, target.folders[0])
    if "refuses this user or password" in words or "NOAUTH" in words or "WRONGPASS" in words:
        fix = "put the right user and password into the URL of the broker (--url, $WBENGINE_URL)"
        if target.amqp:
            fix += "; or set it: rabbitmqctl change_password USER PASSWORD"
    elif "no such virtual host" in words:
        vhost = unquote(urlsplit(target.url or "").path[1:]) or "/"
        fix = f"make it: rabbitmqctl add_vhost '{vhost}', and give the user permissions there"
    elif "name cannot be resolved" in words:
        fix = "mend the name of the host in the URL of the broker, or the resolver of this host"
    elif "certificate" in words or "TLS" in words:
        fix = "name the authority of its certificate in the URL: ?ssl_ca_certs=/path/of/ca.pem"
    else:
        fix = "start the broker, or mend host and port in its URL (--url, $WBENGINE_URL)"
    return bad("broker", words, fix)


def _of_folder(words: str, folder: str | None) -> Finding:
    path = folder or (found[1] if (found := re.search(r"folder (\S+)", words)) else "FOLDER")
    if "belongs to user id" in words:
        fix = f"let it belong to who runs this: chown -R {os.geteuid()} {path}; or use another one"
    elif "open to other users" in words:
        fix = f"chmod 700 {path}"
    elif "written by other users" in words:
        fix = f"chmod go-w {path}"
    elif "is a symlink" in words:
        fix = f"remove the symlink {path}: somebody else may have put it there"
    elif "not a folder" in words:
        fix = f"remove the file {path}, or name another folder with --url filesystem:///PATH"
    else:
        fix = f"make {path} a folder that this user may write: mkdir -p {path}; chmod u+rwx {path}"
    return bad("broker", words, fix)


def look(place: Place) -> Iterator[Finding]:
    """What it permits, and how it is set; it was reached."""
    target = place.target
    if target.folders is not None:
        yield from _look_at_folder(target.folders[0])
    elif target.redis is not None:
        yield from redis_settings.look("broker settings", target.redis)
    elif target.amqp:
        yield from _look_at_rabbitmq(place)


def _look_at_folder(folder: str) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE:
        yield bad("broker settings", f"only {free // 1024**2} MB are free where {folder} is",
                  "make room there: messages and results are files")  # fmt: skip
    else:
        yield good("broker settings", f"{folder} can be written, {free // 1024**2:,} MB are free")
    os.utime(folder)
    yield from ahead("broker clock", "of the files", os.stat(folder).st_mtime - time.time())
    writer = _sqlite_files.describe_writer(f"{folder}/{_folder.NAME}")
    if writer is not None and "stopped" in writer:
        yield bad("broker file", f"{folder}: {writer}", "let that process go on, or end it")


# RabbitMQ. ----------------------------------------------------------------------------------------


def _look_at_rabbitmq(place: Place) -> Iterator[Finding]:
    connection = fleet(place).connect()
    try:
        blocked = _blocked(connection, place.exchange)
        if blocked:
            yield bad(
                "broker settings",
                f"it takes no messages now: {blocked}",
                "let it have more memory or disk: `rabbitmqctl status` says which alarm is on",
            )
            return
        yield from _permissions(connection, place)
    finally:
        connecting.release(connection)


def _blocked(connection: kombu.Connection, exchange: str) -> str:
    """Why it takes no messages (it says so to who publishes), or ''."""
    said: list[str] = []
    link = connection.connection
    link.on_blocked = said.append
    with contextlib.suppress(*connection.channel_errors, *connection.connection_errors):
        channel = connection.channel()
        channel.basic_publish(channel.prepare_message(b"{}"), "", str(uuid.uuid4()))
        until = time.monotonic() + _BLOCKED
        with contextlib.suppress(TimeoutError, OSError):
            while not said and (left := until - time.monotonic()) > 0:
                link.drain_events(timeout=left)
    return said[0] if said else ""


def _permissions(connection: kombu.Connection, place: Place) -> Iterator[Finding]:
    """What engines and workers do there, step by step, each on a channel of its own."""
    exchange, own = place.exchange, describing.identity()
    layout = topology.Topology(exchange, own, (), None)
    made: list[str] = []
    steps: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
        ("configure", f"exchange {exchange!r}", layout.declare_exchange),
        ("configure", "queues of workers", lambda channel: _declare(channel, own)),
        ("write", "queues of workers, or read the exchange,", lambda channel: channel.queue_bind(
            own, exchange, own)),
        ("write", f"exchange {exchange!r}", lambda channel: _publish(channel, exchange, own)),
        ("read", "queues of workers", lambda channel: channel.basic_get(own)),
        ("configure", "queues of engines", lambda channel: _declare(channel, made[0])),
    )  # fmt: skip
    made.append(str(uuid.uuid4()))
    refused: list[str] = []
    for right, what, step in steps:
        try:
            with connection.channel() as channel:
                step(channel)
        except connection.channel_errors as error:
            if getattr(error, "code", None) == 404 and refused:
                continue  # what an earlier step was to make
            refused.append(f"{right} {what}: {reasons.explain(error)}")
    for name in (own, *made):
        with contextlib.suppress(*connection.channel_errors), connection.channel() as channel:
            channel.queue_delete(name)
    if refused:
        with contextlib.suppress(*connection.channel_errors), connection.channel() as channel:
            channel.exchange_delete(exchange, if_unused=True)  # it does not go by itself
        yield bad("permissions", f"the user may not {refused[0]}", _grant(connection, exchange))
    else:
        yield good("permissions", "the user may configure, write and read what it has to")


def _declare(channel: Any, name: str) -> None:
    arguments = {"x-queue-type": "classic", "x-expires": 60_000}
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)


def _publish(channel: Any, exchange: str, key: str) -> None:
    channel.basic_publish(channel.prepare_message(b"{}"), exchange, key)
    channel.basic_qos(0, 1, False)  # it refuses what is published before it answers this


def _grant(connection: kombu.Connection, exchange: str) -> str:
    queues = (
        "[0-9a-f-]{36}|[A-Za-z0-9_.-]{1,100}\\.[0-9a-f]{12}|[A-Za-z0-9-]{1,60}-[0-9]+-[0-9a-f]{8}"
    )
    pattern = f"'^({re.escape(exchange)}|{queues})$'"
    vhost = connection.virtual_host or "/"
    user = connection.userid or "guest"
    return f"rabbitmqctl set_permissions -p '{vhost}' {user} {pattern} {pattern} {pattern}"
