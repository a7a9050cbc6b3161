"""Lists of flows: filters, order and pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.stored_flows import few, make
from wbengine import states
from wbengine.persistence import base, models

Connection = base.Connection


def shelve(connection: Connection, *flows: models.FlowDetail) -> models.LogBook:
    book = models.LogBook("a book")
    for flow in flows:
        book.add(flow)
    connection.save_logbook(book)
    return book


def a_flow(name: str, created: float, state: str | None = None) -> models.FlowDetail:
    flow = models.FlowDetail(name)
    flow.created, flow.state = created, state
    return flow


def pages(connection: Connection, **wanted: Any) -> Iterator[list[str]]:
    """Yield the names of the flows on each page."""
    after: str | None = None
    while True:
        page = connection.list_flows(**wanted, after=after)
        yield [row.name for row in page.flows]
        after = page.after
        if after is None:
            return


def joined(listed: Iterable[list[str]]) -> list[str]:
    return list(itertools.chain.from_iterable(listed))


def test_empty_store_lists_no_flows(connection: Connection) -> None:
    assert connection.list_flows() == base.Page([], None)


def test_row_contains_state_counts_and_owner_of_flow(connection: Connection) -> None:
    """Of a flow that runs and of one that never ran."""
    atoms = [models.TaskDetail(f"t{number}") for number in range(5)]
    for atom in atoms[:3]:
        atom.state = states.SUCCESS
    atoms[3].state = states.FAILURE
    injector = models.TaskDetail(models.INJECTOR)
    injector.state = states.SUCCESS
    controller = models.RetryDetail("again")  # not a task
    controller.state = states.SUCCESS
    book, flow = make(*atoms, controller, injector, name="Ä%_'\"f")
    flow.created = 1000.25
    bare = models.FlowDetail("bare")
    book.add(bare)
    connection.save_logbook(book)
    (first, second) = connection.list_flows(newest_first=False).flows
    assert first == base.FlowRow(
        flow.uuid, flow.name, book.uuid, book.name, states.PENDING, 1000.25, first.updated,
        {states.SUCCESS: 3, states.FAILURE: 1, states.PENDING: 1}, None, None,
    )  # fmt: skip
    assert (second.name, second.state, second.counts) == ("bare", states.PENDING, {})
    assert second.created == bare.created
    assert first.updated is not None and abs(first.updated - (bare.created or 0)) < 60

    lease = connection.acquire_lease(flow.uuid, "somebody", 60)
    flow.enter(states.RUNNING, 1.0)
    flow.enter(states.FAILURE, 2.0, "it broke")
    connection.save_changes(flow, atoms[:1], lease=lease)
    (row,) = connection.list_flows(uuid=flow.uuid[:8]).flows
    assert (row.state, row.lease, row.error) == (states.FAILURE, "somebody", "it broke")
    assert row.updated is not None and row.updated >= first.updated
    assert (row.cancelled, row.command) == (False, None)
    connection.send_command(flow.uuid, base.FlowCommand("cancel"))
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert row.command == "cancel"
    connection.release_lease(lease)
    flow.enter(states.RUNNING, 3.0)
    flow.meta["cancelled"] = {"at": 3.0, "reason": None}
    connection.save_changes(flow, [])
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert (row.cancelled, row.command) == (True, None)
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert (row.state, row.lease, row.error) == (states.RUNNING, None, None)


def test_expired_lease_is_not_listed(connection: Connection) -> None:
    book, flow = make()
    connection.save_logbook(book)
    connection.acquire_lease(flow.uuid, "somebody", -1)
    (row,) = connection.list_flows().flows
    assert row.lease is None


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, "a-1 a-2 b-1 B-2 p%_q"),
        ({"newest_first": False}, "p%_q B-2 b-1 a-2 a-1"),
        ({"states": ["SUCCESS"]}, "a-1 B-2"),
        ({"states": ["PENDING"]}, "a-2 p%_q"),
        ({"states": ("FAILURE", "SUCCESS")}, "a-1 b-1 B-2"),
        ({"states": []}, ""),
        ({"name": "a-"}, "a-1 a-2"),
        ({"name": "b"}, "b-1"),
        ({"name": "-2"}, "a-2 B-2"),
        ({"name": "%_"}, "p%_q"),
        ({"name": "a_1"}, ""),
        ({"since": 30.0}, "a-1 a-2 b-1"),
        ({"since": 30.5, "name": "1"}, "a-1"),
        ({"book": "no-book"}, ""),
        ({"uuid": "no-uuid"}, ""),
        ({"uuid": "%"}, ""),
        ({"text": "a-"}, "a-1 a-2"),
        ({"text": "no such"}, ""),
        ({"tags": {}}, "a-1 a-2 b-1 B-2 p%_q"),
        ({"tags": {"team": "blue"}}, "a-1 b-1"),
        ({"tags": {"team": "blue", "env/zone": "ä 'x' \"y\""}}, "b-1"),
        ({"tags": {"team": "blu"}}, ""),
        ({"tags": {"blue": "team"}}, ""),
        ({"tags": {"team": "blue"}, "states": ["SUCCESS", "FAILURE"], "text": "b-"}, "b-1"),
        ({"name": "1", "states": ["FAILURE"], "newest_first": False}, "b-1"),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 50])
def test_filters_select_flows_on_pages_of_any_size(
    connection: Connection, wanted: dict[str, Any], names: str, limit: int
) -> None:
    tagged = a_flow("b-1", 30.0, "FAILURE"), a_flow("a-1", 50.0, "SUCCESS")
    tagged[0].meta["tags"] = {"team": "blue", "env/zone": "ä 'x' \"y\""}
    tagged[1].meta["tags"] = {"team": "blue"}
    shelve(connection, *tagged)
    shelve(
        connection, a_flow("p%_q", 10.0, "PENDING"), a_flow("B-2", 20.0, "SUCCESS"),
        a_flow("a-2", 40.0),
    )  # fmt: skip
    listed = list(pages(connection, **wanted, limit=limit))
    assert joined(listed) == names.split()
    assert all(len(page) == limit for page in listed[:-1])


def test_malformed_tags_are_ignored(connection: Connection) -> None:
    odd, mixed = a_flow("odd", 1.0), a_flow("mixed", 2.0)
    odd.meta["tags"] = ["a", {"b": 1}]
    mixed.meta["tags"] = {"a": "b", "c": 1}
    shelve(connection, odd, mixed)
    rows = connection.list_flows(newest_first=False).flows
    assert [dict(row.tags) for row in rows] == [{}, {"a": "b"}]
    assert joined(pages(connection, tags={"a": "b"})) == ["mixed"]


def test_flows_can_be_selected_by_logbook_and_uuid(connection: Connection) -> None:
    flows = [a_flow(name, float(number)) for number, name in enumerate("abc", 1)]
    shelve(connection, flows[0])
    book = shelve(connection, flows[1], flows[2])
    assert joined(pages(connection, book=book.uuid, newest_first=False)) == ["b", "c"]
    for flow in flows:
        assert joined(pages(connection, uuid=flow.uuid[:6])) == [flow.name]
        assert joined(pages(connection, text=flow.uuid[:9])) == [flow.name]


@few
@given(
    created=st.lists(st.sampled_from([1.0, 2.0, 2.5]), max_size=8),
    limit=st.integers(1, 4),
    newest=st.booleans(),
)
def test_pages_contain_each_flow_once(
    connection: Connection, created: list[float], limit: int, newest: bool
) -> None:
    """This includes equal creation times, and flows that are created between pages."""
    connection.clear_all()
    flows = [a_flow(f"{number}", moment) for number, moment in enumerate(created)]
    if flows:
        shelve(connection, *flows)
    listed: list[str] = []
    for names in pages(connection, limit=limit, newest_first=newest):
        listed += names
        shelve(connection, a_flow("late", 9.0 if newest else 0.5))
    assert sorted(listed) == sorted(flow.name for flow in flows)
    moments = [flows[int(name)].created or 0.0 for name in listed]
    assert moments == sorted(moments, reverse=newest)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"states": ["NONE"]}, "Unknown state of a flow 'NONE'"),
        ({"states": ["REVERTING"]}, "Unknown state of a flow 'REVERTING'"),
        ({"limit": 0}, "limit must be a whole number of at least 1"),
        ({"tags": {"a b": "c"}}, "the key of a tag must be"),
        ({"tags": {"a": ""}}, "the value of tag a must be"),
        ({"after": "x"}, "after must be a position from an earlier page, got 'x'"),
        ({"after": "[1]"}, "must be a position from an earlier page"),
    ],
)
def test_unknown_filter_or_page_is_refused(
    connection: Connection, wanted: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        connection.list_flows(**wanted)
