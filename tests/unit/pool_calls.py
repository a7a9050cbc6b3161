"""Calls for tests of pools; few imports, so that child processes start quickly."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pathlib
import queue
import signal
import socket
import sys
import threading
import time
import warnings
from typing import Any

from wbengine import exceptions
from wbengine._concurrency import event_loop
from wbengine.types import failure as ft

WAIT = 60.0
SOFT = exceptions.SoftTimeLimitExceeded


class Box:
    """Callback that records results and events."""

    def __init__(self) -> None:
        self.done = queue.SimpleQueue[Any]()
        self.events = queue.SimpleQueue[Any]()
        self.log: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.log.append(("done", value))
        self.done.put(value)

    def event(self, event_type: str, details: dict[str, Any]) -> None:
        self.log.append((event_type, details))
        self.events.put((event_type, details))

    def get(self) -> Any:
        return self.done.get(timeout=WAIT)

    def failure(self, *kinds: type[BaseException]) -> ft.Failure:
        value = self.get()
        assert isinstance(value, ft.Failure) and (not kinds or value.check(*kinds)), value
        return value

    def begun(self) -> int:
        """Return the ID of the process in which a call began."""
        name, details = self.events.get(timeout=WAIT)
        assert name == "begun"
        pid: int = details["pid"]
        return pid


def result_of(pool: Any, fn: Any, *args: Any) -> Any:
    """Return the result of a call."""
    box = Box()
    pool.submit(fn, args, box)
    return box.get()


def switch_often(emit: Any) -> None:
    """Switch between the threads of this process at nearly each step."""
    sys.setswitchinterval(1e-5)


def spin(emit: Any) -> None:
    emit("begun", {"pid": os.getpid()})
    while True:
        pass


def clean_up(emit: Any) -> str:
    try:
        spin(emit)
    except SOFT:
        emit("cleaning", {})
        return "clean"
    return "never"


def stubborn(emit: Any) -> None:
    """Run forever and ignore the soft limit."""
    emit("begun", {"pid": os.getpid()})
    while True:
        try:
            time.sleep(0.001)
        except SOFT:
            pass


def asleep(emit: Any) -> None:
    emit("begun", {"pid": os.getpid()})
    time.sleep(3600)


def stopped(emit: Any) -> None:
    """Stop all threads of the process with SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


def meet(folder: str, emit: Any) -> int:
    """Wait for a second process."""
    (pathlib.Path(folder) / str(os.getpid())).touch()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.001)
    return os.getpid()


def blocked(door: threading.Lock, emit: Any) -> str:
    """Block in C code, where no exception is raised, until the lock is released."""
    emit("begun", {"pid": os.getpid()})
    door.acquire()
    return "late"


def obedient(emit: Any) -> str:
    emit("begun", {"pid": os.getpid()})
    while not emit.cancellation.cancelled:
        time.sleep(0.001)
    return "obeyed"


def deadline(emit: Any) -> float | None:
    seconds: float | None = emit.cancellation.deadline
    return seconds


def is_cancelled(emit: Any) -> bool:
    return bool(emit.cancellation.cancelled)


def sleeps_in_loop(cleans: bool, emit: Any) -> Any:
    return event_loop.of_process().run(_sleeps, cleans)


async def _sleeps(cleans: bool) -> str:
    import asyncio

    try:
        await asyncio.sleep(3600)
    except SOFT:
        await asyncio.sleep(0.001)  # the interruption is over
        if cleans:
            return "clean"
        raise
    return "never"


def eat(amount: int, emit: Any) -> str:
    emit("begun", {"pid": os.getpid()})
    food = bytearray(amount)
    time.sleep(3600)
    return str(len(food))


_kept: list[bytearray] = []


def keep(amount: int, emit: Any) -> int:
    _kept.append(bytearray(amount))
    return os.getpid()


def busy(seconds: float, emit: Any) -> str:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return "ended"


def double(value: Any, emit: Any) -> Any:
    return value + value


def whoami(emit: Any) -> int:
    return os.getpid()


def tell(count: int, emit: Any) -> str:
    for index in range(count):
        emit("step", {"index": index})
    return "told"


def tell_late(emit: Any) -> str:
    global _late
    _late = threading.Thread(target=_tell_forever, args=(emit,), daemon=True)
    _late.start()
    return "told"


