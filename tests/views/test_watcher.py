"""Events of flows: watchers, pages and summaries, without secrets."""

from __future__ import annotations

import contextlib
import json

import pytest

from tests.views import canaries, records
from wbengine import engines, exceptions, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.persistence.backends import _memory
from wbengine.views import _event_history, _flow_list, watcher
from wbengine.views import flow_status as flows
from wbengine.views.redaction import Redactor
from wbengine.views.watcher import FlowWatcher

#: Events of flow 'shop' with two steps.
SHOPPING = [
    ("flow", "shop", "RUNNING"),
    ("atom", "a", "RUNNING"),
    ("atom", "a", "SUCCESS"),
    ("atom", "b", "RUNNING"),
    ("atom", "b", "SUCCESS"),
    ("flow", "shop", "SUCCESS"),
]


@pytest.fixture(params=["memory", "sqlite"])
def backend(request, tmp_path):
    uri = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else "memory"
    with contextlib.closing(backends.fetch(uri)) as made:
        with made.get_connection() as connection:
            connection.upgrade()
        yield made


class Step(task.Task):
    def execute(self):
        return self.name


class Bad(task.Task):
    def execute(self):
        raise ValueError("out of paper")


def told(events):
    return [(event.kind, event.name, event.state) for event in events]


def test_watcher_returns_each_event_once_during_a_run(backend):
    flow = linear_flow.Flow("shop").add(Step("a"), Step("b"))
    engine = engines.load(flow, backend=backend)
    seen = []
    with FlowWatcher(backend, engine.storage.flow_uuid) as watch:
        assert watch.poll() == [] and not watch.finished
        for _ in engine.run_iter():
            seen += watch.poll()
            assert watch.view().state in states.FLOW_STATES
        seen += watch.poll()
        assert watch.finished and watch.poll() == []
    assert told(seen) == SHOPPING


@pytest.mark.parametrize("goes_on", [False, True])
def test_failure_without_end_time_gets_time_of_poll_or_next_attempt(backend, goes_on):
    """The record of the failed attempt has no end time."""
    book, flow = models.LogBook("b"), models.FlowDetail("f")
    book.add(flow)
    lost = records.atom(flow, "a", "RUNNING", attempt=1, submitted=records.T)
    with backend.get_connection() as connection, FlowWatcher(backend, flow.uuid) as watch:
        connection.save_logbook(book)
        assert [event.at for event in watch.poll(records.T + 1)] == [records.T]
        lost.put(states.FAILURE, records.failure())
        moment = records.T + 60
        if goes_on:
            lost.archive_attempt()
            lost.attempt, lost.action, lost.submitted = 2, "revert", records.T + 50
            lost.state = states.REVERTING
            moment = lost.submitted
        connection.save_changes(flow, [lost])
        found = watch.poll(records.T + 60)
        assert (found[0].at, found[0].state) == (moment, states.FAILURE)
        assert len(found) == 1 + goes_on
        assert watch.poll(records.T + 61) == []


def test_watcher_continues_from_the_cursor_of_another(backend):
    engine = engines.load(linear_flow.Flow("shop").add(Step("a"), Bad("b")), backend=backend)
    uuid = engine.storage.flow_uuid
    with FlowWatcher(backend, uuid) as first:
        first.poll()
        cursor = first.cursor
    with pytest.raises(ValueError, match="paper"):
        engine.run()
    with FlowWatcher(backend, uuid, cursor=cursor) as second:
        events = second.poll()
        assert ("atom", "b", "REVERTED") in told(events)
        failed = next(event for event in events if event.state == "FAILURE")
        assert failed.error == "ValueError: out of paper"
        assert failed.to_dict()["schema"] == "wbengine/event/1"
        json.dumps([event.to_dict() for event in events])
        assert second.poll() == []


