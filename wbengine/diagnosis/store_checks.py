"""Check of the store of flows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from wbengine import _installing, exceptions
from wbengine.diagnosis.clocks import check_clock
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.persistence import backends, base, models

__all__ = ["check"]


def check(place: Place) -> Iterator[Finding]:
    """Check the layout and the clock, and write, read and delete a record."""
    if place.persistence is None:
        yield note(
            "store", "no store is set; flows are stored in memory or as the engine specifies"
        )
        return
    try:
        with contextlib.closing(
            backends.fetch(place.persistence, **_retry_options(place))
        ) as backend:
            revision = getattr(backend, "revision", None)
            if revision is not None and revision() is None:
                yield note("store", "the store does not exist yet; the first flow or `wbengine db"
                           " upgrade` creates it, unless --persistence is misspelt")  # fmt: skip
                return
            wrong = _layout_problem(backend)
            yield wrong or good("store", f"the layout is current{_revision(backend)}")
            if wrong is None:
                yield from _check_clock(backend)
                _check_writing(backend)
                yield good("store", "wrote, read and deleted a record")
    except (exceptions.NotFound, ValueError, ImportError, TypeError) as error:
        fix = "correct --persistence, $WBENGINE_PERSISTENCE, or `persistence` in wbengine.toml"
        yield bad("store", line(error), fix)
    except (exceptions.StorageFailure, OSError) as error:
        yield bad("store", line(error), "start the server of the store, or correct --persistence"
                  " ($WBENGINE_PERSISTENCE): path or host, user, password,"
                  " permissions")  # fmt: skip


def _retry_options(place: Place) -> dict[str, Any]:
    kind = str(place.persistence).partition(":")[0].partition("+")[0]
    return {"max_retries": 1} if kind in ("mysql", "mariadb", "postgresql", "postgres") else {}


def _revision(backend: base.Backend) -> str:
    revision = getattr(backend, "revision", None)
    return "" if revision is None else f" (revision {revision()})"


def _layout_problem(backend: base.Backend) -> Finding | None:
    revision = getattr(backend, "revision", None)
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            connection.validate()
        except exceptions.CorruptRecord:
            raise
        except exceptions.StorageFailure as error:
            words = line(error)
            if "newer version" in words:
                fix = f"use the newer version here too: {_installing.upgrade()}"
            elif revision is None:
                return None  # the folder does not exist yet
            else:
                fix = "run: wbengine db upgrade"
            return bad("store", words, fix)
    return None


def _check_clock(backend: base.Backend) -> Iterator[Finding]:
    engine = getattr(backend, "engine", None)
    if engine is None or engine.dialect.name == "sqlite":
        return  # the database uses the clock of this host
    import sqlalchemy as sa

    from wbengine import _sql
    from wbengine._sql import dialects

    query = sa.text(f"SELECT {dialects.now(engine.dialect.name)}")
    before = time.time()
    theirs = _sql.transact(
        engine,
        "reading the time",
        lambda connection: float(connection.execute(query).scalar() or 0),
        write=False,
    )
    after = time.time()
    yield from check_clock(
        "store clock", "of the store", theirs - (before + after) / 2, (after - before) / 2
    )


def _check_writing(backend: base.Backend) -> None:
    book = models.LogBook("doctor")
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(book)
        try:
            connection.get_logbook(book.uuid)
        finally:
            connection.destroy_logbook(book.uuid)
