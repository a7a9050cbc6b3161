"""Whether a Redis keeps what it is given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from wbengine import exceptions
from wbengine.diagnosis.clocks import ahead
from wbengine.diagnosis.findings import Finding, bad, good, line, note

__all__ = ["look"]

#: How full it may be, of what it may use.
_FULL: Final = 0.9


def look(check: str, place: Any) -> Iterator[Finding]:
    """Its settings, as `INFO` tells them, and its clock."""
    from wbengine.transports import _redis_link

    pool = _redis_link.Pool(place, exceptions.TransportFailure, place.shown)
    try:
        told = pool.call("INFO").decode(errors="replace")
        before = time.time()
        seconds, micros = pool.call("TIME")
        after = time.time()
    except exceptions.TransportFailure as error:
        yield note(check, f"{place.shown} does not tell its settings ({line(error)});"
                   " let the user run INFO, or a Redis that comes back older than it was is not"
               " noticed: ACL SETUSER USER +info")  # fmt: skip
        return
    finally:
        pool.close()
    lines = dict(one.split(":", 1) for one in told.splitlines() if ":" in one)
    found = list(_wrong(check, {name: value.strip() for name, value in lines.items()}))
    yield from found or [good(check, f"{place.shown} keeps what it is given")]
    theirs = int(seconds) + int(micros) / 1e6
    yield from ahead(
        "broker clock", f"of {place.shown}", theirs - (before + after) / 2, (after - before) / 2
    )


def _wrong(check: str, told: dict[str, str]) -> Iterator[Finding]:
    policy = told.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield bad(
            check,
            f"maxmemory-policy is {policy}: when its memory is full, it throws away requests and"
            " rows of the ledger as if they were a cache",
            "redis-cli CONFIG SET maxmemory-policy noeviction, and the same line in redis.conf",
        )
    if told.get("aof_enabled") == "0":
        yield bad(
            check,
            "it has no append-only file: when it ends, it forgets which requests were taken, and"
            " flows fail as WorkerLost, also with what only waited in it",
            "redis-cli CONFIG SET appendonly yes, and the same line in redis.conf",
        )
    elif told.get("aof_last_write_status", "ok") != "ok":
        yield bad(check, "it cannot write its append-only file",
                  "see its log: its disk is full, or the folder cannot be written")  # fmt: skip
    if told.get("cluster_enabled") == "1":
        yield bad(check, "it is a node of a Redis Cluster, which is not supported",
                  "use a single Redis: --url redis://HOST/DB")  # fmt: skip
    if told.get("role") == "slave":
        yield bad(check, "it is a replica: nothing can be written there",
                  f"use {told.get('master_host')}:{told.get('master_port')}")  # fmt: skip
    most, used = int(told.get("maxmemory") or 0), int(told.get("used_memory") or 0)
    if most and used > _FULL * most:
        yield bad(check, f"its memory is full ({used // 1024**2} of {most // 1024**2} MB)",
                  "redis-cli CONFIG SET maxmemory SIZE, with more; or `wbengine queues ls`: what"
                  " waits there?")  # fmt: skip
