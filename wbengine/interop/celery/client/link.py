"""The one way of a process to the workers of a Celery: many orders, one thread, one connection."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

from amqp import exceptions as amqp_errors

from wbengine import exceptions
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import brokers
from wbengine.interop.celery.client import stored
from wbengine.interop.celery.client.absence import Absence
from wbengine.interop.celery.client.addresses import Address
from wbengine.interop.celery.client.orders import NEW, Order
from wbengine.interop.celery.client.session import Session
from wbengine.transports import reasons
from wbengine.types import failure as ft

__all__ = ["Link", "close_all", "link_to"]

LOG: Final = logging.getLogger(__name__)

#: Seconds after which a link that nobody uses lets go of its thread and its connection.
IDLE: Final = 30.0
#: Seconds of each attempt to reach the broker.
_ATTEMPT: Final = 10.0
#: Seconds between two connections.
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class Link:
    """Sends orders to the workers of one address, and tells what becomes of them.

    It has one thread and one connection (one or two more to a Redis that has the results), from the
    first order until it has been idle for `idle` seconds.  A connection that is lost is made again;
    what was not confirmed is then sent again, and results are looked for.  All methods may be
    called from any thread.
    """

    def __init__(self, address: Address, idle: float = IDLE) -> None:
        self.address = address
        #: The queue that results come back to.
        self.reply_to = f"wbengine-replies-{uuid.uuid4()}"
        self._idle = idle
        self._broker = brokers.Broker(address.broker)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        # What others want of the thread, in their order.
        self._inbox: deque[Callable[[], None]] = deque()
        self._bell: socket.socket | None = None
        # The rest is the thread's own.
        self._waiting: dict[str, Order] = {}
        self._fresh: list[Order] = []
        self._revoked: dict[str | None, list[str]] = {}
        self._session: Session | None = None
        self._used = self._lasted = 0.0
        self._absence = Absence(self._broker.shown)

    def ask(self, order: Order) -> None:
        """Send an order; its `tell` is called once, unless `drop` came before."""
        self._put(lambda: self._take(order))

    def drop(self, order: Order, revoke: bool = True, signal: str | None = None) -> None:
        """Nobody waits for an order any more.  What was not sent yet is not sent; else, with
        `revoke`, the workers are told not to run it, or, with a signal, to end it.
        """
        with contextlib.suppress(RuntimeError):  # the interpreter ends: nobody can be told
            self._put(lambda: self._forget(order, revoke, signal))

    def fate(self, order: Order) -> str:
        """What is known of an order that did not end, in words; empty: no more than that."""
        return self._absence.fate(order)

    def revoke(self, name: str, signal: str | None = None) -> None:
        """Tell the workers not to run a task, which may have been sent by anybody."""
        self._put(lambda: self._revoked.setdefault(signal, []).append(name))

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, once what was asked for before is done, or after `timeout` seconds; what
        is waited for is waited for no more.  The next order begins anew.
        """
        with self._lock:
            thread, stopping = self._thread, self._stopping
            if thread is None:
                return
            self._inbox.append(stopping.set)
            self._ring()
        if thread is not threading.current_thread():
            thread.join(timeout)
            stopping.set()

    def _put(self, wish: Callable[[], None]) -> None:
        with self._lock:
            self._inbox.append(wish)
            if self._thread is None:
                self._start()
            elif len(self._inbox) == 1:
                self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            try:
                self._bell.send(b"\0")
            except OSError:
                pass  # it is full of rings, or the thread ends

    def _start(self) -> None:
        heard, self._bell = socket.socketpair()
        for end in (heard, self._bell):
            end.setblocking(False)
        stopping = self._stopping = threading.Event()
        name = "wbengine-celery-link"
        args = (heard, self._bell, stopping)
        thread = threading.Thread(target=self._serve, args=args, name=name, daemon=True)
        thread.start()
        self._thread = thread

    # In the thread.

    def _serve(self, heard: socket.socket, bell: socket.socket, stopping: threading.Event) -> None:
        self._used, pause = time.monotonic(), _PAUSE
        while not self._ends(stopping):
            try:
                self._connected(heard, stopping)
                continue
            except exceptions.TransportFailure as error:
                refused = self._refuses(error, error.__cause__)
            except Exception as error:
                self._lost(error)
                refused = self._refuses(error, error)
            if refused or not self._is_busy:
                self._used = -self._idle  # the next order tries again
            pause = min(pause * 2, _LONGEST_PAUSE) if self._lasted < _LONGEST_PAUSE else _PAUSE
            if self._is_busy:
                stopping.wait(pause)
        heard.close()
        bell.close()

    def _ends(self, stopping: threading.Event) -> bool:
        """Whether the thread is to end; then the next order starts another one."""
        with self._lock:
            if not (stopping.is_set() or self._is_over()):
                return False
            self._waiting.clear()
            self._thread = self._bell = None
            if self._inbox:
                self._start()
            return True

    def _connected(self, heard: socket.socket, stopping: threading.Event) -> None:
        """Serve for as long as the connection lasts."""
        began = time.monotonic()
        connection = self._broker.reach(stopping, within=_ATTEMPT, on_failure=self._complain)
        amqp = self._broker.is_amqp
        session = Session(connection, self.address, self.reply_to, self._waiting, amqp=amqp)
        try:
            self._session = session
            session.listen_to(heard, self._take_in)
            self._fresh.clear()  # it is among those that wait
            session.begin(list(self._waiting.values()))
            self._absence.over()
            self._take_in()
            while not (stopping.is_set() or self._is_over()):
                session.turn()
            session.flush()
            session.leave()
        finally:
            self._lasted = time.monotonic() - began
            self._session = None
            session.close()

    def _take_in(self) -> None:
        """Do what others want."""
        inbox, session = self._inbox, self._session
        while inbox:
            inbox.popleft()()
            self._used = time.monotonic()
        if session is None:
            return
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            session.begin(order for order in fresh if order.id in self._waiting)
        while self._revoked:
            signal, ids = self._revoked.popitem()
            session.revoke(ids, signal)

    def _take(self, order: Order) -> None:
        self._waiting[order.id] = order
        self._fresh.append(order)

    def _forget(self, order: Order, revoke: bool, signal: str | None) -> None:
        if self._waiting.get(order.id) is not order:
            return  # it has ended
        del self._waiting[order.id]
        if self._session is not None:
            self._session.ignore(order.id)
        if revoke and (order.stage != NEW or order.recovered):
            self._revoked.setdefault(signal, []).append(order.id)

    def _is_over(self) -> bool:
        """Whether nobody has used it for long."""
        return not self._is_busy and time.monotonic() - self._used >= self._idle

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting or self._revoked or self._inbox)

    def _lost(self, error: Exception) -> None:
        self._take_in()  # what came before it could be used waits as well
        known: tuple[type[BaseException], ...] = (*self._errors(), OSError)
        shown = self._broker.shown
        if not isinstance(error, amqp_errors.ChannelError):  # it was not what was sent
            for order in self._waiting.values():
                order.tries = 0
        if isinstance(error, known) and not self._is_busy:
            LOG.debug("the Celery broker at %s is gone: %s", shown, reasons.explain(error))
        elif isinstance(error, known):
            self._absence.lost(reasons.explain(error), len(self._waiting))
        else:
            LOG.exception("the link to the Celery broker at %s failed", shown)

    def _errors(self) -> tuple[type[BaseException], ...]:
        errors: tuple[type[BaseException], ...] = amqp_errors.AMQPError, exceptions.TransportFailure
        if self._broker.is_redis or self.address.stores:
            errors += stored.errors()
        return errors

    def _complain(self, why: str) -> None:
        self._take_in()
        self._absence.unreached(why, len(self._waiting))

    def _refuses(self, error: Exception, why: BaseException | None) -> bool:
        """Whether that is what waiting does not mend; then nobody waits any more."""
        if not (connecting.is_refusal(why) or isinstance(why, ImportError)):
            return False
        self._take_in()
        waiting, self._fresh = list(self._waiting.values()), []
        self._waiting.clear()
        if not isinstance(error, exceptions.TransportFailure):
            told = (
                f"the Celery broker at {self._broker.shown}, or the Redis of its results, cannot be"
                f" used: {reasons.explain(error)}"
            )
            error = exceptions.TransportFailure(told, error)
        for order in waiting:
            order.tell(ft.Failure.from_exception(error))
        return True


# All of this process. -----------------------------------------------------------------------------

_links: dict[tuple[int, Address], Link] = {}
_lock = threading.Lock()


def link_to(address: Address) -> Link:
    """The link of this process to an address."""
    key = os.getpid(), address  # a thread is not inherited
    with _lock:
        found = _links.get(key)
        if found is None:
            found = _links[key] = Link(address)
        return found


def close_all(timeout: float = 2.0) -> None:
    """Close the links of this process."""
    with _lock:
        pid = os.getpid()
        found = [_links.pop(key) for key in list(_links) if key[0] == pid]
    for link in found:
        link.close(timeout)


atexit.register(close_all)