def test_view_does_not_consume_events(backend):
    engine = engines.load(linear_flow.Flow("shop").add(Step("a"), Step("b")), backend=backend)
    with FlowWatcher(backend, engine.storage.flow_uuid) as first:
        first.poll()
        cursor = first.cursor
    with FlowWatcher(backend, first.uuid, cursor=cursor) as watch:
        run = engine.run_iter()
        for state in run:
            if state == "WAITING":
                break
        # The watcher has read only a part; the view reads the rest.
        assert {atom.name for atom in watch.view().atoms} == {"a", "b"}
        seen = watch.poll()
        for _ in run:
            pass
        seen += watch.poll()
        assert len(seen) == len(set(seen)) == 6
        assert watch.view().state == "SUCCESS"


def test_watcher_continues_from_the_cursor_of_a_view(backend):
    engine = engines.load(linear_flow.Flow("shop").add(Step("a")), backend=backend)
    with backend.get_connection() as connection:
        view = flows.read(connection, engine.storage.flow_uuid)
    engine.run()
    with FlowWatcher(backend, view.uuid, cursor=view.cursor) as watch:
        assert told(watch.poll())[-1] == ("flow", "shop", "SUCCESS")


def test_view_of_watcher_equals_view_of_store(backend):
    engine = engines.load(linear_flow.Flow("shop").add(Step("a"), Bad("b")), backend=backend)
    with FlowWatcher(backend, engine.storage.flow_uuid) as watch:
        watch.poll()
        with pytest.raises(ValueError, match="paper"):
            engine.run()
        watch.poll()
        with backend.get_connection() as connection:
            found = flows.read(connection, watch.uuid, now=5.0).to_dict()
        assert watch.view(now=5.0).to_dict() == found
        assert found["book"]["name"] == "shop"


def test_unknown_flow_raises_not_found(backend):
    with FlowWatcher(backend, "4711") as watch, pytest.raises(exceptions.NotFound):
        watch.poll()
    with backend.get_connection() as connection, pytest.raises(exceptions.NotFound):
        flows.read(connection, "4711")


def test_flows_are_listed_in_pages(backend):
    for number in range(3):
        engines.load(linear_flow.Flow(f"shop {number}").add(Step("a")), backend=backend).run()
    engines.load(linear_flow.Flow("other").add(Step("a")), backend=backend)
    with backend.get_connection() as connection:
        first = _flow_list.page(connection, name="shop", limit=2)
        rest = _flow_list.page(connection, name="shop", limit=2, after=first.after)
        new = _flow_list.page(connection, states=["PENDING"])
    assert [row.name for row in (*first.flows, *rest.flows)] == ["shop 2", "shop 1", "shop 0"]
    assert rest.after is None
    row = first.flows[0]
    assert (row.state, row.total, row.progress, row.owner) == ("SUCCESS", 1, 1.0, None)
    assert [row.name for row in new.flows] == ["other"]
    assert json.loads(json.dumps(first.to_dict()))["schema"] == "wbengine/flows/1"


def test_flows_in_a_displayed_state_are_listed_in_pages(backend):
    """The store does not know these states, and its pages contain other flows."""
    for number in range(9):
        engine = engines.load(linear_flow.Flow(f"shop {number}").add(Step("a")), backend=backend)
        if number % 3:
            engine.run()
        else:
            engine.compile()
            engine.prepare()
            engine.storage.set_flow_state("RUNNING")  # as if its engine had died
    pages, after = [], None
    with backend.get_connection() as connection:
        while not pages or after is not None:
            page = _flow_list.page(connection, states=["INTERRUPTED"], limit=2, after=after)
            pages.append([row.name for row in page.flows])
            after = page.after
    assert pages == [["shop 6", "shop 3"], ["shop 0"]]


class _Changing:
    """A connection to a store, in which flows end before a page is read again."""

    def __init__(self, connection, end):
        self._connection = connection
        self._end = end

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def list_flows(self, *, limit, **filters):
        if limit == 1:
            self._end()
        return self._connection.list_flows(limit=limit, **filters)


