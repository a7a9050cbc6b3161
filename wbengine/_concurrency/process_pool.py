"""Pool of child processes. One thread of this process serves each child."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.util
import os
import select
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import context as mp_context
from multiprocessing import process as mp_process
from typing import Any, Final

from wbengine import exceptions
from wbengine._concurrency import (
    child_logs,
    child_process,
    eventlet,
    main_module,
    thread_pools,
    timers,
)
from wbengine._imports import search_path
from wbengine.types import failure as ft

__all__ = ["ProcessPool"]

LOG = logging.getLogger("wbengine.pools")

EventCallback = Callable[[str, dict[str, Any]], None]

#: Modules that the fork server imports once for all children.
PRELOAD: Final = (
    "wbengine._concurrency.fork_server",
    "wbengine._calls.invocation",
    "wbengine.task",
    "wbengine._concurrency.child_process",
)

#: Interval between two checks of the memory of a child during a call.
_MEMORY_CHECK_SECONDS: Final = 0.1
#: Time limit for the end of a child (exit handlers, remaining threads).
_GRACE_SECONDS: Final = 2.0
#: Maximum bytes of a folder's path. The path of a socket in it may have 107 bytes.
_MAX_FOLDER_LENGTH: Final = 70
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

# `multiprocessing` tracks children without a lock, and reads an exit status only once.
_bookkeeping_lock = threading.Lock()


class ProcessPool(thread_pools.Pool):
    """`size` child processes. A thread serves each child over a pipe.

    - `fn` must be importable by name. The pool pickles `fn`, its arguments, events and results. If
      this fails, the call fails with `NotEncodable`, and the child continues.
    - Exceptions of `fn` (including `SystemExit` and `KeyboardInterrupt`) result in a `Failure`.
    - If a child dies, its call fails with `WorkerLost`, which contains the pid and the exit code or
      signal. The next call replaces the child. Other calls are not affected.
    - If the first children end before they are ready, no more are started and all calls fail. The
      usual cause is a script that starts processes on import.
    - After the soft limit, a signal (the last but one of the real-time signals) raises the
      exception in the main thread of the child. It interrupts most waits in C code. After the hard
      limit the child is killed, but not processes that the call started.
    - `max_calls`: maximum number of calls of a child. `max_memory` (resident bytes): if a child
      needs more during a call, it is killed and the call fails with `MemoryError`; after a call, it
      is replaced.
    - Log records of a call are passed to the loggers of this process before the call ends. A child
      has no log handlers of its own, and the log levels of its start (see `child_logs`).
    - Children are not forks of this process (forkserver, otherwise spawn). They import the module
      `__main__` under another name, so programs need a main guard: scripts at the start, the
      `__main__.py` of a package, a folder or a zip file for the first call that refers to it.
    - A child gets the environment at its start. It ignores `fork_signals.NUMBERS`, which
      processes that a call forks do not, and ends when this process ends, even during a call.
    - If a call closes the descriptors of its child, the child ends after the call.

    A call costs about 0.1 ms in addition to its own work; a child about 10 ms, the first one more.

    :raises ValueError: if a size or maximum is not positive, the memory of processes is unknown on
        this system, or eventlet has patched the standard library.
    """

    def __init__(
        self,
        size: int,
        *,
        max_calls: int | None = None,
        max_memory: int | None = None,
        name: str = "wbengine",
    ) -> None:
        for option, value in (("max_calls", max_calls), ("max_memory", max_memory)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(f"{option} must be a whole number of at least 1, got {value!r}")
        if max_memory is not None and _memory(os.getpid()) is None:
            raise ValueError(
                "max_memory is not supported: this system does not report the memory of processes"
            )
        eventlet.check_poll("a pool of processes")
        super().__init__(size, name=name)
        self.max_calls = max_calls
        self.max_memory = max_memory
        #: Whether any child was ever ready.
        self.proven = False
        #: Why no child can start, if known. Then no more children are started.
        self.problem: ft.Failure | None = None
        self._modules: frozenset[str] = frozenset()

    @property
    def pids(self) -> list[int]:
        with self._lock:
            slots = list(self._slots)
        return [slot.pid for slot in slots if isinstance(slot, _Process) and slot.pid]

    @staticmethod
    def check() -> None:
        """Check that this process can start children.

        :raises RuntimeError: if this is a child that is running the module `__main__`.
        """
        if main_module.is_running():
            raise RuntimeError(
                "a child process must not start processes while it imports the program:"
                f" {main_module.GUARD_HINT}"
            )

    def preload(self, modules: Iterable[str]) -> None:
        """Make each child import these modules before its first call. Call this before `start`.

        The time limits of calls then exclude these imports.
        """
        self._modules |= {name for name in modules if name != "__main__"}

    def make_child(self, name: str) -> _Child:
        return _Child(name, sorted(self._modules))

    def _make_slot(self, name: str) -> thread_pools.Slot:
        return _Process(name, self)


class _Process(thread_pools.Slot):
    """The parent's side of a slot. It replaces its child when necessary."""

    def __init__(self, name: str, pool: ProcessPool) -> None:
        super().__init__(name)
        self._pool = pool
        # Protects the attributes below. A child is removed from the slot before it is closed.
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._killed = False
        # The current call, whether the child received it, and why the child was killed.
        self._call: thread_pools.PoolCall | None = None
        self._sent = False
        self._kill_reason: BaseException | None = None
        self._timers: list[timers.Timer] = []

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def open(self) -> None:
        problem = self._ensure()
        if isinstance(problem, ft.Failure):
            LOG.warning("process %s did not start: %s", self.name, problem.pformat())

    def run(self, call: thread_pools.PoolCall) -> Any:
        call_parts = call.fn, call.args, call.limit.soft, call.cancellation.deadline
        try:
            data = child_process.encode(child_process.CALL, call_parts, "call")
            for _ in range(2):
                child = self._ensure()
                if isinstance(child, ft.Failure):
                    return child
                if not self._begin(child, call):
                    return call.cancelled_early()
                if child.send(data):
                    del data
                    call.tell_begun()
                    self._note_sent(child, call)
                    return self._outcome(child, child.result(call), call)
                # The child died before it received this call. Another child may run the call,
                # unless this call was the reason to kill the child.
                kill_reason = self._end_call()
                self.close()
                cancelled = call.cancellation.cancelled and not call.always_begins
                if kill_reason is not None and not cancelled:
                    return ft.Failure.from_exception(kill_reason)
            return thread_pools.worker_lost(
                f"two processes of {self.name} died before {call} started in them"
            )
        except exceptions.NotEncodable as error:
            return ft.Failure.from_exception(error)
        except Exception as error:
            self._end_call()
            self.close()
            return ft.Failure.from_exception(error)

    def _begin(self, child: _Child, call: thread_pools.PoolCall) -> bool:
        hard = call.limit.hard
        with self._lock:
            if call.cancellation.cancelled and not call.always_begins:
                return False
            self._call, self._sent, self._kill_reason = call, False, None
            child.calls += 1
            if hard is not None:
                text = f"{call} did not end within its hard limit of {hard:g} s"
                self._kill_later(call, hard, exceptions.TimeLimitExceeded, text)
            if self._pool.max_memory is not None:
                self._call_later(_MEMORY_CHECK_SECONDS, self._check_memory, child, call)
        return True

    def _note_sent(self, child: _Child, call: thread_pools.PoolCall) -> None:
        """Note that the child has received the call. Forward an earlier cancellation."""
        with self._lock:
            self._sent = True
            if call.cancellation.cancelled:
                child.cancel()

    def _end_call(self) -> BaseException | None:
        """Note that the call has ended. Return why its child was killed, or None."""
        with self._lock:
            timers_to_cancel, self._timers = self._timers, []
            self._call, kill_reason, self._kill_reason = None, self._kill_reason, None
        for timer in timers_to_cancel:
            timers.of_process().cancel(timer)
        return kill_reason

    def _outcome(self, child: _Child, value: Any, call: thread_pools.PoolCall) -> Any:
        kill_reason = self._end_call()
        if value is not _CHILD_DIED:
            # A child may send its result just before it is killed.
            self.exhausted = (
                kill_reason is not None
                or child.calls == self._pool.max_calls
                or self._excess_memory(child) is not None
            )
            return value
        self.exhausted = True
        self.close()
        if kill_reason is not None:
            return ft.Failure.from_exception(kill_reason)
        return thread_pools.worker_lost(
            f"process {child.pid} ({self.name}) {child.describe_end()} while it ran {call}"
        )

    # Other threads call the methods below during a call.

    def cancel(self, call: thread_pools.PoolCall, grace: float | None) -> None:
        with self._lock:
            if self._call is not call or self._child is None:
                return  # The call has ended, or checks for the cancellation when it begins.
            if self._sent:
                self._child.cancel()
            if grace is not None:
                text = f"{call} was cancelled but did not end"
                self._kill_later(call, max(0.0, grace), exceptions.Cancelled, text)

    def log_stacks(self) -> None:
        with self._lock:
            if self._sent and self._call is not None and self._child is not None:
                self._child.send(child_process.STACKS)

    def _kill_later(
        self, call: thread_pools.PoolCall, seconds: float, kind: type[BaseException], text: str
    ) -> None:
        """Kill the child after some time if it still runs this call. Requires the lock."""
        text = f"{text}; its process {self.pid} was killed"
        self._call_later(seconds, self._kill_child, call, kind, text)

    def _call_later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Call `act` after some time unless the call has ended. Requires the lock."""
        waiting = [timer for timer in self._timers if timer.act is not None]
        timer = timers.of_process().after(seconds, functools.partial(act, *args))
        self._timers = [*waiting, timer]

    def _kill_child(
        self, call: thread_pools.PoolCall, kind: type[BaseException], text: str
    ) -> None:
        with self._lock:
            child = self._child
            if self._call is not call or child is None or self._kill_reason is not None:
                return
            self._kill_reason = kind(text)
            child.kill()
        LOG.warning("process %s (%s) was killed: %s", child.pid, self.name, text)

    def _check_memory(self, child: _Child, call: thread_pools.PoolCall) -> None:
        size = self._excess_memory(child)
        if size is not None:
            text = (
                f"process {child.pid} used {size:,} bytes of memory while it ran {call},"
                f" more than {self._pool.max_memory:,}; it was killed"
            )
            self._kill_child(call, MemoryError, text)
            return
        with self._lock:
            if self._call is call:
                self._call_later(_MEMORY_CHECK_SECONDS, self._check_memory, child, call)

    def _excess_memory(self, child: _Child) -> int | None:
        max_memory = self._pool.max_memory
        size = None if max_memory is None else _memory(child.pid)
        return size if max_memory is not None and size is not None and size > max_memory else None

    # Between calls.

    def recycle(self) -> None:
        self.exhausted = False
        self.close()

    def _ensure(self) -> _Child | ft.Failure:
        if self._child is not None:
            if self._child.alive():
                return self._child
            self.close()
        pool = self._pool
        if pool.problem is not None:
            return pool.problem
        try:
            if search_path.current_folder() is None:  # `multiprocessing` needs it.
                raise FileNotFoundError("the current folder of this process was deleted")
            child = pool.make_child(self.name)
        except Exception as error:
            return ft.Failure.from_exception(error)
        with self._lock:
            self._child = child
            if self._killed:
                child.kill()
        if child.result(None) is not _CHILD_DIED:
            pool.proven = True
            return child
        self.close()
        text = f"process {child.pid} ({self.name}) {child.describe_end()} before it was ready"
        if pool.proven or child.exit_code is None or child.exit_code < 0:
            return thread_pools.worker_lost(text)
        pool.problem = thread_pools.worker_lost(f"{text}; {main_module.GUARD_HINT}")
        return pool.problem

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()


#: Result of `_Child.result` if the child died.
_CHILD_DIED: Final[Any] = object()


class _Child:
    """A child process and its pipe, used by one thread.

    The caller's lock guards `kill`, and `cancel` after `send`. `calls` counts the calls, including
    the current one.
    """

    def __init__(self, name: str, modules: list[str]) -> None:
        context = _context()
        self.calls = self._cancelled_call = 0
        #: As in `multiprocessing` (negative: a signal). Set by `close`.
        self.exit_code: int | None = None
        self._pipe, child_pipe = context.Pipe()
        try:
            with _bookkeeping_lock:
                levels, main = child_logs.levels(), main_module.source()
                child_args = child_pipe, dict(os.environ), levels, main, modules
                # Not a daemon: its code may use multiprocessing.
                self._process: mp_process.BaseProcess = context.Process(  # type: ignore[attr-defined]
                    target=child_process.main, args=child_args, name=name, daemon=False
                )
                with _safe_path(), main_module.hidden_unless_file():
                    self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            child_pipe.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._poll.register(self._process.sentinel, select.POLLIN)

    def alive(self) -> bool:
        # Between two calls a child sends nothing, so readable data means that it has ended.
        return not self._poll.poll(0)

    def send(self, data: memoryview | bytes) -> bool:
        try:
            self._pipe.send_bytes(data)
        except OSError:
            return False
        return True

    def cancel(self) -> None:
        """Forward the cancellation of the current call once.

        A second message could block, because a hung child does not read its pipe.
        """
        if self._cancelled_call != self.calls:
            self._cancelled_call = self.calls
            self.send(child_process.CANCEL)

    def result(self, tell: EventCallback | None) -> Any:
        """Return the result of the call, or `_CHILD_DIED` if the child died.

        While waiting, pass events to `tell` and log records to the loggers.
        """
        while (data := self._receive()) is not None:
            if data[:1] == child_process.RECORD:
                child_logs.replay(data[1:])
                continue
            try:
                if data[:1] != child_process.EVENT:
                    return child_process.decode(data, "result")
                event_type, details = child_process.decode(data, "event")
                if tell is not None:
                    tell(event_type, details)
            except exceptions.NotEncodable as error:
                if data[:1] != child_process.EVENT:
                    return ft.Failure.from_exception(error)
                LOG.warning("ignored an event of process %s: %s", self.pid, error)
        return _CHILD_DIED

    def _receive(self) -> bytes | None:
        # Poll the sentinel too: a process that the call started may keep the pipe open.
        pipe = self._pipe.fileno()
        try:
            if any(fd == pipe for fd, _ in self._poll.poll()) or self._pipe.poll(0):
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            pass
        return None

    def describe_end(self) -> str:
        """Return how the child ended, as part of a sentence. Call this after `close`."""
        code = self.exit_code
        if code is None:
            return "ended"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Close the pipe, so that the child ends. Kill the child if it does not end."""
        self._pipe.close()
        ended = select.poll()
        ended.register(self._process.sentinel, select.POLLIN)
        if not ended.poll(_GRACE_SECONDS * 1000):
            self.kill()
            ended.poll()
        with _bookkeeping_lock:
            self._process.join()
            self.exit_code = self._process.exitcode
            self._process.close()


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Prevent a new Python process from importing standard modules from the current folder.

    Children use the path of this process.
    """
    if "PYTHONSAFEPATH" in os.environ:
        yield
        return
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]


#: The process that started the fork server. Forks of this process cannot use the server, because it
#: is not their child.
_fork_server_pid: int | None = None


def _context() -> mp_context.BaseContext:
    global _fork_server_pid
    methods = multiprocessing.get_all_start_methods()
    # The socket of the fork server is in the temporary folder, whose path must be short.
    long = len(os.fsencode(tempfile.gettempdir())) > _MAX_FOLDER_LENGTH
    is_fork = _fork_server_pid not in (None, os.getpid())
    if "forkserver" not in methods or long or is_fork:
        return multiprocessing.get_context("spawn")
    # Imported here, because some platforms do not have it.
    from multiprocessing import forkserver

    # The first module sets the import path.
    forkserver.set_forkserver_preload([PRELOAD[0], "__main__", *PRELOAD[1:]])
    _fork_server_pid = os.getpid()
    return multiprocessing.get_context("forkserver")


def _memory(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


# Registered after the exit handler of `multiprocessing`, so that it runs before that handler, which
# would wait for children that wait for this process.
atexit.register(thread_pools.stop_all)
