"""A job board in Redis."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from wbengine import _options
from wbengine.jobs import base, stored
from wbengine.persistence import base as persistence_base

try:
    import redis
    from redis import exceptions as errors
    from redis import sentinel as sentinels
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(
        "a job board in Redis takes redis-py: pip install 'wbengine[redis]'"
    ) from error

__all__ = ["RedisJobBoard"]

#: So many jobs are posted at a time.
_BATCH: Final = 1024
#: Seconds to wait for an answer, and for a connection, unless told.
_TIMEOUT: Final = 5.0
#: So often a thread that listens looks whether it is to end.
_LISTEN: Final = 0.25
#: The score of a job is its rank times this, and its sequence.
_PER_RANK: Final = 2**50
#: So many hexadecimal digits of an owner name the claim.
_TOKEN: Final = 32

#: Options that are the client's, with what reads them.
_OF_CLIENT: Final[Mapping[str, _options.Reader]] = {
    **dict.fromkeys(
        (
            *("host", "username", "password", "encoding", "encoding_errors", "unix_socket_path"),
            *("ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs"),
        ),
        _options.text,
    ),
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _options.number),
    **dict.fromkeys(("port", "db", "health_check_interval"), _options.whole),
    "ssl": _options.flag,
}

_KEYS: Final = (
    *("jobs", "all", "free", "owners", "ends", "claims", "updated", "trash", "sequence"),
)

# A job is in `jobs` (when it was posted, and its document) and in `all`; in `free`, or in `owners`,
# which have the token of the claim before the name; and in `ends` if the claim has an end.  What is
# called at each step is bounded: claims that ended free their jobs a hundred at a time.
_PRELUDE: Final = f"""
local {", ".join(_KEYS)} = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function release(uuid)
    redis.call('ZREM', ends, uuid)
    redis.call('HDEL', owners, uuid)
    local score = redis.call('ZSCORE', all, uuid)
    if score then redis.call('ZADD', free, score, uuid) end
end
for _, uuid in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, 100)) do
    release(uuid)
end
local function owner_of(uuid)
    local left = redis.call('ZSCORE', ends, uuid)
    if left and tonumber(left) <= now then
        release(uuid)
        return false
    end
    return redis.call('HGET', owners, uuid), left and left - now or ''
