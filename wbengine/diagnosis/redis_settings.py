"""Check of the durability settings of a Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from wbengine import exceptions
from wbengine.diagnosis.clocks import check_clock
from wbengine.diagnosis.findings import Finding, bad, good, line, note

__all__ = ["check_settings"]

_MAX_MEMORY_FRACTION: Final = 0.9


def check_settings(check: str, place: Any) -> Iterator[Finding]:
    """Check the settings that `INFO` reports, and the clock."""
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
    findings = list(_problems(check, {name: value.strip() for name, value in lines.items()}))
    yield from findings or [good(check, f"{place.shown} stores data durably")]
    theirs = int(seconds) + int(micros) / 1e6
    yield from check_clock(
        "broker clock", f"of {place.shown}", theirs - (before + after) / 2, (after - before) / 2
    )


def _problems(check: str, info: dict[str, str]) -> Iterator[Finding]:
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
