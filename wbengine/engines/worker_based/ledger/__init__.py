"""Ledgers: who may run a request, and what came of it.  `base` is the contract."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base, directory, memory
from wbengine.transports import memory as brokers

if TYPE_CHECKING:
    from wbengine.transports.registry import Target


#: The place of the ledger of engines and workers that were told of none.
LEDGER_VARIABLE: Final = "WBENGINE_LEDGER"
#: Of an engine that is to work without one.
NONE: Final = "none"

_FORMS: Final = (
    "memory://NAME, dir:///PATH, redis://HOST/DB, sqlite:////PATH, mysql://USER@HOST/DB or"
    " postgresql://USER@HOST/DB"
)
_REDIS: Final = ("redis", "rediss")
_DATABASES: Final = ("sqlite", "mysql", "mariadb", "postgresql", "postgres", "pgsql")


def check_place(place: str | None) -> str | None:
    """The place of a ledger (`NONE`: there is to be none): `place`, else `$WBENGINE_LEDGER`, else
    None (the broker's own).

    Nothing is opened.

    :raises ValueError: it is no place of a ledger.
    :raises ImportError: what it takes is not installed.
    """
    place = place if place is not None else os.environ.get(LEDGER_VARIABLE) or None
    if place is None or place == NONE:
        return place
    kind, rest = _split(place)
    if kind in _DATABASES:
        _databases().check(place)
    elif kind in _REDIS:
        _redis().check(place)
    elif kind not in ("memory", "dir") or not rest:
        shown = f"{kind}://..." if kind else repr(place)
        raise ValueError(f"no ledger at {shown}: use {_FORMS}")
    return place


def choose(
    place: str | None,
    target: Target,
    role: str = "engine",
    result_ttl: float | None = base.STALE_AFTER,
) -> base.Ledger | None:
    """Open the ledger at a place that was checked; without one, that of the broker.

    `result_ttl`: see `open_ledger`.
    """
    if place is None:
        return for_target(target, role, result_ttl)
    return None if place == NONE else open_ledger(place, role, result_ttl)


def open_ledger(
    place: str | Target, role: str = "engine", result_ttl: float | None = base.STALE_AFTER
) -> base.Ledger:
    """Open a ledger, made when it is not there: `memory://NAME`, `dir:///PATH`, the URL of a Redis
    or of a database, or a broker's target.

    The ledger of a folder transport is `ledger` in the folder that requests go to: `out` of an
    engine, `in` of a worker (`role`), so that both open the same.  That of a memory broker belongs
    to the broker, that of our Redis transport is beside its queues.

    Results that nobody fetched are swept when they are older than `result_ttl` seconds, and an hour
    (None: never); whoever opens it looks, but not more often than each hour.

    :raises ValueError: it is another place, or `result_ttl` is below 0.
    :raises ImportError: what a database or Redis takes is not installed.
    :raises LedgerFailure: it cannot be used.
    """
    check_result_ttl(result_ttl)
    if isinstance(place, str):
        if place == NONE:
            raise ValueError(f"no ledger at {place!r}: use {_FORMS}")
        check_place(place)
        kind, rest = _split(place)
        if kind == "memory":
            return _of_broker(place)
        if kind == "dir":
            return directory.DirectoryLedger(unquote(rest), result_ttl)
        found: base.Ledger = (
            _redis().RedisLedger(_redis().check(place), result_ttl)
            if kind in _REDIS
            else _databases().SQLLedger(place, result_ttl)
        )
        return found
    if place.broker is not None:
        return _of_broker(f"memory://{place.broker}")
    if place.folders is not None:
        folder_in, folder_out = place.folders
        folder = folder_in if role == "worker" else folder_out
        return directory.DirectoryLedger(folder, result_ttl)
    where = place.redis
    if where is not None:
        of_redis: base.Ledger = _redis().RedisLedger(where, result_ttl, consumes=True)
        return of_redis
    raise ValueError(f"no ledger of its own at {place.shown}: name one")


def check_result_ttl(seconds: float | None) -> float | None:
    """`seconds`, if results may be kept for so long: 0 or more, or None for ever.

    :raises ValueError: it is less, or no number.
    """
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0
    ):
        raise ValueError(f"result_ttl is {seconds!r}: it must be 0 or more seconds, or None")
    return seconds


def for_target(
    target: Target, role: str = "engine", result_ttl: float | None = base.STALE_AFTER
) -> base.Ledger | None:
    """The ledger that comes with a broker; None when none does.  See `open_ledger`.

    :raises TransportFailure: a broker whose ledger cannot be used cannot be used.
    """
    if target.broker is None and target.folders is None and target.redis is None:
        return None
    try:
        return open_ledger(target, role, result_ttl)
    except exceptions.LedgerFailure as exc:
        raise exceptions.TransportFailure(
            f"the broker at {target.shown} cannot be used: {exc}"
        ) from exc


def fuse(ledger: base.Ledger | None, target: Target, holder: str) -> bool:
    """Claim for `holder` while messages are taken, where broker and ledger are the same Redis, or
    both are in folders.

    Then messages that are taken on connections to `target` which are made from now on have a
    `claim`.  False, and nothing changes, where that cannot be.
    """
    claims = None if ledger is None else ledger.claims(target.redis or target.folders, holder)
    if claims is None:
        return False
    target.options["claims"] = claims
    return True


def is_separate(ledger: base.Ledger | None, place: str | None, target: Target) -> bool:
    """Whether a ledger is in another place than the broker's own: who may publish there need not
    be able to write rows.
    """
    if ledger is None or place is None:
        return False
    return target.redis is None or getattr(ledger, "place", None) != target.redis


def _of_broker(url: str) -> base.Ledger:
    hub = brokers.hub(brokers.hub_name(url))
    with hub.lock:
        if hub.ledger is None:
            hub.ledger = memory.MemoryLedger()
        found: base.Ledger = hub.ledger
        return found


def _split(place: str) -> tuple[str, str]:
    """The kind of a place, without its driver, and what follows it."""
    scheme, mark, rest = place.partition("://")
    return (scheme.partition("+")[0], rest) if mark else ("", "")


def _databases() -> Any:
    # Not on top: a worker without a database needs nothing of it.
    from wbengine.engines.worker_based.ledger import sql

    return sql


def _redis() -> Any:
    # As above.
    try:
        from wbengine.engines.worker_based.ledger import redis
    except ImportError as error:
        raise ImportError(
            "a ledger in Redis takes redis-py: pip install 'wbengine[redis]'"
        ) from error
    return redis
