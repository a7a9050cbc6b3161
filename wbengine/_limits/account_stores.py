"""Stores of the accounts of limits: their interface, the store in memory, and their selection."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import _limits
from wbengine._configuration import server_urls
from wbengine._introspection import object_names
from wbengine._limits import limit_changes
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import Account, Answer, PermitRequest
from wbengine._security import masking
from wbengine._tasks.limit_attributes import Quota
from wbengine.persistence import base

__all__ = [
    "MAX_ACCOUNTS_PER_BATCH",
    "MemoryStore",
    "Requests",
    "Store",
    "check_url",
    "home_of",
    "read_account",
    "store_of",
]

LOG: Final = logging.getLogger(__name__)

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+socket")
#: Maximum number of accounts that a transaction of a database changes.
MAX_ACCOUNTS_PER_BATCH: Final = 200

#: Quota of a limit, and requests of flows.
Requests = tuple[Quota, list[PermitRequest]]


class Store(abc.ABC):
    """Store of accounts. Thread-safe."""

    @abc.abstractmethod
    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        """Process requests for limits, by name. Each limit is changed atomically. Idempotent.

        :raises StorageFailure: if the store is unreachable or reports an error.
        """

    @abc.abstractmethod
    def all(self) -> dict[str, tuple[Account, float]]:
        """Return all accounts by name, with the current time of the store."""

    @abc.abstractmethod
    def read(self, names: Sequence[str]) -> dict[str, tuple[Account, float]]:
        """Return those of these accounts that exist, with the current time of the store."""

    @abc.abstractmethod
    def change(self, change: LimitChange) -> None:
        """Store a change of a limit. A value that is None keeps that of an earlier change."""

    @abc.abstractmethod
    def remove_change(self, name: str) -> bool:
        """Remove the change of a limit. Return False if there is none."""

    @abc.abstractmethod
    def changes(self, limits: Iterable[str] | None = None) -> dict[str, LimitChange]:
        """Return changes by name.

        :param limits: only those that can apply to these limits.
        """

    def parked(self, others: Collection[str]) -> dict[str, int]:
        """Return the number of parked flows by the limit that they wait for, if they are here.

        :param others: uuids of flows that are not counted.
        """
        return {}

    def close(self) -> None:  # noqa: B027
        """Free resources. Idempotent."""


class MemoryStore(Store):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        self._changes: dict[str, LimitChange] = {}
        # Number of accounts above which expired ones are deleted.
        self._sweep_at = MAX_ACCOUNTS_PER_BATCH

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        answers = {}
        with self._lock:
            now = self._clock()
            for name, limit_requests in requests.items():
                account = self._accounts.setdefault(name, Account())
                in_force = limit_changes.apply(name, limit_requests[0], self._changes)
                answers[name] = account.settle(*limit_requests, now, in_force)
                if account.expires(now) <= 0:
                    del self._accounts[name]
            if len(self._accounts) > self._sweep_at:
                for name in [
                    n
                    for n, stored_account in self._accounts.items()
                    if stored_account.expires(now) <= 0
                ]:
                    del self._accounts[name]
                self._sweep_at = max(MAX_ACCOUNTS_PER_BATCH, 2 * len(self._accounts))
        return answers

    def all(self) -> dict[str, tuple[Account, float]]:
        with self._lock:
            now = self._clock()
            return {
                name: (Account.from_dict(account.to_dict()), now)
                for name, account in self._accounts.items()
            }

    def read(self, names: Sequence[str]) -> dict[str, tuple[Account, float]]:
        accounts = self.all()
        return {name: accounts[name] for name in names if name in accounts}

    def change(self, change: LimitChange) -> None:
        with self._lock:
            old = self._changes.get(change.name, change)
            self._changes[change.name] = dataclasses.replace(
                change,
                rate=old.rate if change.rate is None else change.rate,
                concurrency=old.concurrency if change.concurrency is None else change.concurrency,
            )

    def remove_change(self, name: str) -> bool:
        with self._lock:
            return self._changes.pop(name, None) is not None

    def changes(self, limits: Iterable[str] | None = None) -> dict[str, LimitChange]:
        with self._lock:
            names = self._changes if limits is None else limit_changes.names_of(limits)
            return {name: self._changes[name] for name in names if name in self._changes}


def read_account(name: str, text: str) -> Account:
    """Decode a stored account. A new one replaces an unreadable one."""
    if not text:
        return Account()
    try:
        return Account.from_dict(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        LOG.warning("cannot read the state of limit %r; resetting it: %s", name, error)
        return Account()


#: For flows whose store does not contain limits.
_of_process: Final = MemoryStore()


def check_url(url: Any) -> str:
    """Check and return the URL of a Redis for limits, in the notation of its client.

    :raises ValueError: if it is invalid.
    """
    scheme, mark, _ = str(url).partition("://")
    if not isinstance(url, str) or not mark or scheme not in _SCHEMES:
        shown, near = (
            masking.masked(str(url)),
            object_names.hint(scheme.partition("+")[0], _SCHEMES),
        )
        raise ValueError(
            f"limits must be the URL of a Redis (redis://HOST/DB), got {shown!r:.80}{near};"
            " by default, limits are in the store of the flow"
        )
    server_urls.split("the URL of limits", url)
    return url.replace("redis+socket:", "unix:", 1)


def home_of(place: str | base.Backend | None, backend: base.Backend | None) -> str:
    """Return a text that distinguishes the flows of a backend from others with the same limits.

    It is empty if these limits are not shared with flows of other backends.
    """
    if not isinstance(place, str) or backend is None or not backend.stores_limits:
        return ""
    database: Any = backend  # As in `store_of`.
    # Each host has its own files, which may have the same path.
    host = socket.gethostname() if database.options.dialect == "sqlite" else ""
    # Its package imports SQLAlchemy.
    place_of = object_names.load("wbengine._sql.database_places:place_of")
    return hashlib.sha256(f"{host} {place_of(database.options)}".encode()).hexdigest()[:16]


def store_of(place: str | base.Backend | None) -> Store:
    """Return the store for a place: the URL of a Redis, or the backend of a flow.

    :raises ImportError: if redis-py is not installed.
    """
    if isinstance(place, str):
        store: Store = _limits.RedisStore(place)
    elif place is not None and place.stores_limits:
        database: Any = place  # an SQLBackend, whose class is not imported here
        store = _limits.SQLStore(database)
    else:
        store = _of_process
    return store
