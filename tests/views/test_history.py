"""Pages of events and summaries of flows."""

from __future__ import annotations

import contextlib

import pytest

from tests.views import canaries, records
from wbengine import exceptions
from wbengine.persistence import models
from wbengine.persistence.backends import _memory
from wbengine.views import _event_history, _flow_list, watcher
from wbengine.views.redaction import Redactor


@pytest.mark.parametrize("latest_first", [False, True])
@pytest.mark.parametrize("make", [records.order, records.failed])
def test_pages_contain_every_event_once_in_order(make, latest_first):
    detail, _ = make()
    found, after = [], None
    while True:
        page = _event_history.page(
            detail, Redactor(), limit=2, after=after, latest_first=latest_first
        )
        found += page.events
        after = page.after
        if after is None:
            break
        assert len(page.events) == 2
    whole = watcher.events_of(detail)
    key = lambda event: (event.uuid, event.state, event.attempt)  # noqa: E731
    assert sorted(map(key, found)) == sorted(map(key, whole))
    times = [event.at for event in found if event.at is not None]
    assert times == sorted(times, reverse=latest_first)


@pytest.mark.parametrize("after", ["x", "1_2", "1_2_3_4", "nan_x_1", "9" * 10_000])
def test_invalid_cursor_is_refused(after):
    detail, _ = records.order()
    with pytest.raises(ValueError, match="must be the cursor of a page of events"):
        _event_history.page(detail, Redactor(), after=after)


@pytest.mark.parametrize("limit", [0, _event_history.MAX_LIMIT + 1])
def test_page_size_out_of_range_is_refused(limit):
    detail, _ = records.order()
    with pytest.raises(ValueError, match=f"limit must be a number from 1 to 5000, got {limit}"):
        _event_history.page(detail, Redactor(), limit=limit)


def test_event_without_end_time_is_placed_after_its_start():
    flow = models.FlowDetail("f")
    undone = records.atom(flow, "a", "REVERTED", attempt=1, action="revert", submitted=records.T)
    records.atom(flow, "b", "SUCCESS", **records.ran(5, 1))
    assert undone.ended is None
    told = _event_history.page(flow, Redactor()).events
    assert [(event.name, event.state) for event in told] == [
        ("a", "REVERTING"),
        ("a", "REVERTED"),
        ("b", "RUNNING"),
        ("b", "SUCCESS"),
    ]


def lost(**fields):
    flow = models.FlowDetail("f")
    incidents = (
        models.Incident("WORKER_LOST", records.T + 5, 1, "w1"),
        models.Incident("RESENT", records.T + 5, 1, None, "w1"),
    )
    begun = {"attempt": 1, "submitted": records.T, "incidents": incidents}
    return flow, records.atom(flow, "a", "RUNNING", **{**begun, **fields})


def test_worker_lost_and_resent_events_are_listed_in_order():
    flow, atom = lost()
    atom.add_incident(models.Incident("WORKER_LOST", records.T + 9, 1, "w2", item=3))
    told = _event_history.page(flow, Redactor()).events
    assert [(e.kind, e.state, e.worker, e.lost_worker, e.item) for e in told] == [
        ("atom", "RUNNING", "w1", None, None),
        ("incident", "WORKER_LOST", "w1", None, None),
        ("incident", "RESENT", None, "w1", None),
        ("incident", "WORKER_LOST", "w2", None, 3),
    ]
    assert [e.executions for e in told] == [1] * 4
    assert told == tuple(watcher.events_of(flow))


def test_start_of_queued_attempt_is_that_on_its_worker():
    """The worker may have started long after the submission."""
    flow = models.FlowDetail("f")
    fields = records.ran(30, 1, "w2")
    records.atom(flow, "a", "SUCCESS", **{**fields, "submitted": records.T})
    records.atom(flow, "b", "RUNNING", attempt=1, submitted=records.T + 1, worker="w2")
    told = _event_history.page(flow, Redactor()).events
    assert [(e.name, e.state, e.at, e.worker) for e in told] == [
        ("b", "RUNNING", records.T + 1, "w2"),
        ("a", "RUNNING", records.T + 30, "w2"),
        ("a", "SUCCESS", records.T + 31, "w2"),
    ]


@pytest.mark.parametrize("lost_worker", ["w1", None])
def test_start_of_resent_attempt_names_the_worker_of_the_first_copy(lost_worker):
    flow = models.FlowDetail("f")
    incidents = (
        models.Incident("RESENT", records.T + 1, 1, "x", "y"),
        models.Incident("RESENT", records.T + 30, 2, "w2", lost_worker),
        models.Incident("RESENT", records.T + 40, 2, "w3", "w2"),
    )
    fields = {**records.ran(41, 1, "w3", 2), "submitted": records.T + 2, "incidents": incidents}
    records.atom(flow, "a", "SUCCESS", **fields)
    told = [e for e in _event_history.page(flow, Redactor()).events if e.kind == "atom"]
    assert [(e.state, e.at, e.worker) for e in told] == [
        ("RUNNING", records.T + 2, lost_worker),
        ("SUCCESS", records.T + 42, "w3"),
    ]


@pytest.mark.parametrize("ends", [False, True])
def test_resent_event_appears_once_the_new_worker_or_the_end_is_known(ends):
    flow, atom = lost()
    collector = _event_history.EventCollector()
    assert [e.state for e in collector.collect(flow, flow, Redactor(), records.T + 6)] == [
        "RUNNING",
        "WORKER_LOST",
    ]
    assert collector.collect(flow, flow, Redactor(), records.T + 7) == []
    if ends:
        atom.put("FAILURE", records.failure())
    else:
        atom.set_incident_worker("w2")
    found = collector.collect(flow, flow, Redactor(), records.T + 8)
    (resent,) = [each for each in found if each.state == "RESENT"]
    assert (resent.lost_worker, resent.worker) == ("w1", None if ends else "w2")
    assert collector.collect(flow, flow, Redactor(), records.T + 9) == []


def test_summary_contains_parts_and_counts():
    detail, outline = records.order()
    backend = _memory.MemoryBackend()
    book = models.LogBook("books")
    book.add(detail)
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(book)
        connection.save_outline(detail.uuid, outline)
        found = _flow_list.summary(connection, detail.uuid)
        assert _flow_list.size(connection, detail.uuid) == 7
        with pytest.raises(exceptions.NotFound):
            _flow_list.summary(connection, "4711")
    told = [(part.node, part.name, part.kind, part.tasks) for part in found.parts]
    assert told == [
        (1, "check", "flow", 3),
        (5, "pay", "flow", 2),
        (9, "notify", "map", 1),
        (10, "archive", "task", 1),
    ]
    assert (found.part_count, found.row.counts["PENDING"]) == (4, 3)


def test_summary_contains_no_secret():
    backend = _memory.MemoryBackend()
    engine = canaries.load(backend=backend)
    with pytest.raises((exceptions.WrappedFailure, RuntimeError)):
        engine.run()
    with contextlib.closing(backend.get_connection()) as connection:
        assert "c4n4ry" not in repr(_flow_list.summary(connection, engine.storage.flow_uuid))
