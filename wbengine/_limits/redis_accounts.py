"""Accounts in Redis."""

from __future__ import annotations

import contextlib
import inspect
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from wbengine import exceptions
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine._limits import account_stores, limit_changes
from wbengine._limits.account_stores import Requests, read_account
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import Account, Answer
from wbengine._redis import client_options, lua_scripts

__all__ = ["RedisStore"]

_MAX_ATTEMPTS: Final = 50
#: Maximum number of accounts that one request reads.
_MAX_READ: Final = 1000


def _client(redis: Any, url: str) -> Any:
    """Return a client for a URL with the options of all clients of Redis, and those of redis-py."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    arguments = client_options.arguments(options, parts.scheme == "rediss")
    others = {name: value for name, value in options.items() if name not in client_options.NAMES}
    client = redis.Redis.from_url(
        parts._replace(query=urlencode(others)).geturl(), decode_responses=True, **arguments
    )
    # redis-py would reject them only when it connects.
    pool = client.connection_pool
    owners = (*pool.connection_class.__mro__, type(pool))
    known = {name for each in owners for name in inspect.signature(each.__init__).parameters}
    for name in others:
        if name not in known:
            raise ValueError(f"Unknown option {name!r} of limits{object_names.hint(name, known)}")
    return client


_SCRIPTS: Final = lua_scripts.Scripts(Path(__file__).parent / "redis_scripts")


@_SCRIPTS.declare
def swap(reply: Any, old: str, new: str, expiry: int) -> bool:
    """Write an account unless it changed since it was read. Return whether it was written.

    :param old: the text that was read, or ''.
    :param new: the new text; '' deletes the account.
    :param expiry: milliseconds until it expires.
    """
    return bool(reply)


class RedisStore(account_stores.Store):
    """Accounts in Redis: one key for each limit in use, which expires with the account.

    Each change of a limit is a hash.

    :raises ImportError: if redis-py is not installed.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "wbengine:limit:",
        change_prefix: str = "wbengine:limit-change:",
    ) -> None:
        try:
            import redis
        except ImportError as error:
            raise ImportError(installing.needs("limits in Redis", "redis-py", "redis")) from error
        self._errors = redis.RedisError
        self._prefix, self._change_prefix = prefix, change_prefix
        self._client: Any = _client(redis, account_stores.check_url(url))
        self._swap = self._client.register_script(_SCRIPTS["swap"].text)

    def settle(self, requests: Mapping[str, Requests]) -> dict[str, Answer]:
        return {
            name: self._settle(name, limit_requests) for name, limit_requests in requests.items()
        }

    def _settle(self, name: str, requests: Requests) -> Answer:
        with self._reported():
            for _ in range(_MAX_ATTEMPTS):
                stored_text, now, changes = self._read(name)
                account = read_account(name, stored_text)
                in_force = limit_changes.apply(name, requests[0], changes)
                answer = account.settle(*requests, now, in_force)
                seconds_left = account.expires(now)
                new_text = json.dumps(account.to_dict()) if seconds_left > 0 else ""
                expiry = max(1, int(seconds_left * 1000))
                step = swap(stored_text, new_text, expiry)
                if step.read(self._swap(keys=[self._prefix + name], args=step.arguments)):
                    return answer
                time.sleep(random.uniform(0, 0.005))
        raise exceptions.StorageFailure(
            f"Limit {name!r} is changed by too many processes at the same time"
        )

    def _read(self, name: str) -> tuple[str, float, dict[str, LimitChange]]:
        """Return an account, the time of the server, and the changes of the limit."""
        names = limit_changes.names_of([name])
        with self._client.pipeline(transaction=False) as pipe:
            pipe.get(self._prefix + name)
            pipe.time()
            for each in names:
                pipe.hgetall(self._change_prefix + each)
            text, (seconds, micros), *hashes = pipe.execute()
        return text or "", seconds + micros / 1e6, _changes_in(names, hashes)

    def all(self) -> dict[str, tuple[Account, float]]:
        with self._reported():
            names = self._names(self._prefix)
        return self.read(names)

    def read(self, names: Sequence[str]) -> dict[str, tuple[Account, float]]:
        accounts = dict[str, tuple[Account, float]]()
        for start in range(0, len(names), _MAX_READ):
            part = names[start : start + _MAX_READ]
            with self._reported(), self._client.pipeline(transaction=False) as pipe:
                for name in part:
                    pipe.get(self._prefix + name)
                pipe.time()
                *texts, (seconds, micros) = pipe.execute()
            for name, text in zip(part, texts, strict=True):
                if text:
                    accounts[name] = read_account(name, text), seconds + micros / 1e6
        return accounts

    def change(self, change: LimitChange) -> None:
        values = {key: value for key, value in change.to_dict().items() if value is not None}
        key = self._change_prefix + values.pop("name")
        with self._reported(), self._client.pipeline(transaction=True) as pipe:
            pipe.hdel(key, "reason", "by")
            pipe.hset(key, mapping=values)
            pipe.execute()

    def remove_change(self, name: str) -> bool:
        with self._reported():
            return bool(self._client.delete(self._change_prefix + name))

    def changes(self, limits: Iterable[str] | None = None) -> dict[str, LimitChange]:
        with self._reported():
            if limits is None:
                names = self._names(self._change_prefix)
            else:
                names = limit_changes.names_of(limits)
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hgetall(self._change_prefix + name)
                return _changes_in(names, pipe.execute())

    def _names(self, prefix: str) -> list[str]:
        keys: Iterator[str] = self._client.scan_iter(f"{prefix}*", count=1000)
        return sorted({key[len(prefix) :] for key in keys})

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise exceptions.StorageFailure(f"Accessing limits in Redis failed: {error}") from error

    def close(self) -> None:
        self._client.close()


def _changes_in(
    names: Iterable[str], hashes: Iterable[Mapping[str, str]]
) -> dict[str, LimitChange]:
    return {
        name: LimitChange(
            name,
            stored.get("rate"),
            int(stored["concurrency"]) if "concurrency" in stored else None,
            stored.get("reason"),
            stored.get("by"),
            float(stored["at"]),
        )
        for name, stored in zip(names, hashes, strict=True)
        if stored
    }
