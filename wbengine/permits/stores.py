"""Where the accounts of limits are kept: in a database, in Redis, or in this process."""

from __future__ import annotations

import abc
import functools
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._sql import dialects
from wbengine.permits.accounts import Account, Answer, PermitRequest
from wbengine.permits.limits import Quota
from wbengine.persistence import base
from wbengine.persistence.backends import sql
from wbengine.persistence.backends.sql import tables

__all__ = ["MemoryStore", "RedisStore", "Requests", "SQLStore", "Store", "check_url", "store_of"]

_T = TypeVar("_T")

LOG: Final = logging.getLogger(__name__)

_LOOKING: Final = "Looking at limits"
#: So many accounts are settled in one transaction.
_MOST: Final = 200
#: So often accounts that are not needed any more are removed from a database.
_SWEEP_SECONDS: Final = 60.0
#: How often a step of Redis is tried again that others came before.
_TRIES: Final = 50


#: What some flows say about one limit.
Requests = tuple[Quota, list[PermitRequest]]


class Store(abc.ABC):
    """Keeps accounts; any thread may call it."""

    @abc.abstractmethod
    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        """Let flows say what they hold, and want, of limits: by the names of these.

        Of each limit in one step.  May be repeated after it failed.

        :raises StorageFailure: it cannot be reached, or says no.
        """

    @abc.abstractmethod
    def all(self) -> dict[str, tuple[Account, float]]:
        """All accounts by the names of their limits, with what the time is there."""

    def close(self) -> None:  # noqa: B027
        """Give back what it holds; idempotent."""


