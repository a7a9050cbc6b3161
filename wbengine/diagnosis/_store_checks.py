"""Check of the store of flows."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from wbengine import _payloads, exceptions
from wbengine._imports import installing
from wbengine.diagnosis import _broker_checks, _database_advice
from wbengine.diagnosis._clocks import check_clock
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.jobs import _queue_access
from wbengine.notifications import _progress
from wbengine.persistence import _codes, _sealed_fields, backends, base, models
from wbengine.types import codec
from wbengine.types._encrypted import ENCRYPTED
from wbengine.views import _formatting, _open_work

if TYPE_CHECKING:
    from wbengine.persistence.backends._sql.schema_revisions import Layout

__all__ = ["check"]

#: Time in which a conductor starts again, for example with other code.
_MAX_WAIT_SECONDS: Final = 60.0
_EXPIRY_NOTICE_SECONDS: Final = 14 * 86400.0
#: Number of the latest flows whose values are read.
_READ_FLOWS: Final = 10


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
            stored_layout = getattr(backend, "stored_layout", None)
            layout = stored_layout and stored_layout()
            if stored_layout is not None and layout is None:
                yield note("store", "the store does not exist yet; the first flow or `wbengine db"
                           " upgrade` creates it, unless --persistence is misspelt")  # fmt: skip
                return
            wrong = None if layout is None else _layout_problem(layout)
            yield wrong or good("store", f"the layout is {_description(layout)}")
            if wrong is None:
                yield from _check_clock(backend)
                _check_writing(backend)
                yield good("store", "wrote, read and deleted a record")
                yield from _check_settings_of_values(backend, place)
                yield from _check_conductors(backend)
                yield from _check_queues(backend, place)
                yield from _check_notifications(backend, place)
                yield from _check_access_keys(backend)
    except (exceptions.NotFound, ValueError, ImportError, TypeError) as error:
        fix = "correct --persistence, $WBENGINE_PERSISTENCE, or `persistence` in wbengine.toml"
        yield bad("store", line(error), fix)
    except (exceptions.StorageFailure, OSError) as error:
        reason = line(error)
        if _database_advice.is_denied(reason) and _broker_checks.has_worker_role(place):
            yield note("store", f"not checked: this role has the rights of workers ({reason})",
                       "to check the store, use the URL of the owner")  # fmt: skip
            return
        yield bad("store", reason, _database_advice.advice(reason)
                  or "start the server of the store, or correct --persistence"
                  " ($WBENGINE_PERSISTENCE): path or host, user, password,"
                  " permissions")  # fmt: skip


def _retry_options(place: Place) -> dict[str, Any]:
    kind = str(place.persistence).partition(":")[0].partition("+")[0]
    return {"max_retries": 1} if kind in ("mysql", "mariadb", "postgresql", "postgres") else {}


def _description(layout: Layout | None) -> str:
    if layout is None:
        return "current"
    if layout.is_known:
        return f"current (revision {layout.revision})"
    return f"newer and usable (revision {layout.revision})"


def _layout_problem(layout: Layout) -> Finding | None:
    try:
        layout.check()
    except exceptions.StorageFailure as error:
        if layout.is_known:
            fix = "run: wbengine db upgrade"
        else:
            fix = f"use the newer version here too: {installing.upgrade()}"
        return bad("store", line(error), fix)
    return None


def _check_clock(backend: base.Backend) -> Iterator[Finding]:
    if not getattr(backend, "has_clock", False):
        return  # the store uses the clock of this host
    with contextlib.closing(backend.get_connection()) as connection:
        before = time.time()
        theirs = connection.now()
        after = time.time()
    yield from check_clock(
        "store clock", "of the store", theirs - (before + after) / 2, (after - before) / 2
    )


def _check_settings_of_values(backend: base.Backend, place: Place) -> Iterator[Finding]:
    """Report missing settings without which this process cannot read values of the latest flows."""
    is_encrypted = has_references = False
    with (
        contextlib.closing(backend.get_connection()) as connection,
        codec.unknown_classes_as_text(),
    ):
        for row in connection.list_flows(limit=_READ_FLOWS).flows:
            try:
                detail = connection.get_flow_details(row.uuid)
            except (exceptions.NotFound, exceptions.CorruptRecord):
                continue  # It was deleted; or `wbengine db check` reports it.
            is_encrypted |= detail.meta_value(_sealed_fields.MARK) is ENCRYPTED
            has_references |= any(_payloads.contains_reference(atom.results) for atom in detail)
    if is_encrypted:
        yield bad("store", "flows are encrypted, and this process has no keys",
                  "set `keys` (--keys or $WBENGINE_KEYS) to the key file of the process that wrote"
                  " them")  # fmt: skip
    if has_references and _payloads.opened(place.payloads) is None:
        yield bad("store", "flows have large values out of line, and this process cannot read them",
                  f"set `payloads` (--payloads or ${_payloads.VARIABLE}) to the folder or bucket of"
                  " the process that wrote them")  # fmt: skip


def _check_conductors(backend: base.Backend) -> Iterator[Finding]:
    with contextlib.closing(backend.get_connection()) as connection:
        flows = connection.flows_waiting_for_code()
        work, now = _open_work.read(connection), connection.now()
    if work.text and not work.is_served:
        waited = 0.0 if work.waits_since is None else now - work.waits_since
        make_finding = bad if waited > _MAX_WAIT_SECONDS else note
        duration = f" for {_formatting.seconds(waited)}" if waited > _MAX_WAIT_SECONDS else ""
        yield make_finding("conductors", f"{_codes.NO_CONDUCTOR}; waiting{duration}: {work.text}",
                           "start `wbengine serve` with this store")  # fmt: skip
    for code, number in flows.items():
        counted = f"{number} {'flow waits' if number == 1 else 'flows wait'}"
        yield bad(
            "code versions",
            f"{counted} for {_codes.waits_text(code)}: no conductor has it",
            "start `wbengine serve` with this --code-version or a newer one, or run: wbengine flow"
            " assign --from-code VERSION --to-code VERSION",
        )


def _check_queues(backend: base.Backend, place: Place) -> Iterator[Finding]:
    """Report queues of flows that no conductor serves although one runs, and pauses."""
    with contextlib.closing(backend.get_connection()) as connection:
        if not _codes.is_served(connection.codes()):
            return
    try:
        with _queue_access.opened(backend, place.board) as opened:
            queues = opened.all()
    except ValueError:
        return  # The board has no queues.
    except exceptions.JobFailure as error:
        yield bad("job board", line(error), "start the server of the job board, or correct --board"
                  " ($WBENGINE_BOARD)")  # fmt: skip
        return
    for queue in queues:
        if not queue.waiting:
            continue
        flows = _formatting.count(queue.waiting, "flow")
        if not queue.is_served:
            yield bad("queues", f"{flows} in queue {queue.name!r}, which no conductor serves",
                      f"start `wbengine serve --queue {queue.name}`")  # fmt: skip
        elif queue.paused_at is not None:
            since = _formatting.iso(queue.paused_at)
            yield note("queues", f"{flows} in queue {queue.name!r}, which is paused since {since}",
                       f"to resume it: wbengine jobs resume '{queue.paused_as}'")  # fmt: skip


def _check_notifications(backend: base.Backend, place: Place) -> Iterator[Finding]:
    with contextlib.closing(backend.get_connection()) as connection:
        for name in _progress.destination_names(place.notify):
            note_of_work = connection.duty_note(_progress.duty_name(name))
            # The message can be encrypted.
            stored = _progress.Progress.from_note({**note_of_work, "outbox": None})
            if stored is None:
                yield note("notifications", f"no process has sent notifications to {name} yet",
                           "start `wbengine serve` with these settings")  # fmt: skip
            elif stored.error is not None:
                since = _formatting.iso(stored.failing_since)
                yield bad("notifications", f"{name} receives none"
                          f"{f' since {since}' if since else ''}: {stored.error}",
                          "correct the table [notify], and run: wbengine notify test"
                          f" --to {name}")  # fmt: skip
            else:
                sent = _formatting.iso(stored.sent_at) or "none yet"
                yield good("notifications", f"{name}: latest message: {sent}")


def _check_access_keys(backend: base.Backend) -> Iterator[Finding]:
    """Report the names of which no key is valid for long."""
    now = time.time()
    with contextlib.closing(backend.get_connection()) as connection:
        keys = [key for key in connection.access_keys() if key.is_valid(now)]
    ends: dict[str, float] = {}
    for key in keys:
        ends[key.name] = max(ends.get(key.name, 0.0), key.expires or math.inf)
    for name, end in ends.items():
        if end < now + _EXPIRY_NOTICE_SECONDS:
            yield note("access keys", f"the key of {name} expires at {_formatting.iso(end)}",
                       f"run: wbengine access rotate {name}")  # fmt: skip


def _check_writing(backend: base.Backend) -> None:
    book = models.LogBook("doctor")
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(book)
        try:
            connection.get_logbook(book.uuid)
        finally:
            connection.destroy_logbook(book.uuid)
