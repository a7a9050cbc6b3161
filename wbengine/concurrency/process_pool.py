"""Calls in child processes, each served by a thread of its own here."""

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
from wbengine.concurrency import child_logs, child_process, eventlet, pools, timers
from wbengine.types import failure as ft

__all__ = ["ProcessPool"]

LOG = logging.getLogger("wbengine.pools")

Tell = Callable[[str, dict[str, Any]], None]

#: Modules that the process that children are forked from imports once, for all of them.
PRELOAD: Final = (
    "wbengine.concurrency.fork_server",
    "wbengine.invocation",
    "wbengine.task",
    "wbengine.concurrency.child_process",
)

#: Seconds between two looks at the memory of a child that runs a call.
_MEMORY_PERIOD: Final = 0.1
#: Seconds that a child that was told to end may take (exit handlers, forgotten threads).
_GRACE: Final = 2.0
#: Bytes of a folder's path that leave room for the name of a socket below it (107 in all).
_LONGEST_FOLDER: Final = 70
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

#: What people do about children that cannot start.
_ADVICE: Final = (
    "each child process imports the script that was started: what that does belongs below"
    ' `if __name__ == "__main__":`'
)

# `multiprocessing` keeps its books of children without a lock, and reads an exit status only once.
_BOOKS = threading.Lock()


