"""Where the results of Celery's tasks go."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine import _names, exceptions
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol import serializers
from wbengine.interop.celery.protocol.results import SUCCESS, ChordPart, Result
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.interop.celery.worker.posting import Post

__all__ = ["RPC", "Backend", "Disabled", "Gathered", "Redis", "Rpc", "backend_for"]

LOG = logging.getLogger(__name__)

#: The backend that answers each client in its own queue.
RPC: Final = "rpc://"

#: What it may be called otherwise.
_NONE: Final = ("none", "disabled", "disabled://")
_SCHEMES: Final = ("redis", "rediss", "redis+socket", "rpc", "none")

#: Seconds for which results are kept: Celery's default.
EXPIRES: Final = 24 * 3600

_TRANSIENT: Final = 1


@dataclass(slots=True)
class Gathered:
    """The parts of a chord whose last one was counted just now: `(id, state, value)` of each.

    Its body is this worker's to send, under the claim `token`.
    """

    part: ChordPart
    parts: list[tuple[str, str, Any]]
    token: str


class Backend:
    """Keeps results, or sends them; of one thread.

    Whatever is raised because it is away is one of `errors`: then all is tried again.
    """

    #: What people are told.
    shown: str = ""
    errors: tuple[type[BaseException], ...] = ()

    def store(self, post: Post, found: Sequence[Result]) -> None:
        """Keep results, or publish them."""
        raise NotImplementedError

    def set_size(self, group: str, size: int) -> None:
        """A chord of `size` parts is about to be sent.

        :raises ExecutionFailure: chords cannot be counted here.
        """
        raise exceptions.ExecutionFailure(f"chords need a result backend in a Redis, not {self}")

    def save_group(self, group: str, told: Any) -> None:
        """Keep what a group is made of (`GroupResult.as_tuple()`).

        :raises ExecutionFailure: groups cannot be kept here.
        """
        raise exceptions.ExecutionFailure(f"groups need a result backend in a Redis, not {self}")

    def count(self, part: ChordPart) -> Gathered | None:
        """Count a part of a chord; all of them, if it was the last one.

        :raises ExecutionFailure: chords cannot be counted here.
        """
        raise exceptions.ExecutionFailure(f"chords need a result backend in a Redis, not {self}")

    def keeps(self, gathered: Gathered) -> bool:
        """Whether the body of a chord is still this worker's to send."""
        return False

    def finish(self, gathered: Gathered) -> None:
        """The body of a chord was sent."""

    def close(self) -> None:
        """Leave it; the next call connects again."""

    def __str__(self) -> str:
        return self.shown


class Disabled(Backend):
    """Keeps nothing."""

    shown = "none"

    def store(self, post: Post, found: Sequence[Result]) -> None:
        pass


class Rpc(Backend):
    """Sends each result to the queue of the client that asked, as Celery's `rpc://` does."""

    shown = RPC

    def store(self, post: Post, found: Sequence[Result]) -> None:
        for result in found:
            if not result.reply_to:
                continue
            content_type, content_encoding, body = result.encoded
            answer = Wire(
                {},
                {
                    "correlation_id": result.correlation_id or result.id,
                    "delivery_mode": _TRANSIENT,
                },
                content_type,
                content_encoding,
                body,
            )
            post.publish(answer, result.reply_to, declare=False)


#: A result that is not a success already: KEYS: its key; ARGV: value, seconds.  Clients wait for
#: what is published there.
_STORE: Final = """
local before = redis.call('GET', KEYS[1])
if before then
  local read, known = pcall(cjson.decode, before)
  if read and type(known) == 'table' and known['status'] == 'SUCCESS' then return 0 end
end
if tonumber(ARGV[2]) > 0 then redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
else redis.call('SET', KEYS[1], ARGV[1]) end
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1
"""

#: A part of a chord, counted once: KEYS: .j .t .s .d .c of the group, and the group; ARGV: who it
#: is, value, its place, seconds to keep, seconds of a claim, token.  Returns 1 and all parts to
#: whoever counted the last one and has the claim.
_COUNT: Final = """
if redis.call('GET', KEYS[5]) == 'done' then return {0} end
if redis.call('SADD', KEYS[4], ARGV[1]) == 1 then redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2]) end
local keep = tonumber(ARGV[4])
if keep > 0 then
  for place = 1, 4 do redis.call('EXPIRE', KEYS[place], keep) end
  redis.call('EXPIRE', KEYS[6], keep)
end
local size = redis.call('GET', KEYS[3])
if not size then return {0} end
local wanted = tonumber(size) + tonumber(redis.call('GET', KEYS[2]) or 0)
if redis.call('ZCARD', KEYS[1]) ~= wanted then return {0} end
if not redis.call('SET', KEYS[5], ARGV[6], 'NX', 'EX', ARGV[5]) then return {0} end
return {1, redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('GET', KEYS[6])}
"""

#: Whether a claim is still one's own, or can be again: KEYS: .c .s; ARGV: token, seconds.
_CLAIM: Final = """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] or (not holder and redis.call('EXISTS', KEYS[2]) == 1) then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  return 1
end
return 0
"""

