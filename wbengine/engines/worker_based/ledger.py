"""Open ledgers, which record which worker may run a request, and its result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine.transports import _ledger
from wbengine.transports._ledger import Ledger as Ledger

if TYPE_CHECKING:
    from wbengine.transports import Target


#: Environment variable with the default ledger of engines and workers.
LEDGER_VARIABLE: Final = "WBENGINE_LEDGER"
#: Place that selects an engine without a ledger.
NONE: Final = "none"

_FORMS: Final = (
    "memory://NAME, dir:///PATH, redis://HOST/DB, sqlite:////PATH, mysql://USER@HOST/DB,"
    " postgresql://USER@HOST/DB and none"
)


class _Kind(NamedTuple):
    """A kind of ledger: a module with these functions.

    - `check(place)`: see `check_place`.
    - `open_place(place, result_ttl)`: see `open_ledger`.
    - `is_at(place, broker)`: whether a place is that of the ledger of a broker (`Target.place`).

    :ivar module: its name below `wbengine.transports`.
    :ivar is_path: whether a place must have a path, and no options.
    :ivar needs: the arguments of `installing.needs` if the import of the module fails.
    """

    module: str
    is_path: bool = False
    needs: tuple[str, str, installing.Extra] | None = None

    def load(self) -> Any:
        """Return the module. A process imports only the one of its ledger."""
        try:
            return object_names.load(f"wbengine.transports.{self.module}")
        except ImportError as error:
            if self.needs is None:
                raise
            raise ImportError(installing.needs(*self.needs)) from error


_DATABASES: Final = _Kind("_sql.sql_ledger")
_REDIS: Final = _Kind("_redis.redis_ledger", needs=("a ledger in Redis", "redis-py", "redis"))
_KINDS: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(("sqlite", "mysql", "mariadb", "postgresql", "postgres", "pgsql"), _DATABASES),
    **dict.fromkeys(("redis", "rediss"), _REDIS),
    "memory": _Kind("_memory.memory_broker", is_path=True),
    "dir": _Kind("_folder.folder_ledger", is_path=True),
}

#: Names of kinds elsewhere, for hints in error messages.
_ALIASES: Final[Mapping[str, str]] = {"file": "dir", "filesystem": "dir", "unix": "redis"}


def check_place(place: str | None) -> str | None:
    """Return `place`, else `$WBENGINE_LEDGER`, else None, which selects the broker's ledger.

    `NONE` selects no ledger. Nothing is opened.

    :raises ValueError: if the place is not valid.
    :raises ImportError: if a required package is not installed.
    """
    place = place if place is not None else os.environ.get(LEDGER_VARIABLE) or None
    if place is None or place == NONE:
        return place
    _kind(place).load().check(place)
    return place


def check_for(place: str | None, target: Target) -> str | None:
    """Check a place like `check_place`, and return the place for engines and workers of a broker.

    A broker that has the rows of requests uses only its own ledger.

    :raises ValueError: also if that broker cannot use this ledger.
    """
    place = check_place(place)
    if place is None or not target.has_rows:
        return place
    if place != NONE and _kind(place).load().is_at(place, target.place):
        return None
    raise ValueError(
        f"The broker {target.shown} uses only its own ledger, got {_masked(place)!r}: omit the"
        " ledger. For durability, use postgresql:// as broker, or Redis with 'appendfsync always'"
    )


def choose(
    place: str | None,
    target: Target,
    role: str = "engine",
    result_ttl: float | None = _ledger.STALE_AFTER_SECONDS,
) -> _ledger.Ledger | None:
    """Open the ledger at a checked place, else that of the broker; see `open_ledger`.

    :returns: None if `place` is `NONE`, or if the broker provides no ledger.
    :raises TransportFailure: if the ledger of the broker cannot be used; then the broker is
        unusable too.
    """
    if place is not None:
        return None if place == NONE else open_ledger(place, role, result_ttl)
    if target.kind.ledger is None:
        return None
    try:
        return open_ledger(target, role, result_ttl)
    except exceptions.LedgerFailure as exc:
        raise exceptions.TransportFailure(
            f"the broker at {target.shown} cannot be used: {exc}"
        ) from exc


def open_ledger(
    place: str | Target,
    role: str = "engine",
    result_ttl: float | None = _ledger.STALE_AFTER_SECONDS,
) -> _ledger.Ledger:
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
        opened: _ledger.Ledger = _kind(place).load().open_place(place, result_ttl)
        return opened
    if place.kind.ledger is None:
        raise ValueError(f"ledger must be given: the broker at {place.shown} provides none")
    on_broker: _ledger.Ledger = object_names.load(place.kind.ledger)(place, role, result_ttl)
    return on_broker


def shown(place: str | None, target: Target) -> str:
    """Return the place of a ledger for messages, without passwords."""
    if place == NONE or (place is None and target.kind.ledger is None):
        return f"no ledger with the broker {target.shown}"
    if place is None:
        return f"the ledger of the broker {target.shown}"
    return f"the ledger {_masked(place)}"


def _masked(place: str) -> str:
    scheme, mark, rest = place.partition("://")
    address, _, options = rest.partition("?")
    host = "..." if "@" in options else address.rpartition("@")[2]
    return f"{scheme}{mark}{host}"


def check_result_ttl(seconds: float | None) -> float | None:
    """Return `seconds`.

    :raises ValueError: if it is negative or not a number.
    """
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0
    ):
        raise ValueError(f"result_ttl must be 0 or more seconds, or None, got {seconds!r}")
    return seconds


def _kind(place: str) -> _Kind:
    scheme, mark, rest = place.partition("://")
    scheme = scheme if mark else ""
    first = scheme.partition("+")[0]
    kind = _KINDS.get(first)
    if kind is not _DATABASES:  # Only databases have a driver.
        kind = _KINDS.get(scheme)
    if kind is None or (kind.is_path and (not rest.strip("/") or "?" in rest)):
        shown = f"{scheme}://..." if scheme else repr(place)
        near = ""
        if kind is None:
            near = object_names.hint(_ALIASES.get(first, first) or place, (*_KINDS, NONE))
        raise ValueError(f"ledger must be one of {_FORMS}, got {shown}{near}")
    return kind
