"""The one connection of a process that writes an sqlite file.

sqlite lets one connection write at a time.  The threads of a process queue for ours, and the thread
that has it does what others wait with, too: their turns become one transaction, and one sync of the
disk.  Processes try at once; one that finds the file busy queues at a lock file beside it, until a
turn is written, or a transaction begun: sqlite's own way of waiting starves some of them.
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

from wbengine import _sqlite_files

__all__ = ["WRITER", "Writer"]

_T = TypeVar("_T")

#: The execution option of an engine that has a writer.
WRITER: Final = "wbe_writer"

#: So long a writer waits for those of other processes.
_PATIENCE: Final = 30.0
#: So long it waits in the queue: the process at its head may be stopped.
_QUEUE_PATIENCE: Final = 1.0
#: So often it looks whether the process that writes is stopped; users are told of it within 2 s.
_LOOK: Final = 0.5
#: So often the head of the queue tries: a turn takes some tenths of a millisecond.
_PAUSE: Final = 0.00005
#: So often the others look whether they are the head.
_QUEUE_PAUSE: Final = 0.001


class _Turn:
    """What a thread waits with until it is written."""

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
    """Writes one sqlite file.  Any thread may use it, and a forked child has one of its own."""

    def __init__(self, path: str) -> None:
        self._path: Final = os.path.abspath(path)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._mutex = threading.Lock()
        self._turns: deque[_Turn] = deque()
        self._connection: sa.Connection | None = None
        # Whether the connection waits for the disk at the end of each transaction.
        self._is_durable = True

    def forget(self) -> sa.Connection | None:
        """In a child process: use the parent's connection no more; it must not be collected."""
        connection = self._connection
        self._begin_anew()
        return connection

    def owns(self, connection: sa.Connection) -> bool:
        """Whether this is its connection, on which transactions are begun to write."""
        return connection is self._connection

    def close(self) -> None:
        with self._mutex:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def transact(
        self,
        connect: Callable[[], sa.Connection],
        work: Callable[[sa.Connection], _T],
        durable: bool = True,
    ) -> _T:
        """`work` in a transaction of its own; without a sync of the disk if it is not `durable`."""
        with self._mutex:
            connection = self._opened(connect)
            try:
                if not durable:
                    self._is_durable = False  # before: whatever happens, the next one makes it so
                    _driver_of(connection).execute("PRAGMA synchronous = NORMAL")
                with connection.begin():
                    return work(connection)
            finally:
                self._check(connection)
                if self._connection is not None:
                    self._wait_for_disk(connection)

    def turn(
        self,
        connect: Callable[[], sa.Connection],
        work: Callable[[sqlite3.Connection], _T],
        is_statement: bool,
    ) -> _T:
        """`work` on the driver's connection, in a transaction that turns of other threads share.

        Other threads may call `work`, and more than once.  If it raises, all of the transaction is
        undone, and each of its turns is tried alone.  One that `is_statement`, a single one, is a
        transaction by itself when it is alone: then the file is not locked while this thread waits
        for the interpreter.
        """
        turn = _Turn(work, is_statement)
        self._turns.append(turn)
        try:
            with self._mutex:
                if not turn.done:
                    self._write_waiting(connect)
        except BaseException:  # an interruption: nobody waits for it any more
            turn.done = True
            raise
        if turn.error is not None:
            raise turn.error
        return turn.result  # type: ignore[no-any-return]

    def _write_waiting(self, connect: Callable[[], sa.Connection]) -> None:
        every = [self._turns.popleft() for _ in range(len(self._turns))]
        turns = [turn for turn in every if not turn.done]
        try:
            if turns and not self._try(connect, turns):
                for turn in turns:
                    self._try(connect, [turn])
        finally:  # an interrupt is for this thread; the others do theirs themselves
            self._turns.extendleft([turn for turn in reversed(turns) if not turn.done])

    def _try(self, connect: Callable[[], sa.Connection], turns: list[_Turn]) -> bool:
        """Write them together; False: one of several failed, and none is written."""
        try:
            self._write(connect, turns)
        except Exception as error:
            if len(turns) > 1:
                return False
            turns[0].error = error
        for turn in turns:
            turn.done = True
        return True

    def _write(self, connect: Callable[[], sa.Connection], turns: list[_Turn]) -> None:
        connection = self._opened(connect)
        driver = _driver_of(connection)
        try:
            if len(turns) == 1 and turns[0].is_statement:
                self._when_free(lambda: _tried(turns[0].execute, driver))
            else:
                self._when_free(lambda: _began(driver))
                for turn in turns:
                    turn.execute(driver)
                driver.execute("COMMIT")
        except BaseException as error:
            if driver.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    driver.execute("ROLLBACK")
            if driver.in_transaction:
                self._close()
            if isinstance(error, sqlite3.Error):
                raise sa.exc.OperationalError("a turn", None, error) from error
            raise

    def _opened(self, connect: Callable[[], sa.Connection]) -> sa.Connection:
        if self._connection is None:
            made = connect()
            made.detach()  # no reader gets it, for it does not wait for others
            _driver_of(made).execute("PRAGMA busy_timeout = 0")
            self._connection, self._is_durable = made, True
        self._wait_for_disk(self._connection)
        return self._connection

    def _wait_for_disk(self, connection: sa.Connection) -> None:
        """From now on at the end of each transaction again."""
        if not self._is_durable:
            _driver_of(connection).execute("PRAGMA synchronous = FULL")
            self._is_durable = True

    def _check(self, connection: sa.Connection) -> None:
        """Keep the connection only if it is as good as new."""
        if connection.invalidated or connection.in_transaction():
            self._close()

    # -- beginning to write ---------------------------------------------------------------------

    def begin(self, connection: sa.Connection) -> None:
        """Begin a transaction that writes, when no other process is in one.

        :raises sqlalchemy.exc.OperationalError: another one is all the time, or is stopped; the
            text names it.
        """
        driver = _driver_of(connection)
        try:
            self._when_free(lambda: _began(driver))
        except sqlite3.OperationalError as error:
            raise sa.exc.OperationalError("BEGIN IMMEDIATE", None, error) from error
        except sqlite3.Error as error:
            raise sa.exc.DatabaseError("BEGIN IMMEDIATE", None, error) from error

    def _when_free(self, attempt: Callable[[], bool]) -> None:
        """`attempt` something until no other process writes."""
        if attempt():
            return
        waiting = _Waiting(self._path)
        with _queue(f"{self._path}-queue", waiting):
            while not attempt():  # of who writes, and did not wait
                waiting.look()
                time.sleep(_PAUSE)


