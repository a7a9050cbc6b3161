"""The thread that takes messages from the queues of Celery, for as long as its worker lives."""

from __future__ import annotations

import functools
import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import kombu

from wbengine import exceptions as exc
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import brokers
from wbengine.interop.celery.worker import amqp_line, lines
from wbengine.transports import reasons

__all__ = ["Consumer", "Owner"]

LOG = logging.getLogger(__name__)

#: Seconds that it sleeps at most.
_REST: Final = 60.0

#: Seconds before it connects again to a broker that can be reached, but not used.
_AILING_PAUSE: Final = 0.5

#: Seconds for which it still waits for what was asked for, once it takes nothing more.
_LAST_ANSWER: Final = 2.0

#: Parts of the time for which a message is ours after which we say so again.
_RENEWALS: Final = 4

#: What a broker says of orders that its queues do not know.
_NOT_IMPLEMENTED: Final = 540


class Owner(Protocol):
    """Whom a consumer serves; called in its thread, but for what is said to be called by any."""

    @property
    def prefetch(self) -> int:
        """How many messages may be unsettled at once."""

    def on_message(self, message: Any, receipt: lines.Receipt) -> None: ...

    def on_settled(self, receipts: Sequence[lines.Receipt]) -> None:
        """They are settled, or never can be."""

    def on_marked(self, receipts: Sequence[lines.Receipt], noted: bool) -> None:
        """Of the tasks of these it is noted that they begin, or that others began them."""

    def on_connected(self, connection: kombu.Connection) -> None:
        """It consumes; whatever else is to be consumed over this connection may be added."""

    def on_lost(self) -> None:
        """What came over the connection, and is not settled, comes again, here or elsewhere."""

    def on_time(self, now: float) -> float | None:
        """It is `now` (unix seconds); when to call again, None: not before something happens."""


