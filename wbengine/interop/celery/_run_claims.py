"""Claims of Celery task runs in a ledger. They prevent a task from running twice.

A broker may deliver a message again while its task runs or after it has ended: Redis after the
`visibility_timeout`, RabbitMQ after a lost connection.

The key of a run contains the task id, the number of retries and the nesting of replacements,
because `retry` and `replace` send new runs under the same id. It also contains the task's name and
arguments, because some clients reuse ids. Two equal calls under one id look like a redelivery.

Each run has one row: OPEN, then CLAIMED by a worker, then DONE with its result. A second row is
added when all follow-up messages were sent (links, the rest of the chain, the chord part). Rows are
removed when they are older than any copy of their message can be.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import kombu.exceptions
from kombu import serialization

from wbengine import exceptions
from wbengine._concurrency import conditions, threads
from wbengine._introspection import object_names
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import _ledger
from wbengine.types import failure as ft

__all__ = ["LEASE_SECONDS", "RUN", "Claims", "Outcome", "Run", "Verdict", "key_of"]

LOG = logging.getLogger("wbengine.celery")

#: Time without a heartbeat after which a worker is considered dead, and interval of heartbeats.
LEASE_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 2.0

#: Seconds between two attempts to reach an unavailable ledger.
_RETRY_SECONDS: Final = 2.0

#: Suffix of the id of the row that records that all follow-up messages were sent.
_SENT: Final = "-sent"

#: The outcome of a run, by its `kind`; `failure` is a `Failure` or None.
Outcome = dict[str, Any]


@dataclass(slots=True)
class Run:
    key: str
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The next step for a message.

    `run`: run it, because this worker has claimed the run. `retry_after`: try again after this
    number of seconds. `lost`: report the loss, because the worker that had claimed the run died,
    and the run must not be repeated. `outcome`: report this result again, because the run ended
    elsewhere. If no field is set, acknowledge the message.
    """

    run: bool = False
    retry_after: float | None = None
    lost: bool = False
    outcome: Outcome | None = None


RUN: Final = Verdict(run=True)


