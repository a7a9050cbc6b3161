"""Exceptions that one thread raises in another, in the midst of a call, and nowhere else.

An alarm belongs to one call in one thread.  `ring` raises an exception in that call, if it is still
under way.  When `disarm` has returned, nothing that was rung is raised any more, whatever the
thread does next; `call` makes a call in that way.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from wbengine import exceptions, limits, watch
from wbengine.types import failure as ft

Kind = type[exceptions.SoftTimeLimitExceeded] | type[exceptions.TimeLimitExceeded]

#: What signal wakes the main thread: one that programs rarely use themselves.
NUMBER: Final[int] = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1

# While the call is in one of these modules, it is spared: an exception at the wrong moment leaves
# their locks locked.
#: Nobody stays there for long, and the locks are everybody's; or what is raised goes nowhere.
_SHARED: Final = frozenset({"logging", "importlib._bootstrap", "weakref", "_weakrefset"})
#: Calls wait there, for long perhaps, and not for ever are they spared.
_OWN: Final = frozenset({"queue", "threading", "concurrent.futures.thread"})
#: Seconds between two looks at whether it left them, and after how many that matters less.
_PAUSE: Final = 0.001
_LOOKS: Final = 50

#: Whether garbage is collected wherever an object is made: since 3.12, only between two steps of
#: Python code, and before 3.11 there is no object to make.
_COLLECTS_ANYWHERE: Final = sys.version_info[:2] == (3, 11)

_NOTHING: Final = object()

_here = threading.local()


class Alarm(abc.ABC):
    """Made in the thread of its call, which holds it until it is `let_go`.

    What rings while it is held is raised when it is let go.  Only `ring` may be called by other
    threads.
    """

    __slots__ = ("_diverted", "_due", "_held", "_looks", "_on", "_outer")

    def __init__(self) -> None:
        self._on = True
        self._held = 1
        self._due: Kind | None = None
        self._looks = _LOOKS
        self._diverted: Callable[[Kind], object] | None = None
        self._outer: Alarm | None = current()

    @abc.abstractmethod
    def ring(self, kind: Kind = exceptions.SoftTimeLimitExceeded) -> None:
        """Raise `kind` in the call, unless it is over.  Any thread; returns at once."""

    @abc.abstractmethod
    def disarm(self) -> None:
        """The call is over.  Idempotent."""

    @abc.abstractmethod
    def hold(self) -> None:
        """Raise nothing until `let_go`; what was rung before is raised here, or then."""

    @abc.abstractmethod
    def let_go(self) -> None:
        """End one `hold`; raises what rang meanwhile."""

    @abc.abstractmethod
    def _divert(self, act: Callable[[Kind], object] | None) -> None: ...

    @property
    def diverted(self) -> bool:
        """Whether the thread waits for something that is told instead."""
        return self._diverted is not None

    @contextlib.contextmanager
    def diverting(self, act: Callable[[Kind], object]) -> Iterator[None]:
        """Call `act(kind)` in the thread that rings, instead of raising anything here."""
        before = self._diverted
        self._divert(act)
        try:
            yield
        finally:
            self._divert(before)

    def _postponed(self, frame: FrameType | None, kind: Kind) -> bool:
        """Whether it is the wrong moment; then it rings again soon."""
        shelter = _shelter(frame)
        if shelter is None or (self._looks <= 0 and shelter is not _SHARED):
            return False
        self._looks -= 1
        watch.of_process().after(_PAUSE, functools.partial(self.ring, kind))
        return True


def current() -> Alarm | None:
    """The alarm of the innermost call that this thread makes by `call`."""
    found: Alarm | None = getattr(_here, "alarm", None)
    return found


class ThreadAlarm(Alarm):
    """Raises by an asynchronous exception: between two steps of the Python code of any thread.

    What waits in C is not interrupted; the exception comes when it returns.
    """

    __slots__ = ("_lock", "_struck", "_thread")

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._struck = False

    def ring(self, kind: Kind = exceptions.SoftTimeLimitExceeded) -> None:
        with self._lock:
            if not self._on:
                return
            if self._diverted is not None:
                self._diverted(kind)
            elif self._held:
                self._due = kind
            # Whoever rings has just been woken, and so is not interrupted between these two.
            elif not self._postponed(_frame_of(self._thread), kind):
                self._struck = True
                _strike(self._thread, kind)

    def disarm(self) -> None:
        with self._lock:
            self._on = False
            if self._struck:
                _strike(self._thread, None)
        _here.alarm = self._outer

    def hold(self) -> None:
        with self._lock:
            _checkpoint()
            self._held += 1

    def let_go(self) -> None:
        with self._lock:
            self._held -= 1
            due = None
            if not self._held:
                due, self._due = self._due, None
        if due is not None:
            raise due

    def _divert(self, act: Callable[[Kind], object] | None) -> None:
        with self._lock:
            _checkpoint()
            self._diverted = act


class SignalAlarm(Alarm):
    """Raises in the main thread by a signal: what waits there, also in C, is interrupted.

    `install` has to be called before.  All but `ring` happens in the main thread, where the signal
    is handled as well: no lock is needed, nor possible.
    """

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        super().__init__()
        self._rung: Kind | None = None

    def ring(self, kind: Kind = exceptions.SoftTimeLimitExceeded) -> None:
        if self._on:
            self._rung = kind
            signal.pthread_kill(threading.main_thread().ident or 0, NUMBER)

    def disarm(self) -> None:
        self._on = False
        _here.alarm = self._outer

    def hold(self) -> None:
        self._held += 1

    def let_go(self) -> None:
        self._held -= 1
        if not self._held:
            due, self._due = self._due, None
            if due is None:  # the first time, it may have rung before the handler knew the alarm
                due, self._rung = self._rung, None
            if due is not None:
                raise due

    def _divert(self, act: Callable[[Kind], object] | None) -> None:
        self._diverted = act

    def handle(self, frame: FrameType | None) -> None:
        """The signal came."""
        kind, self._rung = self._rung, None
        if self._outer is not None and isinstance(self._outer, SignalAlarm):
            self._outer.handle(frame)
        if kind is None or not self._on:
            return
        if self._diverted is not None:
            self._diverted(kind)
        elif self._held:
            self._due = kind
        elif not self._postponed(frame, kind):
            raise kind


def install() -> bool:
    """Have `SignalAlarm` work in this process; False: this is not its main thread."""
    global _installed
    if threading.current_thread() is threading.main_thread():
        signal.signal(NUMBER, _on_signal)
        _installed = True
        return True
    return False


_installed = False


def _on_signal(number: int, frame: FrameType | None) -> None:
    alarm = current()
    if isinstance(alarm, SignalAlarm):
        alarm.handle(frame)


def make() -> Alarm:
    """An alarm for the next call of this thread: the better sort where it is possible."""
    if _installed and threading.current_thread() is threading.main_thread():
        return SignalAlarm()
    return ThreadAlarm()


def call(alarm: Alarm, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What `fn(*args)` returns, or the `Failure` of what it, or the alarm, raises in it.

    Nothing is raised here, and nothing by the alarm from then on.  An alarm raises each kind once
    at most: there are two of them.
    """
    value: Any = _NOTHING
    # Whatever comes between two of these steps is caught; the innermost are the usual ones.  No
    # loop, and nothing that is called, is outside of all the blocks.
    try:
        try:
            try:
                _here.alarm = alarm
                alarm.let_go()
                value = fn(*args)
            except BaseException as error:
                value = ft.Failure.from_exception(error)
            alarm.disarm()
        except BaseException as late:
            if value is _NOTHING:
                value = ft.Failure.from_exception(late)
            alarm.disarm()
    except BaseException as later:
        alarm.disarm()
        if value is _NOTHING:
            value = ft.Failure.from_exception(later)
    return value


