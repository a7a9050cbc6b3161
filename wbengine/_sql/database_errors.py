"""Errors of databases: their meaning in one line, without passwords and values."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from wbengine import exceptions

__all__ = ["convert_errors", "is_conflict", "is_locked", "is_unreachable"]

_DAMAGED: Final = ("file is not a database", "malformed", "unsupported file format")

_UNUSABLE: Final = ("unable to open", "readonly", "disk I/O error", "database or disk is full")

_SQLITE_TOO_LARGE: Final = "too big"

#: Parts of PostgreSQL's messages about temporary failures to connect. Its severity FATAL also
#: includes permanent ones.
_POSTGRESQL_TEMPORARY: Final = (
    "starting up",
    "shutting down",
    "too many",
    "recovery mode",
    "remaining connect",
)
#: Temporary failures of MySQL: cannot connect (2002, 2003), connection lost (2006, 2013), too many
#: connections (1040, 1203), shutdown (1053).
_MYSQL_TEMPORARY: Final = (2002, 2003, 2006, 2013, 1040, 1203, 1053)

#: Conflicts between transactions, of which the server rolled this one back.
_MYSQL_CONFLICTS: Final = (1213, 1020)
_POSTGRESQL_CONFLICTS: Final = ("40001", "40P01")

#: Ends of a wait for a lock, which another transaction holds.
_MYSQL_LOCKED: Final = 1205
_POSTGRESQL_LOCKED: Final = "55P03"
_SQLITE_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_MAX_LINE_LENGTH: Final = 300


@contextlib.contextmanager
def convert_errors(
    what: str,
    kind: type[exceptions.StorageFailure] = exceptions.StorageFailure,
    *,
    place: str | None = None,
) -> Iterator[None]:
    """Raise errors of the database as `kind`, with a message that begins with `what`.

    :param what: the activity, for example "Reading a row".
    :param place: the file of a SQLite database. Damage raises `CorruptRecord` with this path, and
        messages about an unusable file contain it.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        description = _description(error)
        if place and any(sign in description for sign in _DAMAGED):
            raise _damaged(what, kind, place, description) from error.orig
        if place and _SQLITE_TOO_LARGE in description:
            raise exceptions.RecordTooLarge(f"{what} failed: {description}") from error.orig
        if place and any(sign in description for sign in _UNUSABLE):
            description += f": {place}{_why_unusable(place)}"
        raise kind(f"{what} failed: {description}") from error.orig
    except UnicodeDecodeError as error:  # SQLite's message contains bytes of the damaged file.
        raise _damaged(what, kind, place or "of the database", "its schema is not text") from error
    except sa.exc.TimeoutError:
        raise kind(
            f"{what} failed: all connections to the database are in use, and none became"
            " free in time (options max_pool_size, max_overflow, pool_timeout)"
        ) from None
    except UnicodeEncodeError as error:  # A lone surrogate in a key.
        raise kind(f"{what!r} failed: {error.reason}") from error
    except sa.exc.SQLAlchemyError as error:
        raise kind(f"{what} failed: {_line(str(error))}") from error


def is_unreachable(error: BaseException) -> bool:
    """Return True if connecting failed for a possibly temporary reason."""
    orig = getattr(error, "orig", None)
    if not isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError) or orig is None:
        return False
    text, code = str(orig), _code(orig)
    if isinstance(code, int):
        return code in _MYSQL_TEMPORARY
    if type(orig).__module__.startswith("sqlite3"):
        return "locked" in text
    return "FATAL" not in text or any(sign in text for sign in _POSTGRESQL_TEMPORARY)


def is_conflict(error: sa.exc.DBAPIError) -> bool:
    """Return True if the transaction was rolled back only because of another one."""
    code = _code(error.orig)
    if isinstance(code, int):
        return code in _MYSQL_CONFLICTS
    return _sqlstate(error.orig) in _POSTGRESQL_CONFLICTS


def is_locked(error: sa.exc.DBAPIError) -> bool:
    """Return True if a statement waited too long for a lock of another transaction."""
    orig = error.orig
    if isinstance(orig, sqlite3.Error):
        return getattr(orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_LOCKED
    code = _code(orig)
    return code == _MYSQL_LOCKED if isinstance(code, int) else _sqlstate(orig) == _POSTGRESQL_LOCKED


def _damaged(
    what: str, kind: type[exceptions.StorageFailure], place: str, description: str
) -> exceptions.StorageFailure:
    text = (
        f"{what} failed: the file {place} is damaged ({description}) and was not changed; move"
        " it away, and restore a copy"
    )
    if kind is exceptions.StorageFailure:
        return exceptions.CorruptRecord(text, path=place)
    return kind(text)


def _why_unusable(place: str) -> str:
    folder = os.path.dirname(os.path.abspath(place))
    if not os.path.isdir(folder):
        return f" (the folder {folder} does not exist)"
    if os.path.isdir(place):
        return " (this is a folder)"
    # SQLite creates files beside the database even for reading.
    return "" if os.access(folder, os.W_OK) else f" (the folder {folder} is not writable)"


def _sqlstate(orig: BaseException | None) -> object:
    return getattr(orig, "sqlstate", getattr(orig, "pgcode", None))


def _code(orig: BaseException | None) -> object:
    return orig.args[0] if orig is not None and orig.args else None


def _description(error: sa.exc.DBAPIError) -> str:
    orig = error.orig
    if orig is None:
        return _line(str(error))
    code = _code(orig)
    if isinstance(code, int) and len(orig.args) > 1:
        return f"{_line(str(orig.args[1]))} ({code})"
    return _line(str(orig)) or type(orig).__name__


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_MAX_LINE_LENGTH] if lines else ""
