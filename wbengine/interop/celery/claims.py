"""Not twice: each run of a Celery task is claimed in a ledger before it begins.

A broker may deliver a message again while its task runs, or after it ended: a Redis does when its
`visibility_timeout` is over, a RabbitMQ when it lost a connection.  A run is known by the id of its
task, its number of retries and its nesting of replacements, so that what `retry` and `replace` send
under the same id is a run of its own; and by the task's name and arguments, for clients use an id
again.  Nothing in a message of a RabbitMQ tells two equal calls under one id from a call that is
delivered twice.

A run has one row, OPEN for a moment, then CLAIMED by a worker, then DONE with what came of it; and
a second row once all that follows from it was sent (links, the rest of its chain, its part of a
chord).  Rows are removed when they are older than any copy of their message can be.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import kombu.exceptions
from kombu import serialization

from wbengine import _names, exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import base
from wbengine.types import failure as ft

__all__ = ["LEASE", "RUN", "Claims", "Outcome", "Run", "Verdict", "key_of"]

LOG = logging.getLogger("wbengine.celery")

#: Seconds of silence after which a worker is taken for dead, and between two signs of life.
LEASE: Final = 10.0
RENEW_EVERY: Final = 2.0

#: Seconds until a ledger that cannot be reached is asked again.
_AWAY: Final = 2.0

#: At the end of the id of the row that says that all was sent.
_SENT: Final = "-sent"

#: What came of a run, by its `kind`; a `failure` is a `Failure` (or None).
Outcome = dict[str, Any]


@dataclass(slots=True)
class Run:
    """A run that was claimed, or was to be: `key` is that of its row."""

    key: str
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with a message.

    `run`: this worker claimed it.  `again_in`: look again after so many seconds.  `lost`: a worker
    that died had claimed it, and it may not run again; this one did, to say so.  `outcome`: what
    came of it elsewhere is to be told once more.  Else there is nothing to do but to acknowledge.
    """

    run: bool = False
    again_in: float | None = None
    lost: bool = False
    outcome: Outcome | None = None


RUN: Final = Verdict(run=True)