def limited(
    limit: limits.TimeLimit,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    on_hard: Callable[[Alarm], object] | None = None,
) -> Any:
    """`call`, with an alarm that rings as the limits say.

    When the hard one is over, `on_hard(alarm)` is called in the thread of the watch; without it
    `TimeLimitExceeded` is raised in the call.
    """
    clock, alarm = watch.of_process(), make()
    timers = []
    if limit.soft is not None:
        timers.append(clock.after(limit.soft, alarm.ring))
    if limit.hard is not None:
        act = (
            functools.partial(alarm.ring, exceptions.TimeLimitExceeded)
            if on_hard is None
            else functools.partial(on_hard, alarm)
        )
        timers.append(clock.after(limit.hard, act))
    value = call(alarm, fn, args)
    for timer in timers:
        clock.call_off(timer)
    return value


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let nothing be raised in this thread by its alarm while the block runs, but at its end."""
    alarm = current()
    if alarm is None:
        yield
        return
    alarm.hold()
    try:
        yield
    finally:
        alarm.let_go()


def _frame_of(thread: int) -> FrameType | None:
    """The innermost frame of a thread.

    Python 3.11 makes objects of the frames of all threads, under a lock that is also needed by who
    finalizes a `threading.local`, and by every thread that starts or ends.  If garbage is collected
    right then, everything stands still, for ever.
    """
    if not _COLLECTS_ANYWHERE or not gc.isenabled():
        return sys._current_frames().get(thread)
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        gc.enable()


def _shelter(frame: FrameType | None) -> frozenset[str] | None:
    """The sort of shelter that the call is in, if it is in one."""
    found = None
    collecting = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None and frame.f_code is not call.__code__:
        name, code = frame.f_globals.get("__name__"), frame.f_code
        # Nobody hears of what is raised while an object is finalized, or the collector calls back.
        if name in _SHARED or code.co_name == "__del__" or code in collecting:
            return _SHARED
        if name in _OWN:
            found = _OWN
        frame = frame.f_back
    return found


def _checkpoint() -> None:
    """Where Python looks for asynchronous exceptions: at the beginning of every function."""


class _Calm(BaseException):
    """Raised, and caught at once, by whoever calms the interpreter."""


def _strike(thread: int, kind: Kind | None) -> None:
    _raise_in(thread, kind)
    watch.of_process().after(0, _calm)


def _calm() -> None:
    """Have the interpreter look no more for who is to be struck.

    Until somebody is, all threads look at each step, and a traced one does nothing else any more
    (Python 3.11): for hours, if who is to be struck waits in C.  He looks himself when he returns.
    """
    try:
        _raise_in(threading.get_ident(), _Calm)
        _checkpoint()
    except _Calm:
        pass


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise `kind` in a thread soon; None: nothing any more of what is not raised yet."""
    # Not on top: few need it.
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind)
    )
