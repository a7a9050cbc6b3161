"""Destinations of notifications of a store, worked step by step, and flows that failed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from tests.support import receivers
from wbengine import schedules, states
from wbengine.jobs.backends import impl_sql
from wbengine.notifications import _collecting, _reading, _service, _settings
from wbengine.notifications._progress import Failing, Progress, duty_name
from wbengine.persistence import base as persistence
from wbengine.persistence import models

KEY = "0123456789abcdef"


def webhook(site: receivers.Receiver, folder: Path, **rules: Any) -> dict[str, Any]:
    (folder / "key").write_text(f"{KEY}\n")
    return {
        "group_wait": 0,
        "interval": 0,
        **rules,
        "to": {"ops": {"type": "webhook", "url": site.url, "key_file": f"{folder}/key"}},
    }


def services(
    store: persistence.Backend, settings: dict[str, Any]
) -> list[_service.DestinationService]:
    """Return the services of a process, which have begun: later events are sent."""
    board = impl_sql.SQLJobBoard("served", persistence=store)
    board.connect()
    reader = _reading.EventReader(cast(Any, store), board)
    return [
        _service.DestinationService(store, each, reader, schedules.Schedules(store), "me")
        for each in _settings.parse_settings(settings)
    ]


def begun(store: persistence.Backend, settings: dict[str, Any]) -> _service.DestinationService:
    (service,) = services(store, settings)
    service.run_due()
    return service


def run(service: _service.DestinationService) -> None:
    """Work until there is nothing to do now."""
    while service.run_due() == 0.0:
        pass


def failed(
    store: persistence.Backend,
    name: str = "order",
    why: str | None = "pay: ValueError: oops",
    state: str = states.FAILURE,
    **meta: Any,
) -> str:
    """Store a flow that ended now. Return its uuid."""
    book, flow = models.LogBook("b"), models.FlowDetail(name)
    flow.enter(state, time.time(), why)
    flow.meta.update(meta)
    flow.add(models.TaskDetail("pay"))
    book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
    return str(flow.uuid)


def repaired(store: persistence.Backend, uuid: str, state: str = states.SUCCESS) -> None:
    """Let a flow that failed run again, and end now."""
    with contextlib.closing(store.get_connection()) as connection:
        flow = connection.get_flow_details(uuid)
        for each in (states.RUNNING, state):
            why = "pay: ValueError: oops" if each == states.FAILURE else None
            flow.enter(each, time.time(), why)
            connection.save_changes(flow, ())


def execute(store: persistence.Backend, statement: str) -> None:
    with cast(Any, store).engine.begin() as connection:
        connection.execute(sa.text(statement))


def progress(store: persistence.Backend, name: str = "ops") -> Progress:
    with contextlib.closing(store.get_connection()) as connection:
        stored = Progress.from_note(connection.duty_note(duty_name(name)))
    assert stored is not None
    return stored


def change(store: persistence.Backend, name: str = "ops", **fields: Any) -> None:
    """Change the stored progress, and end claims."""
    stored = progress(store, name)
    for field, value in fields.items():
        setattr(stored, field, value)
    execute(store, "UPDATE wbe_duties SET until = 0")
    with contextlib.closing(store.get_connection()) as connection:
        connection.claim_duty(duty_name(name), "test", 60)
        connection.end_duty(duty_name(name), "test", 0, stored.to_note())


def pass_time(store: persistence.Backend, seconds: float, name: str = "ops") -> None:
    """Let time pass while a service reads events: move all stored times to the past."""
    for table, columns in (
        ("wbe_flowdetails", ("created", "updated", "ended", "resent_at")),
        ("wbe_jobs", ("created", "updated", "not_before")),
    ):
        for column in columns:
            execute(
                store,
                f"UPDATE {table} SET {column} = {column} - {seconds} WHERE {column} > {seconds}",
            )
    stored = progress(store, name)
    stored.seen = {key: at - seconds for key, at in stored.seen.items()}
    stored.forget_before(min(stored.since.values()) - 2 * _collecting.OVERLAP_SECONDS)
    failing = {
        key: Failing(*(at - seconds if at else at for at in each))
        for key, each in stored.failing.items()
    }
    change(
        store,
        name,
        started=stored.started - seconds,
        failing=failing,
        seen=stored.seen,
        next_at=stored.next_at - seconds,
    )


def kinds(site: receivers.Receiver) -> list[tuple[str, str | None, int]]:
    return [
        (group["kind"], group["name"], group["count"])
        for request in site.requests
        for group in request.json["groups"]
    ]