class MemoryStore(Store):
    """Of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}
        # With more than so many, those that are not needed any more are looked for.
        self._sweep_at = _MOST

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        found = {}
        with self._lock:
            now = self._clock()
            for name, asked in requests.items():
                account = self._accounts.setdefault(name, Account())
                found[name] = account.settle(*asked, now)
                if account.expires(now) <= 0:
                    del self._accounts[name]
            if len(self._accounts) > self._sweep_at:
                for name in [n for n, one in self._accounts.items() if one.expires(now) <= 0]:
                    del self._accounts[name]
                self._sweep_at = max(_MOST, 2 * len(self._accounts))
        return found

    def all(self) -> dict[str, tuple[Account, float]]:
        with self._lock:
            now = self._clock()
            return {
                name: (Account.from_dict(account.to_dict()), now)
                for name, account in self._accounts.items()
            }


class SQLStore(Store):
    """In the database of the flows: a row for each limit that is in use."""

    def __init__(self, backend: sql.SQLBackend) -> None:
        self._backend = backend
        dialect = backend.options.dialect
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        table, now = tables.LIMITS.name, dialects.now(dialect)
        self._read = sa.text(
            f"SELECT name, account, {now} AS now FROM {table} WHERE name IN :names"
            f" ORDER BY name{lock}"
        ).bindparams(sa.bindparam("names", expanding=True))
        columns = ("name", "account")
        self._add = dialects.upsert(dialect, table, columns, ("name",), keep=columns)
        self._write = sa.text(
            f"UPDATE {table} SET account = :account, expires = :expires WHERE name = :name"
        )
        self._sweep = sa.text(f"DELETE FROM {table} WHERE expires <= {now}")
        self._swept = -math.inf
        self._remove = sa.text(f"DELETE FROM {table} WHERE name = :name")
        self._all = sa.text(f"SELECT name, account, {now} AS now FROM {table} ORDER BY name")

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        found, names = dict[str, Answer](), sorted(requests)
        self._backend.prepare()
        if time.monotonic() > self._swept + _SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._transact(lambda connection: connection.execute(self._sweep), write=True)
        for start in range(0, len(names), _MOST):
            some = names[start : start + _MOST]
            work = functools.partial(self._settle, names=some, requests=requests)
            found.update(self._transact(work, write=True))
        return found

    def _settle(
        self, connection: sa.Connection, names: list[str], requests: Mapping[str, Requests]
    ) -> dict[str, Answer]:
        kept = {row.name: row for row in connection.execute(self._read, {"names": names})}
        if missing := [name for name in names if name not in kept]:
            connection.execute(self._add, [{"name": name, "account": ""} for name in missing])
            kept.update(
                (row.name, row) for row in connection.execute(self._read, {"names": missing})
            )
        found, changed, over = {}, [], []
        for name, row in kept.items():
            account = _account(name, row.account)
            found[name] = account.settle(*requests[name], row.now)
            left = account.expires(row.now)
            if left <= 0:
                over.append({"name": name})
            else:
                text = json.dumps(account.to_dict())
                changed.append({"name": name, "account": text, "expires": row.now + left})
        for statement, rows in ((self._write, changed), (self._remove, over)):
            if rows:
                connection.execute(statement, rows)
        return found

    def all(self) -> dict[str, tuple[Account, float]]:
        if not self._backend.is_there():
            return {}

        def work(connection: sa.Connection) -> dict[str, tuple[Account, float]]:
            rows = connection.execute(self._all)
            return {row.name: (_account(row.name, row.account), row.now) for row in rows}

        return self._transact(work, write=False)

    def _transact(self, work: Callable[[sa.Connection], _T], *, write: bool) -> _T:
        # What is lost with the database's host, flows say again with what they ask next.
        engine = self._backend.engine
        return _sql.transact(engine, _LOOKING, work, write=write, durable=False)


#: Writes an account unless it changed since it was read.
_SWAP: Final = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""


class RedisStore(Store):
    """In a Redis: a key for each limit that is in use, which expires with what it says.

    :raises ImportError: redis-py is not installed.
    """

    def __init__(self, url: str, prefix: str = "wbengine:limit:") -> None:
        try:
            import redis
        except ImportError as error:
            raise ImportError(
                "limits in Redis take redis-py: pip install 'wbengine[redis]'"
            ) from error
        self._errors = redis.RedisError
        self._prefix = prefix
        self._client: Any = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=5.0, socket_connect_timeout=5.0
        )
        self._swap = self._client.register_script(_SWAP)

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        return {name: self._settle(name, asked) for name, asked in requests.items()}

    def _settle(self, name: str, requests: Requests) -> Answer:
        try:
            for _ in range(_TRIES):
                before, now = self._read(name)
                account = _account(name, before)
                answer = account.settle(*requests, now)
                left = account.expires(now)
                after = json.dumps(account.to_dict()) if left > 0 else ""
                expiry = max(1, int(left * 1000))
                if self._swap(keys=[self._prefix + name], args=[before, after, expiry]):
                    return answer
                time.sleep(random.uniform(0, 0.005))
        except self._errors as error:
            raise exceptions.StorageFailure(
                f"Looking at limits in Redis failed: {error}"
            ) from error
        raise exceptions.StorageFailure(f"Limit {name!r} is changed by too many at once")

    def _read(self, name: str) -> tuple[str, float]:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.get(self._prefix + name)
            pipe.time()
            text, (seconds, micros) = pipe.execute()
        return text or "", seconds + micros / 1e6

    def all(self) -> dict[str, tuple[Account, float]]:
        try:
            names = [key[len(self._prefix) :] for key in self._keys()]
            read = ((name, *self._read(name)) for name in sorted(names))
            return {name: (_account(name, text), now) for name, text, now in read if text}
        except self._errors as error:
            raise exceptions.StorageFailure(
                f"Looking at limits in Redis failed: {error}"
            ) from error

    def _keys(self) -> Iterator[str]:
        found: Iterator[str] = self._client.scan_iter(f"{self._prefix}*", count=1000)
        return found

    def close(self) -> None:
        self._client.close()


def _account(name: str, text: str) -> Account:
    """What was kept of a limit; what cannot be read is forgotten."""
    if not text:
        return Account()
    try:
        return Account.from_dict(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        LOG.warning("What is kept of limit %r cannot be read, and begins anew: %s", name, error)
        return Account()


#: For flows that are not kept, and for those in stores of one process.
_of_process: Final = MemoryStore()


def check_url(url: Any) -> str:
    """The URL of a Redis that keeps limits.

    :raises ValueError: it is none.
    """
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(
            f"Option limits is the URL of a Redis ('redis://host/0'), not {url!r:.80}: without it"
            " limits are kept in the flow's store"
        )
    return url


def store_of(place: str | base.Backend | None) -> Store:
    """A place as a store: the URL of a Redis, or where a flow is kept.

    :raises ImportError: redis-py is not installed.
    """
    if isinstance(place, str):
        return RedisStore(place)
    return SQLStore(place) if isinstance(place, sql.SQLBackend) else _of_process
