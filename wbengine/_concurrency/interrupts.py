"""Exceptions that one thread raises in a call of another thread, to enforce time limits.

Best effort: code may be interrupted at any instruction. In the main thread (also of a child
process), a signal raises the exceptions and ends most waits in C code. In other threads they are
asynchronous exceptions of Python: waits in C code continue until they return, and a lock that the
call is about to acquire or release may stay locked.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from wbengine import exceptions
from wbengine._concurrency import timers
from wbengine._concurrency.time_limits import TimeLimit
from wbengine.types import failure as ft

__all__ = ["SIGNAL", "Interrupt", "current", "handle_signal", "limited", "masked"]

Kind = type[exceptions.SoftTimeLimitExceeded] | type[exceptions.TimeLimitExceeded]

#: The signal that interrupts the main thread. Programs rarely use this one.
SIGNAL: Final[int] = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1

_NOTHING: Final = object()
_here = threading.local()
_handled = False


class Interrupt:
    """Delivers exceptions to one call. Create it in the thread of the call, before the call."""

    __slots__ = (
        "_by_signal",
        "_has_ended",
        "_lock",
        "_masks",
        "_outer",
        "_pending_kind",
        "_raised",
        "_redirect",
        "_thread",
    )  # fmt: skip

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._by_signal = _handled and threading.current_thread() is threading.main_thread()
        self._outer = current()
        self._lock = threading.Lock()
        self._masks = 1  # Exceptions are delayed until the call begins.
        self._pending_kind: Kind | None = None
        self._redirect: Callable[[Kind], object] | None = None
        self._raised = self._has_ended = False

    @property
    def redirected(self) -> bool:
        """Whether exceptions are passed to another object instead of raised in the thread."""
        return self._redirect is not None

    def deliver(self, kind: Kind = exceptions.SoftTimeLimitExceeded) -> None:
        """Raise `kind` in the call soon, unless it has ended. Thread-safe; does not block."""
        with self._lock:
            if self._has_ended:
                return
            if self._redirect is not None:
                self._redirect(kind)
            elif self._masks:
                self._pending_kind = kind
            elif self._by_signal:
                self._pending_kind = kind
                signal.pthread_kill(self._thread, SIGNAL)
            else:
                self._raised = True
                _raise_in(self._thread, kind)

    def mask(self) -> None:
        """Delay later exceptions until `unmask`."""
        with self._lock:
            _checkpoint()
            self._masks += 1

    def unmask(self) -> None:
        """End one `mask`. Raise an exception that was delivered in between."""
        with self._lock:
            self._masks -= 1
            due = None
            if not self._masks:
                due, self._pending_kind = self._pending_kind, None
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
        """Return the result of `fn(*args)`, or the `Failure` of an exception. Raise nothing.

        After the call, this interrupt raises nothing.
        """
        value: Any = _NOTHING
        # If an exception arrives between two of these steps, the next block catches it. Three
        # blocks suffice, because each of the two kinds is raised at most once.
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
            self._has_ended = True
            if self._raised:
                _raise_in(self._thread, None)
        _here.interrupt = self._outer

    def _on_signal(self) -> None:
        """Handle the signal in the main thread. Takes no lock, because it may run at any time."""
        if self._outer is not None:
            self._outer._on_signal()
        kind = self._pending_kind
        if kind is None or self._has_ended or self._masks or not self._by_signal:
            return
        self._pending_kind = None
        if self._redirect is not None:
            self._redirect(kind)
        else:
            raise kind


def current() -> Interrupt | None:
    """Return the interrupt of the innermost `Interrupt.call` in this thread, or None."""
    interrupt: Interrupt | None = getattr(_here, "interrupt", None)
    return interrupt


def handle_signal() -> None:
    """Install the handler of `SIGNAL` if this is the main thread."""
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
    """Run `Interrupt.call` with a time limit.

    After the hard limit, the timer thread calls `on_hard(interrupt)`. By default,
    `TimeLimitExceeded` is raised in the call.
    """
    clock, interrupt = timers.of_process(), Interrupt()
    timer_handles = []
    if limit.soft is not None:
        timer_handles.append(clock.after(limit.soft, interrupt.deliver))
    if limit.hard is not None:
        act = on_hard or functools.partial(Interrupt.deliver, kind=exceptions.TimeLimitExceeded)
        timer_handles.append(clock.after(limit.hard, functools.partial(act, interrupt)))
    value = interrupt.call(fn, args)
    for timer in timer_handles:
        clock.cancel(timer)
    return value


@contextlib.contextmanager
def masked() -> Iterator[None]:
    """Delay exceptions in this thread until the end of the block."""
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
    """Do nothing. At the start of a function, Python raises pending asynchronous exceptions."""


class _ClearFlag(BaseException):
    """Raised and caught immediately in the timer thread."""


def _raise_in(thread: int, kind: Kind | None) -> None:
    """Raise `kind` in a thread soon. None cancels an exception that was not raised yet."""
    _set_async_exc(thread, kind)
    timers.of_process().after(0, _clear_flag)


def _clear_flag() -> None:
    """Clear the interpreter's flag for pending asynchronous exceptions.

    Until an exception is raised, all threads check the flag at each instruction. On Python 3.11, a
    traced thread (in a debugger) then makes no progress while the other thread waits in C code.
    That thread checks again when it returns.
    """
    try:
        _set_async_exc(threading.get_ident(), _ClearFlag)
        _checkpoint()
    except _ClearFlag:
        pass


def _set_async_exc(thread: int, kind: type[BaseException] | None) -> None:
    # Imported here, because few processes need ctypes.
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind)
    )
