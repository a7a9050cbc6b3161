"""Tags of flows in each store: conditions, deletion and copies."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from wbengine import operations
from wbengine.persistence import backends, base, models
from wbengine.types import _tags

from . import places

DUE = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC)
FLOWS: dict[str, dict[str, _tags.Value]] = {
    "text": {"customer": "17", "note": "a=b<c>'\"\\%_"},
    "number": {"customer": 17, "amount": 100.5, "paid": True},
    "case": {"customer": "Ab", "amount": -3, "paid": False},
    "lower": {"customer": "ab", "due": DUE},
    "wide": {"customer": "\N{GRINNING FACE}", "Amount": 1e300, "due": DUE.replace(year=2030)},
    "none": {},
}
CONDITIONS = {
    "customer=17": "text number",
    "customer=Ab": "case",
    "customer=ab": "lower",
    "customer=\N{GRINNING FACE}": "wide",
    "customer=\N{GRINNING FACE WITH SMILING EYES}": "",
    "customer=\xe4b": "",
    "note=a=b<c>'\"\\%_": "text",
    "note=a=b<c>'\"\\%%": "",
    "paid=true": "number",
    "paid=false": "case",
    "amount>100": "number",
    "amount>=-3": "number case",
    "amount<100.5": "case",
    "amount<=100.5": "number case",
    "Amount>1e299": "wide",
    "due<2026-12-02": "lower",
    "due>2026-12-01T12:00": "wide",
    "due>=2026-12-01T13:00+01:00": "lower wide",
    "amount>2020-01-01": "",
}


def saved(connection: base.Connection, key: str, name: str, tags: Any) -> models.FlowDetail:
    flow, book = models.FlowDetail(name), models.LogBook("b")
    if tags:
        flow.meta[key] = _tags.check(tags)
    book.add(flow)
    connection.save_logbook(book)
    return flow


def names(connection: base.Connection, *conditions: Any, **filters: Any) -> list[str]:
    page = connection.list_flows(tags=conditions, newest_first=False, **filters)
    return [row.name for row in page.flows]


@places.everywhere
@pytest.mark.parametrize("key", [_tags.GIVEN, _tags.CHANGED])
def test_conditions_select_flows(connection: base.Connection, key: str) -> None:
    for name, tags in FLOWS.items():
        saved(connection, key, name, tags)
    for condition, expected in CONDITIONS.items():
        assert names(connection, condition) == expected.split(), condition
    assert names(connection, "customer=17", "amount>100", "amount<200") == ["number"]
    assert names(connection, "customer=17", states=("FAILURE", "SUCCESS")) == []
    assert names(connection, "amount>100", states=("PENDING",)) == ["number"]
    rows = {row.name: row.tags for row in connection.list_flows().flows}
    assert rows == FLOWS
    types = {name: {k: type(v) for k, v in tags.items()} for name, tags in rows.items()}
    assert types == {n: {k: type(v) for k, v in tags.items()} for n, tags in FLOWS.items()}


@places.everywhere
def test_only_tags_of_submission_match_conditions_for_them(connection: base.Connection) -> None:
    saved(connection, _tags.GIVEN, "given", {"team": "a"})
    saved(connection, _tags.CHANGED, "changed", {"team": "a"})
    assert names(connection, "team=a") == ["given", "changed"]
    assert names(connection, *_tags.conditions_of({"team": "a"}, given=True)) == ["given"]


@places.everywhere
def test_latest_value_of_run_replaces_earlier_one(connection: base.Connection) -> None:
    flow = saved(connection, _tags.GIVEN, "f", {"team": "a"})
    lease = connection.acquire_lease(flow.uuid, "me", 60)
    for phase in ("one", 2, True):
        flow.meta[_tags.CHANGED] = _tags.merged(flow.meta, {"phase": phase})
        connection.save_changes(flow, [], lease=lease)
    assert names(connection, "phase=true", "team=a") == ["f"]
    assert names(connection, "phase=one") == names(connection, "phase>0") == []


@places.everywhere
def test_other_flows_keep_tags_after_deletion(connection: base.Connection) -> None:
    flow = saved(connection, _tags.CHANGED, "a", {"x": 1})
    saved(connection, _tags.CHANGED, "b", {"x": 1})
    connection.destroy_flow(flow.uuid)
    assert names(connection, "x=1") == ["b"]


@places.every_durable
def test_move_copies_tags(
    connection: base.Connection, backend: base.Backend, tmp_path: Any
) -> None:
    for key in (_tags.GIVEN, _tags.CHANGED):
        saved(connection, key, key, {"amount": 5, "due": DUE})
    with backends.backend(f"sqlite:///{tmp_path}/new.db") as new:
        list(operations.move(backend, new))
        with new.get_connection() as moved:
            assert names(moved, "amount>4") == [_tags.GIVEN, _tags.CHANGED]
            assert names(moved, "due<2027-01-01") == [_tags.GIVEN, _tags.CHANGED]


@places.dialects
def test_saved_logbook_without_tag_removes_it_from_index(connection: base.Connection) -> None:
    flow = saved(connection, _tags.GIVEN, "a", {"x": "1", "y": "1"})
    flow.meta[_tags.GIVEN] = {"y": "1"}
    book = models.LogBook("b")
    book.add(flow)
    connection.save_logbook(book)
    assert names(connection, "x=1") == []
    assert names(connection, "y=1") == ["a"]
