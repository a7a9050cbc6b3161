"""A ledger in Redis, for processes of any host that reach it: `redis://HOST/DB?prefix=NAME`.

Each call is one script, so one round trip and one step.  Times are those of the server's clock.
What a server without an append-only file forgets when it ends counts as missing: it is not run.

A call whose connection was lost is made once more, at once, and knows its own first attempt by what
it finds.

A server that ends may come back *older than it was*: from a snapshot, or without its last second.
Each connection begins with what this process knows of the ledger (`ARRIVE`).  Once it is known that
a server was set back, a row that is OPEN from before may be of a request that ran: it is held by
nobody who lives (`FORGOTTEN`), as if a worker was lost with it, and its worker can still end it.

What got no answer may be done later than what follows it, on another connection.  So what makes a
row, claims one, or lets go of one is said in a numbered *session* of this process.  After a call
that got no answer the next one of any thread begins with another session (`RECONCILE`): whatever
was said in those before, and comes after that, does nothing, and a claim of which nobody heard is
taken back.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base
from wbengine.engines.worker_based.ledger import ledger_scripts as steps
from wbengine.transports import _redis_scripts
from wbengine.transports._redis_link import Link, Place, Pool, Script, portions

if TYPE_CHECKING:
    from wbengine.transports.broker import LaidOut
    from wbengine.transports.redis import RedisBroker

LOG = logging.getLogger(__name__)

#: Seconds to wait for an answer, and for a connection: a call takes at most both together.  Whoever
#: asks has a queue to give the request back to, and beats to send meanwhile.
_ANSWER: Final = 3.0
_CONNECTION: Final = 1.5

#: The places of which it was told that their server forgets.
_warned: set[str] = set()


def check(place: str) -> Place:
    """Understand the URL of a ledger, without connecting.

    :raises ValueError: it is none.
    """
    return Place.parse(place)


class RedisLedger(base.Ledger):
    """Rows as hashes below one prefix.

    `consumes`: whoever opens it also consumes messages there.

    :raises LedgerFailure: the server cannot be used.
    """

    def __init__(
        self,
        place: Place,
        result_ttl: float | None = base.STALE_AFTER,
        *,
        consumes: bool = False,
    ) -> None:
        self.place = place
        #: How many milliseconds results stay, as scripts are told; '': for ever.
        self.ttl: int | str = "" if result_ttl is None else int(result_ttl * 1000)
        self._shown = f"ledger {place.shown}"
        patient = place.hurried(_ANSWER, _CONNECTION)
        self._pool = Pool(patient, exceptions.LedgerFailure, self._shown, self.greet)
        # Which process the server was when it was heard last, and its count of claims then.
        self._run_id, self._count = "", 0
        # The server's life, and the one before which rows were lost, or may have been.
        self._life = self._kept_since = 0
        self._counting = threading.Lock()
        #: What it is to the server.
        self.user = uuid.uuid4().hex + (steps.CONSUMER if consumes else "")
        self._names = map(f"{self.user}:%d".__mod__, itertools.count(1))
        # The session that was begun last, the one that is wanted, and what was claimed in those
        # before by who got no answer: id, epoch, holder, name.
        self._session, self._wanted = -1, 0
        self._unheard: list[tuple[Any, ...]] = []
        self._doubting = threading.Lock()
        self._rows = itertools.count(1)
        self._holders: set[str] = set()
        self._digest = f"redis-{uuid.uuid4().hex}"
        try:
            self.restore()
            self._look_at_server()
            self.sweep_when_due(result_ttl)
        except BaseException:
            self._pool.close()
            raise

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def identity(self) -> str:
        return f"{self._digest}@{self._kept_since}" if self._kept_since else self._digest

    def restore(self) -> None:
        """See that it is in the server, which may have lost it."""
        self._keep(self._run(steps.BEGIN, self._digest, self.user))

    def _keep(self, found: tuple[Sequence[Any], bool]) -> None:
        """What the server says that this ledger is."""
        (digest, count), _ = found
        self._digest = digest.decode()
        self._note_count(count)

    def greet(self, link: Link) -> None:
        """Tell a server on a new connection what is known here, so that one that knows less
        notices."""
        run_id, count, life, kept_since = link.run(_redis_scripts.ARRIVE, self._run_id, self._count)
        with self._counting:
            before, self._run_id, heard = self._run_id, run_id.decode(), int(count or 0)
            # Others may have heard more since it was asked.
            self._count = max(self._count, heard) if before == self._run_id else heard
            self._life, self._kept_since = int(life), int(kept_since)
        if life == kept_since and before not in ("", self._run_id):
            LOG.warning(
                "%s came back older than it was, or may have: requests that waited in it may have"
                " run, and count as lost with their worker",
                self._shown,
            )

    def _note_count(self, count: Any) -> None:
        with self._counting:
            self._count = max(self._count, int(count))

    def read(self, said: Sequence[Any]) -> base.Claim:
        """What the server said to a claim."""
        if len(said) > 4:
            self._note_count(said[4])
        verdict: base.Verdict = said[0].decode()
        result = said[3] if verdict == base.DONE else None
        return base.Claim(verdict, int(said[1]), result, said[2].decode() or None)

    # -- workers

    def _claim(self, id: str, epoch: int, holder: str) -> base.Claim:
        self._holders.add(holder)
        told = id, epoch, holder, next(self._names)
        said, _ = self._run_in_session(steps.CLAIM, *told, claim=told)
        return self.read(said)

    def claims(self, place: object, holder: str) -> Claims | None:
        if place != self.place:
            return None
        self._holders.add(base.check_holder(holder))
        return Claims(self, holder)

    def _renew(self, holder: str) -> None:
        self._holders.add(holder)
        self._keep(self._run(steps.RENEW, self._digest, self.user, holder))

    def _silence(self, holder: str) -> float | None:
        """As it is promised; no longer than the server can be reached: nobody could renew."""
        silent, _ = self._run(steps.SILENCE, holder)
        if silent is None:
            return None
        return min(max(0.0, int(silent) / 1000), time.monotonic() - self._pool.lost_at)

    def _finish(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> list[bool | exceptions.LedgerFailure]:
        try:
            told, again = self._run(steps.FINISH, holder, self.ttl, *chain.from_iterable(ended))
        except exceptions.LedgerFailure as error:
            return [error] * len(ended)
        if not again:
            return [bool(done) for done in told]
        return [bool(done) or self._is_done(*one) for one, done in zip(ended, told, strict=True)]

    def _is_done(self, id: str, epoch: int, result: bytes) -> bool:
        return self.state(id) == base.Row(id, epoch, base.ROW_DONE, None, result)

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        done, again = self._run_in_session(steps.RELEASE, id, epoch, holder)
        if again and not done:
            return self.state(id) == base.Row(id, epoch, base.ROW_OPEN)
        return bool(done)

    # -- the engine

    def _open(self, rows: Sequence[tuple[str, int]]) -> None:
        self._make(0, rows)

    def _offer(self, rows: Sequence[tuple[str, int]]) -> None:
        self._make(1, rows)

    def _make(self, replace: int, rows: Sequence[tuple[str, int]]) -> None:
        for some in portions(rows):
            told = chain.from_iterable(some)
            self._keep(self._run_in_session(steps.OPEN, self._digest, replace, self.ttl, *told))

    def openings(self, place: object) -> RedisLedger | None:
        return self if place == self.place else None

    def open_and_publish(
        self, broker: RedisBroker, rows: Sequence[base.Opening], messages: Sequence[LaidOut]
    ) -> Sequence[int]:
        """As it is promised; what was tried before was numbered before."""
        numbers = [row.tried or (next(self._rows), "") for row in rows]
        while True:
            self._reconcile()
            session, life = self._session, self._life
            told = [
                ((row.id, row.epoch, *number), message)
                for row, number, message in zip(rows, numbers, messages, strict=True)
            ]
            first = self.user, session, self._digest, self.ttl, life
            try:
                *counts, found = broker.open_and_put(first, told)
            except exceptions.TransportFailure:  # nothing was done
                raise
            except BaseException:
                self._doubt(session)
                for row, (number, before) in zip(rows, numbers, strict=True):
                    row.tried = number, before or str(life)
                raise
            if isinstance(found, list):
                self._keep((found, False))
                return counts
            self._life = int(counts[1])
            if found != b"%d" % session:  # another thread began one, or the server lost it
                self._doubt(session)

    def _reopen(self, id: str, epoch: int) -> bytes | exceptions.NotFound | None:
        found, _ = self._run(steps.REOPEN, id, epoch)
        if found is None:
            return exceptions.NotFound(f"request {id} has no row in {self._shown}")
        return None if isinstance(found, int) else bytes(found[0] or b"")

    def _revoke(
        self, rows: Sequence[tuple[str, int | None]]
    ) -> list[bool | exceptions.LedgerFailure]:
        told: list[bool | exceptions.LedgerFailure] = []
        try:
            for some in portions(rows):
                args = (arg for id, epoch in some for arg in (id, "" if epoch is None else epoch))
                (gone, count), again = self._run(steps.REVOKE, *args)
                self._note_count(count or 0)
                told += [
                    bool(done) or (again and self.state(id) is None)
                    for (id, _), done in zip(some, gone, strict=True)
                ]
        except exceptions.LedgerFailure as error:
            told += [error] * (len(rows) - len(told))
        return told

    def _drop(self, ids: Sequence[str]) -> None:
        for some in portions(ids):
            self._run(steps.DROP, *some)

    def _states(self, ids: Sequence[str]) -> list[base.Row | exceptions.LedgerFailure | None]:
        told: list[base.Row | exceptions.LedgerFailure | None] = []
        try:
            for some in portions(ids):
                found, _ = self._run(steps.STATE, *some)
                told += [_row(id, *row) for id, row in zip(some, found, strict=True)]
        except exceptions.LedgerFailure as error:
            told += [error] * (len(ids) - len(told))
        return told

    def ids(self) -> set[str]:
        found, _ = self._run(steps.IDS)
        return {id.decode() for id in found}

    def list_rows(self, limit: int = 100, after: str | None = None) -> base.Page:
        """The one that was opened or ended longest ago comes first."""
        since, _, last = (after or "").partition(" ")
        told = since if since.isdecimal() else "-inf", last, base.check_limit(limit) + 1
        (now, *found), _ = self._run(steps.PAGE, *told)
        rows = [_listed(int(now), *row) for row in found[:limit]]
        then = f"{found[limit - 1][0].decode()} {rows[-1].id}" if len(found) > limit else None
        return base.Page(rows, then)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        age = int(older_than * 1000)
        count = kept = 0
        more = True
        while more:
            (removed, stayed, more), _ = self._run(steps.SWEEP, age, kept, int(only_done))
            count += removed
            kept += stayed
        self._run(steps.SWEEP_HOLDERS, age)
        return count

    def close(self) -> None:
        try:
            self._run(steps.END, self.user, *self._holders)
        except exceptions.LedgerFailure as error:  # forgotten one day
            LOG.debug("%s", error)
        self._pool.close()

    # -- below

    def _run(self, script: Script, *args: Any) -> tuple[Any, bool]:
        self._reconcile()
        return self._pool.run(script, *args)

    def _run_in_session(
        self, script: Script, *args: Any, claim: tuple[Any, ...] | None = None
    ) -> tuple[Any, bool]:
        """As `_run`; what gets no answer is not done after the next call of ours, and a `claim` is
        taken back."""
        repeated = False
        while True:
            self._reconcile()
            session = self._session
            try:
                done, again = self._pool.run(script, self.user, session, *args)
            except BaseException:
                self._doubt(session, claim)
                raise
            if again or done is None:  # the first attempt may come yet; or another one began
                self._doubt(session)
            if done is not None:
                return done, again or repeated
            repeated = repeated or again

    def _doubt(self, session: int, claim: tuple[Any, ...] | None = None) -> None:
        """What was said in a session may come later than now: not after the next call of ours."""
        with self._doubting:
            self._wanted = max(self._wanted, session + 1)
            if claim is not None:
                self._unheard.append(claim)

    def _reconcile(self) -> None:
        """Begin the session that is wanted."""
        if self._session >= self._wanted:
            return
        with self._doubting:
            wanted, unheard = self._wanted, tuple(self._unheard)
        self._pool.run(steps.RECONCILE, self.user, wanted, *chain.from_iterable(unheard))
        with self._doubting:
            self._session = max(self._session, wanted)
            self._unheard = [each for each in self._unheard if each not in unheard]

    def _look_at_server(self) -> None:
        """Since when it runs, and whether what is in it outlives it."""
        try:
            told = self._pool.call("INFO").decode(errors="replace")
        except exceptions.LedgerFailure as error:
            if self.place.shown not in _warned:
                _warned.add(self.place.shown)
                LOG.warning(
                    "%s; let its user run INFO: without that it is not noticed if it comes back"
                    " older than it was, and requests may run twice",
                    error,
                )
            return
        lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        if lines.get("uptime_in_seconds", "").isdecimal():
            started = time.monotonic() - int(lines["uptime_in_seconds"])
            self._pool.lost_at = max(self._pool.lost_at, started)
        if lines.get("aof_enabled") == "0" and self.place.shown not in _warned:
            _warned.add(self.place.shown)
            LOG.warning(
                "%s has no append-only file: what it knows of requests ends with the server, and"
                " what it forgot is not run (set 'appendonly yes')",
                self._shown,
            )

    def __str__(self) -> str:
        return self.place.shown

    def _is_sweep_due(self) -> bool:
        return bool(self._run(steps.DUE, int(base.SWEEP_EVERY * 1000))[0])


class Claims:
    """For whom our Redis transport claims requests while it takes them."""

    def __init__(self, ledger: RedisLedger, holder: str) -> None:
        self._ledger = ledger
        self.holder = holder
        self.ttl = ledger.ttl
        self.greet = ledger.greet
        self.read = ledger.read

    @property
    def digest(self) -> str:
        """Of the ledger."""
        return self._ledger.digest

    def restore(self) -> None:
        """See that a server which lost everything is the same ledger, before a newcomer makes it
        another one."""
        try:
            self._ledger.restore()
        except exceptions.LedgerFailure as error:
            LOG.debug("%s", error)


def _row(
    id: str, epoch: bytes | None, state: bytes, holder: bytes | None, result: bytes | None
) -> base.Row | None:
    if epoch is None:
        return None
    told: base.State = state.decode()  # type: ignore[assignment]
    return base.Row(id, int(epoch), told, None if holder is None else holder.decode(), result)


def _listed(now: int, at: bytes, id: bytes, epoch: bytes, state: bytes, holder: Any) -> base.Listed:
    told: base.State = state.decode()  # type: ignore[assignment]
    who = holder.decode() if holder else None
    return base.Listed(id.decode(), int(epoch), told, who, max(0.0, (now - int(at)) / 1000))
