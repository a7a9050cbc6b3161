"""The parent's side of one child process: start it, talk to it, learn how it ended."""

from __future__ import annotations

import logging
import multiprocessing
import os
import select
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import context as mp_context
from multiprocessing import process as mp_process
from typing import Any, Final

from wbengine import _pool_child, _pool_logs, exceptions
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

Tell = Callable[[str, dict[str, Any]], None]

#: Modules that the process that children are forked from imports once, for all of them.
PRELOAD: Final = (
    "wbengine._pool_server",
    "wbengine.invocation",
    "wbengine.task",
    "wbengine._pool_child",
)

#: Seconds that a child that was told to end may take (exit handlers, forgotten threads).
_GRACE: Final = 2.0

#: Bytes of a folder's path that leave room for the name of a socket below it (107 in all).
_LONGEST_FOLDER: Final = 70


class Gone:
    """Stands for the answer of a child that died."""


GONE: Final = Gone()

#: What people do about children that cannot start.
ADVICE: Final = (
    "each child process imports the script that was started: what that does belongs below"
    ' `if __name__ == "__main__":`'
)

# `multiprocessing` keeps its books of children without a lock, and reads an exit status only once.
_BOOKS = threading.Lock()


class Child:
    """One child process and its pipe; used by one thread, but for `kill` and `tell`.

    `calls` counts what it was given; whoever gives it a call counts first.
    """

    def __init__(
        self, name: str, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
    ) -> None:
        context = _context()
        self.calls = 0
        self._pipe, theirs = context.Pipe()
        their_orders, self._orders = context.Pipe(duplex=False)
        try:
            # Not a daemon: what runs in it may use multiprocessing itself.
            self._process: mp_process.BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=_pool_child.main,
                args=(
                    theirs,
                    their_orders,
                    dict(os.environ),
                    _pool_logs.levels(),
                    initializer,
                    initargs,
                ),
                name=name,
                daemon=False,
            )
            with _BOOKS:
                self._process.start()
        except BaseException:
            self._pipe.close()
            self._orders.close()
            raise
        finally:
            theirs.close()
            their_orders.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        # Nobody may wait for a child that is stuck.
        os.set_blocking(self._orders.fileno(), False)
        # Not the lock of the books: that is held while another child starts, which may take long.
        self._guard = threading.Lock()
        self._closed = False
        self._exit_code: int | None = None
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._poll.register(self._process.sentinel, select.POLLIN)

    def alive(self) -> bool:
        # Between two calls a child says nothing: whatever there is to read is its end.
        return not self._poll.poll(0)

    def send(self, data: memoryview) -> bool:
        try:
            self._pipe.send_bytes(data)
        except OSError:
            return False
        return True

    def tell(self, order: bytes, number: int) -> None:
        """Give an order about the call of that number; one that does not get through is dropped."""
        with self._guard:
            if not self._closed:
                try:
                    os.write(self._orders.fileno(), _pool_child.ORDER.pack(order, number))
                except OSError:
                    LOG.warning("process %s cannot be told about its call", self.pid)

    def result(self, tell: Tell | None) -> Any:
        """Wait for the outcome, handing events and records on; `GONE` when the child died first."""
        while (data := self._receive()) is not None:
            if data[:1] == _pool_child.RECORD:
                _pool_logs.replay(data[1:])
                continue
            try:
                if data[:1] == _pool_child.EVENT:
                    event_type, details = _pool_child.decode(data, "event")
                    if tell is not None:
                        tell(event_type, details)
                else:
                    return _pool_child.decode(data, "result")
            except exceptions.NotEncodable as error:
                if data[:1] != _pool_child.EVENT:
                    return ft.Failure.from_exception(error)
                LOG.warning("an event of process %s is dropped: %s", self.pid, error)
        return GONE

    def _receive(self) -> bytes | None:
        # The sentinel too: a process that a call left behind may hold the pipe open.
        pipe = self._pipe.fileno()
        try:
            if any(fd == pipe for fd, _ in self._poll.poll()) or self._pipe.poll(0):
                return self._pipe.recv_bytes()
        except (EOFError, OSError):
            pass
        return None

    @property
    def exit_code(self) -> int | None:
        """As in `multiprocessing`, less than zero for a signal; known once it is closed."""
        return self._exit_code

    def fate(self) -> str:
        """How the child ended, for a sentence; known once it is closed."""
        code = self._exit_code
        if code is None:
            return "ended"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def kill(self) -> None:
        with self._guard:
            if not self._closed:
                self._process.kill()

    def close(self) -> None:
        """Let the child end (it sees its pipe close), and kill it if it does not."""
        self._pipe.close()
        ended = select.poll()
        ended.register(self._process.sentinel, select.POLLIN)
        if not ended.poll(_GRACE * 1000):
            self.kill()
            ended.poll()
        with _BOOKS, self._guard:
            self._process.join()
            self._exit_code = self._process.exitcode
            self._closed = True
            self._orders.close()
            self._process.close()


def check_not_importing() -> None:
    """Say so where a child process imports the script that is `__main__`, and that starts a pool.

    :raises RuntimeError: it does.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(f"a child process cannot start processes while it starts: {ADVICE}")


def _context() -> mp_context.BaseContext:
    methods = multiprocessing.get_all_start_methods()
    # The fork server listens on a socket in the temporary folder; the kernel wants its path short.
    long = len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER
    if "forkserver" not in methods or long:
        return multiprocessing.get_context("spawn")
    # Not on top: some platforms have none.
    from multiprocessing import forkserver

    server = forkserver._forkserver
    # Whoever uses this module may have asked for a list of their own: that one stays.
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", *PRELOAD])
    return multiprocessing.get_context("forkserver")


_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def memory(pid: int) -> int | None:
    """Bytes of a process that are resident; None: it is gone, or the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None
