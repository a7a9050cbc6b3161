"""Views of flows: states, reasons for waiting, failures, reversions and values."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import pathlib
import time

import pytest

from tests.views import records
from wbengine import drawing, engines, exceptions, operations, states, task
from wbengine.drawing import _terminal_tree
from wbengine.persistence import _leases, _owners, backends, models
from wbengine.persistence._commands import FlowCommand
from wbengine.types._encoding import classes
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode
from wbengine.types.failure import Failure
from wbengine.views import _timeline as timelines
from wbengine.views import flow_status as flows
from wbengine.views.redaction import Redactor

T = records.T
NOW = T + 10


@pytest.fixture
def order():
    return records.order()


@pytest.fixture
def flow(order):
    return order[0]


@pytest.fixture
def outline(order):
    return order[1]


def lease(flow, died=False):
    owner = _owners.new()
    if died:
        owner.end_run()
    return _leases.Lease(flow.uuid, str(owner), 1)


def look(flow, outline=None, held=None, **options):
    return flows.view(flow, outline, held, now=options.pop("now", NOW), **options)


def test_view_shows_state_counts_and_atoms(flow, outline):
    view = look(flow, outline, lease(flow), book=("b-uuid", "my book"), cursor="17")

    assert (view.name, view.state, view.book_name, view.cursor) == (
        "order", "RUNNING", "my book", "17",
    )  # fmt: skip
    assert view.owner is not None and "process" in view.owner
    assert not view.owner_died
    assert view.started == T - 1
    assert view.ended is None
    assert view.duration == 11
    assert (view.total, len(view.atoms)) == (7, 8), "a retry is no task"
    assert dict(view.counts) == {"SUCCESS": 2, "IGNORE": 1, "RUNNING": 1, "PENDING": 3}
    assert view.progress == pytest.approx(3 / 7)
    assert not view.finished
    names = [atom.name for atom in view.atoms]
    assert names == [node.name for node in outline.nodes if node.kind != FLOW]
    cart = view.atom("read cart")
    assert cart.path == ("order", "check")
    assert cart.task == "shop.ReadCart"
    assert cart.runtime == pytest.approx(1.0)
    assert cart.worker == "host-a:1"
    assert cart.result == "dict, 1 key"
    assert view.atom(cart.uuid) is cart
    assert view.atom("nobody") is None


def test_tree_has_the_states_of_nested_flows():
    view = look(*records.order())
    inner = {child.name: child for child in view.tree.children}
    assert inner["check"].state == "SUCCESS"
    assert dict(inner["check"].counts) == {"SUCCESS": 2, "IGNORE": 1}
    assert inner["pay"].state == "RUNNING"
    assert [child.name for child in inner["pay"].children] == ["pay again", "reserve", "capture"]
    assert inner["archive"].state == "PENDING"
    assert view.tree.counts.total() == view.total


def test_view_is_json_serializable():
    flow, outline = records.failed()
    data = json.loads(json.dumps(look(flow, outline).to_dict()))
    assert data["schema"] == "wbengine/flow/1"
    assert data["started"] == "2026-09-21T14:13:19.000Z"
    assert data["duration"] == 21.0
    assert len(data["atoms"]) == 8
    assert data["failures"][0]["causes"][0]["type"] == "KeyError"
    assert "atoms" not in look(flow, outline).to_dict(atoms=False)


# -- reasons for waiting ---------------------------------------------------------------------------


def waiting(flow, outline, name, held=None, **options):
    return look(flow, outline, held, **options).atom(name).waiting


def test_pending_atom_shows_its_reason_for_waiting(flow, outline):
    held = lease(flow)
    assert waiting(flow, outline, "capture", held) == "Waits for reserve."
    assert waiting(flow, outline, "notify", held) == "Waits for flow pay."
    assert waiting(flow, outline, "archive", held) == "Waits for notify and 1 more."
    assert waiting(flow, outline, "check address", held) == "Ignored by its decider."
    assert waiting(flow, outline, "read cart", held) is None


def test_atoms_in_a_flow_wait_for_its_retry_controller(flow, outline):
    records.change(flow, "pay again", "reserve", state=states.PENDING)
    held = lease(flow)
    assert waiting(flow, outline, "reserve", held) == "Waits for pay again."
    assert waiting(flow, outline, "pay again", held) == "Ready to start."


def test_atom_in_nested_flow_waits_for_predecessor_of_outer_flow():
    outline = Outline(
        (
            OutlineNode("root", FLOW, None),
            OutlineNode("a", TASK, 0),
            OutlineNode("outer", FLOW, 0),
            OutlineNode("inner", FLOW, 2),
            OutlineNode("b", TASK, 3),
        ),
        ((1, 2),),
    )
    flow = models.FlowDetail("root")
    flow.enter(states.RUNNING, T)
    records.atom(flow, "a", states.PENDING)
    records.atom(flow, "b", states.PENDING)
    assert waiting(flow, outline, "b", lease(flow)) == "Waits for a."


def test_unstarted_request_shows_time_since_it_was_sent(flow, outline):
    held = lease(flow)
    reason = waiting(flow, outline, "reserve", held)
    assert reason == "Sent 6.0 s ago; no worker has started it yet."
    reason = waiting(flow, outline, "reserve", held, offered=["shop.Capture"])
    assert reason == "No known worker offers shop.Reserve."
    assert waiting(flow, outline, "reserve", held, now=T + 4.1) is None
    view = look(flow, outline, held)
    assert view.waiting == "reserve: " + str(view.atom("reserve").waiting)


@pytest.mark.parametrize("known", [{"started": T + 5}, {"progress": 0.25}], ids=str)
def test_running_task_does_not_wait(known, flow, outline):
    records.change(flow, "reserve", **known)
    view = look(flow, outline, lease(flow))
    assert view.atom("reserve").waiting is None
    assert view.waiting is None


def test_running_flow_without_engine_shows_that_no_engine_runs_it(flow, outline):
    view = look(flow, outline)
    assert view.waiting == "No engine runs the flow: its lease has ended."
    assert "engine stopped" in view.atom("reserve").waiting
    died = look(flow, outline, lease(flow, died=True))
    assert died.owner_died
    assert died.waiting.startswith("No engine runs the flow: its owner, process ")
    assert died.waiting.endswith(" died.")


def test_flow_that_never_ran_shows_that_no_engine_has_run_it():
    flow = models.FlowDetail("new")
    records.atom(flow, "a", None)
    view = look(flow)
    assert view.state == "PENDING"
    assert view.waiting == "No engine has run the flow yet."
    assert view.atom("a").waiting == "No engine has run the flow yet."
    assert view.duration is None


@pytest.mark.parametrize("reason", ["lunch", "the flow of goods. The flow is slow"])
def test_suspended_flow_shows_user_and_reason(flow, outline, reason):
    why = f"suspended by ann: {reason}"
    records.change(flow, "reserve", state=states.SUCCESS)
    flow.enter(states.SUSPENDING, T + 5, why)
    assert "being suspended" in look(flow, outline, lease(flow)).waiting
    flow.enter(states.SUSPENDED, T + 6)
    view = look(flow, outline)
    assert view.waiting == f"The flow is suspended ({why})."
    assert view.atom("capture").waiting == f"The flow is suspended ({why})."
    assert view.ended == T + 6


@pytest.mark.parametrize("died", [True, False])
def test_running_flow_without_live_engine_is_shown_as_interrupted(died, flow, outline):
    held = lease(flow, died=True) if died else None
    view = look(flow, outline, held)
    assert (view.state, view.shown_state) == ("RUNNING", "INTERRUPTED")
    assert view.to_dict()["interrupted"] is True
    assert look(flow, outline, lease(flow)).shown_state == "RUNNING"
    flow.enter(states.SUSPENDED, T + 6)
    assert look(flow, outline, held).shown_state == "SUSPENDED"


def test_duration_excludes_time_in_suspension(flow, outline):
    flow.enter(states.SUSPENDING, T + 4)
    flow.enter(states.SUSPENDED, T + 5)
    assert look(flow, outline).duration == 6
    flow.enter(states.RUNNING, T + 1005)
    assert look(flow, outline, lease(flow), now=T + 1007).duration == 8
    flow.enter(states.SUCCESS, T + 1010)
    assert look(flow, outline, now=T + 5000).duration == 11
    flow.enter(states.RUNNING, T + 2000)
    assert look(flow, outline, lease(flow), now=T + 2003).duration == 14


def test_duration_excludes_time_after_the_engine_died(flow, outline):
    assert look(flow, outline, lease(flow, died=True), now=T + 5000).duration == 5
    flow.enter(states.RUNNING, T + 1000)
    assert look(flow, outline, lease(flow), now=T + 1002).duration == 7


def test_queued_tasks_are_distinguished_from_running_tasks(flow, outline):
    held = lease(flow)
    view = look(flow, outline, held)
    assert (view.queued, view.atom("reserve").queued) == (1, True)
    assert (view.counts["RUNNING"], view.shown_counts.get("RUNNING")) == (1, None)
    line = _terminal_tree.figures(_terminal_tree.FlowTree(outline, view))
    assert ", 1 queued" in line and "running" not in line
    assert not [lane for lane in timelines.timeline(view).lanes if lane.worker is None]
    assert "queued" in drawing.draw(outline, view, format="mermaid")
    records.change(flow, "reserve", started=T + 6, worker="host-a:1")
    view = look(flow, outline, held)
    assert (view.queued, view.atom("reserve").queued) == (0, False)
    assert view.atom("reserve").attempts[-1].queued == 2


def test_queued_task_names_the_worker_that_received_it(flow, outline):
    records.change(flow, "reserve", worker="host-a:1")
    atom = look(flow, outline, lease(flow)).atom("reserve")
    assert (atom.queued, atom.worker) == (True, "host-a:1")
    assert atom.waiting.endswith("its worker has no free slot yet.")


def test_task_of_serial_engine_is_never_queued(flow, outline):
    flow.meta[models.ENGINE] = "serial"
    view = look(flow, outline, lease(flow), now=T + 100)
    assert view.queued == 0
    assert view.atom("reserve").waiting is None


def test_task_that_waits_for_a_pool_slot_is_queued(flow, outline):
    flow.meta[models.ENGINE] = "parallel"
    view = look(flow, outline, lease(flow), now=T + 100)
    reserve = view.atom("reserve")
    assert (view.queued, reserve.shown_state) == (1, "QUEUED")
    assert reserve.waiting == ("Sent 1 min 36 s ago; the pool has no free slot yet.")
    records.change(flow, "reserve", started=T + 6, worker="local")
    view = look(flow, outline, lease(flow), now=T + 100)
    assert (view.queued, view.atom("reserve").shown_state) == (0, "RUNNING")


def test_retry_controller_shows_the_time_of_next_attempt(flow, outline):
    records.change(flow, "pay again", state=states.RETRYING).meta["retry_at"] = NOW + 5
    records.change(flow, "reserve", state=states.PENDING)
    view = look(flow, outline, lease(flow))
    at = time.strftime("%H:%M:%S", time.gmtime(NOW + 5))
    assert view.atom("pay again").waiting == f"Next attempt at {at}, in 5.0 s."
    assert view.waiting == f"Retry pay again: Next attempt at {at}, in 5.0 s."
    late = look(flow, outline, lease(flow), now=NOW + 6)
    assert late.atom("pay again").waiting == f"Next attempt at {at} (due)."
    assert look(flow, outline).atom("pay again").waiting.endswith("when an engine runs the flow.")


def test_atom_to_revert_names_the_atom_that_is_reverted_first(flow, outline):
    records.change(flow, "reserve", "capture", state=states.SUCCESS, intention=states.REVERT)
    assert waiting(flow, outline, "reserve", lease(flow)) == "Will be reverted after capture."
    assert waiting(flow, outline, "capture", lease(flow)) == "Will be reverted next."


@pytest.mark.parametrize("state", [states.FAILURE, states.REVERTED])
def test_unstarted_atom_of_finished_flow_shows_that_it_did_not_start(state):
    flow, outline = records.order(state)
    view = look(flow, outline)
    assert view.waiting is None
    assert view.finished
    assert view.atom("archive").waiting == "Did not start: the flow ended first."
    assert view.ended == T + 20


def test_pending_cancel_command_is_shown_with_user_and_reason(flow, outline):
    view = look(flow, outline, lease(flow), wish=FlowCommand("cancel", "too late", "ann", NOW))
    assert view.wish == "cancelled by ann: too late"


# -- failures, reversions, attempts ---------------------------------------------------------------


def test_failure_shows_traceback_and_cause():
    view = look(*records.failed())
    (failure,) = view.failures
    assert failure.atom == "capture"
    assert failure.type == "ValueError"
    assert failure.line == "ValueError: card refused"
    assert (failure.worker, failure.attempt, failure.at) == ("host-b:7", 1, T + 4.4)
    text = failure.text
    assert (
        text.index("KeyError: 'limit'")
        < text.index("was the direct cause of")
        < text.index("ValueError: card refused")
    )
    assert "Traceback (most recent call last):" in text
    assert "records.py" in text
    assert view.error == "ValueError: card refused"


def test_failure_shows_members_and_notes_of_a_group_without_secrets():
    member = KeyError("row-3")
    member.add_note("of redis://u:passphrase@h")
    flow, outline = records.failed()
    records.change(flow, "capture").failure = Failure.from_exception(ExceptionGroup("g", [member]))
    (failure,) = look(flow, outline).failures
    assert failure.text == failure.user_text
    assert failure.text.splitlines() == [
        "  | ExceptionGroup: g (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | KeyError: 'row-3'",
        "    | of redis://u:***@h",
        "    +------------------------------------",
    ]
    (data,) = failure.to_dict()["members"]
    assert data["notes"] == ["of redis://u:***@h"]


def test_revert_path_is_in_chronological_order():
    view = look(*records.failed())
    assert [undone.atom for undone in view.revert_path] == ["capture", "reserve"]
    assert {undone.state for undone in view.revert_path} == {"REVERTED"}
    assert view.revert_path[0].attempt.worker == "host-a:1"
    assert view.revert_path[0].attempt.runtime == pytest.approx(0.3)


def test_attempts_show_their_results():
    view = look(*records.failed())
    first, second = view.atom("capture").attempts
    assert (first.action, first.state, first.worker) == ("execute", "FAILURE", "host-b:7")
    assert first.error == "ValueError: card refused"
    assert (second.action, second.state, second.attempt) == ("revert", "REVERTED", 4)


def test_failed_item_of_a_map_is_shown(flow, outline):
    items = models.Items(1, ["a", "b", "c"])
    items[0].put(states.SUCCESS, 1)
    items[1].put(states.FAILURE, records.failure("no such address"))
    records.change(flow, "notify", attempt=1, items=items, state=states.RUNNING)
    atom = look(flow, outline, lease(flow)).atom("notify")
    assert atom.kind == "map"
    assert dict(atom.items) == {"SUCCESS": 1, "FAILURE": 1, "PENDING": 1}
    assert (atom.failure.item, atom.failure.message) == (1, "no such address")
    assert atom.progress == pytest.approx(1 / 3)
    assert atom.failure.line == "item 1: ValueError: no such address"
    assert [(row.index, row.input, row.state, row.tries, row.error) for row in atom.item_rows] == [
        (1, "str, 1 character", "FAILURE", 1, "ValueError: no such address"),
        (0, "str, 1 character", "SUCCESS", 1, None),
        (2, "str, 1 character", "PENDING", 1, None),
    ]


def test_item_rows_of_a_map_are_limited_with_failures_first(flow, outline):
    items = models.Items(1, [f"m{n}" for n in range(1000)])
    items[990].put(states.FAILURE, records.failure("lost"))
    items[0].submitted = T + 4
    records.change(flow, "notify", attempt=1, items=items, state=states.RUNNING)
    rows = look(flow, outline, lease(flow), redactor=Redactor(True)).atom("notify").item_rows
    assert len(rows) == 100
    assert (rows[0].index, rows[0].input) == (990, "'m990'")
    assert [row.state for row in rows[1:4]] == ["RUNNING", "PENDING", "PENDING"]


# -- incomplete records ----------------------------------------------------------------------------


def test_view_without_outline_lists_atoms_by_start_and_name():
    flow, _ = records.order()
    view = look(flow, None, lease(flow))
    # Started atoms are ordered by start, the others by name.
    names = ["check stock", "read cart", "pay again", "reserve"]
    names += ["archive", "capture", "check address", "notify"]
    assert [atom.name for atom in view.atoms] == names
    assert view.tree.children[2].kind == "retry"
    assert len(view.outline.nodes) == 9


def test_atoms_missing_from_the_outline_are_listed_last(flow, outline):
    records.atom(flow, "of an older version", states.SUCCESS)
    view = look(flow, outline)
    assert view.atoms[-1].name == "of an older version"
    assert view.outline.nodes[-1].notes == "removed from the flow"


def test_atoms_without_record_are_pending():
    _, outline = records.order()
    flow = models.FlowDetail("order")
    view = look(flow, outline)
    assert view.counts == {"PENDING": 7}
    assert view.atoms[0].uuid is None


def test_values_are_shown_only_with_show_values(flow, outline):
    store = records.atom(flow, models.INJECTOR, states.SUCCESS)
    store.results = {"cart": [1, 2], "db_password": "hidden!"}
    view = look(flow, outline)
    assert view.values == {"cart": "list, 2 items", "db_password": "str, 7 characters"}
    assert view.total == 7
    assert view.atom(models.INJECTOR) is None
    shown = look(flow, outline, redactor=Redactor(show_values=True))
    assert shown.values == {"cart": [1, 2], "db_password": "***"}
    assert shown.atom("read cart").result == "{'items': 3}"


# -- cost ------------------------------------------------------------------------------------------


def best_of(times, call):
    return min(_took(call) for _ in range(times))


def _took(call):
    began = time.process_time()
    call()
    return time.process_time() - began


@pytest.mark.slow
def test_view_cost_grows_linearly_with_atoms():
    """Linear cost takes 20 times as long, quadratic cost 400 times; the limit is 100 times."""
    few, many = records.wide(1000), records.wide(20_000)
    one = best_of(5, lambda: look(*few))
    assert one < 0.2
    assert best_of(3, lambda: look(*many)) < 20 * 5 * one


def test_view_of_deep_flow_does_not_recurse():
    nodes = [OutlineNode("f0", FLOW, None)]
    nodes += [OutlineNode(f"f{depth}", FLOW, depth - 1) for depth in range(1, 3000)]
    nodes.append(OutlineNode("last", TASK, 2999))
    flow = models.FlowDetail("f0")
    flow.enter(states.RUNNING, T)
    records.atom(flow, "last", states.PENDING)
    view = look(flow, Outline(tuple(nodes), ()), lease(flow))
    assert view.atom("last").waiting == "Ready to start."
    assert len(view.atom("last").path) == 3000


def test_view_is_immutable():
    view = look(*records.order())
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.name = "other"


def test_read_refuses_a_backend():
    with backends.backend("memory") as store, pytest.raises(TypeError, match="get_connection"):
        flows.read(store, "some-id")


@dataclasses.dataclass
class Card:
    owner: str
    password: str


class Color(enum.Enum):
    RED = 1


@task.workflow
def issue(steps, card):
    steps.publish("card", card)
    steps.publish("color", Color.RED)
    return card


def test_values_of_unknown_classes_are_shown(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cls in (Card, Color):
        classes.allow(cls)
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        engine = engines.load(issue, {"card": Card("ann", "canary-5")}, backend=backend)
        engine.run()
        uuid = engine.storage.flow_uuid
        assert operations.published(backend, uuid)["color"] is Color.RED
        for cls in (Card, Color):
            monkeypatch.delitem(classes.ALLOWED, f"{__name__}.{cls.__name__}")
        with contextlib.closing(backend.get_connection()) as connection:
            with pytest.raises(exceptions.CorruptRecord, match="is not known in this process"):
                connection.get_flow_details(uuid)
            view = flows.read(connection, uuid, redactor=Redactor(show_values=True))
        (atom,) = view.atoms
        assert "ann" in str(atom.result) and "canary" not in str(view)
        assert operations.published(backend, uuid) == {
            "card": {"owner": "ann", "password": "canary-5"},
            "color": f"{__name__}.Color.RED",
        }
