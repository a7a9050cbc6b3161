"""`flow annotate`: notes of users among the events of a flow."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import ORDER, Command
from wbengine import exceptions, operations, states
from wbengine.operations import _operation
from wbengine.persistence import backends, base, models
from wbengine.views import _event_history, redaction, watcher

URLS = ("memory://", "sqlite:///{folder}/flows.db", "dir://{folder}/flows")


def stored(backend: base.Backend, state: str = states.FAILURE, *reasons: str) -> str:
    """Store a flow in this state and return its uuid."""
    book, flow = models.LogBook("b"), models.FlowDetail("order")
    for reason in reasons or ("card declined",):
        flow.enter(state, 1.0, reason)
    book.add(flow)
    with contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
        connection.save_logbook(book)
    return flow.uuid


def annotate(backend: base.Backend, uuid: str, text: str, by: str | None = "ann") -> None:
    operation = _operation.load("flow annotate")
    operation.perform(_operation.Scope(backend, by), {"flow": uuid, "text": text})


def read(backend: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.get_flow_details(uuid)


@pytest.mark.parametrize("url", URLS)
def test_notes_are_events_and_change_nothing_else(url: str, tmp_path: Path) -> None:
    with backends.backend(url.format(folder=tmp_path)) as backend:
        uuid = stored(backend, states.FAILURE)
        annotate(backend, uuid, "called the bank")
        annotate(backend, uuid, "ticket\n4711", by=None)
        detail = read(backend, uuid)
        assert (detail.state, detail.error) == (states.FAILURE, "card declined")
        events = watcher.events_of(detail)
        assert [(each.state, each.error) for each in events] == [
            ("FAILURE", "card declined"), ("NOTE", "ann: called the bank"),
            ("NOTE", "ticket\n4711"),
        ]  # fmt: skip
        page = _event_history.page(detail, redaction.Redactor(), limit=1)
        following = _event_history.page(detail, redaction.Redactor(), limit=9, after=page.after)
        assert [*page.events, *following.events] == events


def test_watcher_returns_each_note_once(tmp_path: Path) -> None:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        uuid = stored(backend)
        with watcher.FlowWatcher(backend, uuid) as watched:
            assert len(watched.poll()) == 1
            annotate(backend, uuid, "note")
            assert [each.error for each in watched.poll()] == ["ann: note"]
            assert watched.poll() == []


@pytest.mark.parametrize("reason", ["it waits", "its code differs", "suspended by ann"])
def test_note_on_suspended_flow_keeps_why_it_is_suspended(reason: str) -> None:
    """Conductors continue a parked flow, and not one that a user suspended."""
    with backends.backend("memory://") as backend:
        uuid = stored(backend, states.SUSPENDED, reason)
        before = read(backend, uuid)
        annotate(backend, uuid, "note")
        after = read(backend, uuid)
    for name in ("is_parked", "is_blocked", "is_suspended_by_command", "history"):
        assert getattr(after, name) == getattr(before, name)


def test_only_the_latest_notes_are_kept_and_foreign_values_are_ignored() -> None:
    detail = models.FlowDetail("order")
    detail.meta[models.NOTES] = {"of": "another program"}
    assert not detail.notes
    for number in range(60):
        detail.add_note(float(number), str(number), None)
    assert [note.why for note in detail.notes] == [str(number) for number in range(10, 60)]


def test_concurrent_notes_are_all_stored(tmp_path: Path) -> None:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        uuid = stored(backend)
        threads = [
            threading.Thread(target=annotate, args=(backend, uuid, str(number)))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {note.why for note in read(backend, uuid).notes} == {
            f"ann: {number}" for number in range(4)
        }


def test_export_contains_notes() -> None:
    with backends.backend("memory://") as backend, backends.backend("memory://") as other:
        uuid = stored(backend)
        annotate(backend, uuid, "note")
        operations.import_flow(other, operations.export(backend, uuid))
        assert [note.why for note in read(other, uuid).notes] == ["ann: note"]


def test_flow_that_an_engine_runs_is_refused() -> None:
    with backends.backend("memory://") as backend:
        engine = operations.start(backend, "tests.operations.flows:steps")
        run = engine.run_iter()
        next(run)
        with pytest.raises(exceptions.FlowBusy, match="suspend it first"):
            annotate(backend, engine.storage.flow_uuid, "note")
        run.close()


def test_unknown_flow_is_refused() -> None:
    with backends.backend("memory://") as backend:
        stored(backend)
        with pytest.raises(exceptions.NotFound):
            annotate(backend, "12345678-1234-4123-8123-123456789012", "note")


def test_command_prints_the_flow(wbengine: Command, store_url: str) -> None:
    uuid = wbengine("flow", "run", ORDER, "--quiet").json["uuid"]
    answer = wbengine("flow", "annotate", uuid[:8], "fine")
    assert (answer.code, answer.out) == (0, f"order {uuid}: note added\n")
    assert wbengine("flow", "annotate", "--", uuid, "-x").code == 0
    lines = wbengine("flow", "events", uuid, "--json").lines
    notes = [line["error"].partition(": ")[2] for line in lines if line["state"] == "NOTE"]
    assert notes == ["fine", "-x"]
