"""One connection to a database, for the statements of a transport."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._text import data_formats

__all__ = ["Place", "Session", "Statement"]

T = TypeVar("T")

#: What a session executes, for example SQL, and the dict of its values, or None.
Statement = tuple[Any, Any]

_MAX_ATTEMPTS: Final = 8
#: Time in which a lost session ends in the server.
_END_SECONDS: Final = 5.0

#: Identities of sessions that were lost during a statement, by place.
_lost_sessions: Final[dict[Place, list[Any]]] = {}


@dataclass(frozen=True)
class Place:
    """A database that contains queues.

    :ivar dialect: 'postgresql' or 'mysql'.
    :ivar address: hosts, port and name of the database.
    """

    dialect: str
    address: tuple[str, int | None, str]
    options: _sql.DatabaseOptions = field(compare=False, repr=False)

    @classmethod
    def parse(cls, url: str) -> Place:
        """Return the place of a URL.

        :raises ValueError: if it is invalid.
        """
        options = _sql.parse(url)
        return cls(options.dialect, options.address, options)

    def check(self) -> None:
        """Check the options of the URL, without connecting.

        :raises ValueError: if one is unknown or invalid.
        """
        _sql.make_engine(self.options).dispose()

    @property
    def shown(self) -> str:
        """The URL without user, password and options."""
        hosts, port, database = self.address
        has_port = port not in (None, _sql.DEFAULT_PORTS[self.dialect])
        return f"{self.dialect}://{hosts}{f':{port}' if has_port else ''}/{database}"


class Session(abc.ABC):
    """A connection, for several threads. The tables are created if necessary.

    :ivar is_polling: whether consumers poll, because the server cannot notify them.
    :raises OperationalError: of the driver, if the server cannot be reached.
    :raises TransportFailure: if it refuses, or if the tables have another format.
    """

    #: Base class of the errors of the driver.
    error: ClassVar[type[Exception]]
    #: Statement that returns the format of the tables; no row: they are not complete.
    format_statement: ClassVar[Any]
    is_polling = True

    _connection: sa.Connection
    _driver: Any

    def __init__(self, place: Place) -> None:
        self.place = place
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._identity: Any = None
        options = dataclasses.replace(place.options, max_retries=0, max_pool_size=1)
        with self._using(self._make_engine(options)) as engine:
            self._connect(engine)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _make_engine(self, options: _sql.DatabaseOptions) -> sa.Engine:
        return _sql.make_engine(options)

    @abc.abstractmethod
    def _connect(self, engine: sa.Engine) -> None:
        """Open the connection, outside the pool, and that of the driver behind it."""

    def _prepare(self) -> None:
        identity = self._configure()
        for session in tuple(_lost_sessions.get(self.place, ())):
            self._end(session)
            with contextlib.suppress(ValueError):  # Another thread ended it, too.
                _lost_sessions[self.place].remove(session)
        if not self._has_tables():
            engine = _sql.make_engine(self.place.options)
            with self._using(engine), engine.begin() as connection:
                self._create(connection)
        ((format,),) = self.run(self.format_statement)
        data_formats.QUEUES.check(self.place.shown, format, exceptions.TransportFailure)
        self._identity = identity

    @abc.abstractmethod
    def _configure(self) -> Any:
        """Set the options of the session. Return its identity for `_kill`.

        :returns: None if the session cannot be ended by another one.
        """

    def _end(self, identity: Any) -> None:
        """End an earlier session of this process, so that its last statement has no late effect."""
        ends = time.monotonic() + _END_SECONDS
        while self._kill(identity):
            if time.monotonic() > ends:
                raise exceptions.TransportFailure(
                    f"{self.place.shown}: an earlier session ({identity[0]}) does not end"
                )
            time.sleep(0.01)

    @abc.abstractmethod
    def _kill(self, identity: Any) -> bool:
        """Let the server end a session. Return False if it has ended."""

    @abc.abstractmethod
    def _has_tables(self) -> bool: ...

    @contextlib.contextmanager
    def _using(self, engine: sa.Engine) -> Iterator[sa.Engine]:
        try:
            yield engine
        except sa.exc.DBAPIError as error:
            raise self._refusal(error.orig) from error
        finally:
            engine.dispose()

    @abc.abstractmethod
    def _create(self, connection: sa.Connection) -> None:
        """Create the tables that do not exist."""

    def run(self, statement: Any, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Execute a statement, which is a transaction, and return its rows. Thread-safe.

        :raises TransportFailure: if the server refuses it. Nothing is changed then.
        :raises Exception: an error of the driver, if the connection is lost.
        """
        return self._repeat(lambda: self._execute_all((((statement, values),),)))[0]

    def run_all(self, *transactions: Sequence[Statement]) -> list[list[Any]]:
        """Execute transactions in order, and return the rows of each statement.

        If a transaction after the first one fails, the rows of its statements are empty.

        :raises TransportFailure, Exception: see `run`.
        """
        return self._repeat(lambda: self._execute_all(transactions))

    @abc.abstractmethod
    def _execute_all(self, transactions: Sequence[Sequence[Statement]]) -> list[list[Any]]: ...

    def _repeat(self, work: Callable[[], T]) -> T:
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                with self._lock:
                    return work()
            except self.error as error:
                if self.is_broken:
                    self._note_loss()
                    raise
                if not self._is_conflict(error) or attempt == _MAX_ATTEMPTS:
                    raise self._failure(error) from error
        raise AssertionError("unreachable")

    @abc.abstractmethod
    def _is_conflict(self, error: BaseException) -> bool:
        """Return whether the server has rolled back a statement because of another one."""

    def _note_loss(self) -> None:
        if self._identity is not None:
            _lost_sessions.setdefault(self.place, []).append(self._identity)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a child process, which must not use the connection of its parent."""
        return os.getpid() != self._pid

    @property
    @abc.abstractmethod
    def is_broken(self) -> bool: ...

    def close(self) -> None:
        """Close the connection. Idempotent. A child process keeps that of its parent open."""
        if self.is_inherited:
            return
        if self.is_broken:  # SQLAlchemy would log the failure of a rollback.
            self._connection.invalidate()
        else:
            self._connection.close()

    @abc.abstractmethod
    def _refusal(self, error: BaseException | None) -> Exception:
        """Return the error to raise if a connection failed: the original one if that may pass."""

    def _failure(self, error: BaseException | None) -> exceptions.TransportFailure:
        line = self._text(error).strip().partition("\n")[0]
        return exceptions.TransportFailure(f"{self.place.shown}: {line or type(error).__name__}")

    def _text(self, error: BaseException | None) -> str:
        return str(error)
