"""What all pools are: a queue of calls, slots that take them, and the ends of both."""

from __future__ import annotations

import abc
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wbengine import _pool_ends, limits, running
from wbengine._pool_serving import Serving
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger("wbengine.pools")

#: What becomes of a call, in this order.  It is `OVER` as soon as it is settled who calls `done`.
QUEUED: Final = 0
RUNNING: Final = 1
OVER: Final = 2

Done = Callable[[Any], None]
OnEvent = Callable[[str, dict[str, Any]], None]


class Ticket:
    """One submitted call.  Calling it reports an event; the call in a thread is given it as `emit`.

    `cancelled`: somebody wants the call to end.  `deadline`, in unix seconds, is when its hard
    limit ends it; known while it runs.
    """

    __slots__ = (
        "args", "cancelled", "deadline", "done", "fn", "limit", "on_event", "pool", "slot", "state",
        "what",
    )  # fmt: skip

    def __init__(
        self,
        pool: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        done: Done,
        on_event: OnEvent | None,
        limit: limits.TimeLimit = limits.UNLIMITED,
        what: str | None = None,
    ) -> None:
        self.pool = pool
        self.fn = fn
        self.args = args
        self.done = done
        self.on_event = on_event
        self.limit = limit
        self.what = what
        self.state = QUEUED
        #: Where it runs, for its pool.
        self.slot: Any = None
        self.cancelled = False
        self.deadline: float | None = None

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        if self.limit is limits.UNLIMITED:
            self._tell(event_type, details)
            return
        # Not on top: without limits there are no alarms.
        from wbengine import alarms

        with alarms.held():
            self._tell(event_type, details)

    def _tell(self, event_type: str, details: dict[str, Any]) -> None:
        on_event = self.on_event
        if on_event is None:
            return
        try:
            on_event(event_type, details)
        except Exception:
            LOG.exception("the receiver of event %r of %s failed", event_type, self)

    def settle(self, value: Any) -> None:
        """Hand over what became of it."""
        try:
            self.done(value)
        except BaseException:
            LOG.exception("the receiver of the result of %s failed", self)
        # It may be known for long to whoever may cancel it.
        self.args, self.done = (), _ignore

    def cancel(self, grace: float | None = None) -> None:
        """Let the call come to an end soon; any thread.  Idempotent.

        One that has not started ends here and now: `done` is called with a `Failure` of
        `Cancelled`.  One that runs is told so (`emit.cancelled`, `Task.cancelled`).  If its process
        is one of its own, and `grace` seconds later (None: never) it still runs, that is killed,
        and the `Failure` is one of `Cancelled` too.  However else it ends counts.
        """
        if self.pool is not None:
            self.pool.cancel(self, grace)

    def __str__(self) -> str:
        if self.what is not None:
            return f"task {self.what!r}"
        return getattr(self.fn, "__qualname__", None) or repr(self.fn)


def _ignore(value: Any) -> None:
    """It was told already."""


