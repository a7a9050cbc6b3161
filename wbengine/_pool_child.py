"""What a pool's child process runs, and how calls and results are pickled on both sides.

The pipe carries byte messages, each one tag byte followed by a pickle.  To the child: `CALL` with
`(fn, args, deadline, whether there is a soft limit)`.  From the child: `READY` once (None, or the
`Failure` of the initializer), then for each call any number of `EVENT`s and exactly one `RESULT`.
Before `READY`, and during calls, there may be `RECORD`s (`_pool_logs`).

A second pipe carries orders about the call that runs, by its number, which both sides count.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import os
import pickle
import select
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import connection as mp_connection
from typing import TYPE_CHECKING, Any, Final

from wbengine import _names, _pool_logs, alarms, exceptions, loops, running
from wbengine.types import failure as ft

if TYPE_CHECKING:
    Pipe = mp_connection.Connection[Any, Any]

CALL: Final = b"c"
READY: Final = b"+"
EVENT: Final = b"e"
RECORD: Final = b"l"
RESULT: Final = b"="

#: One order: which, and about which call.
ORDER: Final = struct.Struct("=cQ")
#: Somebody cancelled it.
CANCEL: Final = b"x"
#: Its soft limit is over.
SOFT: Final = b"s"

#: How long a child whose parent is gone may take to end by itself, in seconds.
_GRACE: Final = 5.0
#: Exit code of a child that stopped in the middle of a call because its parent was gone.
_ORPHANED: Final = 75
_DEPTH: Final = 64


def encode(tag: bytes, value: Any, where: str) -> memoryview:
    """Pickle `value` behind `tag`.

    :raises NotEncodable: it cannot be; the text has the path of the culprit.
    """
    buffer = io.BytesIO()
    buffer.write(tag)
    try:
        pickle.dump(value, buffer, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise _not_encodable(value, where, error) from error
    return buffer.getbuffer()


def encode_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    deadline: float | None = None,
    limited: bool = False,
) -> memoryview:
    """The message for one call.

    :raises NotEncodable: it cannot be pickled.
    """
    try:
        return encode(CALL, (fn, args, deadline, limited), "call")
    except exceptions.NotEncodable as error:
        for where, part in (("fn", fn), ("arguments", args)):
            if isinstance(error.__cause__, Exception) and not _pickles(part):
                raise _not_encodable(part, where, error.__cause__) from error.__cause__
        raise


def decode(data: bytes, what: str) -> Any:
    """The value behind the tag byte of `data`.

    :raises NotEncodable: it cannot be rebuilt.
    """
    try:
        return pickle.loads(memoryview(data)[1:])
    except BaseException as error:
        raise exceptions.NotEncodable(
            f"{what} cannot be rebuilt from its pickle: {type(error).__name__}: {error}",
            path=what,
        ) from error


def _not_encodable(value: Any, where: str, error: Exception) -> exceptions.NotEncodable:
    path, culprit = _culprit(value, where)
    type_name = _names.dotted(type(culprit))
    return exceptions.NotEncodable(
        f"{path}: {type_name} cannot be pickled ({type(error).__name__}: {error})",
        path=path,
        type_name=type_name,
    )


def _culprit(value: Any, where: str) -> tuple[str, Any]:
    """The innermost part of `value` that cannot be pickled, and its path."""
    for _ in range(_DEPTH):
        for label, part in _parts(value):
            if not _pickles(part):
                where, value = where + label, part
                break
        else:
            break
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"<key {type(key).__name__}>", key
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield "{...}", part
    elif not isinstance(value, type):
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                    yield f".{name}", getattr(value, name)


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return False
    return True


class _Outlet:
    """The way to the parent, for any thread, and for a handler of signals in the midst of it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.RLock()
        self._waiting: collections.deque[memoryview | bytes] = collections.deque()
        self._sending = False

    def send(self, data: memoryview | bytes) -> None:
        """Send one message, after those before."""
        with alarms.held(), self._lock:
            self._waiting.append(data)
            if self._sending:
                return  # called within itself
            self._sending = True
            try:
                while self._waiting:
                    self._pipe.send_bytes(self._waiting.popleft())
            except OSError:
                # The parent is gone: the listening thread ends this process.
                pass
            finally:
                self._sending = False

    def send_record(self, data: bytes) -> None:
        """Send what was logged."""
        self.send(RECORD + data)


class _Emitter:
    """The `emit` of one call: sends events in the order told, from any thread, until the result.

    `cancelled` and `deadline` are as those of a `Ticket`.
    """

    __slots__ = ("_line", "_lock", "_number", "_outlet", "deadline")

    def __init__(self, outlet: _Outlet, line: _Line, number: int, deadline: float | None) -> None:
        self._outlet: _Outlet | None = outlet
        self._line = line
        self._number = number
        self._lock = threading.Lock()
        self.deadline = deadline

    @property
    def cancelled(self) -> bool:
        return self._line.cancelled >= self._number

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        """Send an event; late ones are dropped.

        :raises NotEncodable: `details` cannot be pickled.
        """
        data = encode(EVENT, (event_type, details), "event")
        with alarms.held(), self._lock:
            if self._outlet is not None:
                self._outlet.send(data)

    def close(self) -> None:
        with self._lock:
            self._outlet = None


