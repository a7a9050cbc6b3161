"""Checks of the broker: connection, permissions and durability."""

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
from wbengine.diagnosis.clocks import check_clock
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.engines.worker_based.connections import connecting, topology
from wbengine.engines.worker_based.worker_side import describing
from wbengine.fleet import client as fleets
from wbengine.transports import _folder, reasons

__all__ = ["fleet", "check", "check_connection"]

#: Maximum time to connect in seconds, even if the timeout of the settings is longer.
_MAX_CONNECT_SECONDS: Final = 5.0
#: Fraction of its memory limit from which a Redis is reported as full.
_MAX_MEMORY_FRACTION: Final = 0.9

_MIN_FREE_BYTES: Final = 100 * 1024 * 1024

#: Maximum wait in seconds for a broker to report that it blocks publishers.
_BLOCKED_WAIT_SECONDS: Final = 1.0


def check_connection(place: Place) -> Iterator[Finding]:
    """Check whether the broker is reachable."""
    try:
        target = place.target
        target.check()
    except (ValueError, TypeError, ImportError) as error:
        yield bad("broker", line(error), "correct the URL or the options of the broker:"
                  " --url, $WBENGINE_URL, or `url` in wbengine.toml")  # fmt: skip
        return
    except exceptions.TransportFailure as error:
        yield _folder_finding(line(error), None)
        return
    began = time.monotonic()
    try:
        connection = fleet(place).connect()
    except exceptions.TransportFailure as error:
        yield _unreachable_finding(target, line(error))
        return
    connecting.release(connection)
    yield good(
        "broker", f"connected to {target.shown} in {(time.monotonic() - began) * 1000:.0f} ms"
    )


def fleet(place: Place) -> fleets.Fleet:
    """Return the fleet of workers of the exchange, not connected."""
    return fleets.Fleet(
        timeout=min(place.timeout, _MAX_CONNECT_SECONDS), keys=place.keys, **place.engine_options
    )


def _unreachable_finding(target: Any, words: str) -> Finding:
    if target.folders is not None:
        return _folder_finding(words, target.folders[0])
    if "refuses this user or password" in words or "NOAUTH" in words or "WRONGPASS" in words:
        fix = "correct user and password in the URL of the broker (--url, $WBENGINE_URL)"
        if target.amqp:
            fix += ", or run: rabbitmqctl change_password USER PASSWORD"
    elif "no such virtual host" in words:
        vhost = unquote(urlsplit(target.url or "").path[1:]) or "/"
        fix = f"run: rabbitmqctl add_vhost '{vhost}'; then give the user permissions in it"
    elif "name cannot be resolved" in words:
        fix = "correct the host name in the URL of the broker, or the DNS settings of this host"
    elif "certificate" in words or "TLS" in words:
        fix = (
            "add the certificate authority of the broker to the URL: ?ssl_ca_certs=/path/of/ca.pem"
        )
    else:
        fix = "start the broker, or correct host and port in its URL (--url, $WBENGINE_URL)"
    return bad("broker", words, fix)


def _folder_finding(words: str, folder: str | None) -> Finding:
    path = folder or (match[1] if (match := re.search(r"folder (\S+)", words)) else "FOLDER")
    if "belongs to user id" in words:
        fix = f"run: chown -R {os.geteuid()} {path}; or use another folder"
    elif "open to other users" in words:
        fix = f"run: chmod 700 {path}"
    elif "written by other users" in words:
        fix = f"run: chmod go-w {path}"
    elif "is a symlink" in words:
        fix = f"remove the symlink {path}, which another user may have created"
    elif "not a folder" in words:
        fix = f"remove the file {path}, or use another folder with --url filesystem:///PATH"
    else:
        fix = f"create a folder that this user can write: mkdir -p {path}; chmod u+rwx {path}"
    return bad("broker", words, fix)


