"""Run the function of a task in a transaction of a registered database."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from wbengine import exceptions
from wbengine._concurrency.call import Cancellation
from wbengine._concurrency.crash_points import crashpoint
from wbengine._sql import database_errors, dialects
from wbengine._transactions import registered, step_rows
from wbengine._transactions.guard import Guard
from wbengine._transactions.step_rows import Key
from wbengine.types import codec
from wbengine.types import failure as ft

__all__ = ["Key", "Step", "run"]

LOG: Final = logging.getLogger(__name__)

EXECUTE: Final = "execute"
REVERT: Final = "revert"

#: Maximum attempts for a transaction that conflicts with others or loses its connection.
_MAX_ATTEMPTS: Final = 8
#: Time that one attempt to lock the row waits. Then cancellation and time limits are checked.
_LOCK_SECONDS: Final = 2

_LIMIT_POSTGRESQL: Final = sa.text(
    f"SELECT current_setting('lock_timeout'), set_config('lock_timeout', '{_LOCK_SECONDS}s', true)"
)
_RESTORE_POSTGRESQL: Final = sa.text("SELECT set_config('lock_timeout', :before, true)")


class Step(NamedTuple):
    """A call of a task with a transaction.

    :ivar execution: attempt of the atom. It only increases.
    :ivar settled: the highest attempt whose result was recorded before the latest execution began.
        What the row says about it and earlier ones has been taken into account.
    :ivar calls_after_failure: whether the reversion is called for executions that failed.
    """

    database: str
    key: Key
    action: str
    execution: int
    settled: int
    arguments: Any
    result: Any
    calls_after_failure: bool
    cancellation: Cancellation


#: The function of the task. It receives the connection, and the result to revert.
Body = Callable[[sa.Connection, Any], Any]


def run(step: Step, body: Body) -> Any:
    """Run `body` in a transaction with the row of the task, or return the result in this row.

    The transaction starts again, with another call of `body`, if the database rolled it back
    because of another one. After a connection was lost during a commit, the row shows whether it
    succeeded.

    :raises NotFound: if the database is not registered.
    :raises NotEncodable: if the result cannot be stored. Nothing is committed.
    :raises InvalidState: if a later execution took effect, or `body` ended the transaction.
    """
    database = registered.get(step.database)
    for number in range(1, _MAX_ATTEMPTS + 1):
        try:
            return _Transaction(database, step).run(body)
        except sa.exc.DBAPIError as error:
            if number == _MAX_ATTEMPTS or not _can_repeat(error):
                raise
            LOG.info("Task %r starts its transaction again: %s", step.key.name, error.orig)
        time.sleep(random.uniform(0, 0.005 * 2**number))
    raise AssertionError


def _can_repeat(error: sa.exc.DBAPIError) -> bool:
    """Return whether nothing was committed, or the row shows it."""
    return (
        error.connection_invalidated
        or database_errors.is_conflict(error)
        or database_errors.is_locked(error)
    )


class _Transaction:
    def __init__(self, database: registered.Database, step: Step) -> None:
        self._engine = database.engine
        self._dialect = step_rows.dialect_of(self._engine)
        self._step = step
        self._token = os.urandom(16)
        self._guard: Guard | None = None

    def run(self, body: Body) -> Any:
        what = f"Connecting to database {self._step.database!r}"
        with database_errors.convert_errors(what):
            connection = self._engine.connect()
        try:
            row = self._claim(connection)
            return self._run_claimed(connection, row, body)
        except BaseException:
            if self._guard is not None:
                self._guard.open()
            _roll_back(connection)
            raise
        finally:
            connection.close()

    def _claim(self, connection: sa.Connection) -> step_rows.Row | None:
        """Lock the row; wait while another transaction has it."""
        step = self._step
        is_reported = False
        while True:
            crashpoint("step.before-row")
            try:
                with _short_lock_timeout(connection, self._dialect):
                    row = step_rows.claim(
                        connection, self._dialect, step.key, step.execution, self._token
                    )
                crashpoint("step.after-row")
                return row
            except sa.exc.DBAPIError as error:
                if not database_errors.is_locked(error):
                    raise
            _roll_back(connection)
            self._check_cancellation()
            if not is_reported:
                is_reported = True
                LOG.warning(
                    "Task %r waits for another transaction in database %r: another process runs"
                    " it, or has locked the table or the file",
                    step.key.name, step.database,
                )  # fmt: skip

    def _check_cancellation(self) -> None:
        if self._step.cancellation.cancelled:
            raise exceptions.Cancelled(f"Task {self._step.key.name!r} was cancelled")

    def _run_claimed(self, connection: sa.Connection, row: step_rows.Row | None, body: Body) -> Any:
        step = self._step
        result = step.result
        if row is not None:
            if row.action is None:
                raise step_rows.explain_conflict(row, step.key)
            if row.execution > step.execution:
                raise exceptions.InvalidState(
                    f"Attempt {step.execution} of task {step.key.name!r} is outdated: attempt"
                    f" {row.execution} has taken effect"
                )
            if self._has_ended(row):
                return self._adopt(connection, row)
            step_rows.take_over(connection, step.key, step.execution, self._token)
            took_effect = row.action == EXECUTE and row.execution > step.settled
            if took_effect and isinstance(result, ft.Failure):
                result = _decoded(row)
        if step.action == EXECUTE:
            self._check_cancellation()
        self._guard = Guard(connection, self._dialect, step.key.name)
        if isinstance(result, ft.Failure) and not step.calls_after_failure:
            value = None  # The execution had no effect that is to be reverted.
        else:
            value = body(connection, result)
        if isinstance(value, ft.Failure):
            self._guard.open()
            _roll_back(connection)
            return value
        self._guard.check()
        crashpoint("step.after-function")
        encoded = codec.dumps(value, "result")
        self._finish(connection, encoded)
        self._guard.open()
        crashpoint("step.before-commit")
        connection.commit()
        crashpoint("step.after-commit")
        return value

    def _has_ended(self, row: step_rows.Row) -> bool:
        """Return whether the row contains the result of this step."""
        step = self._step
        if row.execution == step.execution:
            return True
        return row.action == step.action and row.execution > step.settled

    def _adopt(self, connection: sa.Connection, row: step_rows.Row) -> Any:
        step = self._step
        if row.action != step.action:
            raise exceptions.InvalidState(
                f"Attempt {row.execution} of task {step.key.name!r} must be a {step.action}, got"
                f" {row.action}"
            )
        if row.execution != step.execution:
            digest = _digest(step.arguments)
            if (
                step.action == EXECUTE
                and None not in (digest, row.arguments)
                and (digest != row.arguments)
            ):
                raise exceptions.InvalidState(
                    f"Task {step.key.name!r} has other arguments than its attempt {row.execution},"
                    " which has taken effect although its result was lost: revert it first"
                )
            step_rows.renumber(connection, step.key, step.execution)
        LOG.info(
            "Task %r has taken effect in attempt %d: its stored result is returned",
            step.key.name, row.execution,
        )  # fmt: skip
        value = _decoded(row)
        connection.commit()
        return value

    def _finish(self, connection: sa.Connection, encoded: bytes) -> None:
        step = self._step
        is_finished = False
        if not connection.closed and not connection.invalidated:
            is_finished = step_rows.finish(
                connection, self._dialect, step.key, self._token, action=step.action,
                arguments=_digest(step.arguments), result=encoded,
            )  # fmt: skip
        if not is_finished:
            raise exceptions.InvalidState(
                f"Task {step.key.name!r} must leave its transaction open, but the row of the task"
                " is not part of it any more"
            )


def _decoded(row: step_rows.Row) -> Any:
    return codec.loads(row.result or b"null")


def _digest(arguments: Any) -> str | None:
    try:
        return hashlib.sha256(codec.dumps(arguments, "arguments")).hexdigest()
    except Exception:  # They need not be encodable. They are only compared.
        return None


def _roll_back(connection: sa.Connection) -> None:
    if connection.closed:
        return
    try:
        connection.rollback()
    except sa.exc.DBAPIError:
        # The first error is reported. Without a connection the server rolls back.
        connection.invalidate()


@contextlib.contextmanager
def _short_lock_timeout(connection: sa.Connection, dialect: str) -> Iterator[None]:
    """Let statements wait at most `_LOCK_SECONDS` for a lock.

    SQLite waits as the option `timeout` of its driver says, by default 5 s.
    """
    if dialect == dialects.POSTGRESQL:
        (before, _) = connection.execute(_LIMIT_POSTGRESQL).one()
        yield
        # After an error, the rollback restores it.
        connection.execute(_RESTORE_POSTGRESQL, {"before": before})
    elif dialect == dialects.MYSQL:
        before = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar_one()
        connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {_LOCK_SECONDS}")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {before:d}")
    else:
        yield