class ProcessPool(pools.Pool):
    """`size` child processes, each served by its own thread over its own pipe.

    - `fn` must be importable by name; it, its arguments, its events and its result are pickled.
      What cannot be pickled is a `Failure` of `NotEncodable`, with pickle's own words; the child
      lives on.
    - What `fn` raises (`SystemExit` and `KeyboardInterrupt` included) is a `Failure` made in the
      child.
    - A child that dies gives a `Failure` of `WorkerLost` that names pid and exit code or signal; it
      alone is replaced, when the next call needs it.  One that dies between two calls costs none.
    - Where the first children end by themselves before they are ready, as they do when the script
      that is `__main__` starts something on import, no more are made: all calls fail alike.
    - The soft limit is raised in the child's main thread by a signal, and interrupts most of what
      waits in C; that signal (the last but one of the real-time ones) has a handler in children.
      At the hard limit the child is killed, and it alone.  Processes that a call started are not.
    - `max_calls`: a child makes no more calls than that.  `max_memory` (bytes that are resident): a
      call during which the child has more is killed, and fails with `MemoryError`; one that ends
      with more was the last of its child.  Both replace that child alone.
    - What a call logs comes out of the loggers of this process, before the call ends: a child has
      no handlers of its own, and the levels that loggers had here when it started.  What a thread
      that a call left behind logs between two calls comes with the next one.
    - Children are never forks of this process (forkserver, else spawn): the module `__main__` is
      imported under another name, as with `multiprocessing`, so scripts need their main guard.
      What the fork server imports beforehand (`multiprocessing.set_forkserver_preload`) is ours.
      They get the environment as it is when they start, do not react to SIGINT and SIGTERM (the
      parent decides), and end when the parent does, even in the middle of a call.

    A call costs about 0.1 ms above what it does; a child about 10 ms, the first one more.

    :raises ValueError: a size or maximum is not above 0; the memory of processes is not known here;
        eventlet has patched the standard library.
    """

    def __init__(
        self,
        size: int,
        *,
        max_calls: int | None = None,
        max_memory: int | None = None,
        name: str = "wbengine",
    ) -> None:
        for what, value in (("max_calls", max_calls), ("max_memory", max_memory)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(f"{what} must be a whole number of at least 1, not {value!r}")
        if max_memory is not None and _memory(os.getpid()) is None:
            raise ValueError("max_memory: this system does not tell the memory of processes")
        eventlet.check_poll("a pool of processes")
        super().__init__(size, name=name)
        self.max_calls = max_calls
        self.max_memory = max_memory
        #: Whether any child was ever ready.
        self.proven = False
        #: Why no child can start, if that is known: a child that imports a script which starts a
        #: pool itself ends of it, and so would all others, each after the rest of that script.
        self.problem: ft.Failure | None = None
        self._modules: frozenset[str] = frozenset()

    @property
    def pids(self) -> list[int]:
        """The processes that are alive now, in the order of the slots."""
        with self._lock:
            slots = list(self._slots)
        return [slot.pid for slot in slots if isinstance(slot, _Process) and slot.pid]

    @staticmethod
    def check() -> None:
        """To be asked before one is started: one error instead of one for each call.

        :raises RuntimeError: this is a child itself, which imports the script that is `__main__`.
        """
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(f"a child process cannot start processes while it starts: {_ADVICE}")

    def preload(self, modules: Iterable[str]) -> None:
        """Have each child import these, too, by name, before its first call; what a module costs is
        then no part of a call, and of its limits.  To be called before `start`."""
        self._modules |= {name for name in modules if name != "__main__"}

    def make_child(self, name: str) -> _Child:
        """Start one more child."""
        return _Child(name, sorted(self._modules))

    def _make_slot(self, name: str) -> pools.Slot:
        return _Process(name, self)


class _Process(pools.Slot):
    """The parent's side of one child after another."""

    def __init__(self, name: str, pool: ProcessPool) -> None:
        super().__init__(name)
        self._pool = pool
        # For what follows; a child is closed once it is not the one of the slot any more.
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._killed = False
        # The call that the child makes now, whether it has it, and why it was killed, if it was.
        self._call: pools.PoolCall | None = None
        self._sent = False
        self._why: BaseException | None = None
        self._timers: list[timers.Timer] = []

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def open(self) -> None:
        problem = self._ensure()
        if isinstance(problem, ft.Failure):
            LOG.warning("process %s did not start: %s", self.name, problem.pformat())

    def run(self, call: pools.PoolCall) -> Any:
        made = call.fn, call.args, call.limit.soft, call.cancellation.deadline
        try:
            data = child_process.encode(child_process.CALL, made, "call")
            for _ in range(2):
                child = self._ensure()
                if isinstance(child, ft.Failure):
                    return child
                if not self._begin(child, call):
                    return call.cancelled_early()
                if child.send(data):
                    del data
                    self._tell_cancelled(child, call)
                    return self._outcome(child, child.result(call), call)
                # It died between two calls: this one never reached it, another child may run it,
                # unless it was killed for this call.
                why = self._end()
                self.close()
                cancelled = call.cancellation.cancelled and not call.always_begins
                if why is not None and not cancelled:
                    return ft.Failure.from_exception(why)
            return pools.worker_lost(
                f"two processes of {self.name} died before {call} reached them"
            )
        except exceptions.NotEncodable as error:
            return ft.Failure.from_exception(error)
        except Exception as error:
            self._end()
            self.close()
            return ft.Failure.from_exception(error)

    def _begin(self, child: _Child, call: pools.PoolCall) -> bool:
        """From now on the child makes this call; False: it was cancelled before."""
        hard = call.limit.hard
        with self._lock:
            if call.cancellation.cancelled and not call.always_begins:
                return False
            self._call, self._sent, self._why = call, False, None
            child.calls += 1
            if hard is not None:
                text = f"{call} did not end within its hard limit of {hard:g} s"
                self._kill_later(call, hard, exceptions.TimeLimitExceeded, text)
            if self._pool.max_memory is not None:
                self._later(_MEMORY_PERIOD, self._check_memory, child, call)
        return True

    def _tell_cancelled(self, child: _Child, call: pools.PoolCall) -> None:
        """The child has the call; it may have been cancelled before."""
        with self._lock:
            self._sent = True
            if call.cancellation.cancelled:
                child.cancel()

    def _end(self) -> BaseException | None:
        """The call is over; why its child was killed, if it was."""
        with self._lock:
            due, self._timers = self._timers, []
            self._call, why, self._why = None, self._why, None
        for timer in due:
            timers.of_process().cancel(timer)
        return why

    def _outcome(self, child: _Child, value: Any, call: pools.PoolCall) -> Any:
        why = self._end()
        if value is not _GONE:
            # One that was killed had answered already, and may not be dead yet.
            self.exhausted = (
                why is not None
                or child.calls == self._pool.max_calls
                or self._excess_memory(child) is not None
            )
            return value
        self.exhausted = True  # others have a child at hand
        self.close()
        if why is not None:
            return ft.Failure.from_exception(why)
        return pools.worker_lost(
            f"process {child.pid} ({self.name}) {child.fate()} while it ran {call}"
        )

    # While a call runs, in other threads.

    def cancel(self, call: pools.PoolCall, grace: float | None) -> None:
        with self._lock:
            if self._call is not call or self._child is None:
                return  # it is over; or about to begin, and looks itself
            if self._sent:
                self._child.cancel()
            if grace is not None:
                text = f"{call} was cancelled, and did not end"
                self._kill_later(call, max(0.0, grace), exceptions.Cancelled, text)

    def _kill_later(
        self, call: pools.PoolCall, seconds: float, kind: type[BaseException], text: str
    ) -> None:
        """Kill the child, if it still makes this call then; under the lock."""
        text = f"{text}; its process {self.pid} was killed"
        self._later(seconds, self._kill_child, call, kind, text)

    def _later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Do it then, unless the call has ended; under the lock."""
        waiting = [timer for timer in self._timers if timer.act is not None]
        timer = timers.of_process().after(seconds, functools.partial(act, *args))
        self._timers = [*waiting, timer]

    def _kill_child(self, call: pools.PoolCall, kind: type[BaseException], text: str) -> None:
        with self._lock:
            child = self._child
            if self._call is not call or child is None or self._why is not None:
                return
            self._why = kind(text)
            child.kill()
        LOG.warning("process %s (%s) was killed: %s", child.pid, self.name, text)

    def _check_memory(self, child: _Child, call: pools.PoolCall) -> None:
        size = self._excess_memory(child)
        if size is not None:
            text = (
                f"process {child.pid} had {size:,} bytes of memory when it ran {call}, of"
                f" {self._pool.max_memory:,} allowed; it was killed"
            )
            self._kill_child(call, MemoryError, text)
            return
        with self._lock:
            if self._call is call:
                self._later(_MEMORY_PERIOD, self._check_memory, child, call)

    def _excess_memory(self, child: _Child) -> int | None:
        """The memory of a child that has too much."""
        most = self._pool.max_memory
        size = None if most is None else _memory(child.pid)
        return size if most is not None and size is not None and size > most else None

    # Between calls.

    def recycle(self) -> None:
        self.exhausted = False
        self.close()

    def _ensure(self) -> _Child | ft.Failure:
        """Have a child that is ready; the Failure says why there is none."""
        if self._child is not None:
            if self._child.alive():
                return self._child
            self.close()
        pool = self._pool
        if pool.problem is not None:
            return pool.problem
        try:
            child = pool.make_child(self.name)
        except Exception as error:
            return ft.Failure.from_exception(error)
        with self._lock:
            self._child = child
            if self._killed:
                child.kill()
        if child.result(None) is not _GONE:
            pool.proven = True
            return child
        self.close()
        text = f"process {child.pid} ({self.name}) {child.fate()} before it was ready"
        if pool.proven or child.exit_code is None or child.exit_code < 0:
            return pools.worker_lost(text)
        pool.problem = pools.worker_lost(f"{text}; {_ADVICE}")
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


#: Stands for the answer of a child that died.
_GONE: Final[Any] = object()


class _Child:
    """One child process and its pipe; used by one thread, but for what a lock of its user guards:
    `kill`, and `cancel` after `send`.

    `calls` counts what it was given: who gives it a call counts first.
    """

    def __init__(self, name: str, modules: list[str]) -> None:
        context = _context()
        self.calls = self._told = 0
        #: As in `multiprocessing`, less than zero for a signal; known once it is closed.
        self.exit_code: int | None = None
        self._pipe, theirs = context.Pipe()
        try:
            with _BOOKS:
                given = (theirs, dict(os.environ), child_logs.levels(), modules)
                # Not a daemon: what runs in it may use multiprocessing itself.
                self._process: mp_process.BaseProcess = context.Process(  # type: ignore[attr-defined]
                    target=child_process.main, args=given, name=name, daemon=False
                )
                with _safe_path():
                    self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._poll.register(self._process.sentinel, select.POLLIN)

    def alive(self) -> bool:
        # Between two calls a child says nothing: whatever there is to read is its end.
        return not self._poll.poll(0)

    def send(self, data: memoryview | bytes) -> bool:
        try:
            self._pipe.send_bytes(data)
        except OSError:
            return False
        return True

    def cancel(self) -> None:
        """Tell it that the call that was sent is cancelled; once, for one that is stuck reads
        nothing, and must not hold up those who cancel."""
        if self._told != self.calls:
            self._told = self.calls
            self.send(child_process.CANCEL)

    def result(self, tell: Tell | None) -> Any:
        """Wait for the outcome, handing events and records on; `_GONE` when the child died."""
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
                LOG.warning("an event of process %s is dropped: %s", self.pid, error)
        return _GONE

    def _receive(self) -> bytes | None:
        # The sentinel too: a process that a call left behind may hold the pipe open.
        pipe = self._pipe.fileno()
        try:
            if any(fd == pipe for fd, _ in self._poll.poll()) or self._pipe.poll(0):
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            pass
        return None

    def fate(self) -> str:
        """How the child ended, for a sentence; known once it is closed."""
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
        """Let the child end (it sees its pipe close), and kill it if it does not."""
        self._pipe.close()
        ended = select.poll()
        ended.register(self._process.sentinel, select.POLLIN)
        if not ended.poll(_GRACE * 1000):
            self.kill()
            ended.poll()
        with _BOOKS:
            self._process.join()
            self.exit_code = self._process.exitcode
            self._process.close()


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Python, started meanwhile, does not look into the current folder for what it needs itself;
    children get the path of this process.  Python 3.10 does look.
    """
    if "PYTHONSAFEPATH" in os.environ:
        yield
        return
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]


def _context() -> mp_context.BaseContext:
    methods = multiprocessing.get_all_start_methods()
    # The fork server listens on a socket in the temporary folder; the kernel wants its path short.
    long = len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER
    if "forkserver" not in methods or long:
        return multiprocessing.get_context("spawn")
    # Not on top: some platforms have none.
    from multiprocessing import forkserver

    # First of all what says where modules are looked for.
    forkserver.set_forkserver_preload([PRELOAD[0], "__main__", *PRELOAD[1:]])
    return multiprocessing.get_context("forkserver")


def _memory(pid: int) -> int | None:
    """Bytes of a process that are resident; None: it is gone, or the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


# Once more, after the handler of `multiprocessing`, so it runs before that one, which would wait
# for children that wait for us.
atexit.register(pools.stop_all)
