"""Publishing to a RabbitMQ, which confirms what it got."""

from __future__ import annotations

import time

import kombu
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import (
    lasting,
    lines,
    outbox,
    topology,
    unconfirmed,
)
from wbengine.engines.worker_based.connections.parcels import Parcel
from wbengine.transports import reasons

__all__ = ["ConfirmingOutbox"]


class ConfirmingOutbox(outbox.Outbox):
    """What was confirmed is published; more is sent meanwhile.

    What the broker did not confirm in time is published again, as what a lost connection
    interrupted.
    """

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        super().__init__(target, layout, name)
        # What is written and not confirmed, and what to ring while it is waited for.
        self._post: unconfirmed.Post | None = None
        self._line: lines.Line | None = None
        # One at a time, until something is confirmed: what goes wrong then is the fault of one, and
        # a broker that takes nothing is not given the same again and again.
        self._careful = False

    def put_now(self, parcel: Parcel) -> None:
        """As `put`; but where nothing else is to be published, this thread writes it, at once.

        What comes of it is read by the publisher's thread.
        """
        lent = False
        try:
            with self._lock:
                self._parcels.append(parcel)
                post = self._post
                if (
                    post is None
                    or self._busy
                    or self._lent
                    or self._careful
                    or self._layout.interop  # which may have to ask the broker first
                    or len(self._parcels) > 1
                    or self._first
                    or post.room <= 0
                ):
                    if not self._busy:
                        self._wake()
                    return
                lent = self._lent = True  # in this order: it may be interrupted (Ctrl-C)
            self._send(post, self._prepared([parcel]))
        except self._links.errors as error:
            self._links.tell(reasons.explain(error))
        finally:
            if lent:
                with self._lock:
                    self._lent = False
                    if self._parcels or self._first or self._flushing or self._line is None:
                        self._wake()

    def _wake(self) -> None:
        super()._wake()
        if self._line is not None:
            self._line.ring()

    @property
    def _idle(self) -> bool:
        if self._lent or (self._post is not None and not self._post.is_idle):
            return False
        return super()._idle

    def _publish(self, connection: kombu.Connection) -> None:
        line = lines.Line(connection)
        post = None
        try:
            window = 1 if self._careful else unconfirmed.WINDOW
            lane = line.lane(self._layout.exchange.name)
            post = unconfirmed.Post(lane, self._layout, self._confirmed, window)
            with self._lock:
                self._line, self._post = line, post
            self._keep_sending(post)
        except Exception as error:
            line.drop()
            if isinstance(error, amqp_errors.NotFound):
                self.astray()
            if post is not None:
                self._blame(post, error)
            if isinstance(error, self._links.errors):
                raise
            raise exc.TransportFailure(reasons.explain(error)) from error
        finally:
            with self._lock:
                self._line = None
            if post is not None:
                self._recall(post)
            line.close()

    def _keep_sending(self, post: unconfirmed.Post) -> None:
        pause = 0.0
        while True:
            with self._lock:
                now = time.monotonic()
                room = post.room if now >= pause and not self._lent else 0
                parcels = self._together(min(outbox.MOST, room)) if room else []
                rest = self._chores_in()
                self._busy = bool(parcels or rest == 0)
                if self._closed.is_set():
                    return
                if self._idle:
                    self._changed.notify_all()
            if parcels:
                try:
                    wanted = self._prepared(parcels)
                except self._links.errors as error:  # of the ledger, say: the line is not to blame
                    self._links.tell(reasons.explain(error))
                    pause = time.monotonic() + lasting.PAUSE
                    continue
                pause = 0.0
                self._send(post, wanted)
                post.read(0)
            elif rest != 0:
                waits = [rest, max(0.01, pause - now) if pause > now else None]
                spoke = post.read(min((wait for wait in waits if wait is not None), default=None))
                if spoke and not (self._careful or self._flushing or pause or self._chores):
                    post.rest()
            if self._chores_in() == 0:
                self._do_chores()

    def _send(self, post: unconfirmed.Post, parcels: list[Parcel]) -> None:
        crashpoint("outbox.before-publish")
        try:
            for parcel in parcels:
                self._send_one(post, parcel)
        finally:
            self._done(())
        post.lane.line.flush()
        crashpoint("outbox.after-publish")

    def _send_one(self, post: unconfirmed.Post, parcel: Parcel) -> None:
        try:
            message = post.prepare(parcel)
        except Exception as error:
            self._fail(parcel, error)
            return
        parcel.sent = True
        if not post.send(message):
            parcel.sent = False

    def _confirmed(self, confirmed: list[unconfirmed.Sent]) -> None:
        self._links.told = ""
        if self._careful and self._post is not None:
            self._careful = False
            self._post.widen()
        for sent in confirmed:
            if sent.returned:
                self.astray()
                outbox.call(sent.parcel.errand.unrouted, sent.parcel)
        routed = [sent.parcel for sent in confirmed if not sent.returned]
        for errand, group in outbox.by_errand(routed).items():
            outbox.call(errand.sent, group)

    def _blame(self, post: unconfirmed.Post, error: Exception) -> None:
        """What the broker would refuse for ever fails, as soon as it is known which one it is."""
        suspect = post.unconfirmed[0] if len(post.unconfirmed) == 1 else None
        if suspect is not None and self._careful and unconfirmed.refuses(error):
            post.unconfirmed.clear()
            self._fail(suspect.parcel, error)
        self._careful = bool(post.unconfirmed)

    def _recall(self, post: unconfirmed.Post) -> None:
        """Nobody knows what became of what was written and not confirmed."""
        again = []
        with self._lock:
            left = post.close()
            self._changed.wait_for(lambda: not self._lent)
        for sent in left:
            parcel = sent.parcel
            if parcel.errand.repeats or self._closed.is_set():
                parcel.sent = False
                again.append(parcel)
            else:
                outbox.call(parcel.errand.uncertain, parcel)
        with self._lock:
            self._parcels.extendleft(reversed(again))
            self._post = None
            self._busy = False