class Slot:
    """A place where one call at a time runs: by default the thread that asks for that.

    Used by its own thread only, but for `kill` and `cancel`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether it needs a `rest` before it makes another call.
        self.worn = False
        self.thread: threading.Thread | None = None
        #: What its thread waits for while there is nothing to do; released to wake it.
        self.bell = threading.Lock()
        self.bell.acquire()
        #: The process that its thread was started in.
        self.home = os.getpid()

    def open(self) -> None:
        """Acquire in advance what `run` needs."""

    def run(self, ticket: Ticket) -> Any:
        """Run the call and return its value or `Failure`; never raises."""
        try:
            return ticket.fn(*ticket.args, ticket)
        except BaseException as error:
            return ft.Failure.from_exception(error)
        finally:
            if os.getpid() != self.home:  # a fork that the call made came out of it as well
                os._exit(0)
            ticket.on_event = None  # threads that outlive the call have nothing to tell any more

    def run_limited(self, ticket: Ticket) -> Any:
        """`run`, for a call that has a limit."""
        return self.run(ticket)

    def rest(self) -> None:
        """It is `worn`, and its last call is settled."""

    def cancel(self, ticket: Ticket, grace: float | None) -> None:
        """`ticket.cancelled` was set while the call ran."""

    def kill(self) -> None:
        """End what runs, from any thread."""

    def close(self) -> None:
        """Give back what the slot holds."""


class Pool(abc.ABC):
    """The queue, the threads of the slots, and their ends.  Any thread may call."""

    #: Whether its threads are its own: nobody else interrupts them, or calls are made in them.
    private = True

    def __init__(self, size: int, *, name: str = "wbengine") -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size of a pool must be a whole number of at least 1, not {size!r}")
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[Ticket] = deque()
        # Of those in the queue: they were cancelled.
        self._dead = 0
        self._slots: list[Slot] = []
        self._serving = Serving(self._lock)
        # Those that wait, the last is woken first: it makes all short calls.  Is one on its way?
        self._idle: list[Slot] = []
        self._called = False
        # Threads that tell what came of a call, and look for the next one after that.
        self._settling: set[int] = set()
        self._running = 0
        self._lost = 0
        self._eager = False
        self._stopping = False
        self._killed = False
        LIVE.add(self)

    @property
    def size(self) -> int:
        """How many calls can run at once."""
        return self._size

    @property
    def idle(self) -> int:
        """How many more calls would start at once.

        A slot counts as idle again just before the `done` of its call is called.
        """
        with self._lock:
            return max(0, self._size - self._running - self._queued())

    @property
    def unfinished(self) -> int:
        """How many calls wait or run."""
        with self._lock:
            return self._running + self._queued()

    @property
    def lost(self) -> int:
        """How many threads were given up so far: their calls ran on when their hard limit was over.

        Each was replaced; what it still does, and what it returns, counts no more.
        """
        return self._lost

    def start(self) -> None:
        """Start all slots now; returns at once, calls may be submitted before they are ready."""
        with self._lock:
            if self._stopping:
                raise RuntimeError(f"pool {self._name!r} was stopped")
            self._eager = True
            while len(self._slots) < self._size:
                self._add_slot()

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        done: Done,
        on_event: OnEvent | None = None,
        limit: limits.TimeLimit = limits.UNLIMITED,
        what: str | None = None,
        *,
        lazily: bool = False,
    ) -> Ticket:
        """Run `fn(*args, emit)` some time; `what` names its task, for people.

        `lazily`: the `done` that submits it returns at once, so that its slot makes the call, and
        nobody is woken for it.

        :raises RuntimeError: the pool was stopped.
        """
        if limit is not limits.UNLIMITED and limit == limits.UNLIMITED:
            limit = limits.UNLIMITED
        ticket = Ticket(self, fn, tuple(args), done, on_event, limit, what)
        with self._lock:
            if self._stopping:
                raise RuntimeError(f"pool {self._name!r} was stopped")
            self._queue.append(ticket)
            waiting = len(self._idle) + self._called
            if waiting < self._queued() and len(self._slots) < self._size:
                self._add_slot()
            if not (lazily and self.settles):
                self._call()
        return ticket

    @property
    def settles(self) -> bool:
        """Whether this is a `done` that asks, in the thread of its slot."""
        return threading.get_ident() in self._settling

    @property
    def goes_on(self) -> bool:
        """Whether the slot whose `done` asks makes another call then."""
        return bool(self._queue) and self.settles

    def call_others(self) -> None:
        """The `done` that submitted something lazily takes its time."""
        with self._lock:
            if self._queue:
                self._call()

    def withdraw(self) -> list[Ticket]:
        """Take back every call that has not started, in order; their `done` is never called."""
        with self._lock:
            tickets = [ticket for ticket in self._queue if ticket.state == QUEUED]
            for ticket in tickets:
                ticket.state = OVER
            self._queue.clear()
            self._dead = 0
        return tickets

    def cancel(self, ticket: Ticket, grace: float | None = None) -> None:
        """See `Ticket.cancel`."""
        with self._lock:
            before, known, slot = ticket.state, ticket.cancelled, ticket.slot
            if before == OVER:
                return
            ticket.cancelled = True
            if before == QUEUED:
                # It stays in the queue, where looking for it would take long.
                ticket.state = OVER
                self._dead += 1
        if before == QUEUED:
            ticket.settle(_pool_ends.cancelled(ticket, "before it started"))
        elif not known:
            running.wake(ticket)
            if slot is not None:
                slot.cancel(ticket, grace)

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        """Accept nothing more, finish what was submitted, and end the slots.  Idempotent.

        Idle slots end at once.  With `kill`, running processes are killed (threads cannot be: their
        calls finish) and calls that have not started fail; a later `stop(kill=True)` hastens an
        earlier `stop()`.  With `wait`, returns when every `done` has returned and all slots
        have ended; called from a `done`, it does not wait for that slot.  Nothing waits for a
        thread that is lost.
        """
        with self._lock:
            self._stopping = True
            self._killed = self._killed or kill
            slots = list(self._slots)
            while self._idle:
                self._ring()
        if kill:
            for slot in slots:
                slot.kill()
        if wait:
            self.join(None)
        LIVE.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join(self, timeout: float | None) -> None:
        """Wait until nobody serves any more but the thread that asks."""
        self._serving.join(timeout)

    @abc.abstractmethod
    def _make_slot(self, name: str) -> Slot: ...

    def _queued(self) -> int:
        return len(self._queue) - self._dead

    def _add_slot(self) -> None:
        slot = self._make_slot(f"{self._name}-{len(self._slots)}")
        self._man(slot)  # first: what an interruption leaves must not look like one that is served
        self._slots.append(slot)

    def _man(self, slot: Slot, *left: Any) -> None:
        """Give a slot a thread."""
        # Daemon threads: an idle pool that nobody stopped must not keep the interpreter alive.
        thread = threading.Thread(
            target=self._serve, args=(slot, *left), name=slot.name, daemon=True
        )
        slot.thread = thread
        thread.start()
        self._serving.begin(thread)

    def _serve(self, slot: Slot, left: tuple[Ticket, Any] | None = None) -> None:
        """The life of a thread; `left` is what one that was lost has left to tell."""
        slot.home = os.getpid()
        lost = False
        try:
            if left is not None:
                left[0].settle(left[1])
            elif self._eager:
                slot.open()
            left = None
            while not lost and (ticket := self._take(slot)) is not None:
                lost = not self._make(slot, ticket)
                del ticket
        finally:
            if not lost:
                slot.close()
                with self._lock:
                    self._arrive(slot)  # interrupted while it waited
                    self._serving.end(threading.current_thread())
                self.call_others()

    def _make(self, slot: Slot, ticket: Ticket) -> bool:
        """Make a call; False: this thread was given up meanwhile."""
        if self._killed:
            value: Any = _pool_ends.gone(f"pool {self._name!r} was stopped before {ticket} started")
        elif ticket.limit is limits.UNLIMITED:
            value = slot.run(ticket)
        else:
            value = slot.run_limited(ticket)
        with self._lock:
            if ticket.state == OVER:
                return False
            ticket.state = OVER
            ticket.slot = None
            self._running -= 1
        self._settling.add(me := threading.get_ident())
        try:
            ticket.settle(value)
        finally:
            self._settling.discard(me)
        if slot.worn:
            self.call_others()
            slot.rest()
        return True

    def _take(self, slot: Slot) -> Ticket | None:
        woken = False
        while True:
            with self._lock:
                if woken:
                    self._arrive(slot)
                queue = self._queue
                while queue:
                    ticket = queue.popleft()
                    if ticket.state == QUEUED:
                        ticket.state = RUNNING
                        ticket.slot = slot
                        self._running += 1
                        if queue:
                            self._call()
                        return ticket
                    self._dead -= 1
                if self._stopping:
                    return None
                self._idle.append(slot)
            woken = slot.bell.acquire()

    def _call(self) -> None:
        """Wake one that waits, unless one is on its way already: it calls the next one when it has
        taken something and there is more.  To wake all at once would cost more than short calls do.
        """
        if self._idle and not self._called:
            self._ring()
            self._called = True

    def _ring(self) -> None:
        # Wherever an interruption strikes: who is woken twice looks twice, nobody is forgotten.
        bell = self._idle[-1].bell
        if bell.locked():
            bell.release()
        self._idle.pop()

    def _arrive(self, slot: Slot) -> None:
        """It does not wait any more."""
        self._called = False
        if slot in self._idle:
            self._idle.remove(slot)


#: All pools that were not stopped.
LIVE: weakref.WeakSet[Pool] = weakref.WeakSet()