class Claims:
    """The claims of one worker in the ledger at `place`; its methods are called in threads that may
    wait.

    Rows stay for `ttl` seconds at least (None: for ever).  `shared`: rows of flows are in it, too.
    Outcomes are kept in what `serializer` writes.
    """

    ledger: base.Ledger

    def __init__(self, place: str, ttl: float | None, *, shared: bool, serializer: str) -> None:
        self._place = place
        self._ttl = ttl
        self._shared = shared
        self._serializer = serializer
        self._holder = ""
        self._stopping = threading.Event()
        self._renewed = -math.inf
        #: What is still to be said of runs that ended, or were released, while the ledger was away,
        #: by their keys.
        self._unsaid: dict[str, Callable[[], bool]] = {}
        self._saying = threading.Lock()
        self._thread = threading.Thread(target=self._renew, name="wbengine-claims", daemon=True)

    def open(self, holder: str) -> None:
        """Begin, for the worker of this name.

        :raises LedgerFailure: the ledger cannot be used.
        """
        self._holder = holder
        self.ledger = ledgers.open_ledger(self._place, "worker", self._ttl)
        self._say()
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
            try:
                self._say_all()
            except exceptions.LedgerFailure as error:
                LOG.warning("what came of %d tasks is not stored: %s", len(self._unsaid), error)
            self.ledger.close()

    def take(self, run: Run, again: bool) -> Verdict:
        """Claim a run; `again`: it may run once more where the worker that had it died."""
        try:
            return self._take(run, again)
        except exceptions.LedgerFailure as error:
            LOG.warning("a task of Celery's cannot be claimed, and waits: %s", error)
            return Verdict(again_in=_AWAY)

    def _take(self, run: Run, again: bool) -> Verdict:
        ledger = self.ledger
        if time.monotonic() - self._renewed > LEASE / 2:
            self._say()  # after a long sleep: a claim of a worker that seems dead is none
        self._say_again(run.key)  # now, and not once it is claimed anew
        ledger.open(run.key, run.epoch)
        while True:
            said = ledger.claim(run.key, run.epoch, self._holder)
            run.epoch = said.epoch
            if said.granted:
                # At a later epoch another one had it, and died.
                return RUN if again or run.epoch == 1 else Verdict(lost=True)
            if said.verdict == base.DONE:
                if ledger.state(run.key + _SENT) is not None:
                    return Verdict()
                return Verdict(outcome=_loads(said.result or b""))
            if said.verdict == base.MISSING:
                ledger.open(run.key, run.epoch)
            elif said.verdict == base.HELD:
                if (left := self._lease_of(said.holder)) > 0:
                    return Verdict(again_in=min(left, LEASE))
                with contextlib.suppress(exceptions.NotFound):
                    run.epoch += 1
                    ledger.reopen(run.key, run.epoch)

    def _lease_of(self, holder: str | None) -> float:
        """Seconds until a worker is taken for dead; it may be this one, or say so again then."""
        if holder == self._holder:
            return RENEW_EVERY
        silent = None if holder is None else self.ledger.silence(holder)
        return 0.0 if silent is None else LEASE - silent

    def finish(self, run: Run, outcome: Outcome) -> bool:
        """Store what came of a run; False: it is not this worker's any more, and not to be told."""
        try:
            stored = _dumps(outcome, self._serializer)
        except kombu.exceptions.EncodeError as error:  # Celery cannot write it, and says so
            failure = ft.Failure.from_exception(error)
            stored = _dumps({"kind": "failure", "failure": failure}, self._serializer)
        finish = functools.partial(self.ledger.finish, run.key, run.epoch, self._holder, stored)
        try:
            return finish()
        except exceptions.LedgerFailure as error:
            LOG.warning("what came of a task of Celery's cannot be stored now: %s", error)
            self._unsaid[run.key] = finish
            return True  # the client is told all the same

    def sent(self, run: Run) -> None:
        """All that follows from a run was sent."""
        try:
            self.ledger.open(run.key + _SENT, 1)
        except exceptions.LedgerFailure as error:
            LOG.debug("%s", error)  # it may be sent once more

    def release(self, run: Run) -> None:
        """It did not begin, or is to begin anew: others may claim it, once the ledger is there."""
        self._unsaid[run.key] = functools.partial(
            self.ledger.release, run.key, run.epoch, self._holder
        )
        try:
            self._say_again(run.key)
        except exceptions.LedgerFailure as error:
            LOG.debug("%s", error)

    def _say_again(self, key: str) -> None:
        """
        :raises LedgerFailure: the ledger is still away.
        """
        with self._saying:
            if (say := self._unsaid.get(key)) is not None:
                say()
                del self._unsaid[key]

    def _say_all(self) -> None:
        for key in list(self._unsaid):
            self._say_again(key)

    def sweep(self) -> None:
        """Remove rows that are too old, but none that a worker renews."""
        if self._shared or self._ttl is None:
            self.ledger.sweep_stale(self._ttl)
        else:
            self.ledger.sweep(self._ttl)

    # Signs of life.

    def _say(self) -> None:
        now = time.monotonic()
        self.ledger.renew(self._holder)
        self._renewed = now

    def _renew(self) -> None:
        swept = time.monotonic()
        while not self._stopping.wait(RENEW_EVERY):
            try:
                self._say()
                self._say_all()
                if time.monotonic() - swept >= base.SWEEP_EVERY:
                    swept = time.monotonic()
                    self.sweep()
            except exceptions.LedgerFailure as error:
                LOG.warning("the ledger cannot be told that this worker lives: %s", error)


def key_of(id: str, retries: int, nesting: int, task: str, body: Any) -> str:
    """The key of a run; `body` has the arguments as they came.

    Those of a message of version 1, which Celery has read, are not looked at.
    """
    call = hashlib.sha256(task.encode("utf-8", "surrogatepass"))
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes | bytearray | memoryview):
        call.update(b"\n")
        call.update(body)
    key = f"celery-{id}-{retries}-{nesting}-{call.hexdigest()[:16]}"
    if _names.is_label(key + _SENT):
        return key
    return f"celery-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _dumps(outcome: Outcome, serializer: str) -> bytes:
    """
    :raises kombu.exceptions.EncodeError: the serializer cannot write it.
    """
    if failure := outcome.get("failure"):
        outcome = {**outcome, "failure": failure.to_json()}
    content_type, encoding, body = serialization.dumps(outcome, serializer)
    head = json.dumps([content_type, encoding]).encode()
    return head + b"\n" + (body if isinstance(body, bytes) else body.encode())


def _loads(stored: bytes) -> Outcome:
    head, _, body = stored.partition(b"\n")
    content_type, encoding = json.loads(head)
    found: Outcome = serialization.loads(body, content_type, encoding, accept=[content_type])
    if failure := found.get("failure"):
        found["failure"] = ft.Failure.from_dict(failure)
    return found
