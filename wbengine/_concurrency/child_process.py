"""The main function of a child process of a pool, and the encoding of calls and results.

The pipe transfers byte messages: one tag byte and a pickle. The parent sends `CALL` with `(fn,
args, soft limit, deadline)`. During a call, it may send `CANCEL`, which cancels the call, and
`STACKS`, after which the child logs its stacks; both without a pickle. The child sends `READY`
once, then for each call any number of `EVENT`s and one `RESULT`. It may send `RECORD`s
(`child_logs`) before `READY` and during calls.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import io
import logging
import os
import pickle
import queue
import threading
import traceback
from collections.abc import Iterable
from multiprocessing import connection as mp_connection
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._concurrency import (
    child_logs,
    event_loop,
    fork_signals,
    forks,
    interrupts,
    main_module,
)
from wbengine._concurrency.call import Cancellation
from wbengine._concurrency.time_limits import TimeLimit
from wbengine._introspection import object_names
from wbengine.types import failure as ft

if TYPE_CHECKING:
    Pipe = mp_connection.Connection[Any, Any]

LOG = logging.getLogger(__name__)

CALL: Final = b"c"
CANCEL: Final = b"x"
STACKS: Final = b"s"
READY: Final = b"+"
EVENT: Final = b"e"
RECORD: Final = b"l"
RESULT: Final = b"="

#: Time limit for the end of a child after its parent has died.
_GRACE_SECONDS: Final = 5.0
#: Exit code of a child that stopped during a call because it had lost its parent or its pipe.
_ORPHANED: Final = 75


def encode(tag: bytes, value: Any, where: str) -> memoryview:
    """Return `tag` followed by the pickle of `value`.

    :raises NotEncodable: if the value cannot be pickled.
    """
    buffer = io.BytesIO()
    buffer.write(tag)
    try:
        pickle.dump(value, buffer, pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        raise exceptions.NotEncodable(
            f"{where} cannot be pickled ({type(error).__name__}: {error})", path=where
        ) from error
    return buffer.getbuffer()


def decode(data: bytes, what: str) -> Any:
    """Unpickle the value after the tag byte of `data`.

    :raises NotEncodable: if the value cannot be unpickled.
    """
    try:
        return pickle.loads(memoryview(data)[1:])
    except BaseException as error:
        raise exceptions.NotEncodable(
            f"{what} cannot be unpickled: {type(error).__name__}: {error}",
            path=what,
        ) from error


def pickles(value: Any) -> bool:
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except BaseException:
        return False
    return True


class _Outlet:
    """The pipe to the parent. Thread-safe, and reentrant for signal handlers.

    If it cannot be used, this process ends: its parent has died, or a call has closed the pipe.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._file = os.fstat(pipe.fileno())
        self._lock = threading.RLock()
        self._waiting: collections.deque[memoryview | bytes] = collections.deque()
        self._sending = False

    def send(self, data: memoryview | bytes) -> None:
        with interrupts.masked(), self._lock:
            self._waiting.append(data)
            if self._sending:
                return  # A reentrant call: the outer call sends the message.
            self._sending = True
            try:
                while self._waiting:
                    # A call may also have opened another file with the number of the pipe.
                    if not os.path.samestat(os.fstat(self._pipe.fileno()), self._file):
                        os._exit(_ORPHANED)
                    self._pipe.send_bytes(self._waiting.popleft())
            except OSError:
                os._exit(_ORPHANED)
            finally:
                self._sending = False

    def send_record(self, data: bytes) -> None:
        self.send(RECORD + data)


class _Emitter:
    """The `emit` of one call. It sends events in order, from any thread, until it is closed."""

    __slots__ = ("_lock", "_outlet", "cancellation")

    def __init__(self, outlet: _Outlet, cancellation: Cancellation) -> None:
        self._outlet: _Outlet | None = outlet
        self._lock = threading.Lock()
        self.cancellation = cancellation

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        """Send an event, or drop it if the call has ended.

        :raises NotEncodable: if `details` cannot be pickled.
        """
        with interrupts.masked():
            data = encode(EVENT, (event_type, details), "event")
            with self._lock:
                if self._outlet is not None:
                    self._outlet.send(data)

    def close(self) -> None:
        with self._lock:
            self._outlet = None


class _Inbox(threading.Thread):
    """Thread that reads calls and cancellations, and detects the end of the pipe."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self._pipe = pipe
        #: Calls with their tokens. None: no more calls.
        self.calls: queue.SimpleQueue[tuple[bytes, Cancellation] | None] = queue.SimpleQueue()
        #: Whether a call runs.
        self.busy = False

    def run(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                self._read()
        finally:
            # The parent has died, closed the pipe, or sent an unreadable message (for lack of
            # memory). This process ends, even during a call.
            self.calls.put(None)
            if not self.busy:
                # Usually the main thread ends the process first.
                threading.Event().wait(_GRACE_SECONDS)
            os._exit(_ORPHANED)

    def _read(self) -> None:
        latest = Cancellation()
        while True:
            data = self._pipe.recv_bytes()
            if data == CANCEL:
                try:
                    latest.cancel()
                except Exception:
                    LOG.exception("the cancel callback of a call failed")
            elif data == STACKS:
                object_names.load("wbengine._concurrency.stacks:log")()
            else:
                latest = Cancellation()
                self.calls.put((data, latest))
            del data


def main(
    pipe: Pipe,
    environment: dict[str, str],
    levels: child_logs.Levels,
    main_source: main_module.Source | None,
    modules: Iterable[str],
) -> None:
    """Serve calls from `pipe` in the main thread, one at a time, until the pipe is closed.

    `modules` are imported first, so that their import is not part of a call. If an import fails,
    the call that needs the module reports the error.
    """
    # The parent handles these signals, which are sent to the whole process group. The handler does
    # nothing; SIG_IGN would be inherited by programs that a call starts.
    fork_signals.handle(lambda *_: None)
    interrupts.handle_signal()
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    outlet = _Outlet(pipe)
    relay = child_logs.Relay(outlet.send_record)
    relay.install(levels)
    if main_source is not None:
        main_module.install(main_source, functools.partial(relay.install, levels))
    inbox = _Inbox(pipe)
    inbox.start()
    pid = forks.current_pid
    with relay.heard():
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    outlet.send(encode(READY, None, "ready"))
    try:
        while (call := inbox.calls.get()) is not None:
            inbox.busy = True
            data, cancellation = call
            with relay.heard():
                outcome = _serve(_Emitter(outlet, cancellation), data)
            forks.end_fork(pid)
            # Before sending the result: afterwards the parent may close the pipe at any time.
            inbox.busy = False
            outlet.send(outcome)
            del call, data, outcome
    except BaseException:
        # A handler of a signal raised it, after the call that installed the handler. Threads that
        # calls have left must not keep this process alive.
        traceback.print_exc()
        os._exit(1)
    event_loop.stop_all()


def _serve(emit: _Emitter, data: bytes) -> memoryview:
    value: Any
    try:
        fn, args, soft, emit.cancellation.deadline = decode(data, "call")
        del data
        if soft is not None:
            value = interrupts.limited(TimeLimit(soft), fn, (*args, emit))
        else:
            value = fn(*args, emit)
    except BaseException as error:
        value = ft.Failure.from_exception(error)
    emit.close()
    try:
        return encode(RESULT, value, "result")
    except exceptions.NotEncodable as error:
        return encode(RESULT, ft.Failure.from_exception(error), "result")