class Consumer:
    """Take messages from `queues` of a broker, and hand them to `owner`.

    It connects again for as long as it takes.  What is settled while the broker is away is settled
    when it is back, where another connection can do that (Redis); else it comes again.
    """

    def __init__(self, broker: brokers.Broker, queues: Iterable[str], owner: Owner) -> None:
        self._broker = broker
        self._owner = owner
        self._queues = dict.fromkeys(queues)
        self._calls: deque[Callable[[], None]] = deque()
        self._ended: deque[tuple[lines.Receipt, bool]] = deque()
        self._marks: deque[lines.Receipt] = deque()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._over = threading.Event()
        self._quiet = threading.Event()
        self._line: lines.Line | None = None
        # The one before, as long as there is no other.
        self._lost: lines.Line | None = None
        self._taking = True
        self._shared = True
        self._rung = False
        self._told = ""
        self._renew_at = math.inf
        self._bell, self._clapper = socket.socketpair()
        for end in (self._bell, self._clapper):
            end.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, name="wbengine-celery-consumer", daemon=True
        )

    # For any thread.

    @property
    def queues(self) -> list[str]:
        """The names of the queues that it takes from."""
        return list(self._queues)

    def start(self) -> None:
        """Connect for the first time, and begin.

        :raises TransportFailure: the broker cannot be reached, or refuses to be used.
        """
        reach = functools.partial(
            self._broker.reach, self._stopping, within=brokers.CONNECT_TIMEOUT
        )
        try:
            try:
                self._open(reach())
            except Exception as error:
                if not self._is_beyond(error):
                    raise
                self._open(reach())
        except exc.TransportFailure:
            raise
        except Exception as error:
            raise exc.TransportFailure(
                f"the broker at {self._broker.shown} cannot be used: {reasons.explain(error)}"
            ) from error
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether it takes messages now."""
        return self._line is not None and self._ready.is_set()

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until it takes messages; False if time ran out."""
        return self._ready.wait(timeout)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have something done by its thread, soon."""
        self._calls.append(call)
        self.ring()

    def settle(self, receipts: Iterable[lines.Receipt], acknowledged: bool = True) -> None:
        """Have messages acknowledged, or rejected; `on_settled` tells when that is done."""
        self._ended.extend((receipt, acknowledged) for receipt in receipts)
        self.ring()

    def mark(self, receipt: lines.Receipt) -> None:
        """Have it noted that the task of a message begins; `on_marked` tells when that is done.

        Where what came over a connection is lost with it, so is this.
        """
        self._marks.append(receipt)
        self.ring()

    def pause(self) -> None:
        """Take nothing new; returns at once (see `wait_quiet`)."""
        self._taking = False
        if self._line is None:
            self._quiet.set()  # nothing can come
        else:
            self._quiet.clear()
        self.call_soon(functools.partial(self._take, False))

    def resume(self) -> None:
        """Undo `pause`."""
        self._taking = True
        self.call_soon(functools.partial(self._take, True))

    def wait_quiet(self, timeout: float | None = None) -> bool:
        """Wait until nothing comes any more after `pause`; False if time ran out."""
        return self._quiet.wait(timeout)

    def add(self, queue: str) -> None:
        """Take from one more queue."""

        def act() -> None:
            self._queues[queue] = None
            if self._line is not None:
                self._line.declare(queue)
                self._line.consume(queue)

        self.call_soon(act)

    def cancel(self, queue: str) -> None:
        """Take from a queue no more."""

        def act() -> None:
            self._queues.pop(queue, None)
            if self._line is not None:
                self._line.cancel(queue)

        self.call_soon(act)

    def ring(self) -> None:
        """Let its thread look at what there is to do."""
        if self._rung:
            return
        self._rung = True
        try:
            self._clapper.send(b"\0")
        except OSError:
            pass  # it is full of rings, or closed

    def close(self, timeout: float = 5.0) -> None:
        """Settle what is to be settled, leave, and end.  Idempotent."""
        self._stopping.set()
        self.ring()
        if self._thread.ident is None:
            self._leave()
            self._unhang()
        elif threading.current_thread() is not self._thread:
            self._over.wait(timeout)

    def _unhang(self) -> None:
        self._bell.close()
        self._clapper.close()

    # In its thread.

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._serve()
            self._finish()
        except Exception:
            LOG.exception("the consumer of %s ended", self._broker.shown)
        finally:
            self._leave()
            self._quiet.set()
            self._over.set()
            self._unhang()

    def _serve(self) -> None:
        """Until the connection ends, or it is to stop."""
        try:
            if self._line is None:
                self._open(self._broker.reach(self._stopping, on_failure=self._tell))
                if self._told:
                    LOG.warning("the broker at %s is back", self._broker.shown)
                self._told = ""
            self._owner.on_connected(self._line.connection)  # type: ignore[union-attr]
            self._ready.set()
            while not self._stopping.is_set():
                self._turn()
        except Exception as error:
            if self._stopping.is_set():
                return
            if self._is_beyond(error):
                return
            self._tell(reasons.explain(error))
            LOG.debug("the connection to %s ended", self._broker.shown, exc_info=error)
            self._leave()
            self._stopping.wait(_AILING_PAUSE)

    def _is_beyond(self, error: Exception) -> bool:
        """Whether the queues do not know what they were asked; from now on they are not."""
        if not self._shared or getattr(error, "reply_code", None) != _NOT_IMPLEMENTED:
            return False
        self._shared = False
        self._leave()
        return True

    def _tell(self, why: str) -> None:
        if why != self._told:
            LOG.warning("the broker at %s is away: %s; trying again", self._broker.shown, why)
        self._told = why

    def _open(self, connection: kombu.Connection) -> None:
        try:
            line = self._line_on(connection)
            for queue in self._queues:
                line.declare(queue)
            if self._lost is not None:
                line.adopt(self._lost)
            for queue in self._queues:
                line.consume(queue)
            if not self._taking:
                line.stop_taking()
        except BaseException:
            connecting.release(connection)
            raise
        self._line, self._lost = line, None
        self._renew_at = time.monotonic() + self._broker.visibility / _RENEWALS

    def _line_on(self, connection: kombu.Connection) -> lines.Line:
        owner, broker = self._owner, self._broker
        most = functools.partial(getattr, owner, "prefetch")
        given = (broker, connection, owner.on_message, owner.on_marked, most)
        if broker.is_redis:
            from wbengine.interop.celery.worker import redis_line

            return redis_line.Redis(*given, bell=self._bell, ring=self.ring)
        if broker.is_amqp:
            return amqp_line.Amqp(*given, bell=self._bell, ring=self.ring, shared=self._shared)
        return lines.Polled(*given)

    def _leave(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._lost = line
            line.close()
            if not line.settles_others:
                self._owner.on_lost()

    def _turn(self) -> None:
        line = self._line
        assert line is not None
        self._rung = False  # before looking: who comes later rings again
        while self._calls:
            self._calls.popleft()()
        self._settle(line)
        self._mark(line)
        now = time.time()
        due = self._owner.on_time(now)
        line.check()
        line.adjust()
        rest = _REST if due is None else max(0.0, min(_REST, due - now))
        if not line.taking and line.is_quiet:
            self._quiet.set()
        line.turn(min(rest, self._renew(line)))

    def _settle(self, line: lines.Line) -> None:
        batch = list(self._ended)
        if not batch:
            return
        line.settle(batch)  # all of it again, if that fails
        for _ in batch:
            self._ended.popleft()
        self._owner.on_settled([receipt for receipt, _ in batch])

    def _mark(self, line: lines.Line) -> None:
        batch = list(self._marks)
        if batch:
            line.mark(batch)  # all of it again, if that fails
            for _ in batch:
                self._marks.popleft()

    def _renew(self, line: lines.Line) -> float:
        """Seconds until what is unsettled is to be renewed again."""
        now = time.monotonic()
        if now >= self._renew_at:
            line.renew()
            self._renew_at = now + self._broker.visibility / _RENEWALS
        return self._renew_at - now

    def _take(self, taking: bool) -> None:
        if self._line is not None and taking == self._taking:
            if taking:
                self._line.take_again()
            else:
                self._line.stop_taking()

    def _finish(self) -> None:
        """Settle what is left, if that can be done at once."""
        line = self._line
        if line is None:
            return
        try:
            if line.taking:
                line.stop_taking()
            until = time.monotonic() + _LAST_ANSWER
            while not line.is_quiet and time.monotonic() < until:
                line.turn(0.1)
            self._settle(line)
            line.finish(_LAST_ANSWER)
        except Exception as error:
            LOG.debug("the last messages were not settled (%s)", error)
