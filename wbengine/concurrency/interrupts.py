"""Exceptions that one thread raises in a call of another: how limits end calls that run on.

Best effort, for code that may stop at any step.  In a child process, and wherever else the main
thread makes the call, a signal raises them, which also ends most waits in C.  In other threads they
are asynchronous exceptions of Python: what waits in C goes on until it returns, and a lock may stay
locked that the call was just about to take or to give back.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from wbengine import exceptions
from wbengine.concurrency import timers
from wbengine.concurrency.limits import TimeLimit
from wbengine.types import failure as ft

__all__ = ["SIGNAL", "Interrupt", "current", "handle_signal", "limited", "masked"]

Kind = type[exceptions.SoftTimeLimitExceeded] | type[exceptions.TimeLimitExceeded]

#: The signal that interrupts the main thread: one that programs rarely use themselves.
SIGNAL: Final[int] = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1

_NOTHING: Final = object()
_here = threading.local()
_handled = False


class Interrupt:
    """Delivers exceptions to one call; made in the thread of that call, just before it."""

    __slots__ = (
        "_by_signal", "_due", "_lock", "_masks", "_outer", "_over", "_raised", "_redirect",
        "_thread",
    )  # fmt: skip

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._by_signal = _handled and threading.current_thread() is threading.main_thread()
        self._outer = current()
        self._lock = threading.Lock()
        self._masks = 1  # until the call begins
        self._due: Kind | None = None
        self._redirect: Callable[[Kind], object] | None = None
        self._raised = self._over = False

    @property
    def redirected(self) -> bool:
        """Whether the thread waits for something that is interrupted in its place."""
        return self._redirect is not None

    def deliver(self, kind: Kind = exceptions.SoftTimeLimitExceeded) -> None:
        """Raise `kind` in the call soon, unless it is over.  Any thread; returns at once."""
        with self._lock:
            if self._over:
                return
            if self._redirect is not None:
                self._redirect(kind)
            elif self._masks:
                self._due = kind
            elif self._by_signal:
                self._due = kind
                signal.pthread_kill(self._thread, SIGNAL)
            else:
                self._raised = True
                _raise_in(self._thread, kind)

    def mask(self) -> None:
        """Raise nothing until `unmask`, but what was delivered before."""
        with self._lock:
            _checkpoint()
            self._masks += 1

    def unmask(self) -> None:
        """End one `mask`; raises what was delivered meanwhile."""
        with self._lock:
            self._masks -= 1
            due = None
            if not self._masks:
                due, self._due = self._due, None
        if due is not None:
            raise due

    @contextlib.contextmanager
    def redirecting(self, act: Callable[[Kind], object]) -> Iterator[None]:
        """In a `with` block, call `act(kind)` in the delivering thread instead of raising."""
        with self._lock:
            _checkpoint()
            before, self._redirect = self._redirect, act
        try:
            yield
        finally:
            with self._lock:
                self._redirect = before

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What `fn(*args)` returns, or the `Failure` of what is raised in it; raises nothing.

        From then on nothing is raised by this interrupt.
        """
        value: Any = _NOTHING
        # What is delivered between two of these steps is caught by the next block.  Three of them
        # are enough: each kind is raised once at most, and there are two.
        try:
            try:
                try:
                    _here.interrupt = self
                    self.unmask()
                    value = fn(*args)
                except BaseException as error:
                    value = ft.Failure.from_exception(error)
                self._close()
            except BaseException as late:
                if value is _NOTHING:
                    value = ft.Failure.from_exception(late)
                self._close()
        except BaseException as later:
            if value is _NOTHING:
                value = ft.Failure.from_exception(later)
            self._close()
        return value

    def _close(self) -> None:
        with self._lock:
            self._over = True
            if self._raised:
                _raise_in(self._thread, None)
        _here.interrupt = self._outer

    def _on_signal(self) -> None:
        """In the main thread, at any step of it: takes no lock."""
        if self._outer is not None:
            self._outer._on_signal()
        kind = self._due
        if kind is None or self._over or self._masks or not self._by_signal:
            return
        self._due = None
        if self._redirect is not None:
            self._redirect(kind)
        else:
            raise kind


def current() -> Interrupt | None:
    """That of the innermost call which this thread makes by `Interrupt.call`."""
    found: Interrupt | None = getattr(_here, "interrupt", None)
    return found


def handle_signal() -> None:
    """Have calls in the main thread interrupted by `SIGNAL`; elsewhere, do nothing."""
    global _handled
    if threading.current_thread() is threading.main_thread():
        signal.signal(SIGNAL, _on_signal)
        _handled = True


def _on_signal(number: int, frame: object) -> None:
    interrupt = current()
    if interrupt is not None:
        interrupt._on_signal()


def limited(
    limit: TimeLimit,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    on_hard: Callable[[Interrupt], object] | None = None,
) -> Any:
    """`Interrupt.call`, with one that delivers as the limit says.

    When the hard limit is over, `on_hard(interrupt)` is called in the thread for timers; without
    it, `TimeLimitExceeded` is raised in the call.
    """
    clock, interrupt = timers.of_process(), Interrupt()
    due = []
    if limit.soft is not None:
        due.append(clock.after(limit.soft, interrupt.deliver))
    if limit.hard is not None:
        act = on_hard or functools.partial(Interrupt.deliver, kind=exceptions.TimeLimitExceeded)
        due.append(clock.after(limit.hard, functools.partial(act, interrupt)))
    value = interrupt.call(fn, args)
    for timer in due:
        clock.cancel(timer)
    return value


@contextlib.contextmanager
def masked() -> Iterator[None]:
    """Let nothing be raised by this thread's interrupt while the block runs, but at its end."""
    interrupt = current()
    if interrupt is None:
        yield
        return
    interrupt.mask()
    try:
        yield
    finally:
        interrupt.unmask()


def _checkpoint() -> None:
    """Where Python raises asynchronous exceptions: at the beginning of every function."""


class _Calm(BaseException):
    """Raised, and caught at once, in the thread for timers."""


def _raise_in(thread: int, kind: Kind | None) -> None:
    """Raise `kind` in a thread soon; None: take back what was not raised yet."""
    _set_async_exc(thread, kind)
    timers.of_process().after(0, _calm)


def _calm() -> None:
    """Have the interpreter look no more for the thread that is to raise something.

    Until one raises, all threads look at each step, and one that is traced (by a debugger, say)
    does nothing else on Python 3.11: for hours, if the other waits in C.  It looks when it returns.
    """
    try:
        _set_async_exc(threading.get_ident(), _Calm)
        _checkpoint()
    except _Calm:
        pass


def _set_async_exc(thread: int, kind: type[BaseException] | None) -> None:
    # Not on top: few need it.
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind)
    )
