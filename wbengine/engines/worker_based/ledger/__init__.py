"""Ledgers record which worker may run a request, and its result. `base` defines the interface."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from wbengine import _installing, _names, exceptions
from wbengine.engines.worker_based.ledger import base, directory, memory
from wbengine.transports import memory as brokers

if TYPE_CHECKING:
    from wbengine.transports.registry import Target


#: Environment variable with the default ledger of engines and workers.
LEDGER_VARIABLE: Final = "WBENGINE_LEDGER"
#: Place that selects an engine without a ledger.
NONE: Final = "none"

_FORMS: Final = (
    "memory://NAME, dir:///PATH, redis://HOST/DB, sqlite:////PATH, mysql://USER@HOST/DB,"
    " postgresql://USER@HOST/DB and none"
)
_REDIS_SCHEMES: Final = ("redis", "rediss")
_DATABASE_SCHEMES: Final = ("sqlite", "mysql", "mariadb", "postgresql", "postgres", "pgsql")


def check_place(place: str | None) -> str | None:
    """Return `place`, else `$WBENGINE_LEDGER`, else None, which selects the broker's ledger.

    `NONE` selects no ledger. Nothing is opened.

    :raises ValueError: if the place is not valid.
    :raises ImportError: if a required package is not installed.
    """
    place = place if place is not None else os.environ.get(LEDGER_VARIABLE) or None
    if place is None or place == NONE:
        return place
    kind, rest = _split(place)
    if kind in _DATABASE_SCHEMES:
        _databases().check(place)
    elif kind in _REDIS_SCHEMES:
        _redis().check(place)
    elif kind == "memory" and rest:
        brokers.hub_name(place)
    elif kind != "dir" or not rest or "?" in rest:
        shown = f"{kind}://..." if kind else repr(place)
        known = (*_DATABASE_SCHEMES, *_REDIS_SCHEMES, "memory", "dir", NONE)
        near = "" if kind in known else _names.hint(kind or place, known)
        raise ValueError(f"ledger must be one of {_FORMS}, got {shown}{near}")
    return place


def choose(
    place: str | None,
    target: Target,
    role: str = "engine",
    result_ttl: float | None = base.STALE_AFTER_SECONDS,
) -> base.Ledger | None:
    """Open the ledger at a checked place, or the broker's ledger; see `open_ledger`."""
    if place is None:
        return for_target(target, role, result_ttl)
    return None if place == NONE else open_ledger(place, role, result_ttl)


def open_ledger(
    place: str | Target, role: str = "engine", result_ttl: float | None = base.STALE_AFTER_SECONDS
) -> base.Ledger:
    """Open a ledger, and create it if necessary.

    :param place: `memory://NAME`, `dir:///PATH`, the URL of a Redis or of a database, or the target
        of a broker. The ledger of a folder transport is in the folder of the requests: `out` of an
        engine, `in` of a worker.
    :param role: "engine" or "worker".
    :param result_ttl: seconds for which a result that no engine read is kept, at least one hour
        (None: forever). Opening a ledger removes older results, at most once per hour.
    :raises ValueError: if the place is not valid, or `result_ttl` is negative.
    :raises ImportError: if a package for the database or Redis is not installed.
    :raises LedgerFailure: if the ledger cannot be used.
    """
    check_result_ttl(result_ttl)
    if isinstance(place, str):
        if place == NONE:
            raise ValueError(f"ledger must be one of {_FORMS}, got {place!r}")
        check_place(place)
        kind, rest = _split(place)
        if kind == "memory":
            return _of_broker(place)
        if kind == "dir":
            return directory.DirectoryLedger(unquote(rest), result_ttl)
        opened: base.Ledger = (
            _redis().RedisLedger(_redis().check(place), result_ttl)
            if kind in _REDIS_SCHEMES
            else _databases().SQLLedger(place, result_ttl)
        )
        return opened
    if place.broker is not None:
        return _of_broker(f"memory://{place.broker}")
    if place.folders is not None:
        folder_in, folder_out = place.folders
        folder = folder_in if role == "worker" else folder_out
        return directory.DirectoryLedger(folder, result_ttl)
    where = place.redis
    if where is not None:
        on_broker: base.Ledger = _redis().RedisLedger(where, result_ttl, consumes=True)
        return on_broker
    raise ValueError(f"ledger must be given: the broker at {place.shown} provides none")


def shown(place: str | None, target: Target) -> str:
    """Return the place of a ledger for messages, without passwords."""
    if place == NONE or (place is None and not _provides_ledger(target)):
        return f"no ledger with the broker {target.shown}"
    if place is None:
        return f"the ledger of the broker {target.shown}"
    scheme, _, rest = place.partition("://")
    address, _, options = rest.partition("?")
    host = "..." if "@" in options else address.rpartition("@")[2]
    return f"the ledger {scheme}://{host}"


def check_result_ttl(seconds: float | None) -> float | None:
    """Return `seconds`.

    :raises ValueError: if it is negative or not a number.
    """
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0
    ):
        raise ValueError(f"result_ttl must be 0 or more seconds, or None, got {seconds!r}")
    return seconds


def for_target(
    target: Target, role: str = "engine", result_ttl: float | None = base.STALE_AFTER_SECONDS
) -> base.Ledger | None:
    """Return the ledger of a broker, or None if the broker provides none. See `open_ledger`.

    :raises TransportFailure: if the ledger cannot be used; then the broker is unusable too.
    """
    if not _provides_ledger(target):
        return None
    try:
        return open_ledger(target, role, result_ttl)
    except exceptions.LedgerFailure as exc:
        raise exceptions.TransportFailure(
            f"the broker at {target.shown} cannot be used: {exc}"
        ) from exc


def _provides_ledger(target: Target) -> bool:
    return bool(target.broker or target.folders or target.redis)


def attach_claims(ledger: base.Ledger | None, target: Target, holder: str) -> bool:
    """Let connections to `target` claim the rows of requests for `holder` when they receive them.

    This is possible if the ledger and the broker use the same Redis or folder; otherwise return
    False. It affects connections that are opened later: their messages have a `claim`.
    """
    claims = None if ledger is None else ledger.claims(target.redis or target.folders, holder)
    if claims is None:
        return False
    target.options["claims"] = claims
    return True


def is_separate(ledger: base.Ledger | None, place: str | None, target: Target) -> bool:
    """Return whether a ledger is separate from the broker.

    Programs that only publish may have no access to a separate ledger.
    """
    if ledger is None or place is None:
        return False
    return target.redis is None or getattr(ledger, "place", None) != target.redis


def _of_broker(url: str) -> base.Ledger:
    hub = brokers.hub(brokers.hub_name(url))
    with hub.lock:
        if hub.ledger is None:
            hub.ledger = memory.MemoryLedger()
        opened: base.Ledger = hub.ledger
        return opened


def _split(place: str) -> tuple[str, str]:
    scheme, mark, rest = place.partition("://")
    return (scheme.partition("+")[0], rest) if mark else ("", "")


def _databases() -> Any:
    # A worker without a database does not need this import.
    from wbengine.engines.worker_based.ledger import sql

    return sql


def _redis() -> Any:
    try:
        from wbengine.engines.worker_based.ledger import redis
    except ImportError as error:
        raise ImportError(_installing.needs("a ledger in Redis", "redis-py", "redis")) from error
    return redis