@contextlib.contextmanager
def _queue(path: str, waiting: _Waiting) -> Iterator[None]:
    """Be the one that writes next, until the end; or, after a while, one of several."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _busy(
            f"other processes write, and {path} cannot be used to wait for them"
            f" ({error.strerror or error})"
        ) from error
    try:
        until = time.monotonic() + _QUEUE_PATIENCE
        while not _locked(fd) and time.monotonic() < until:
            waiting.look()
            time.sleep(_QUEUE_PAUSE * (0.5 + random.random()))
        yield
    finally:
        os.close(fd)


class _Waiting:
    """The time that a writer has waited."""

    def __init__(self, path: str) -> None:
        self._path = path
        now = time.monotonic()
        self._next_look = now + _LOOK
        self._until = now + _PATIENCE

    def look(self) -> None:
        """Give up when it takes too long, or when the process that writes is stopped."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        holder = _sqlite_files.writer_of(self._path)
        if holder is not None and _sqlite_files.is_stopped(holder):
            raise _busy(
                f"process {holder} writes {self._path}, and is stopped (kill -CONT {holder} lets it"
                " go on)"
            )
        if now > self._until:
            who = "another process" if holder is None else f"process {holder}"
            raise _busy(f"{who} writes {self._path} for {_PATIENCE:.0f} s already")


def _driver_of(connection: sa.Connection) -> sqlite3.Connection:
    driver: Any = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _began(driver: sqlite3.Connection) -> bool:
    return _tried(lambda it: it.execute("BEGIN IMMEDIATE"), driver)


def _tried(work: Callable[[sqlite3.Connection], object], driver: sqlite3.Connection) -> bool:
    """Whether it is done; False: another process writes."""
    try:
        work(driver)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise
    return True


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(words: str) -> sa.exc.OperationalError:
    return sa.exc.OperationalError("BEGIN IMMEDIATE", None, sqlite3.OperationalError(words))
