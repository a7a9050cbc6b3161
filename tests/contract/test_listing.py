"""Lists of flows: filters, order and pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.stored_flows import few, make
from tests.seams import stores
from tests.support.amounts import amount
from wbengine import exceptions, states
from wbengine.persistence import base, models
from wbengine.persistence._step_notes import StepNote

from . import places

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


def test_row_of_a_flow_is_not_that_of_a_longer_uuid(connection: Connection) -> None:
    """Programs may choose uuids. More flows than a page contains begin with that of the last."""
    flows = [models.FlowDetail(f"f{n}", f"order-1{n or ''}") for n in range(60)]
    shelve(connection, *flows[1:], flows[0])
    assert connection.get_row("order-1").name == "f0"
    assert connection.get_row("order-159").name == "f59"
    with pytest.raises(exceptions.NotFound, match="Unknown flow 'order-'"):
        connection.get_row("order-")


@places.dialects
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
    flow.enter(states.RUNNING, 3.0)
    connection.save_changes(flow, [], lease=lease)
    cancel = base.FlowCommand("cancel")
    connection.send_command(flow.uuid, cancel)
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert row.command == "cancel"
    assert connection.list_flows(commanded=True).flows == [row]
    connection.end_lease(lease, cancel)
    assert connection.list_flows(commanded=True).flows == []
    assert not row.submitted
    flow.meta["cancelled"] = {"at": 3.0, "reason": None}
    flow.meta[models.SUBMITTED] = {"board": "b"}
    connection.save_changes(flow, [])
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert (row.cancelled, row.command, row.submitted) == (True, None, True)
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert (row.state, row.lease, row.error) == (states.RUNNING, None, None)


@places.dialects
def test_steps_of_the_latest_attempt_of_each_workflow_are_counted(connection: Connection) -> None:
    workflows = [models.TaskDetail(f"workflow-{number}") for number in range(2)]
    steps = []
    for workflow, attempt, *step_states in (
        (workflows[0], 1, states.REVERTED, states.REVERTED),
        (workflows[0], 12, states.SUCCESS, states.RUNNING),
        (workflows[1], 1, states.SUCCESS),
    ):
        for position, state in enumerate(step_states):
            step = models.TaskDetail(f"{workflow.name}/{attempt}.{position}-charge")
            note = StepNote(workflow.uuid, attempt, position, "shop:charge", "")
            step.set_meta_value(models.STEP, note.to_dict())
            step.state = state
            steps.append(step)
    book, flow = make(*workflows, *steps, name="orders")
    connection.save_logbook(book)
    (row,) = connection.list_flows(uuid=flow.uuid).flows
    assert row.counts == {states.PENDING: 2}
    assert row.step_counts == {states.SUCCESS: 2, states.RUNNING: 1}


def test_resent_flows_are_listed(connection: Connection) -> None:
    book, flow = make(name="resent")
    flow.resent_at = 12.5
    book.add(models.FlowDetail("other"))
    connection.save_logbook(book)
    (row,) = connection.list_flows(resent=True, states=states.FLOW_STATES).flows
    assert row.uuid == flow.uuid
    assert connection.get_flow_details(flow.uuid).resent_at == 12.5
    assert len(connection.list_flows().flows) == 2


def test_backlog_counts_pending_flows(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_BACKLOG_PAGE", 2)
    assert connection.backlog() == (0, None)
    book, flow = make()
    for number, state in enumerate((None, states.PENDING, None, states.RUNNING)):
        other = models.FlowDetail(f"f{number}")
        other.created, other.state = 1000.0 + number, state
        book.add(other)
    flow.created, flow.state = 999.0, states.SUCCESS
    connection.save_logbook(book)
    assert connection.backlog() == (3, 1000.0)


def test_expired_lease_is_not_listed(connection: Connection) -> None:
    book, flow = make()
    connection.save_logbook(book)
    connection.acquire_lease(flow.uuid, "somebody", -1)
    (row,) = connection.list_flows().flows
    assert row.lease is None


class Example(NamedTuple):
    book: str
    uuid: str
    name: str
    created: float
    state: str | None
    tags: dict[str, str]

    def matches(self, wanted: dict[str, Any]) -> bool:
        selected: dict[str, Callable[[Any], bool]] = {
            "states": lambda names: (self.state or states.PENDING) in names,
            "name": self._has_part,
            "since": lambda moment: self.created >= moment,
            "book": lambda uuid: self.book == uuid,
            "uuid": self.uuid.startswith,
            "text": lambda text: self._has_part(text) or self.uuid.startswith(text),
            "tags": lambda tags: tags.items() <= self.tags.items(),
        }
        return all(selected[name](value) for name, value in wanted.items())

    def _has_part(self, text: str) -> bool:
        return text.casefold() in self.name.casefold()


#: Characters with a meaning in patterns.
PATTERN = r"%_[*?]^(a|b)\d.$"
QUOTED = "ä 'x' \"y\""
#: Flows of two logbooks in the order of their creation. Two were created at the same moment.
EXAMPLES = [
    Example("second", "b1", f"p{PATTERN}q", 10.0, "PENDING", {}),
    Example("second", "B1", QUOTED, 10.0, None, {"blue": "team"}),
    Example("second", "p1", "B-2", 20.0, "SUCCESS", {"team": "Blue"}),
    Example("first", "a2", "b-1", 30.0, "FAILURE", {"team": "blue", "env/zone": QUOTED}),
    Example("second", "%1", "a-2", 40.0, None, {}),
    Example("first", "a1", "a-1", 50.0, "SUCCESS", {"team": "blue"}),
]
#: Filters. Text matches literally, and has no effect as SQL. Case matters only outside names.
FILTERS: list[tuple[str, Any]] = [
    *(("states", names) for names in (["SUCCESS"], ["PENDING"], ("FAILURE", "SUCCESS"), [])),
    *(("name", part) for part in ("a-", "b", "-2", "%_", "a_1", "1", QUOTED, QUOTED.upper(), "")),
    *(("name", part) for part in (f"P{PATTERN.upper()}", ".", "*", "[b]", "\\", "B" * 60_000)),
    *(("since", moment) for moment in (10.0, 30.0, 30.5)),
    *(("book", uuid) for uuid in ("first", "second", "no-book")),
    *(("uuid", start) for start in ("a", "a1", "A", "b", "%", "a1-longer")),
    *(("text", text) for text in ("a-", "a", "B", "%", "Ä", "no such", "")),
    *(("tags", tags) for tags in ({}, {"team": "blue"}, {"team": "blu"}, {"blue": "team"})),
    *(("tags", {**tags, "env/zone": QUOTED}) for tags in ({}, {"team": "blue"})),
]


@pytest.fixture
def examples(connection: Connection) -> None:
    for example in EXAMPLES:
        flow = models.FlowDetail(example.name, example.uuid)
        flow.created, flow.state = example.created, example.state
        flow.meta["tags"] = example.tags
        book = models.LogBook("a book", example.book)
        book.add(flow)
        connection.save_logbook(book)


def check_pages(
    connection: Connection, wanted: dict[str, Any], limit: int, newest_first: bool
) -> None:
    expected = [example.name for example in EXAMPLES if example.matches(wanted)]
    if newest_first:
        expected.reverse()
    listed = list(pages(connection, **wanted, limit=limit, newest_first=newest_first))
    assert joined(listed) == expected, wanted
    assert all(len(page) == limit for page in listed[:-1])


@places.everywhere
@pytest.mark.usefixtures("examples")
def test_each_filter_selects_flows(connection: Connection) -> None:
    for name, value in FILTERS:
        for newest_first in (True, False):
            check_pages(connection, {name: value}, 50, newest_first)


@places.everywhere
@pytest.mark.usefixtures("examples")
@given(
    wanted=st.lists(st.sampled_from(FILTERS), max_size=3).map(dict),
    limit=st.sampled_from([1, 2, 50]),
    newest_first=st.booleans(),
)
@settings(few, max_examples=amount(40, 400))
def test_combined_filters_select_flows_on_pages_of_any_size(
    connection: Connection, wanted: dict[str, Any], limit: int, newest_first: bool
) -> None:
    check_pages(connection, wanted, limit, newest_first)


@places.dialects
def test_malformed_tags_are_ignored(connection: Connection) -> None:
    odd, mixed = a_flow("odd", 1.0), a_flow("mixed", 2.0)
    odd.meta["tags"] = ["a", {"b": 1}]
    mixed.meta["tags"] = {"a": "b", "c": [1], "d": {"e": 1}}
    shelve(connection, odd, mixed)
    rows = connection.list_flows(newest_first=False).flows
    assert [dict(row.tags) for row in rows] == [{}, {"a": "b"}]
    assert joined(pages(connection, tags={"a": "b"})) == ["mixed"]


#: By filter, what is recorded in the meta of each flow, and which flows a value selects.
RECORDED: dict[str, dict[str, Any]] = {
    # Flows without a recorded kind are serial.
    "engine": {
        "none": None, "default": "default", "serial": "serial", "parallel": "parallel",
        "worker-based": "worker-based", "workers": "workers", "plug-in": "Serial",
        "malformed": ["x"],
    },
    # Flows of other engines have no queue.
    "queue": {
        "none": None, "text": "reports", "default": {"board": "b"}, "upper": {"queue": "Reports"},
        "reports": {"board": "b", "queue": "reports"}, "first": {"queue": "reports:1"},
    },
}  # fmt: skip
SERIAL = ["none", "default", "serial", "malformed"]


def shelve_recorded(connection: Connection, name: str) -> None:
    key = {"engine": "engine", "queue": models.SUBMITTED}[name]
    flows = []
    for number, (flow_name, recorded) in enumerate(RECORDED[name].items(), 1):
        flow = a_flow(flow_name, float(number), "SUCCESS")
        flow.meta["nested"] = {"engine": "parallel", "submitted": {"queue": "reports"}}
        if recorded is not None:
            flow.meta[key] = recorded
        flows.append(flow)
    flows[0].meta = None
    shelve(connection, *flows)


@places.everywhere
@pytest.mark.parametrize(
    ("name", "value", "selected"),
    [
        ("engine", "serial", SERIAL),
        ("engine", "default", SERIAL),
        ("engine", "parallel", ["parallel"]),
        ("engine", "workers", ["worker-based", "workers"]),
        ("engine", "worker-based", ["worker-based", "workers"]),
        ("engine", "Serial", ["plug-in"]),
        ("engine", "%", []),
        ("engine", "\0", []),
        ("queue", "default", ["default"]),
        ("queue", "reports", ["reports"]),
        ("queue", "Reports", ["upper"]),
        ("queue", "report", []),
        ("queue", "%", []),
        ("queue", "\0", []),
        ("queue", "", []),
    ],
)
def test_engine_or_queue_selects_flows_that_recorded_it(
    connection: Connection, name: str, value: str, selected: list[str]
) -> None:
    shelve_recorded(connection, name)
    wanted = {name: value, "newest_first": False}
    assert joined(pages(connection, **wanted)) == selected
    of_state = pages(connection, **wanted, states=["SUCCESS"], limit=1)
    assert [names for names in of_state if names] == [[flow_name] for flow_name in selected]


@places.everywhere
def test_rows_contain_the_queue_of_submitted_flows(connection: Connection) -> None:
    shelve_recorded(connection, "queue")
    rows = connection.list_flows(newest_first=False).flows
    assert [row.queue for row in rows] == [
        *(None, None, "default", "Reports", "reports", "reports:1")
    ]


@places.dialects
def test_engine_selects_flows_with_odd_characters_in_meta(connection: Connection) -> None:
    flow = a_flow("odd", 1.0)
    # The codec encodes a text with a surrogate, so that its other characters are not in the JSON.
    odd = {"factory": {"args": ["\0", "\\u0000", "\ud800 \0"]}, "submitted": {"queue": "q"}}
    flow.meta |= {"engine": "parallel", **odd}
    shelve(connection, flow, a_flow("other", 2.0))
    assert joined(pages(connection, engine="parallel")) == ["odd"]
    assert joined(pages(connection, engine="serial")) == ["other"]
    assert joined(pages(connection, queue="q")) == ["odd"]


@places.everywhere
def test_error_selects_failed_flows_on_pages_of_any_size(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with errors that databases cannot extract from the JSON of the history."""
    stores.read_errors_in_steps_of(2, monkeypatch)
    errors = ["Card \0 declined", "a \ud800 card", "no stock", None, "CARD: 50%_\\u0000", "x" * 500]
    flows = []
    for number, error in enumerate(errors * 2):
        flow = a_flow(f"f{number}", float(number))
        flow.enter(states.FAILURE if number < len(errors) else states.REVERTED, 1.0, error)
        flows.append(flow)
    earlier = a_flow("earlier", 50.0)
    earlier.enter(states.FAILURE, 1.0, "card")
    earlier.enter(states.RUNNING, 2.0)
    shelve(connection, *flows, earlier)
    expected = [f"f{number}" for number in (0, 1, 4, 6, 7, 10)]
    for limit in (1, 2, 6, 50):
        listed = list(pages(connection, error="card", limit=limit, newest_first=False))
        assert joined(listed) == expected
        assert [len(page) for page in listed[:-1]] == [limit] * (len(listed) - 1)
    assert joined(pages(connection, error="card", states=["REVERTED"])) == ["f10", "f7", "f6"]
    assert joined(pages(connection, error="card", states=["RUNNING"])) == []
    assert joined(pages(connection, error="%_\\", name="1")) == ["f10"]