#: Removes what was counted, for whom the claim is: KEYS: .c .j .t .s .d; ARGV: token, seconds for
#: which parts that come again are known.
_FINISH: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('SET', KEYS[1], 'done', 'EX', ARGV[2])
return 1
"""

#: Seconds of a claim, of one whose holder is about to send the body, and for which parts that come
#: again are known.
_CLAIMED: Final = 10
_SENDING: Final = 60
_KNOWN: Final = 300

_TASK_KEY: Final = "celery-task-meta-"
_GROUP_KEY: Final = "celery-taskset-meta-"


class Redis(Backend):
    """Keeps results in a Redis as Celery 5.7 does, so that both may work on the same chords.

    A success is never overwritten.  Results are removed after `expires` seconds (0: never).

    :raises ValueError: the URL makes no sense, or redis-py is not installed.
    """

    def __init__(self, url: str, expires: int = EXPIRES, serializer: str = "json") -> None:
        try:
            import redis
        except ImportError:
            raise ValueError(
                f"results cannot be kept at {_shown(url)}: redis-py is not installed:"
                f" pip install 'wbengine[redis]'"
            ) from None
        self.shown = _shown(url)
        self.errors = (redis.RedisError, OSError)
        self._expires = expires
        self._content_type = serializers.MIME_TYPES[serializer]
        self._serializer = serializer
        self._accepted = serializers.Accepted((serializer,))
        url = brokers.redis_url(url)
        try:
            self._client: Any = redis.Redis.from_url(url, **brokers.redis_options(url))
        except (ValueError, TypeError, AttributeError):
            # What is said of it may hold the password.
            raise ValueError(f"{self.shown} is no URL of a Redis") from None
        register = self._client.register_script
        self._store, self._count, self._claim, self._finish = map(
            register, (_STORE, _COUNT, _CLAIM, _FINISH)
        )

    def store(self, post: Post, found: Sequence[Result]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for result in found:
                _, _, body = result.encoded
                key = f"{_TASK_KEY}{result.id}"
                self._store(keys=[key], args=[body, self._expires], client=pipe)
            pipe.execute()

    def set_size(self, group: str, size: int) -> None:
        with self._client.pipeline() as pipe:
            pipe.delete(_group(group, ".c"))
            pipe.set(_group(group, ".s"), size, ex=self._expires or None)
            pipe.execute()

    def save_group(self, group: str, told: Any) -> None:
        _, _, body = serializers.dump({"result": told}, self._serializer)
        self._client.set(_group(group, ""), body, ex=self._expires or None)

    def count(self, part: ChordPart) -> Gathered | None:
        place = "+inf" if part.index is None else str(part.index)
        _, _, value = serializers.dump([1, part.id, part.state, part.value], self._serializer)
        token = uuid.uuid4().hex
        keys = [_group(part.group, end) for end in (".j", ".t", ".s", ".d", ".c", "")]
        who = f"{part.id}:{place}"
        said = self._count(keys=keys, args=[who, value, place, self._expires, _CLAIMED, token])
        if not said[0]:
            return None
        parts = [self._read(each) for each in said[1]]
        if said[2] is not None:
            parts = self._arrange(part, said[2], parts)
        return Gathered(part, parts, token)

    def _read(self, body: bytes) -> tuple[str, str, Any]:
        _, name, state, value = self._accepted.load(body, self._content_type, "utf-8")
        return name, state, value

    def _arrange(
        self, part: ChordPart, kept: bytes, parts: list[tuple[str, str, Any]]
    ) -> list[tuple[str, str, Any]]:
        """What a header of groups within groups gives: values are arranged as those are."""
        known = {name: (name, state, value) for name, state, value in parts}
        group = self._accepted.load(kept, self._content_type, "utf-8")["result"]
        failed = [each for each in parts if each[1] != SUCCESS]
        if failed:
            return failed
        found = []
        for child in group[1]:
            name, value = child[0][0], self._value(child, known)
            found.append((name, SUCCESS, value))
        return found

    def _value(self, child: Any, known: dict[str, tuple[str, str, Any]]) -> Any:
        (name, _), children = child[0], child[1]
        if children:
            return [self._value(each, known) for each in children]
        if name in known:
            return known[name][2]
        body = self._client.get(f"{_TASK_KEY}{name}")
        if body is None:
            return None
        return self._accepted.load(body, self._content_type, "utf-8").get("result")

    def keeps(self, gathered: Gathered) -> bool:
        group = gathered.part.group
        keys = [_group(group, ".c"), _group(group, ".s")]
        return bool(self._claim(keys=keys, args=[gathered.token, _SENDING]))

    def finish(self, gathered: Gathered) -> None:
        keys = [_group(gathered.part.group, end) for end in (".c", ".j", ".t", ".s", ".d")]
        if not self._finish(keys=keys, args=[gathered.token, _KNOWN]):
            LOG.warning("chord %s was finished by somebody else", gathered.part.group)

    def close(self) -> None:
        self._client.connection_pool.disconnect()


def backend_for(url: str, expires: int = EXPIRES, serializer: str = "json") -> Backend:
    """The backend of a URL: `rpc://`, that of a Redis, or `none`.

    :raises ValueError: it is none of these.
    """
    if url in _NONE:
        return Disabled()
    scheme = url.partition("://")[0]
    if scheme == "rpc":
        return Rpc()
    if scheme in ("redis", "rediss", "redis+socket", "unix"):
        return Redis(url, expires, serializer)
    raise ValueError(
        f"results cannot be kept at {_shown(url)!r}{_names.hint(scheme, _SCHEMES)}:"
        f" use rpc://, the URL of a Redis, or none"
    )


def _group(name: str, end: str) -> str:
    return f"{_GROUP_KEY}{name}{end}"


def _shown(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]