def check(place: Place) -> Iterator[Finding]:
    """Check the permissions and settings of a reachable broker."""
    target = place.target
    if target.folders is not None:
        yield from _check_folder(target.folders[0])
    elif target.redis is not None:
        yield from _redis_settings("broker settings", target.redis)
    elif target.amqp:
        yield from _check_rabbitmq(place)


def _check_folder(folder: str) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
        yield bad("broker settings", f"{folder} must have at least {_MIN_FREE_BYTES // 1024**2} MB"
                  f" of free space, got {free // 1024**2} MB",
                  "free some space; messages and results are files")  # fmt: skip
    else:
        yield good(
            "broker settings", f"{folder} is writable and has {free // 1024**2:,} MB of free space"
        )
    os.utime(folder)
    yield from check_clock("broker clock", "of the files", os.stat(folder).st_mtime - time.time())
    writer = _sqlite_files.describe_writer(f"{folder}/{_folder.NAME}")
    if writer is not None and "stopped" in writer:
        yield bad("broker file", f"{folder}: {writer}", "resume that process or end it")


# -- RabbitMQ ----------------------------------------------------------------------------------


def _check_rabbitmq(place: Place) -> Iterator[Finding]:
    connection = fleet(place).connect()
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
            refused.append(f"{right} {object_name}: {reasons.explain(error)}")
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


def _redis_settings(check: str, place: Any) -> Iterator[Finding]:
    """Check the settings of a Redis that `INFO` reports, and its clock."""
    from wbengine.transports import _redis_link

    pool = _redis_link.Pool(place, exceptions.TransportFailure, place.shown)
    try:
        info = pool.call("INFO").decode(errors="replace")
        before = time.time()
        seconds, micros = pool.call("TIME")
        after = time.time()
    except exceptions.TransportFailure as error:
        yield note(check, f"cannot read the settings of {place.shown} ({line(error)});"
                   " without INFO, engines and workers do not detect a restored older state; run:"
                   " ACL SETUSER USER +info")  # fmt: skip
        return
    finally:
        pool.close()
    lines = dict(entry.split(":", 1) for entry in info.splitlines() if ":" in entry)
    findings = list(_redis_problems(check, {name: value.strip() for name, value in lines.items()}))
    yield from findings or [good(check, f"{place.shown} stores data durably")]
    theirs = int(seconds) + int(micros) / 1e6
    yield from check_clock(
        "broker clock", f"of {place.shown}", theirs - (before + after) / 2, (after - before) / 2
    )


def _redis_problems(check: str, info: dict[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield bad(
            check,
            f"maxmemory-policy must be noeviction, got {policy}: when the memory is full, Redis"
            " deletes requests and rows of the ledger",
            "run: redis-cli CONFIG SET maxmemory-policy noeviction; add the same setting to"
            " redis.conf",
        )
    if info.get("aof_enabled") == "0":
        yield bad(
            check,
            "the append-only file is disabled: after a restart, queued and running requests are"
            " lost, and their tasks fail with WorkerLost",
            "run: redis-cli CONFIG SET appendonly yes; add the same setting to redis.conf",
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield bad(check, "writing the append-only file failed",
                  "see the log of Redis; its disk may be full or its folder not"
                  " writable")  # fmt: skip
    if info.get("cluster_enabled") == "1":
        yield bad(check, "Redis Cluster is not supported",
                  "use a single Redis: --url redis://HOST/DB")  # fmt: skip
    if info.get("role") == "slave":
        yield bad(check, "the server is a read-only replica",
                  f"use {info.get('master_host')}:{info.get('master_port')}")  # fmt: skip
    maximum, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    if maximum and used > _MAX_MEMORY_FRACTION * maximum:
        yield bad(check, f"the memory is full ({used // 1024**2} of {maximum // 1024**2} MB)",
                  "increase it with redis-cli CONFIG SET maxmemory SIZE, or find long queues with"
                  " `wbengine queues list`")  # fmt: skip