@places.dialects
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


def test_unknown_filter_or_page_is_refused(connection: Connection) -> None:
    wanted: dict[str, Any]
    for wanted, error in (
        ({"states": ["NONE"]}, "Unknown state of a flow 'NONE'"),
        ({"states": ["REVERTING"]}, "Unknown state of a flow 'REVERTING'"),
        ({"limit": 0}, "limit must be a whole number of at least 1"),
        ({"tags": {"a b": "c"}}, "the key of a tag must be"),
        ({"tags": {"a": ""}}, "the value of tag a must be"),
        ({"engine": ""}, "engine must be a kind without options, got ''"),
        ({"engine": "workers:"}, "engine must be a kind without options, got 'workers:'"),
        ({"after": "x"}, "after must be a position from an earlier page, got 'x'"),
        ({"after": "[1]"}, "must be a position from an earlier page"),
    ):
        with pytest.raises(ValueError, match=error):
            connection.list_flows(**wanted)


@places.dialects
def test_children_of_flow_are_listed_and_counted(connection: Connection) -> None:
    parent = a_flow("parent", 1.0, states.RUNNING)
    children = [a_flow(f"child{number}", 2.0 + number, states.SUCCESS) for number in range(3)]
    children[2].state = None
    for child in children:
        child.meta[models.PARENT] = {"flow": parent.uuid, "step": "any"}
    shelve(connection, parent, *children, a_flow("other", 9.0))
    listed = connection.list_flows(parent=parent.uuid, newest_first=False).flows
    assert [row.name for row in listed] == ["child0", "child1", "child2"]
    assert {row.parent for row in listed} == {parent.uuid}
    assert [row.tags for row in listed] == [{}] * 3
    assert [row.name for row in connection.list_flows(roots=True).flows] == ["other", "parent"]
    assert joined(pages(connection, parent=parent.uuid, limit=2)) == ["child2", "child1", "child0"]
    assert connection.count_children(parent.uuid) == {states.SUCCESS: 2, states.PENDING: 1}
    assert connection.count_children(children[0].uuid) == {}


@places.dialects
def test_code_selects_flows(connection: Connection) -> None:
    """By app and version on all stores; by the version only if the store has a list of versions."""
    for name, code in ("old", "shop:v42"), ("new", "shop:v43"), ("never ran", None):
        book, flow = make(name=name)
        connection.save_logbook(book)
        flow.code = code
        connection.save_changes(flow, [])
    rows = connection.list_flows(code="shop:v43").flows
    assert [(row.name, row.code) for row in rows] == [("new", "shop:v43")]
    assert connection.list_flows(code="shop:v4").flows == []
