"""What a database's errors mean, in one line, without passwords and values."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from wbengine import exceptions

__all__ = ["failures", "is_conflict", "is_unreachable"]

#: What sqlite says of a file that is damaged.
_DAMAGED: Final = ("file is not a database", "malformed", "unsupported file format")

#: What it says of one that it cannot use.
_UNUSABLE: Final = ("unable to open", "readonly", "disk I/O error", "database or disk is full")

#: What a server refuses for good, of all that goes wrong before there is a connection; PostgreSQL
#: calls this FATAL too, but it passes.
_PASSING: Final = ("starting up", "shutting down", "too many", "recovery mode", "remaining connect")
#: The same of MySQL: cannot connect (2002, 2003), lost it (2006, 2013), too many (1040, 1203), is
#: being shut down (1053).
_MYSQL_PASSING: Final = (2002, 2003, 2006, 2013, 1040, 1203, 1053)

#: Two transactions got into each other's way, and this one was undone by the server.
_MYSQL_CONFLICTS: Final = (1213, 1020)
_POSTGRESQL_CONFLICTS: Final = ("40001", "40P01")

_MYSQL_TOO_BIG: Final = 1153
_MYSQL_LOST: Final = (2006, 2013)
_LINE: Final = 300


@contextlib.contextmanager
def failures(
    what: str,
    kind: type[exceptions.StorageFailure] = exceptions.StorageFailure,
    *,
    place: str | None = None,
) -> Iterator[None]:
    """Raise what the database has to say as `kind`, beginning with `what` (was being done).

    `place` is the file of an sqlite database, if it is one: damage is a `CorruptRecord` of it, and
    that it cannot be used names it.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        words = _words(error)
        if place and any(sign in words for sign in _DAMAGED):
            raise _damaged(what, kind, place, words) from error.orig
        if place and any(sign in words for sign in _UNUSABLE):
            words += f": {place}{_why_unusable(place)}"
        raise kind(f"{what} failed: {words}") from error.orig
    except UnicodeDecodeError as error:  # sqlite tells what is wrong in the file's own words
        raise _damaged(what, kind, place or "of the database", "its schema is no text") from error
    except sa.exc.TimeoutError:
        raise kind(
            f"{what} failed: all connections to the database are in use, and none came free in time"
            " (options max_pool_size, max_overflow, pool_timeout)"
        ) from None
    except UnicodeEncodeError as error:  # a lone surrogate in a key that is looked up
        raise kind(f"{what!r} failed: {error.reason}") from error
    except sa.exc.SQLAlchemyError as error:
        raise kind(f"{what} failed: {_line(str(error))}") from error


def is_unreachable(error: sa.exc.DBAPIError) -> bool:
    """Whether a connection could not be made for a reason that may pass."""
    orig = error.orig
    if not isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError) or orig is None:
        return False
    text, code = str(orig), _code(orig)
    if isinstance(code, int):
        return code in _MYSQL_PASSING
    if type(orig).__module__.startswith("sqlite3"):
        return "locked" in text
    return "FATAL" not in text or any(sign in text for sign in _PASSING)


def is_conflict(error: sa.exc.DBAPIError) -> bool:
    """Whether the transaction was undone only because of another one, and may be tried again."""
    orig = error.orig
    if orig is None:
        return False
    code = _code(orig)
    if isinstance(code, int):
        return code in _MYSQL_CONFLICTS
    return getattr(orig, "sqlstate", getattr(orig, "pgcode", None)) in _POSTGRESQL_CONFLICTS


def _damaged(
    what: str, kind: type[exceptions.StorageFailure], place: str, words: str
) -> exceptions.StorageFailure:
    text = (
        f"{what} failed: the file {place} is damaged ({words});"
        " set it aside, and restore a copy; nothing in it was changed"
    )
    if kind is exceptions.StorageFailure:
        return exceptions.CorruptRecord(text, path=place)
    return kind(text)


def _why_unusable(place: str) -> str:
    folder = os.path.dirname(os.path.abspath(place))
    if not os.path.isdir(folder):
        return f" (there is no folder {folder})"
    if os.path.isdir(place):
        return " (this is a folder)"
    # Beside a file that is only read there is one as well, as long as it is open.
    return "" if os.access(folder, os.W_OK) else f" (the folder {folder} cannot be written)"


def _code(orig: BaseException) -> object:
    """The number of one of MySQL's errors."""
    return orig.args[0] if orig.args else None


def _words(error: sa.exc.DBAPIError) -> str:
    orig = error.orig
    if orig is None:
        return _line(str(error))
    code = _code(orig)
    if isinstance(code, int) and len(orig.args) > 1:
        words = f"{_line(str(orig.args[1]))} ({code})"
        if code == _MYSQL_TOO_BIG or (code in _MYSQL_LOST and _is_big(error)):
            words += "; the server's variable max_allowed_packet must be greater than what is sent"
        return words
    return _line(str(orig)) or type(orig).__name__


def _is_big(error: sa.exc.DBAPIError) -> bool:
    """Whether what was sent may have been more than a server takes at once."""
    rows = error.params if isinstance(error.params, list) else [error.params]
    size = 0
    for row in rows:
        for value in (row.values() if isinstance(row, dict) else row) or ():
            if isinstance(value, str | bytes):
                size = max(size, len(value))
    return size > 1 << 20


def _line(text: str) -> str:
    """Its first line that says something, cut."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_LINE] if lines else ""
