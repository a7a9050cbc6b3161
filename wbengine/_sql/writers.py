"""Writing to a SQLite file through one connection for each process.

SQLite allows one writing connection at a time. The threads of a process queue for its connection;
the thread that has it also executes the work of the waiting threads, in one transaction with one
sync of the disk. Processes first try to lock the file. If it is busy, they queue at a lock file
beside it until they have written or have begun a transaction: SQLite's own waiting starves some
processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine._sql.open_sqlite_files import OpenFile
from wbengine._sqlite import sqlite_files

__all__ = ["WRITER", "Writer"]

_T = TypeVar("_T")

#: Execution option of an engine with a writer.
WRITER: Final = "wbe_writer"

#: Maximum wait for writers of other processes.
_LOCK_TIMEOUT_SECONDS: Final = 30.0
#: Maximum time in the queue, because the process at its head may be stopped.
_QUEUE_TIMEOUT_SECONDS: Final = 1.0
#: Interval at which a waiting writer checks whether the owner of the lock is stopped, so that users
#: are notified within 2 s.
_CHECK_SECONDS: Final = 0.5
#: Pause between attempts of the process at the head; a transaction takes tenths of a millisecond.
_HEAD_PAUSE_SECONDS: Final = 0.00005
#: Interval at which other processes check whether they are at the head.
_QUEUE_PAUSE_SECONDS: Final = 0.001


class _Work:
    """Work of a waiting thread."""

    __slots__ = ("done", "error", "is_statement", "result", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any], is_statement: bool) -> None:
        self.work: Final = work
        self.is_statement: Final = is_statement
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None

    def execute(self, driver: sqlite3.Connection) -> None:
        self.result = self.work(driver)


class Writer:
    """Writer of one SQLite file. Thread-safe. A forked child opens its own connection."""

    def __init__(self, path: str, file: OpenFile) -> None:
        self.file: Final = file
        self._path: Final = os.path.abspath(path)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._waiting_work: deque[_Work] = deque()
        self._connection: sa.Connection | None = None
        # Needed because SQLAlchemy neither rolls back nor closes a detached connection that an
        # interrupt invalidates; its open transaction would lock the file.
        self._driver: sqlite3.Connection | None = None
        # Whether the connection syncs the disk at each commit.
        self._is_durable = True

    def forget(self) -> sa.Connection | None:
        """Forget the connection of the parent process, in a child process.

        :returns: the connection. It must not be garbage-collected.
        """
        connection = self._connection
        self._reset()
        return connection

    def owns(self, connection: sa.Connection) -> bool:
        """Return True for the connection of the writer, whose transactions begin as writers."""
        return connection is self._connection

    def close(self) -> None:
        with self._mutex:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        driver = self._driver
        try:
            if driver is not None:
                with contextlib.suppress(sqlite3.Error):
                    driver.rollback()
            if connection is not None:
                connection.close()
        finally:
            if driver is not None:
                driver.close()
            self._driver = None  # Last: after an earlier interrupt, `_open` closes it.

    def transact(
        self,
        connect: Callable[[], sa.Connection],
        work: Callable[[sa.Connection], _T],
        durable: bool = True,
    ) -> _T:
        """Run `work` in its own transaction. If it is not `durable`, do not sync the disk."""
        with self._mutex:
            connection = self._open(connect)
            try:
                if not durable:
                    # Set before the pragma, so that after an interrupt the next transaction
                    # restores it.
                    self._is_durable = False
                    _driver_of(connection).execute("PRAGMA synchronous = NORMAL")
                with connection.begin():
                    return work(connection)
            finally:
                self._check(connection)
                if self._connection is not None:
                    self._restore_sync(connection)

    def transact_batched(
        self,
        connect: Callable[[], sa.Connection],
        work: Callable[[sqlite3.Connection], _T],
        is_statement: bool,
    ) -> _T:
        """Run `work` on the driver's connection, in a transaction shared with other threads.

        `work` may run in other threads, and more than once: if one raises, the whole transaction is
        rolled back and each is retried alone. With `is_statement`, a single waiting `work` is a
        transaction by itself, so the file is not locked while this thread waits for the
        interpreter.
        """
        own_work = _Work(work, is_statement)
        self._waiting_work.append(own_work)
        try:
            with self._mutex:
                if not own_work.done:
                    self._write_waiting(connect)
        except BaseException:  # After an interrupt the thread does not wait any longer.
            own_work.done = True
            raise
        if own_work.error is not None:
            raise own_work.error
        return own_work.result  # type: ignore[no-any-return]

    def _write_waiting(self, connect: Callable[[], sa.Connection]) -> None:
        popped = [self._waiting_work.popleft() for _ in range(len(self._waiting_work))]
        batch = [item for item in popped if not item.done]
        try:
            if batch and not self._try_write(connect, batch):
                for item in batch:
                    self._try_write(connect, [item])
        finally:  # An interrupt concerns this thread only; other threads write their own work.
            self._waiting_work.extendleft([item for item in reversed(batch) if not item.done])

    def _try_write(self, connect: Callable[[], sa.Connection], batch: list[_Work]) -> bool:
        """Write the batch. Return False if one of several failed; none is written then."""
        try:
            self._write(connect, batch)
        except Exception as error:
            if len(batch) > 1:
                return False
            batch[0].error = error
        for item in batch:
            item.done = True
        return True

    def _write(self, connect: Callable[[], sa.Connection], batch: list[_Work]) -> None:
        connection = self._open(connect)
        driver = _driver_of(connection)
        try:
            if len(batch) == 1 and batch[0].is_statement:
                self._run_when_free(lambda: _try_work(batch[0].execute, driver))
            else:
                self._run_when_free(lambda: _try_begin(driver))
                for item in batch:
                    item.execute(driver)
                driver.execute("COMMIT")
        except BaseException as error:
            if driver.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    driver.execute("ROLLBACK")
            if driver.in_transaction:
                self._close()
            if isinstance(error, sqlite3.Error):
                raise sa.exc.OperationalError("a batch", None, error) from error
            raise

    def _open(self, connect: Callable[[], sa.Connection]) -> sa.Connection:
        if self._connection is None:
            self._close()  # Completes a close that was interrupted.
            connection = connect()
            # Readers must not get it from the pool, because it does not wait for locks.
            connection.detach()
            driver = _driver_of(connection)
            driver.execute("PRAGMA busy_timeout = 0")
            self._driver, self._connection, self._is_durable = driver, connection, True
        self._restore_sync(self._connection)
        return self._connection

    def _restore_sync(self, connection: sa.Connection) -> None:
        if not self._is_durable:
            _driver_of(connection).execute("PRAGMA synchronous = FULL")
            self._is_durable = True

    def _check(self, connection: sa.Connection) -> None:
        """Close the connection unless it is valid and has no transaction."""
        is_open = connection.in_transaction() or (
            self._driver is not None and self._driver.in_transaction
        )
        if connection.invalidated or is_open:
            self._close()

    def begin(self, connection: sa.Connection) -> None:
        """Begin a writing transaction when no other process has one.

        :raises sqlalchemy.exc.OperationalError: if another process writes for too long or is
            stopped. The message contains its id.
        """
        driver = _driver_of(connection)
        try:
            self._run_when_free(lambda: _try_begin(driver))
        except sqlite3.OperationalError as error:
            raise sa.exc.OperationalError("BEGIN IMMEDIATE", None, error) from error
        except sqlite3.Error as error:
            raise sa.exc.DatabaseError("BEGIN IMMEDIATE", None, error) from error

    def _run_when_free(self, attempt: Callable[[], bool]) -> None:
        if attempt():
            return
        waiting = _Waiting(self._path)
        with _queue(f"{self._path}-queue", waiting):
            while not attempt():  # Writers that did not queue may still be active.
                waiting.look()
                time.sleep(_HEAD_PAUSE_SECONDS)


@contextlib.contextmanager
def _queue(path: str, waiting: _Waiting) -> Iterator[None]:
    """Wait in the queue of writing processes, and be its head within the `with` block.

    After `_QUEUE_TIMEOUT_SECONDS`, the block is entered without being the head.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _busy(
            f"other processes are writing, and the file {path}, which orders the writers,"
            f" cannot be used ({error.strerror or error})"
        ) from error
    try:
        deadline = time.monotonic() + _QUEUE_TIMEOUT_SECONDS
        while not _try_lock(fd) and time.monotonic() < deadline:
            waiting.look()
            time.sleep(_QUEUE_PAUSE_SECONDS * (0.5 + random.random()))
        yield
    finally:
        os.close(fd)