class Claims:
    """The claims of one worker in the ledger at `place`. The methods may block.

    :param ttl: minimum age in seconds at which rows are removed; None keeps them forever.
    :param shared: the ledger also contains rows of flows.
    :param accept: serializers of results that may be read, besides `serializer`.
    """

    ledger: _ledger.Ledger

    def __init__(
        self,
        place: str,
        ttl: float | None,
        *,
        shared: bool,
        serializer: str,
        accept: Iterable[str] = (),
    ) -> None:
        self._place = place
        self._ttl = ttl
        self._shared = shared
        self._serializer = serializer
        self._accept = serialization.prepare_accept_content([serializer, *accept])
        self._holder = ""
        self._stopping = conditions.Event()
        self._renewed = -math.inf
        #: Calls of `finish` and `release` to repeat because the ledger was unavailable, by run key.
        self._pending_calls: dict[str, Callable[[], bool]] = {}
        self._pending_lock = threading.Lock()
        self._thread = threads.Thread(target=self._renew, name="wbengine-claims", daemon=True)

    def open(self, holder: str) -> None:
        """Open the ledger and start the heartbeat, under this worker name.

        :raises LedgerFailure: if the ledger cannot be used.
        """
        self._holder = holder
        self.ledger = ledgers.open_ledger(self._place, "worker", self._ttl)
        self._write_heartbeat()
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
            try:
                self._repeat_all_calls()
            except exceptions.LedgerFailure as error:
                LOG.warning(
                    "the results of %d Celery tasks are not stored: %s",
                    len(self._pending_calls),
                    error,
                )
            self.ledger.close()

    def claim(self, run: Run, may_repeat: bool) -> Verdict:
        """Claim a run. `may_repeat`: whether the run may be repeated if its worker died."""
        try:
            return self._claim(run, may_repeat)
        except exceptions.LedgerFailure as error:
            LOG.warning("a Celery task cannot be claimed, and remains in the queue: %s", error)
            return Verdict(retry_after=_RETRY_SECONDS)

    def _claim(self, run: Run, may_repeat: bool) -> Verdict:
        ledger = self.ledger
        if time.monotonic() - self._renewed > LEASE_SECONDS / 2:
            # After a long pause, other workers may consider this worker dead and its claims void.
            self._write_heartbeat()
        self._repeat_call(run.key)  # must precede the next claim of the run
        ledger.open(run.key, run.epoch)
        while True:
            reply = ledger.claim(run.key, run.epoch, self._holder)
            run.epoch = reply.epoch
            if reply.granted:
                # A later epoch means that another worker had claimed the run and died.
                return RUN if may_repeat or run.epoch == 1 else Verdict(lost=True)
            if reply.verdict == _ledger.DONE:
                if ledger.state(run.key + _SENT) is not None:
                    return Verdict()
                try:
                    return Verdict(outcome=_loads(reply.result or b"", self._accept))
                except Exception as error:  # any client of the ledger can write it
                    LOG.error("the stored result of a Celery task cannot be read: %.200r", error)
                    return Verdict()
            if reply.verdict == _ledger.MISSING:
                ledger.open(run.key, run.epoch)
            elif reply.verdict == _ledger.HELD:
                if (lease_left := self._lease_left(reply.holder)) > 0:
                    return Verdict(retry_after=min(lease_left, LEASE_SECONDS))
                with contextlib.suppress(exceptions.NotFound):
                    run.epoch += 1
                    ledger.reopen(run.key, run.epoch)

    def _lease_left(self, holder: str | None) -> float:
        """Return the seconds until a worker is considered dead.

        If this worker itself owns the run, check again after one heartbeat interval.
        """
        if holder == self._holder:
            return RENEW_SECONDS
        silence = None if holder is None else self.ledger.silence(holder)
        return 0.0 if silence is None else LEASE_SECONDS - silence

    def finish(self, run: Run, outcome: Outcome) -> bool:
        """Store the outcome of a run.

        :returns: False if this worker no longer owns the run: do not report the outcome.
        """
        try:
            stored = _dumps(outcome, self._serializer)
        except kombu.exceptions.EncodeError as error:  # Celery reports this failure too
            failure = ft.Failure.from_exception(error)
            stored = _dumps({"kind": "failure", "failure": failure}, self._serializer)
        finish = functools.partial(self.ledger.finish, run.key, run.epoch, self._holder, stored)
        try:
            return finish()
        except exceptions.LedgerFailure as error:
            LOG.warning("the result of a Celery task cannot be stored, retrying later: %s", error)
            self._pending_calls[run.key] = finish
            return True  # Report the result to the client.

    def sent(self, run: Run) -> None:
        try:
            self.ledger.open(run.key + _SENT, 1)
        except exceptions.LedgerFailure as error:
            LOG.debug("%s", error)  # the follow-up messages may be sent a second time

    def release(self, run: Run) -> None:
        """Release a run that did not begin or must begin again.

        If the ledger is unavailable, the release is repeated later.
        """
        self._pending_calls[run.key] = functools.partial(
            self.ledger.release, run.key, run.epoch, self._holder
        )
        try:
            self._repeat_call(run.key)
        except exceptions.LedgerFailure as error:
            LOG.debug("%s", error)

    def _repeat_call(self, key: str) -> None:
        with self._pending_lock:
            if (call := self._pending_calls.get(key)) is not None:
                call()
                del self._pending_calls[key]

    def _repeat_all_calls(self) -> None:
        """Repeat the pending calls until one fails. The next time, the others come first."""
        for key in list(self._pending_calls):
            try:
                self._repeat_call(key)
            except exceptions.LedgerFailure:
                with self._pending_lock:
                    if (call := self._pending_calls.pop(key, None)) is not None:
                        self._pending_calls[key] = call
                raise

    def sweep(self) -> None:
        """Remove expired rows, except rows that a worker renews."""
        if self._shared or self._ttl is None:
            self.ledger.sweep_stale(self._ttl)
        else:
            self.ledger.sweep(self._ttl)

    def _write_heartbeat(self) -> None:
        now = time.monotonic()
        self.ledger.renew(self._holder)
        self._renewed = now

    def _renew(self) -> None:
        swept = time.monotonic()
        while not self._stopping.wait(RENEW_SECONDS):
            problem = "the heartbeat of this worker cannot be written to the ledger"
            try:
                self._write_heartbeat()
                problem = "expired rows cannot be removed from the ledger"
                if time.monotonic() - swept >= _ledger.SWEEP_PERIOD_SECONDS:
                    swept = time.monotonic()
                    self.sweep()
                problem = "the result or the release of a Celery task cannot be stored"
                self._repeat_all_calls()
            except exceptions.LedgerFailure as error:
                LOG.warning("%s: %s", problem, error)


def key_of(id: str, retries: int, nesting: int, task: str, body: Any) -> str:
    """Return the key of a run.

    :param body: the serialized arguments. Celery has already decoded the arguments of version 1
        messages, so these are not part of the key.
    """
    call = hashlib.sha256(task.encode("utf-8", "surrogatepass"))
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes | bytearray | memoryview):
        call.update(b"\n")
        call.update(body)
    key = f"celery-{id}-{retries}-{nesting}-{call.hexdigest()[:16]}"
    if object_names.is_label(key + _SENT):
        return key
    return f"celery-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _dumps(outcome: Outcome, serializer: str) -> bytes:
    """Serialize an outcome.

    :raises kombu.exceptions.EncodeError: if the serializer does not support a value.
    """
    if failure := outcome.get("failure"):
        outcome = {**outcome, "failure": failure.to_json()}
    content_type, encoding, body = serialization.dumps(outcome, serializer)
    head = json.dumps([content_type, encoding]).encode()
    return head + b"\n" + (body if isinstance(body, bytes) else body.encode())


def _loads(stored: bytes, accept: Collection[str]) -> Outcome:
    """Return an outcome.

    :param accept: content types that may be read: loading a pickle can execute any code.
    """
    head, _, body = stored.partition(b"\n")
    content_type, encoding = json.loads(head)
    outcome: Outcome = serialization.loads(body, content_type, encoding, accept=accept)
    if failure := outcome.get("failure"):
        outcome["failure"] = ft.Failure.from_dict(failure)
    return outcome