def _tell_forever(emit: Any) -> None:
    while True:
        emit("late", {})


def leave_behind(path: str, emit: Any) -> int:
    return event_loop.of_process().run(_leave_behind, path)


async def _leave_behind(path: str) -> int:
    async def lingers() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            pathlib.Path(path).write_text("cancelled")

    _left.append(asyncio.create_task(lingers()))
    await asyncio.sleep(0)
    return id(asyncio.get_running_loop())


_left: list[Any] = []


def tell_lock(emit: Any) -> None:
    emit("step", {"lock": threading.Lock()})


def fork(emit: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which the child does not use
        return os.fork()


def bad_exit(emit: Any) -> None:
    sys.exit("enough")


def interrupt(emit: Any) -> None:
    raise KeyboardInterrupt


def boom(emit: Any) -> None:
    raise LookupError("boom")


class Strange(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


def strange(emit: Any) -> None:
    raise Strange(1, 2)


class Fragile:
    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ValueError("cannot be unpickled")


def fragile(emit: Any) -> Any:
    return Fragile()


def accept(value: Any, emit: Any) -> str:
    return "accepted"


def holds_lock(emit: Any) -> Any:
    return {"a": [1, 2, threading.Lock()]}


def leave(code: int, emit: Any) -> None:
    os._exit(code)


def die(signum: int, emit: Any) -> None:
    os.kill(os.getpid(), signum)


def answer_and_die(emit: Any) -> str:
    emit("bye", {})
    threading.Timer(0.0, os._exit, (7,)).start()
    threading.Event().wait()
    return "never"


def leave_heir(emit: Any) -> None:
    """Die while a forked child still has this end of the pipe open."""
    emit("heir", {"pid": os.fork() or _hold()})
    os._exit(5)


def _hold() -> int:
    time.sleep(WAIT)
    os._exit(0)


def knock(path: str, emit: Any) -> int:
    """Connect, send the process ID, and wait until the peer closes the connection."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.sendall(f"{os.getpid()}\n".encode())
        peer.recv(1)
    return os.getpid()


def environment(name: str, emit: Any) -> str | None:
    return os.environ.get(name)


def interrupt_self(number: int, emit: Any) -> str:
    os.kill(os.getpid(), number)
    return "unimpressed"


def interrupt_parent(emit: Any) -> bool:
    """Return whether a signal ends the parent, from which the children are forked."""
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        os.kill(parent, number)
    deadline = time.monotonic() + 0.2
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.getppid() != parent


def open_sockets(emit: Any) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [link for link in links if link.startswith("socket:")]


def leaked_thread(emit: Any) -> str:
    threading.Thread(target=time.sleep, args=(10 * WAIT,)).start()
    return "leaked"


def close_all_files(reuses_numbers: bool, emit: Any) -> str:
    os.closerange(3, 4096)
    if reuses_numbers:
        for _ in range(64):
            os.open(os.devnull, os.O_RDWR)
    return "closed"


class Unpicklable:
    def __reduce__(self) -> Any:
        raise SystemExit("cannot be pickled")


def leave_thread_and_return_unpicklable(emit: Any) -> Any:
    leaked_thread(emit)
    return Unpicklable()


def _exit_in_handler(number: int, frame: Any) -> None:
    sys.exit("handler of an earlier call")


def leave_thread_and_alarm(emit: Any) -> int:
    """Return the process ID. Afterwards a signal handler ends the main thread."""
    leaked_thread(emit)
    signal.signal(signal.SIGALRM, _exit_in_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return os.getpid()


def terminate_fork(emit: Any) -> int | None:
    """Return the exit code of a fork that is terminated at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which the child does not use
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(WAIT,))
        child.start()
    child.terminate()
    child.join()
    return child.exitcode


def map_in_forks(emit: Any) -> list[Any]:
    """Return the handlers of SIGINT in a pool of forks, which ends them with SIGTERM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which the children do not use
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(signal.getsignal, [signal.SIGINT] * 2)


_mark = ""


def set_mark(value: str) -> None:
    global _mark
    _mark = value


def get_mark(emit: Any) -> str:
    return _mark


def gather(folder: str, count: int, emit: Any) -> None:
    (pathlib.Path(folder) / f"{os.getpid()}-{threading.get_ident()}").touch()
    while len(os.listdir(folder)) < count:
        time.sleep(0.001)