class _Line(threading.Thread):
    """Listens to what the parent says while calls run, and for its end."""

    def __init__(self, pipe: Pipe, orders: Pipe) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self._pipe = pipe
        self._orders = orders
        self.busy = False
        #: The latest call that was cancelled, and the latest whose soft limit was over.
        self.cancelled = 0
        #: That of the call that runs.
        self.emitter: _Emitter | None = None
        self._over = 0
        self._current: tuple[int, alarms.Alarm] | None = None
        self._lock = threading.Lock()

    def expect(self, number: int, alarm: alarms.Alarm) -> None:
        """From now on the alarm of that call is to ring."""
        with self._lock:
            self._current = number, alarm
            over = self._over >= number
        if over:  # the order was faster than the call itself
            alarm.ring()

    def run(self) -> None:
        poller = select.poll()
        pipe, orders = self._pipe.fileno(), self._orders.fileno()
        poller.register(pipe, 0)  # no events asked for: only hang-up and errors wake it
        poller.register(orders, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if pipe in ready:
                self._end()
            if ready.get(orders, 0) & select.POLLIN:
                self._obey(os.read(orders, 64 * ORDER.size))
            elif orders in ready:
                poller.unregister(orders)

    def _obey(self, data: bytes) -> None:
        for order, number in ORDER.iter_unpack(data):
            if order == CANCEL:
                self.cancelled = max(self.cancelled, number)
                if self.emitter is not None:
                    running.wake(self.emitter)
            else:
                with self._lock:
                    self._over = max(self._over, number)
                    current = self._current
                if current is not None and current[0] == number:
                    current[1].ring()

    def _end(self) -> None:
        """The parent is gone, or wants no more: end this process, even in the midst of a call."""
        if not self.busy:
            # The main thread sees the same end of file; it only needs help when the exit handlers
            # or threads that a call left behind keep the process alive.
            threading.Event().wait(_GRACE)
        os._exit(_ORPHANED)


def prepare(
    modules: Iterable[str], initializer: Callable[..., object] | None, *initargs: Any
) -> None:
    """Import what calls are going to need, so that it does not count as a part of the first one.

    What cannot be imported is told by the call that needs it.
    """
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if initializer is not None:
        initializer(*initargs)


def main(
    pipe: Pipe,
    orders: Pipe,
    environment: dict[str, str],
    wanted: _pool_logs.Levels,
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
) -> None:
    """Serve calls from `pipe`, one at a time, in the main thread, until it closes."""
    # They go to the whole group, and the parent decides.  A handler rather than SIG_IGN: programs
    # that a call starts must not inherit "ignored".
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda *_: None)
    alarms.install()
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    outlet = _Outlet(pipe)
    relay = _pool_logs.Relay(outlet.send_record)
    relay.install(wanted)
    line = _Line(pipe, orders)
    line.start()
    pid, number = os.getpid(), 0
    problem: ft.Failure | None = None
    with relay.heard():
        try:
            if initializer is not None:
                initializer(*initargs)
        except BaseException as error:
            problem = ft.Failure.from_exception(error)
    outlet.send(_encode_outcome(READY, problem))
    while problem is None:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            loops.stop_all()
            return
        line.busy = True
        number += 1
        with relay.heard():
            outcome = _serve(outlet, line, number, data)
        if os.getpid() != pid:  # a fork that the call made, and that came out of it as well
            os._exit(0)
        # Before the result goes out: once the parent has it, it may close the pipe at any time.
        line.busy = False
        outlet.send(outcome)
        del data, outcome


def _serve(outlet: _Outlet, line: _Line, number: int, data: bytes) -> memoryview:
    value: Any
    try:
        fn, args, deadline, limited = decode(data, "call")
    except BaseException as error:
        return _encode_outcome(RESULT, ft.Failure.from_exception(error))
    del data
    emit = line.emitter = _Emitter(outlet, line, number, deadline)
    if limited:
        alarm = alarms.make()
        line.expect(number, alarm)
        value = alarms.call(alarm, fn, (*args, emit))
    else:
        try:
            value = fn(*args, emit)
        except BaseException as error:
            value = ft.Failure.from_exception(error)
    line.emitter = None
    emit.close()
    return _encode_outcome(RESULT, value)


def _encode_outcome(tag: bytes, value: Any) -> memoryview:
    try:
        return encode(tag, value, "result")
    except exceptions.NotEncodable as error:
        return encode(tag, ft.Failure.from_exception(error), "result")