@pytest.mark.parametrize("ends", [False, True])
def test_page_that_is_read_again_contains_only_matching_flows(backend, ends):
    made = []
    for number in range(9):
        engine = engines.load(linear_flow.Flow(f"shop {number}").add(Step("a")), backend=backend)
        engine.compile()
        engine.prepare()
        if number in (5, 6, 8):
            engine.storage.set_flow_state("RUNNING")  # as if its engine had died
        made.append(engine)

    def end():
        for engine in made[:7] if ends else ():
            engine.storage.set_flow_state("SUCCESS")

    pages, after = [], None
    with backend.get_connection() as connection:
        while not pages or after is not None:
            page = _flow_list.page(
                _Changing(connection, end), states=["INTERRUPTED", "SUSPENDING"], limit=2,
                after=after,
            )  # fmt: skip
            pages.append([row.name for row in page.flows])
            after = page.after
    assert [names for names in pages if names] == (
        [["shop 8"]] if ends else [["shop 8", "shop 6"], ["shop 5"]]
    )


class Quote(task.Task):
    def execute(self, password):
        raise ValueError(f"nobody is called {password}")


def test_secrets_stored_before_the_cursor_are_masked(backend):
    """The inputs are in a record that has not changed since the cursor."""
    engine = engines.load(
        linear_flow.Flow("shop").add(Step("a"), Quote("b")),
        store={"password": canaries.STORED},
        backend=backend,
    )
    with FlowWatcher(backend, engine.storage.flow_uuid) as first:
        run = engine.run_iter()
        while ("atom", "a", "SUCCESS") not in told(first.poll()):
            next(run)
        cursor = first.cursor
    with FlowWatcher(backend, first.uuid, cursor=cursor) as watch:
        with pytest.raises(ValueError, match="nobody"):
            list(run)
        events = watch.poll()
    assert any(event.error == "ValueError: nobody is called ***" for event in events)
    assert canaries.STORED not in repr(events)


class Sign(task.Task):
    def execute(self, item):
        if item == 2:
            raise ValueError(f"nobody knows {canaries.RETURNED}")
        return {"auth_token": canaries.RETURNED}


def test_secret_results_of_items_are_masked(backend):
    """Items change without the row of their atom: a watcher that has read the flow earlier must
    mask
    them too.
    """
    sign = task.Map(Sign("sign"), over="them", item="item", max_in_flight=1)
    flow = linear_flow.Flow("shop").add(sign)
    engine = engines.load(flow, store={"them": [1, 2]}, backend=backend)
    events = []
    with FlowWatcher(backend, engine.storage.flow_uuid) as watch:
        with pytest.raises(ValueError, match="nobody"):
            for _ in engine.run_iter():
                events += watch.poll()
        events += watch.poll()
        assert any(event.error == "ValueError: nobody knows ***" for event in events)
        assert canaries.RETURNED not in repr((events, watch.view()))


@pytest.mark.parametrize("show", [False, True])
def test_events_views_and_lists_contain_no_secret(backend, show):
    engine = canaries.load(backend=backend)
    redactor = Redactor(show_values=show)
    said = []
    with FlowWatcher(backend, engine.storage.flow_uuid, redactor=redactor) as watch:
        said += [json.dumps(event.to_dict()) for event in watch.poll()]
        with pytest.raises((exceptions.WrappedFailure, RuntimeError)):
            engine.run()
        said += [json.dumps(event.to_dict()) for event in watch.poll()]
        said += [
            json.dumps(watch.view().to_dict()),
            repr(watch.view()),
            watch.view().failures[0].text,
        ]
    with backend.get_connection() as connection:
        said.append(json.dumps(flows.read(connection, watch.uuid, redactor=redactor).to_dict()))
        said.append(json.dumps(_flow_list.page(connection, redactor=redactor).to_dict()))
        detail = connection.get_flow_details(watch.uuid)
    said += [repr(event) for event in watcher.events_of(detail, redactor)]
    assert len(said) > 20
    for text in said:
        assert "c4n4ry" not in text
    assert "cannot log in with" in "".join(said)


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
