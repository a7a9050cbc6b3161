"""What happened to a flow, page by page, and what can be said of a huge one at once."""

from __future__ import annotations

import contextlib

import pytest

from tests.views import canaries, records
from wbengine import exceptions
from wbengine.persistence import models
from wbengine.persistence.backends import memory
from wbengine.views import history, listing, watcher
from wbengine.views.redaction import Redactor


@pytest.mark.parametrize("latest_first", [False, True])
@pytest.mark.parametrize("make", [records.order, records.failed])
def test_pages_are_all_that_happened_each_thing_once(make, latest_first):
    detail, _ = make()
    found, after = [], None
    while True:
        page = history.page(detail, Redactor(), limit=2, after=after, latest_first=latest_first)
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
def test_a_place_that_no_page_told_is_refused(after):
    detail, _ = records.order()
    with pytest.raises(ValueError, match="is not what a page of events told"):
        history.page(detail, Redactor(), after=after)


@pytest.mark.parametrize("limit", [0, history.MOST + 1])
def test_a_page_has_a_size(limit):
    detail, _ = records.order()
    with pytest.raises(ValueError, match=f"limit={limit} is no number from 1 to 5000"):
        history.page(detail, Redactor(), limit=limit)


def test_what_ended_without_a_time_ended_after_it_began():
    flow = models.FlowDetail("f")
    undone = records.atom(flow, "a", "REVERTED", attempt=1, action="revert", submitted=records.T)
    records.atom(flow, "b", "SUCCESS", **records.ran(5, 1))
    assert undone.ended is None
    told = history.page(flow, Redactor()).events
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


def test_lost_workers_stand_where_they_were_lost():
    flow, atom = lost()
    atom.add_incident(models.Incident("WORKER_LOST", records.T + 9, 1, "w2", item=3))
    told = history.page(flow, Redactor()).events
    assert [(e.kind, e.state, e.worker, e.lost_worker, e.item) for e in told] == [
        ("atom", "RUNNING", None, None, None),
        ("incident", "WORKER_LOST", "w1", None, None),
        ("incident", "RESENT", None, "w1", None),
        ("incident", "WORKER_LOST", "w2", None, 3),
    ]
    assert [e.executions for e in told] == [1] * 4
    assert told == tuple(watcher.events_of(flow))


@pytest.mark.parametrize("ends", [False, True])
def test_who_looks_on_hears_of_what_was_sent_again_once_both_workers_are_known(ends):
    flow, atom = lost()
    teller = history.Teller()
    assert [e.state for e in teller.tell(flow, flow, Redactor(), records.T + 6)] == [
        "RUNNING",
        "WORKER_LOST",
    ]
    assert teller.tell(flow, flow, Redactor(), records.T + 7) == []
    if ends:
        atom.put("FAILURE", records.failure())
    else:
        atom.set_incident_worker("w2")
    found = teller.tell(flow, flow, Redactor(), records.T + 8)
    (resent,) = [each for each in found if each.state == "RESENT"]
    assert (resent.lost_worker, resent.worker) == ("w1", None if ends else "w2")
    assert teller.tell(flow, flow, Redactor(), records.T + 9) == []


def test_a_summary_tells_of_parts_and_counts():
    detail, outline = records.order()
    backend = memory.MemoryBackend()
    book = models.LogBook("books")
    book.add(detail)
    with contextlib.closing(backend.get_connection()) as connection:
        connection.save_logbook(book)
        connection.save_outline(detail.uuid, outline)
        found = listing.summary(connection, detail.uuid)
        assert listing.size(connection, detail.uuid) == 7
        with pytest.raises(exceptions.NotFound):
            listing.summary(connection, "4711")
    told = [(part.node, part.name, part.kind, part.tasks) for part in found.parts]
    assert told == [
        (1, "check", "flow", 3),
        (5, "pay", "flow", 2),
        (9, "notify", "map", 1),
        (10, "archive", "task", 1),
    ]
    assert (found.among, found.row.counts["PENDING"]) == (4, 3)


def test_a_summary_tells_no_secret():
    backend = memory.MemoryBackend()
    engine = canaries.load(backend=backend)
    with pytest.raises((exceptions.WrappedFailure, RuntimeError)):
        engine.run()
    with contextlib.closing(backend.get_connection()) as connection:
        assert "c4n4ry" not in repr(listing.summary(connection, engine.storage.flow_uuid))