class _Waiting:
    def __init__(self, path: str) -> None:
        self._path = path
        now = time.monotonic()
        self._next_check = now + _CHECK_SECONDS
        self._deadline = now + _LOCK_TIMEOUT_SECONDS

    def look(self) -> None:
        """Raise if the wait takes too long or the writing process is stopped."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        writer_pid = sqlite_files.writer_of(self._path)
        if writer_pid is not None and sqlite_files.is_stopped(writer_pid):
            raise _busy(
                f"process {writer_pid} is writing {self._path} and is stopped (`kill -CONT"
                f" {writer_pid}` resumes it)"
            )
        if now > self._deadline:
            process = "another process" if writer_pid is None else f"process {writer_pid}"
            raise _busy(
                f"{process} has been writing {self._path} for {_LOCK_TIMEOUT_SECONDS:.0f} s"
            )


def _driver_of(connection: sa.Connection) -> sqlite3.Connection:
    driver: Any = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _try_begin(driver: sqlite3.Connection) -> bool:
    return _try_work(lambda it: it.execute("BEGIN IMMEDIATE"), driver)


def _try_work(work: Callable[[sqlite3.Connection], object], driver: sqlite3.Connection) -> bool:
    try:
        work(driver)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise
    return True


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(description: str) -> sa.exc.OperationalError:
    return sa.exc.OperationalError("BEGIN IMMEDIATE", None, sqlite3.OperationalError(description))
