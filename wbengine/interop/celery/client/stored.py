"""Results that Celery's workers keep in a Redis: who waits is told, and looks what is there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from wbengine import exceptions
from wbengine.interop.celery import brokers
from wbengine.interop.celery.client import replies
from wbengine.interop.celery.client.addresses import Address
from wbengine.interop.celery.protocol import serializers, wire

__all__ = ["Stored"]

#: What a key of a result begins with, and one of ours that says that a task was sent.
_RESULT: Final = "celery-task-meta-"
_SENT: Final = "wbengine-celery-sent-"
#: Seconds for which that is known; as long as Celery keeps results.
_KNOWN_FOR: Final = 86400

#: What says that a result is compressed, before its content type.
_PACKED: Final = b"\x00celery-compressed\x00"

#: Seconds between two signs of life, and without any after which it is lost.
PULSE: Final = 20.0
_SILENCE: Final = 3 * PULSE


class Stored:
    """Two connections to a Redis: one listens, the other looks.

    `listening(ids)` is told from when on nothing is missed of these, `heard(id, meta or Failure)`
    of each result.  What Redis raises passes through, and is the end of it.
    """

    def __init__(
        self,
        address: Address,
        accepted: serializers.Accepted,
        listening: Callable[[str], None],
        heard: Callable[[str, Any], None],
    ) -> None:
        self._address = address
        self._accepted = accepted
        self._listening = listening
        self._heard = heard
        self._prefix = address.prefix.encode()
        self._client = _client(address.backend)
        self._ears = self._client.connection_pool.make_connection()
        self._ears.connect()
        self._last = time.monotonic()
        self._sent: list[str] = []

    def fileno(self) -> int:
        """What becomes readable when something was told."""
        number: int = self._ears._sock.fileno()
        return number

    def listen(self, ids: Sequence[str]) -> None:
        """Have it tell of results of these."""
        self._say("SUBSCRIBE", ids)

    def ignore(self, ids: Sequence[str]) -> None:
        """Nobody waits for these any more."""
        self._say("UNSUBSCRIBE", ids)

    def _say(self, word: str, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 1000):
            self._ears.send_command(word, *map(self._key, ids[start : start + 1000]))

    def read(self) -> None:
        """Take in what came; never waits for more."""
        while self._ears.can_read(0):
            told = self._ears.read_response()
            self._last = time.monotonic()
            if not isinstance(told, list) or len(told) < 3:
                continue  # a sign of life
            kind, key = told[0], told[1]
            if kind == b"message":
                self._heard(self._id(key), self._meta(told[2]))
            elif kind == b"subscribe":
                self._listening(self._id(key))

    def pulse(self) -> None:
        """Ask for a sign of life.

        :raises OSError: there was none for long.
        """
        if time.monotonic() - self._last > _SILENCE:
            raise TimeoutError("the Redis of the results does not answer")
        self._ears.send_command("PING")

    def look(self, ids: Sequence[str]) -> list[tuple[Any, bool]]:
        """For each: the result that is there (a dict, a `Failure`, or None), and whether it was
        noted that it was sent.
        """
        results = self._client.mget([self._key(name) for name in ids])
        marks = self._client.mget([self._mark(name) for name in ids])
        return [
            (None if data is None else self._meta(data), mark is not None)
            for data, mark in zip(results, marks, strict=True)
        ]

    def note(self, name: str) -> None:
        """The broker has the task: whoever resumes its flow is to know (after `flush`)."""
        self._sent.append(name)

    def flush(self) -> None:
        """Write what was noted."""
        sent, self._sent = self._sent, []
        if sent:
            with self._client.pipeline(transaction=False) as pipe:
                for name in sent:
                    pipe.set(self._mark(name), b"1", ex=_KNOWN_FOR)
                pipe.execute()

    def close(self) -> None:
        """Leave; never raises."""
        with contextlib.suppress(Exception):
            self._ears.disconnect()
        with contextlib.suppress(Exception):
            self._client.close()

    def _key(self, name: str) -> str:
        return f"{self._address.prefix}{_RESULT}{name}"

    def _mark(self, name: str) -> str:
        return f"{self._address.prefix}{_SENT}{name}"

    def _id(self, key: bytes) -> str:
        return key[len(self._prefix) + len(_RESULT) :].decode()

    def _meta(self, data: bytes) -> Any:
        found = wire.Wire({}, {}, self._address.content_type, "utf-8", data)
        if data.startswith(_PACKED):
            kind, _, found.body = data[len(_PACKED) :].partition(b"\0")
            found.headers["compression"] = kind.decode("utf-8", "replace")
        return replies.read(found, self._accepted)


def errors() -> tuple[type[BaseException], ...]:
    """What says that a Redis is lost."""
    import redis

    return redis.RedisError, OSError


def _client(url: str) -> Any:
    """
    :raises TransportFailure: the library is not installed.
    """
    try:
        import redis
        from redis import backoff, retry
    except ImportError as error:
        raise exceptions.TransportFailure(
            "results in a Redis need the library redis: install wbengine[redis]"
        ) from error
    return redis.Redis.from_url(
        url,
        protocol=2,
        retry=retry.Retry(backoff.NoBackoff(), 0),
        **brokers.redis_options(url),
    )
