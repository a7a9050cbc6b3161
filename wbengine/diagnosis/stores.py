"""Whether the store of flows can be used, and is of this version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from wbengine import exceptions
from wbengine.diagnosis.clocks import ahead
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.persistence import backends, base, models

__all__ = ["look"]


def look(place: Place) -> Iterator[Finding]:
    """Its layout, its clock, and one record that is kept and removed again."""
    if place.persistence is None:
        yield note("store", "none is named: flows are kept in memory, or where the engine says")
        return
    try:
        with contextlib.closing(backends.fetch(place.persistence, **_hurry(place))) as backend:
            revision = getattr(backend, "revision", None)
            if revision is not None and revision() is None:
                yield note("store", "there is none yet: the first flow, or `wbengine db upgrade`,"
                           " makes it; or --persistence is misspelt")  # fmt: skip
                return
            wrong = _layout(backend)
            yield wrong or good("store", f"its layout is current{_revision(backend)}")
            if wrong is None:
                yield from _clock(backend)
                _write(backend)
                yield good("store", "a record was written, read and removed")
    except (exceptions.NotFound, ValueError, ImportError, TypeError) as error:
        fix = "mend --persistence, $WBENGINE_PERSISTENCE, or `persistence` in wbengine.toml"
        yield bad("store", line(error), fix)
    except (exceptions.StorageFailure, OSError) as error:
        yield bad("store", line(error), "start it, or mend --persistence ($WBENGINE_PERSISTENCE):"
                  " path or host, user, password, rights")  # fmt: skip


def _hurry(place: Place) -> dict[str, Any]:
    kind = str(place.persistence).partition(":")[0].partition("+")[0]
    return {"max_retries": 1} if kind in ("mysql", "mariadb", "postgresql", "postgres") else {}


def _revision(backend: base.Backend) -> str:
    told = getattr(backend, "revision", None)
    return "" if told is None else f" (revision {told()})"


def _layout(backend: base.Backend) -> Finding | None:
    """What is wrong with it."""
    told = getattr(backend, "revision", None)
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            connection.validate()
        except exceptions.CorruptRecord:
            raise
        except exceptions.StorageFailure as error:
            words = line(error)
            if "newer version" in words:
                fix = "run the version that made it, here too: pip install --upgrade wbengine"
            elif told is None:
                return None  # a folder that is not there yet
            else:
                fix = "wbengine db upgrade"
            return bad("store", words, fix)
    return None


def _clock(backend: base.Backend) -> Iterator[Finding]:
    engine = getattr(backend, "engine", None)
    if engine is None or engine.dialect.name == "sqlite":
        return  # it is in this process
    import sqlalchemy as sa

    from wbengine import _sql
    from wbengine._sql import dialects

    asked = sa.text(f"SELECT {dialects.now(engine.dialect.name)}")
    before = time.time()
    theirs = _sql.transact(
        engine,
        "Asking for the time",
        lambda one: float(one.execute(asked).scalar() or 0),
        write=False,
    )
    after = time.time()
    yield from ahead(
        "store clock", "of the store", theirs - (before + after) / 2, (after - before) / 2
    )


def _write(backend: base.Backend) -> None:
    book = models.LogBook("doctor")
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(book)
        try:
            connection.get_logbook(book.uuid)
        finally:
            connection.destroy_logbook(book.uuid)
