"""A job board in Redis."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from wbengine._concurrency import conditions
from wbengine._configuration import host_names, named_options
from wbengine._imports import installing
from wbengine._redis import client_options
from wbengine._redis.lua_scripts import Step
from wbengine.jobs import _stored, base
from wbengine.jobs.backends import _redis_queues, _redis_scripts
from wbengine.jobs.backends._redis_queues import decoded
from wbengine.persistence import base as persistence_base

try:
    import redis
    from redis import exceptions as errors
    from redis import sentinel as sentinels
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(installing.needs("a job board in Redis", "redis-py", "redis")) from error

__all__ = ["RedisJob", "RedisJobBoard"]

T = TypeVar("T")

_MAX_JOBS_PER_POST: Final = 1024
#: Interval at which a listener checks whether to stop.
_LISTEN_SECONDS: Final = 0.25
#: The score of a job is its rank times this number plus its sequence.
_SCORES_PER_RANK: Final = 2**50
#: Digits in the token of a claim, which precedes the owner.
_TOKEN_DIGITS: Final = 32

#: Options of the board that its client takes.
_CLIENT_OPTIONS: Final[Mapping[str, named_options.Reader]] = {
    **dict.fromkeys(client_options.NAMES, client_options.read_option),
    **dict.fromkeys(
        ("host", "username", "password", "encoding", "encoding_errors", "unix_socket_path"),
        named_options.text,
    ),
    **dict.fromkeys(("port", "db", "health_check_interval"), named_options.whole),
    "ssl": named_options.flag,
}


def _namespace(name: str, value: Any) -> str:
    namespace = named_options.text(name, value.decode() if isinstance(value, bytes) else value)
    if set("{}") & set(namespace):
        raise ValueError(f"Option {name} must not contain braces, got {namespace!r}")
    return namespace


def _host_list(name: str, value: Any) -> list[tuple[str, int]]:
    hosts = []
    for text in value.split(",") if isinstance(value, str) else value:
        host, colon, port = text.strip().rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"{name} must have the form HOST:PORT, got {text!r}")
        hosts.append((host.strip("[]"), int(port)))
    return hosts


class RedisJob(_stored.StoredJob):
    """A job of a `RedisJobBoard`."""


class RedisJobBoard(_stored.StoredJobBoard):
    """A board in Redis, for processes on all hosts that reach it.

    Options:

    - `namespace` ('default'): boards of one namespace of a database are one board.
    - `host` ('localhost'), `port` (6379), `db` (0), `username`, `password`, `unix_socket_path`.
    - `socket_timeout` and `socket_connect_timeout` (seconds; 5), `health_check_interval` (seconds).
    - `retry_on_timeout`: repeat a step that got no answer in time. A step whose connection was lost
      is always repeated. No step takes effect twice, or after its repetition.
    - `ssl`, and with it the options of the Redis transport that begin with `ssl_`.
    - `sentinel`: the name of a service; then `host` and `port` are those of a Sentinel,
      `sentinel_fallbacks` further ones ('host:port'), and `sentinel_kwargs` options of connections
      to these.
    - `client`: a client of redis-py that replaces the one made from these options. It stays open
      when the board is closed.

    Jobs have queues and fair keys, and `take` claims them in their turns. Queues can be paused.

    Each step is one script. All keys, `wbe:{namespace}:jobs:...`, have one hash tag. Claims expire
    by the clock of the server. Jobs are as durable as the configuration of Redis.

    :raises ValueError: if an option is invalid.
    """

    KIND = "Redis"
    JOB = RedisJob
    _is_fork_safe: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, named_options.Reader]] = {
        **_CLIENT_OPTIONS,
        "namespace": _namespace,
        "retry_on_timeout": named_options.flag,
        "sentinel": named_options.text,
        "sentinel_fallbacks": _host_list,
        "sentinel_kwargs": named_options.anything,
    }

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, client, persistence)
        self.namespace: Final[str] = self._settings.get("namespace", "default")
        # Tokens of calls of `take` without an answer, by owner.
        self._unanswered: dict[str, list[str]] = {}
        self._keys = [f"wbe:{{{self.namespace}}}:jobs:{key}" for key in _redis_scripts.KEYS]
        self.job_queues = _redis_queues.RedisJobQueues(self._run)
        if client is None:
            self._client, self.address = _client(self._settings), _address(self._settings)
        self._steps = {
            name: self._client.register_script(script.text)
            for name, script in _redis_scripts.SCRIPTS.items()
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

    def _identify(self, new: str) -> _stored.Identity:
        key, run = self._keys[_redis_scripts.KEYS.index("jobs")].removesuffix("jobs") + "id", ""
        with self._accessing_store("Reading the id of the job board"):
            self._client.set(key, new, nx=True)
            board_id = decoded(self._client.get(key))
            # The server may restart with older data. The user may lack the right to call INFO.
            with contextlib.suppress(errors.ResponseError):
                run = str(self._client.info("server").get("run_id", ""))
        return _stored.Identity(board_id, run)

    def _put(self, job: _stored.NewJob) -> _stored.Posting | None:
        [posting] = self._put_all([job])
        return posting

    def _put_all(self, jobs: Sequence[_stored.NewJob]) -> list[_stored.Posting | None]:
        postings = list[_stored.Posting | None]()
        for start in range(0, len(jobs), _MAX_JOBS_PER_POST):
            batch = jobs[start : start + _MAX_JOBS_PER_POST]
            replies, is_repeated = self._run(_redis_scripts.post([_new_job(job) for job in batch]))
            for job, reply in zip(batch, replies, strict=True):
                is_ours = reply and (reply[0] or is_repeated)
                postings.append(_posting(job.uuid, *reply[1:]) if is_ours else None)
        return postings

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        after = "-inf"
        for limit in _stored.page_sizes():
            page, _ = self._run(_redis_scripts.page(only_unclaimed, after, limit))
            for uuid, *row in page:
                if len(row) > 1:
                    yield decoded(uuid), (decoded(uuid), *row)
            if len(page) < limit:
                return
            after = f"({decoded(page[-1][1])}"

    def _parse(self, row: Any) -> _stored.Posting:
        return _posting(*row)

    def _find(self, uuid: str) -> Any:
        reply, _ = self._run(_redis_scripts.read(uuid))
        if reply is None:
            return None
        job, score, claims, *_ = reply
        return uuid, score, job, claims

    def status_of(self, job: base.Job) -> _stored.Status | None:
        reply, _ = self._run(_redis_scripts.read(job.uuid))
        return None if reply is None else _status(*reply[2:])

    def waking(self, wake: Callable[[], None]) -> contextlib.AbstractContextManager[float]:
        def listen(ended: conditions.Event) -> None:
            with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
                subscription.subscribe(self._keys[_redis_scripts.KEYS.index("jobs")])
                wake()  # For jobs that were posted before.
                while not ended.is_set():
                    if subscription.get_message(timeout=_LISTEN_SECONDS) is not None:
                        wake()

        return _stored.listening(self, listen, self.POLL_SECONDS)

    @property
    def job_count(self) -> int:
        with self._accessing_store("Counting jobs"):
            return int(self._client.zcard(self._keys[_redis_scripts.KEYS.index("all")]))

    def _is_trashed(self, uuid: str) -> bool:
        with self._accessing_store(f"Reading job {uuid}"):
            return bool(self._client.hexists(self._keys[_redis_scripts.KEYS.index("trash")], uuid))

    def _delete_trashed(self, uuid: str) -> None:
        with self._accessing_store(f"Deleting trashed job {uuid}"):
            self._client.hdel(self._keys[_redis_scripts.KEYS.index("trash")], uuid)

    def take(
        self, who: str, limit: int, except_uuids: Collection[str] = ()
    ) -> Sequence[_stored.StoredJob]:
        """Claim up to `limit` jobs of `queues`: first those of the first queue.

        Within a queue, keys are served in turn, and the first job of a key is that with the highest
        priority, then the oldest one.

        After a call without an answer, the next one of the same owner is its repetition, which
        returns the jobs that it claimed, if any, and then not more.
        """
        expiry = self.claim_seconds or base.default_expiry.get()
        unanswered = self._unanswered.setdefault(who, [])
        # Removed, because other threads may take jobs with this name.
        is_repeated, token = False, _new_token()
        with contextlib.suppress(IndexError):
            is_repeated, token = True, unanswered.pop()
        step = _redis_scripts.take(
            token.encode() + _bytes(who),
            None if expiry is None else _milliseconds(expiry),
            limit,
            random.getrandbits(31),
            self.queues,
            [*except_uuids, *self._unreadable],
        )
        try:
            rows, _ = self._run(step, token=token, is_repeated=is_repeated)
        except BaseException:
            unanswered.append(token)
            raise
        taken = list[_stored.StoredJob]()
        for uuid, *row in rows:
            job = self._readable(decoded(uuid), (decoded(uuid), *row))
            if job is None:  # Its claim expires.
                continue
            job.record_claim(token, job.claims, expiry)
            self.notifier.notify(base.CLAIMED, {"job": job, "who": who})
            taken.append(job)
        return taken

    def make_due(self, uuid: str) -> None:
        self._run(_redis_scripts.due(uuid))

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[str, int] | _stored.Status:
        token = _new_token()
        milliseconds = None if expiry is None else _milliseconds(expiry)
        step = _redis_scripts.claim(job.uuid, token.encode() + _bytes(who), milliseconds)
        reply, _ = self._run(step)
        if reply is None:
            raise _stored.missing_job_error(job)
        is_claimed, *values = reply
        return (token, int(values[0])) if is_claimed else _status(*values)

    def _end_claim(self, job: base.Job, who: str, action: str) -> _stored.Status | None:
        token = _stored.claim_of(job) or ""
        reply, is_repeated = self._run(_redis_scripts.end(job.uuid, token, _bytes(who), action))
        if reply is None and not is_repeated:
            raise _stored.missing_job_error(job)
        if reply is None or reply[0] == 1:
            return None
        status = _status(*reply[1:])
        return None if is_repeated and action == "abandon" and status.owner is None else status

    def extend(self, job: _stored.StoredJob, expiry: float) -> bool:
        step = _redis_scripts.extend(job.uuid, job.claim or "", _milliseconds(expiry))
        return self._run(step)[0]

    def _run(
        self, step: Step[T], *, token: str | None = None, is_repeated: bool = False
    ) -> tuple[T, bool]:
        """Return the answer, and whether an earlier attempt may have executed the step.

        :param token: identifies the call and its repetitions.
        :param is_repeated: whether an earlier call may have executed it.
        """
        is_second, token, name = False, token or _new_token(), step.script.name
        with self._accessing_store(f"Step {name!r}"):
            while True:
                try:
                    words = [*step.arguments, token, int(is_repeated)]
                    reply = self._steps[name](keys=self._keys, args=words)
                    return step.read(reply), is_repeated
                except (errors.ConnectionError, errors.TimeoutError) as error:
                    is_timeout = isinstance(error, errors.TimeoutError)
                    if is_second or (is_timeout and not self._settings.get("retry_on_timeout")):
                        raise
                    is_second = is_repeated = True


def _client(options: Mapping[str, Any]) -> Any:
    arguments = {name: options[name] for name in _CLIENT_OPTIONS if name in options}
    arguments |= client_options.arguments(arguments, is_secure=True)
    # The board itself repeats steps, because it has to detect repetitions.
    arguments.update(protocol=2, retry=Retry(NoBackoff(), 0))
    service = options.get("sentinel")
    if service is None:
        return redis.Redis(**_without_unused_tls(arguments))
    addresses = [(arguments.pop("host", "localhost"), arguments.pop("port", 26379))]
    addresses += options.get("sentinel_fallbacks", ())
    sentinel_options = options.get("sentinel_kwargs")
    sentinel_class: Any = sentinels.Sentinel  # Not typed.
    sentinel = sentinel_class(
        addresses,
        sentinel_kwargs=None if sentinel_options is None else _without_unused_tls(sentinel_options),
        **_without_unused_tls(arguments),
    )
    return sentinel.master_for(service)


def _address(options: Mapping[str, Any]) -> str:
    if "unix_socket_path" in options:
        host = host_names.host_name("localhost")
        return f"{host}:{options['unix_socket_path']}/{options.get('db', 0)}"
    host = host_names.host_name(str(options.get("host", "localhost")))
    service = f"{options['sentinel']}@" if "sentinel" in options else ""
    port = options.get("port", 26379 if service else 6379)
    return f"{service}{host}:{port}/{options.get('db', 0)}"


def _without_unused_tls(options: Mapping[str, Any]) -> dict[str, Any]:
    """Remove TLS options if TLS is off; the client would reject them."""
    if options.get("ssl"):
        return dict(options)
    return {name: value for name, value in options.items() if not name.startswith("ssl")}


def _new_token() -> str:
    return secrets.token_hex(_TOKEN_DIGITS // 2)


def _new_job(job: _stored.NewJob) -> _redis_scripts.NewJob:
    place = job.place
    return _redis_scripts.NewJob(
        job.uuid,
        place.priority.rank,
        job.document,
        place.queue,
        _bytes(place.fair_key),
        place.fair_weight,
    )


def _posting(uuid: str, score: Any, job: Any, claims: Any = 0) -> _stored.Posting:
    rank, sequence = divmod(int(float(score)), _SCORES_PER_RANK)
    created, _, document = decoded(job).partition(" ")
    return _stored.Posting.of(uuid, rank, sequence, document, int(created or 0) / 1000, int(claims))


def _status(claims: Any, updated: Any, owner: Any, remaining_ms: Any) -> _stored.Status:
    owner_name = decoded(owner)[_TOKEN_DIGITS:] or None
    remaining = (
        None if owner_name is None or remaining_ms in (b"", "") else float(remaining_ms) / 1000
    )
    return _stored.Status(int(claims), int(float(updated)) / 1000, owner_name, remaining)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
