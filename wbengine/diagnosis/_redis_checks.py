"""Checks of a Redis: settings that affect durability, and its clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions
from wbengine.diagnosis._clocks import check_clock
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.transports import Target
from wbengine.transports._redis import redis_link

__all__ = ["check", "fix"]

#: Fraction of its memory limit from which a Redis is reported as full.
_MAX_MEMORY_FRACTION: Final = 0.9

_CHECK: Final = "broker settings"


def fix(reason: str, target: Target | None) -> str | None:
    """Return None: the usual advice applies."""
    return None


def check(place: Place) -> Iterator[Finding]:
    """Check the settings of a Redis that `INFO` reports, and its clock."""
    where: redis_link.Place = place.target.place
    pool = redis_link.Pool(where, exceptions.TransportFailure)
    try:
        info = pool.info()
        before = time.time()
        seconds, micros = pool.call("TIME")
        after = time.time()
    except exceptions.TransportFailure as error:
        yield note(_CHECK, f"cannot read the settings of {where.shown} ({line(error)});"
                   " without INFO, engines and workers do not detect a restored older state; run:"
                   " ACL SETUSER USER +info")  # fmt: skip
        return
    finally:
        pool.close()
    findings = list(_problems(info))
    yield from findings or [good(_CHECK, f"{where.shown} stores data durably")]
    theirs = int(seconds) + int(micros) / 1e6
    yield from check_clock(
        "broker clock", f"of {where.shown}", theirs - (before + after) / 2, (after - before) / 2
    )


def _problems(info: dict[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield bad(
            _CHECK,
            f"maxmemory-policy must be noeviction, got {policy}: when the memory is full, Redis"
            " deletes requests and rows of the ledger",
            "run: redis-cli CONFIG SET maxmemory-policy noeviction; add the same setting to"
            " redis.conf",
        )
    if info.get("aof_enabled") == "0":
        yield bad(
            _CHECK,
            "the append-only file is disabled: after a restart, queued and running requests are"
            " lost, and their tasks fail with WorkerLost",
            "run: redis-cli CONFIG SET appendonly yes; add the same setting to redis.conf",
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield bad(_CHECK, "writing the append-only file failed",
                  "see the log of Redis; its disk may be full or its folder not"
                  " writable")  # fmt: skip
    if info.get("cluster_enabled") == "1":
        yield bad(_CHECK, "Redis Cluster is not supported",
                  "use a single Redis: --url redis://HOST/DB")  # fmt: skip
    if info.get("role") == "slave":
        yield bad(_CHECK, "the server is a read-only replica",
                  f"use {info.get('master_host')}:{info.get('master_port')}")  # fmt: skip
    maximum, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    if maximum and used > _MAX_MEMORY_FRACTION * maximum:
        yield bad(_CHECK, f"the memory is full ({used // 1024**2} of {maximum // 1024**2} MB)",
                  "increase it with redis-cli CONFIG SET maxmemory SIZE, or find long queues with"
                  " `wbengine queues list`")  # fmt: skip
