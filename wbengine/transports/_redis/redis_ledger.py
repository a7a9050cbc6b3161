"""A ledger in Redis, for processes on any host: `redis://HOST/DB?prefix=NAME`.

Each change is one script: one round trip and one atomic step. Times are those of the server's
clock. If a server without an append-only file restarts, it loses the rows, and their requests are
not run.

If a connection is lost during a call, the call is repeated once, and recognizes the effect of its
first attempt.

A restarted server may have *older data than before*: a snapshot, or data without the last second.
So each connection first sends the run id and the count of claims that this process last received
(`arrive`). After a loss, the request of an OPEN row may already have run. Such a row is treated as
claimed by a lost worker, the holder `FORGOTTEN`; the worker that ran the request can still finish
it.

A command without a reply may be executed after later commands of another connection. Therefore
commands that create, claim or release rows belong to a numbered *session* of this process. After a
call without a reply, the next call of any thread begins another session (`reconcile`): late
commands of earlier sessions have no effect, and claims without a reply are reversed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wbengine import exceptions
from wbengine._redis.lua_scripts import Step
from wbengine._text import data_formats
from wbengine.transports import _ledger
from wbengine.transports._redis import redis_scripts
from wbengine.transports._redis.redis_link import MAX_SCRIPT_VALUES, Link, Place, Pool
from wbengine.transports._redis.redis_scripts import ClaimAttempt, Opened, RoutedBatch

if TYPE_CHECKING:
    from wbengine.transports._kinds import Target

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Timeouts in seconds for a reply and for a connection. They are short, because the calling thread
#: may also send heartbeats.
_REPLY_TIMEOUT_SECONDS: Final = 3.0
_CONNECT_TIMEOUT_SECONDS: Final = 1.5

#: Places for which the warning about persistence was logged.
_warned_places: set[str] = set()


def check(place: str) -> Place:
    """Parse the URL of a ledger without connecting.

    :raises ValueError: if it is not valid.
    """
    return Place.parse(place)


def is_at(place: str, broker: object) -> bool:
    return check(place) == broker


def open_place(place: str, result_ttl: float | None) -> RedisLedger:
    return RedisLedger(check(place), result_ttl)


def of_broker(target: Target, role: str, result_ttl: float | None) -> RedisLedger:
    return RedisLedger(target.place, result_ttl, consumes=True)


class RedisLedger(_ledger.Ledger):
    """A ledger whose rows are hashes below one prefix.

    :param consumes: whether the process also consumes messages at this place.
    :raises LedgerFailure: if the server cannot be used.
    """

    def __init__(
        self,
        place: Place,
        result_ttl: float | None = _ledger.STALE_AFTER_SECONDS,
        *,
        consumes: bool = False,
    ) -> None:
        self.place = place
        #: Milliseconds for which results are kept, as an argument of scripts; '': no limit.
        self.ttl: int | str = "" if result_ttl is None else int(result_ttl * 1000)
        self._shown = f"ledger {place.shown}"
        place_of_pool = dataclasses.replace(
            place.with_timeouts(_REPLY_TIMEOUT_SECONDS, _CONNECT_TIMEOUT_SECONDS), shown=self._shown
        )
        self._pool = Pool(place_of_pool, exceptions.LedgerFailure, self.greet)
        # Run id of the server and its count of claims in the last reply.
        self._run_id, self._count = "", 0
        # Incarnation of the server; OPEN rows of incarnations before the second one are treated as
        # claimed by a lost worker.
        self._incarnation = self._intact_since = 0
        #: Format of its keys.
        self._version = data_formats.REDIS.written
        self._lock = threading.Lock()
        #: Identity of this object at the server.
        self.user = uuid.uuid4().hex + (redis_scripts.CONSUMER if consumes else "")
        self._claim_names = map(f"{self.user}:%d".__mod__, itertools.count(1))
        # Numbers of the present session and of the session to begin; claims of earlier sessions
        # without a reply.
        self._session, self._wanted_session = -1, 0
        self._unanswered_claims: list[ClaimAttempt] = []
        self._rows = itertools.count(1)
        self._holders: set[str] = set()
        # The identity, and earlier ones, before losses of data. The server has not confirmed an
        # identity that starts with '?'.
        self._digest = f"?redis-{uuid.uuid4().hex}"
        self._former_digests: list[str] = []
        try:
            self.restore()
            data_formats.REDIS.check(self._shown, self._version, exceptions.LedgerFailure)
            self._read_server_info()
            self.sweep_when_due(result_ttl)
        except BaseException:
            self._pool.close()
            raise

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def identity(self) -> str:
        return f"{self._digest}@{self._intact_since}" if self._intact_since else self._digest

    def restore(self) -> None:
        """Restore the ledger's identity in a server that may have lost its data."""
        self._register()

    def accepts(self, digest: str) -> bool:
        return self._register(digest=digest)

    def _register(self, holder: str = "", digest: str = "") -> bool:
        step = redis_scripts.register(self._digests, self.user, holder, digest)
        (registration, is_accepted), _ = self._run(step)
        self._note(registration)
        return is_accepted

    @property
    def has_lost_data(self) -> bool:
        return bool(self._pool.call("EXISTS", f"{self.place.prefix}former"))

    @property
    def _digests(self) -> str:
        return " ".join((self._digest, *self._former_digests))

    def _note(self, registration: redis_scripts.Registration) -> None:
        if registration.digest != self._digest:
            if not self._digest.startswith("?"):
                LOG.warning("%s lost its data: it has another identity", self._shown)
                self._former_digests.append(self._digest)
            self._digest = registration.digest
        elif registration.intact_since > self._intact_since:
            LOG.warning("%s lost its data: the rows of open requests are missing", self._shown)
        with self._lock:
            self._intact_since = registration.intact_since
        self.note_count(registration.claim_count)

    def greet(self, link: Link) -> None:
        """Send the last known run id and count, so that the server can detect a loss of data."""
        arrival = link.run(redis_scripts.arrive(self._run_id, self._count))
        with self._lock:
            previous, self._run_id = self._run_id, arrival.run_id
            # Other threads may have received a higher count.
            self._count = (
                max(self._count, arrival.claim_count)
                if previous == self._run_id
                else arrival.claim_count
            )
            self._incarnation, self._intact_since = arrival.incarnation, arrival.intact_since
            self._version = arrival.version
        if arrival.incarnation == arrival.intact_since and previous not in ("", self._run_id):
            LOG.warning(
                "%s restarted with older data, or may have: its open requests may have"
                " run, and are treated as lost together with their worker",
                self._shown,
            )

    def note_count(self, count: int) -> None:
        with self._lock:
            self._count = max(self._count, count)

    def _claim(self, id: str, epoch: int, holder: str) -> _ledger.Claim:
        self._holders.add(holder)
        attempt = ClaimAttempt(id, epoch, holder, next(self._claim_names))
        (claim, count), _ = self._in_session(
            lambda session: self._pool.run(redis_scripts.claim(self.user, session, attempt)),
            attempt,
        )
        self.note_count(count)
        return claim

    def _renew(self, holder: str) -> None:
        self._holders.add(holder)
        self._register(holder)

    def _silence(self, holder: str) -> float | None:
        """Return the silence, limited to the time since the server was last unreachable."""
        self._reconcile()
        seconds, micros = self._pool.call("TIME")
        heartbeat = self._pool.call("ZSCORE", f"{self.place.prefix}beats", holder)
        if heartbeat is None:
            return None
        silent = int(seconds) + int(micros) / 1e6 - float(heartbeat) / 1000
        return min(max(0.0, silent), time.monotonic() - self._pool.lost_at)

    def _finish(
        self, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: _ledger.Fence
    ) -> list[bool | exceptions.LedgerFailure]:
        try:
            results, is_retry = self._run(
                redis_scripts.finish_rows(holder, self.ttl, finished_rows, fence)
            )
        except exceptions.LedgerFailure as error:
            return [error] * len(finished_rows)
        if not is_retry:
            return list(results)
        return [
            done or self._is_done(*finished)
            for finished, done in zip(finished_rows, results, strict=True)
        ]

    def _is_done(self, id: str, epoch: int, result: bytes) -> bool:
        return self.state(id) == _ledger.Row(id, epoch, _ledger.ROW_DONE, None, result)

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        done, is_retry = self._in_session(
            lambda session: self._pool.run(
                redis_scripts.release(self.user, session, id, epoch, holder)
            )
        )
        if is_retry and not done:
            return self.state(id) == _ledger.Row(id, epoch, _ledger.ROW_OPEN)
        return done

    def _open(self, rows: Sequence[_ledger.FencedRow[int]]) -> None:
        for batch in _ledger.batches(rows, MAX_SCRIPT_VALUES):
            self.open_and_publish(
                [_ledger.Opening(*row) for row in batch],
                lambda script: self._pool.run(script(RoutedBatch("", ()))),
            )

    def open_and_publish(
        self,
        rows: Sequence[_ledger.Opening],
        run: Callable[[Callable[[RoutedBatch], Step[Any]]], tuple[Opened, bool]],
    ) -> Sequence[int]:
        """Open rows, and publish their requests in the same step.

        Rows that were tried before keep their numbers.

        :param run: runs a script with a batch of no messages, or with one for each row. It returns
            the result, and whether it is that of a retry.
        :returns: the number of queues of each message.
        """
        numbers = [row.tried or (next(self._rows), "") for row in rows]

        def attempt(session: int) -> tuple[Opened | None, bool]:
            incarnation = self._incarnation
            script = functools.partial(
                redis_scripts.open_and_publish,
                rows=[
                    redis_scripts.OpenedRow(row.id, row.epoch, number, tried_in, *row.fence)
                    for row, (number, tried_in) in zip(rows, numbers, strict=True)
                ],
                user=self.user,
                session=session,
                digests=self._digests,
                ttl=self.ttl,
                incarnation=incarnation,
            )
            try:
                opened, is_retry = run(script)
            except exceptions.TransportFailure:  # Nothing was executed.
                raise
            except BaseException:
                for row, (number, tried_in) in zip(rows, numbers, strict=True):
                    row.tried = number, tried_in or str(incarnation)
                raise
            if opened.registration is None:
                return None, is_retry
            self._note(opened.registration)
            return opened, is_retry

        return self._in_session(attempt)[0].counts

    def _reopen(
        self, id: str, epoch: int, fence: _ledger.Fence
    ) -> bytes | exceptions.NotFound | None:
        results, _ = self._run(redis_scripts.reopen(id, epoch, fence))
        if results is None:
            return exceptions.NotFound(f"request {id} has no row in {self._shown}")
        return results[0] if results else None

    def _revoke(
        self, rows: Sequence[_ledger.FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        results: list[bool | exceptions.LedgerFailure | None] = []
        try:
            for batch in _ledger.batches(rows, MAX_SCRIPT_VALUES):
                (removed, count), is_retry = self._run(redis_scripts.revoke_rows(batch))
                self.note_count(count)
                results += [
                    None if is_retry and not done and self.state(id) is None else done
                    for (id, _, _), done in zip(batch, removed, strict=True)
                ]
        except exceptions.LedgerFailure as error:
            results += [error] * (len(rows) - len(results))
        return results

    def _drop(self, ids: Sequence[str]) -> None:
        for batch in _ledger.batches(ids, MAX_SCRIPT_VALUES):
            self._run(redis_scripts.drop_rows(batch))

    def _states(self, ids: Sequence[str]) -> list[_ledger.Row | exceptions.LedgerFailure | None]:
        states: list[_ledger.Row | exceptions.LedgerFailure | None] = []
        try:
            for batch in _ledger.batches(ids, MAX_SCRIPT_VALUES):
                read_count = 0
                while read_count < len(batch):
                    rows, _ = self._run(redis_scripts.read_rows(batch[read_count:]))
                    states += rows
                    read_count += len(rows)
        except exceptions.LedgerFailure as error:
            states += [error] * (len(ids) - len(states))
        return states

    def _ids(self) -> set[str]:
        self._reconcile()
        ids = self._pool.call("ZRANGE", f"{self.place.prefix}rows", 0, -1)
        return {id.decode() for id in ids}

    def _list_rows(self, limit: int, after: str | None) -> _ledger.Page:
        """See `Ledger`. Rows are ordered by the time at which they were opened or completed."""
        since, _, last_id = (after or "").partition(" ")
        since = since if since.isdecimal() else "-inf"
        listed, _ = self._run(redis_scripts.list_rows(since, last_id, limit + 1))
        rows = [row for _, row in listed[:limit]]
        next_after = f"{listed[limit - 1][0]} {rows[-1].id}" if len(listed) > limit else None
        return _ledger.Page(rows, next_after)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        age = int(older_than * 1000)
        count = kept_count = 0
        has_more = True
        while has_more:
            (removed, kept, has_more), _ = self._run(
                redis_scripts.sweep_rows(age, kept_count, only_done)
            )
            count += removed
            kept_count += kept
        return count

    def close(self) -> None:
        try:
            self._run(redis_scripts.close(self.user, self._holders))
        except exceptions.LedgerFailure as error:  # A later sweep removes the heartbeats.
            LOG.debug("%s", error)
        self._pool.close()

    def _run(self, step: Step[T]) -> tuple[T, bool]:
        self._reconcile()
        return self._pool.run(step)

    def _in_session(
        self, attempt: Callable[[int], tuple[T | None, bool]], claim: ClaimAttempt | None = None
    ) -> tuple[T, bool]:
        """Run a script in the present session; if no reply arrives, end the session.

        The script then has no late effect after the next call, and `claim` is reversed.

        :param attempt: runs the script in a session. It returns the result, None if the session is
            over, and whether it is that of a retry.
        """
        was_retried = False
        while True:
            self._reconcile()
            session = self._session
            try:
                done, is_retry = attempt(session)
            except exceptions.TransportFailure:  # Nothing was executed.
                raise
            except BaseException:
                self._end_session(session, claim)
                raise
            # The first attempt may be executed later, or another session has begun.
            if is_retry or done is None:
                self._end_session(session)
            if done is not None:
                return done, is_retry or was_retried
            was_retried = was_retried or is_retry

    def _end_session(self, session: int, claim: ClaimAttempt | None = None) -> None:
        """Request a new session. After the next call, late commands of this one have no effect."""
        with self._lock:
            self._wanted_session = max(self._wanted_session, session + 1)
            if claim is not None:
                self._unanswered_claims.append(claim)

    def _reconcile(self) -> None:
        if self._session >= self._wanted_session:
            return
        with self._lock:
            session, unanswered = self._wanted_session, tuple(self._unanswered_claims)
        incarnation, _ = self._pool.run(redis_scripts.reconcile(self.user, session, unanswered))
        with self._lock:
            self._incarnation = incarnation
            self._session = max(self._session, session)
            self._unanswered_claims = [
                each for each in self._unanswered_claims if each not in unanswered
            ]

    def _read_server_info(self) -> None:
        try:
            info = self._pool.info()
        except exceptions.LedgerFailure as error:
            if self.place.shown not in _warned_places:
                _warned_places.add(self.place.shown)
                LOG.warning(
                    "%s; allow its user to run INFO: otherwise a restart with older data"
                    " is not detected, and requests may run twice",
                    error,
                )
            return
        if info.get("uptime_in_seconds", "").isdecimal():
            started = time.monotonic() - int(info["uptime_in_seconds"])
            self._pool.lost_at = max(self._pool.lost_at, started)
        if info.get("aof_enabled") == "0" and self.place.shown not in _warned_places:
            _warned_places.add(self.place.shown)
            LOG.warning(
                "%s has no append-only file: a restart deletes the rows of the ledger,"
                " and requests without a row do not run (set 'appendonly yes')",
                self._shown,
            )

    def __str__(self) -> str:
        return self.place.shown

    def _is_sweep_due(self) -> bool:
        period = int(_ledger.SWEEP_PERIOD_SECONDS * 1000)
        key = f"{self.place.prefix}swept"
        return self._pool.call("SET", key, 1, "NX", "PX", period) is not None