end
"""

_POST: Final = """
local told, any = {}, false
for n = 1, #ARGV, 3 do
    local uuid, rank, document = ARGV[n], ARGV[n + 1], ARGV[n + 2]
    if redis.call('HEXISTS', trash, uuid) == 1 then
        told[#told + 1] = 0
    else
        local posted = redis.call('HEXISTS', jobs, uuid) == 0
        if posted then
            local score = string.format('%.0f', rank * 2 ^ 50 + redis.call('INCR', sequence))
            redis.call('HSET', jobs, uuid, string.format('%.0f', now) .. ' ' .. document)
            redis.call('HSET', updated, uuid, now)
            redis.call('ZADD', all, score, uuid)
            redis.call('ZADD', free, score, uuid)
            any = true
        end
        told[#told + 1] = {posted and 1 or 0, redis.call('ZSCORE', all, uuid),
            redis.call('HGET', jobs, uuid)}
    end
end
-- Who may not publish wakes nobody.
if any then redis.pcall('PUBLISH', jobs, '') end
return told
"""

_PAGE: Final = """
local which, after, limit = unpack(ARGV)
local found = redis.call('ZRANGEBYSCORE', which == 'free' and free or all,
    after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local told = {}
for n = 1, #found, 2 do
    local uuid = found[n]
    told[#told + 1] = {uuid, found[n + 1], redis.call('HGET', jobs, uuid) or '',
        redis.call('HGET', claims, uuid) or 0}
end
return told
"""

_LOOK: Final = """
local uuid = ARGV[1]
local job = redis.call('HGET', jobs, uuid)
if not job then return false end
local owner, left = owner_of(uuid)
return {job, redis.call('ZSCORE', all, uuid), redis.call('HGET', claims, uuid) or 0,
    redis.call('HGET', updated, uuid), owner or '', left or ''}
"""

# The same claim once more: its first answer was lost.
_CLAIM: Final = """
local uuid, claim, expiry = unpack(ARGV)
if redis.call('HEXISTS', jobs, uuid) == 0 then return false end
local owner, left = owner_of(uuid)
if owner == claim then return {1, redis.call('HGET', claims, uuid)} end
local at = redis.call('HGET', updated, uuid)
if owner then return {0, redis.call('HGET', claims, uuid), at, owner, left} end
redis.call('HSET', owners, uuid, claim)
redis.call('ZREM', free, uuid)
if expiry ~= '' then redis.call('ZADD', ends, now + expiry, uuid) end
redis.call('HSET', updated, uuid, now)
return {1, redis.call('HINCRBY', claims, uuid, 1)}
"""

_END: Final = """
local uuid, token, who, how = unpack(ARGV)
local job = redis.call('HGET', jobs, uuid)
if not job then return false end
local owner, left = owner_of(uuid)
local ours = owner and string.sub(owner, 33) == who
if not ours or (token ~= '' and string.sub(owner, 1, 32) ~= token) then
    return {0, redis.call('HGET', claims, uuid) or 0, redis.call('HGET', updated, uuid),
        owner or '', left or ''}
end
if how == 'abandon' then
    release(uuid)
    redis.call('HSET', updated, uuid, now)
    return {1}
end
if how == 'trash' then redis.call('HSET', trash, uuid, job) end
for _, key in ipairs({jobs, owners, claims, updated}) do redis.call('HDEL', key, uuid) end
for _, key in ipairs({all, ends}) do redis.call('ZREM', key, uuid) end
return {1}
"""

_EXTEND: Final = """
local uuid, token, expiry = unpack(ARGV)
local owner = owner_of(uuid)
if not owner or (token ~= '' and string.sub(owner, 1, 32) ~= token) then return 0 end
redis.call('ZADD', ends, now + expiry, uuid)
return 1
"""

_STEPS: Final = {
    "post": _POST, "page": _PAGE, "look": _LOOK, "claim": _CLAIM, "end": _END, "extend": _EXTEND,
}  # fmt: skip


def _namespace(name: str, value: Any) -> str:
    found = _options.text(name, value.decode() if isinstance(value, bytes) else value)
    if set("{}") & set(found):
        raise ValueError(f"Option {name}={found!r} has a brace")
    return found


def _places(name: str, value: Any) -> list[tuple[str, int]]:
    found = []
    for text in value.split(",") if isinstance(value, str) else value:
        host, colon, port = text.strip().rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"{name}: {text!r} is not of the form HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return found


class RedisJobBoard(stored.StoredJobBoard):
    """Keeps jobs in a Redis, for processes of any host that reach it.

    Options:

    `namespace` ('default'): boards of one namespace of a database are one board.
    `host` ('localhost'), `port` (6379), `db` (0), `username`, `password`, `unix_socket_path`.
    `socket_timeout` and `socket_connect_timeout` (seconds; 5), `health_check_interval` (seconds),
    `retry_on_timeout`: make a step once more that got no answer in time, as each one is whose
    connection was lost; no step is done twice for that.
    `ssl`, and with it `ssl_keyfile`, `ssl_certfile`, `ssl_ca_certs`, `ssl_cert_reqs`.
    `sentinel`: the name of a service; then `host` and `port` are those of a Sentinel,
    `sentinel_fallbacks` further ones ('host:port'), and `sentinel_kwargs` options of connections to
    these.

    `client`: a client of redis-py, in place of one that is made of these options; it stays open
    when the board is closed.

    Each step is one script; all keys, `wbe:{namespace}:jobs:...`, have one hash tag.  Claims end
    by the clock of the server.  What is posted lasts as what is written to this Redis does.

    :raises ValueError: an option is wrong.
    """

    KIND = "Redis"
    OPTIONS: ClassVar[Mapping[str, _options.Reader]] = {
        **_OF_CLIENT,
        "namespace": _namespace,
        "retry_on_timeout": _options.flag,
        "sentinel": _options.text,
        "sentinel_fallbacks": _places,
        "sentinel_kwargs": _options.anything,
    }

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, client, persistence)
        self.namespace: Final[str] = self._given.get("namespace", "default")
        self._keys = [f"wbe:{{{self.namespace}}}:jobs:{key}" for key in _KEYS]
        if client is None:
            self._client, self.address = _client(self._given), _address(self._given)
        self._steps = {
            name: self._client.register_script(_PRELUDE + text) for name, text in _STEPS.items()
        }

    @property
    def place(self) -> str:
        return f"Redis namespace {self.namespace!r}"

    def _open_client(self) -> None:
        self._client.ping()

    def _close_client(self) -> None:
        with contextlib.suppress(errors.RedisError):
            self._client.close()

    def _reason(self, error: BaseException) -> str | None:
        return str(error) if isinstance(error, errors.RedisError | OSError) else None

    # -------------------------------------------------------------------------------------------

    def _identify(self, new: str) -> stored.Identity:
        key, run = self._keys[_KEYS.index("jobs")].removesuffix("jobs") + "id", ""
        with self._asking("Looking for the id of the board"):
            self._client.set(key, new, nx=True)
            found = _text(self._client.get(key))
            # It may begin anew with what it had kept some time ago.
            with contextlib.suppress(errors.ResponseError):  # who may not ask is not told
                run = str(self._client.info("server").get("run_id", ""))
        return stored.Identity(found, run)

    def _put(self, job: stored.NewJob) -> stored.Posting | None:
        [found] = self._put_all([job])
        return found

    def _put_all(self, jobs: Sequence[stored.NewJob]) -> list[stored.Posting | None]:
        found = list[stored.Posting | None]()
        for begun in range(0, len(jobs), _BATCH):
            part = jobs[begun : begun + _BATCH]
            words = [word for job in part for word in (job.uuid, job.priority.rank, job.document)]
            told, again = self._run("post", *words)
            for job, one in zip(part, told, strict=True):
                is_ours = one and (one[0] or again)
                found.append(_posting(job.uuid, *one[1:]) if is_ours else None)
        return found

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        which, after = "free" if only_unclaimed else "all", "-inf"
        for limit in stored.page_sizes():
            found, _ = self._run("page", which, after, limit)
            for uuid, score, job, claims in found:
                yield _text(uuid), (_text(uuid), score, job, claims)
            if len(found) < limit:
                return
            after = f"({_text(found[-1][1])}"

    def _parse(self, row: Any) -> stored.Posting:
        return _posting(*row)

    def _find(self, uuid: str) -> Any:
        found, _ = self._run("look", uuid)
        if found is None:
            return None
        job, score, claims, *_ = found
        return uuid, score, job, claims

    def look(self, job: base.Job) -> stored.Status | None:
        found, _ = self._run("look", job.uuid)
        return None if found is None else _status(*found[2:])

    def waking(self, wake: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        def listen(ended: threading.Event) -> None:
            with self._client.pubsub(ignore_subscribe_messages=True) as heard:
                heard.subscribe(self._keys[_KEYS.index("jobs")])
                wake()  # of what was there before
                while not ended.is_set():
                    if heard.get_message(timeout=_LISTEN) is not None:
                        wake()

        return stored.listening(self, listen)

    @property
    def job_count(self) -> int:
        with self._asking("Counting jobs"):
            return int(self._client.zcard(self._keys[_KEYS.index("all")]))

    def _is_trashed(self, uuid: str) -> bool:
        with self._asking(f"Looking for job {uuid}"):
            return bool(self._client.hexists(self._keys[_KEYS.index("trash")], uuid))

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[str, int] | stored.Status:
        token = secrets.token_hex(_TOKEN // 2)
        seconds = "" if expiry is None else _milliseconds(expiry)
        found, _ = self._run("claim", job.uuid, token.encode() + _bytes(who), seconds)
        if found is None:
            raise stored.gone(job)
        done, *told = found
        return (token, int(told[0])) if done else _status(*told)

    def _end_claim(self, job: base.Job, who: str, how: str) -> stored.Status | None:
        token = stored.claim_of(job) or ""
        found, again = self._run("end", job.uuid, token, _bytes(who), how)
        if found is None and not again:
            raise stored.gone(job)
        if found is None or found[0] == 1:
            return None
        status = _status(*found[1:])
        return None if again and how == "abandon" and status.owner is None else status

    def extend(self, job: stored.StoredJob, expiry: float) -> bool:
        found, _ = self._run("extend", job.uuid, job.claim or "", _milliseconds(expiry))
        return bool(found)

    # -------------------------------------------------------------------------------------------

    def _run(self, step: str, *args: Any) -> tuple[Any, bool]:
        """The answer of the server, and whether the step may have been done before this attempt."""
        again = False
        with self._asking(f"Step {step!r}"):
            while True:
                try:
                    return self._steps[step](keys=self._keys, args=args), again
                except (errors.ConnectionError, errors.TimeoutError) as error:
                    late = isinstance(error, errors.TimeoutError)
                    if again or (late and not self._given.get("retry_on_timeout")):
                        raise
                    again = True


def _client(told: Mapping[str, Any]) -> Any:
    """A client, which connects when it is used."""
    found: dict[str, Any] = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
    found.update({name: told[name] for name in _OF_CLIENT if name in told})
    # The board makes a step once more, and knows it.
    found.update(protocol=2, retry=Retry(NoBackoff(), 0))
    service = told.get("sentinel")
    if service is None:
        return redis.Redis(**_without_unused_tls(found))
    places = [(found.pop("host", "localhost"), found.pop("port", 26379))]
    places += told.get("sentinel_fallbacks", ())
    asked = told.get("sentinel_kwargs")
    made: Any = sentinels.Sentinel  # not typed
    sentinel = made(
        places,
        sentinel_kwargs=None if asked is None else _without_unused_tls(asked),
        **_without_unused_tls(found),
    )
    return sentinel.master_for(service)


def _address(told: Mapping[str, Any]) -> str:
    """Where the Redis is that these options name."""
    if "unix_socket_path" in told:
        return f"{stored.host_name('localhost')}:{told['unix_socket_path']}/{told.get('db', 0)}"
    host = stored.host_name(str(told.get("host", "localhost")))
    service = f"{told['sentinel']}@" if "sentinel" in told else ""
    port = told.get("port", 26379 if service else 6379)
    return f"{service}{host}:{port}/{told.get('db', 0)}"


def _without_unused_tls(told: Mapping[str, Any]) -> dict[str, Any]:
    """Options of TLS mean nothing, and are refused by the client, where it is not used."""
    if told.get("ssl"):
        return dict(told)
    return {name: value for name, value in told.items() if not name.startswith("ssl")}


def _posting(uuid: str, score: Any, job: Any, claims: Any = 0) -> stored.Posting:
    rank, sequence = divmod(int(float(score)), _PER_RANK)
    created, _, document = _text(job).partition(" ")
    return stored.Posting.of(uuid, rank, sequence, document, int(created or 0) / 1000, int(claims))


def _status(claims: Any, updated: Any, owner: Any, left: Any) -> stored.Status:
    who = _text(owner)[_TOKEN:] or None
    remaining = None if who is None or left in (b"", "") else float(left) / 1000
    return stored.Status(int(claims), int(float(updated)) / 1000, who, remaining)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(value: Any) -> str:
    """What came from the server, whatever the client was told to make of it."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)
