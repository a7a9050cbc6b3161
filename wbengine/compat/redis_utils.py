"""A client of Redis that knows when it was closed, and how long keys live."""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import redis


class UnknownExpire(enum.IntEnum):
    """Why nobody can say when a key expires."""

    DOES_NOT_EXPIRE = -1
    KEY_NOT_FOUND = -2


DOES_NOT_EXPIRE: Final = UnknownExpire.DOES_NOT_EXPIRE
KEY_NOT_FOUND: Final = UnknownExpire.KEY_NOT_FOUND


class RedisClient(redis.Redis):
    """A client that refuses to be used after `close`.

    :raises redis.exceptions.ConnectionError: what is asked of it after that.
    """

    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise redis.exceptions.ConnectionError("Connection has been closed")

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._check_open()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def transaction(self, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        return super().transaction(*args, **kwargs)

    def pubsub(self, **kwargs: Any) -> Any:
        self._check_open()
        return super().pubsub(**kwargs)  # type: ignore[no-untyped-call]


def get_expiry(client: Any, key: str, prior_version: str | None = None) -> float | UnknownExpire:
    """The seconds that a key has left, or why there is no such number."""
    left = client.pttl(key)
    return UnknownExpire(left) if left < 0 else left / 1000.0


def apply_expiry(client: Any, key: str, expiry: float, prior_version: str | None = None) -> bool:
    """Let a key expire in so many seconds; is it there?"""
    return bool(client.pexpire(key, max(0, int(expiry * 1000))))


def is_server_new_enough(
    client: Any,
    min_version: tuple[int, ...],
    default: bool = False,
    prior_version: str | None = None,
) -> tuple[bool, str]:
    """`(is it of min_version or newer, its version)`; `default` where it does not tell."""
    text = prior_version or ""
    if not text:
        try:
            text = str(client.info().get("redis_version", ""))
        except redis.exceptions.ResponseError:
            return default, ""
    found = tuple(int(part) for part in re.findall(r"\d+", text.partition("-")[0]))
    return (found >= min_version if found else default), text
