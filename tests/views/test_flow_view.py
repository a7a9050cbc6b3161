"""A view says where a flow stands, why it waits, what failed and what was undone."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from tests.views import records
from wbengine import drawing, states
from wbengine.drawing import tree
from wbengine.persistence import leases, models, owners
from wbengine.persistence.commands import FlowCommand
from wbengine.types.outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import flow as flows
from wbengine.views import timeline as timelines
from wbengine.views.redaction import Redactor

T = records.T
NOW = T + 10


def lease(flow, died=False):
    owner = owners.new()
    if died:
        owner.let_go()
    return leases.Lease(flow.uuid, str(owner), 1)


def look(flow, outline=None, held=None, **options):
    return flows.view(flow, outline, held, now=options.pop("now", NOW), **options)


def test_a_view_tells_what_is_known():
    flow, outline = records.order()
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


def test_its_tree_has_the_states_of_inner_flows():
    view = look(*records.order())
    inner = {child.name: child for child in view.tree.children}
    assert inner["check"].state == "SUCCESS"
    assert dict(inner["check"].counts) == {"SUCCESS": 2, "IGNORE": 1}
    assert inner["pay"].state == "RUNNING"
    assert [child.name for child in inner["pay"].children] == ["pay again", "reserve", "capture"]
    assert inner["archive"].state == "PENDING"
    assert view.tree.counts.total() == view.total


def test_it_can_be_told_as_json():
    flow, outline = records.failed()
    told = json.loads(json.dumps(look(flow, outline).to_dict()))
    assert told["schema"] == "wbengine/flow/1"
    assert told["started"] == "2026-09-21T14:13:19.000Z"
    assert told["duration"] == 21.0
    assert len(told["atoms"]) == 8
    assert told["failures"][0]["causes"][0]["type"] == "KeyError"
    assert "atoms" not in look(flow, outline).to_dict(atoms=False)


# -- why it waits ---------------------------------------------------------------------------------


def waiting(flow, outline, name, held=None, **options):
    return look(flow, outline, held, **options).atom(name).waiting


def test_an_atom_says_what_it_waits_for():
    flow, outline = records.order()
    held = lease(flow)
    assert waiting(flow, outline, "capture", held) == "It waits for reserve."
    assert waiting(flow, outline, "notify", held) == "It waits for flow pay."
    assert waiting(flow, outline, "archive", held) == "It waits for notify and 1 more."
    assert waiting(flow, outline, "check address", held) == "A decider said no: it is left out."
    assert waiting(flow, outline, "read cart", held) is None


def test_everything_in_a_flow_waits_for_its_retry():
    flow, outline = records.order()
    records.change(flow, "pay again", "reserve", state=states.PENDING)
    held = lease(flow)
    assert waiting(flow, outline, "reserve", held) == "It waits for pay again."
    assert waiting(flow, outline, "pay again", held) == "It is ready, and is handed out next."


def test_what_is_inside_waits_for_what_is_before_the_flow_around_it():
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
    assert waiting(flow, outline, "b", lease(flow)) == "It waits for a."


def test_what_was_handed_out_says_since_when():
    flow, outline = records.order()
    held = lease(flow)
    said = waiting(flow, outline, "reserve", held)
    assert said == "It was handed out 6.0 s ago; no worker has begun it yet."
    said = waiting(flow, outline, "reserve", held, offered=["shop.Capture"])
    assert said == "No worker is known that offers shop.Reserve."
    assert waiting(flow, outline, "reserve", held, now=T + 4.1) is None
    view = look(flow, outline, held)
    assert view.waiting == "reserve: " + str(view.atom("reserve").waiting)


@pytest.mark.parametrize("known", [{"started": T + 5}, {"progress": 0.25}])
def test_what_is_known_to_run_does_not_wait(known):
    flow, outline = records.order()
    records.change(flow, "reserve", **known)
    view = look(flow, outline, lease(flow))
    assert view.atom("reserve").waiting is None
    assert view.waiting is None


def test_a_flow_that_nobody_runs_says_so():
    flow, outline = records.order()
    view = look(flow, outline)
    assert view.waiting == "Nobody runs it: its owner is gone."
    assert "engine stopped" in view.atom("reserve").waiting
    died = look(flow, outline, lease(flow, died=True))
    assert died.owner_died
    assert died.waiting.startswith("Nobody runs it: its owner, process ")
    assert died.waiting.endswith(" died.")


def test_a_flow_that_was_never_run_says_so():
    flow = models.FlowDetail("new")
    records.atom(flow, "a", None)
    view = look(flow)
    assert view.state == "PENDING"
    assert view.waiting == "Nobody has run it yet."
    assert view.atom("a").waiting == "Nobody has run the flow yet."
    assert view.duration is None


def test_a_suspended_flow_says_who_did_it():
    flow, outline = records.order()
    records.change(flow, "reserve", state=states.SUCCESS)
    flow.enter(states.SUSPENDING, T + 5, "suspended by ann: lunch")
    assert "being suspended" in look(flow, outline, lease(flow)).waiting
    flow.enter(states.SUSPENDED, T + 6)
    view = look(flow, outline)
    assert view.waiting == "It is suspended (suspended by ann: lunch)."
    assert view.atom("capture").waiting == "The flow is suspended (suspended by ann: lunch)."
    assert view.ended == T + 6


def test_the_words_of_who_suspended_a_flow_stay_as_they_are():
    flow, outline = records.order()
    flow.enter(states.SUSPENDED, T + 6, "suspended by ann: the flow of goods. The flow is slow")
    view = look(flow, outline)
    why = "(suspended by ann: the flow of goods. The flow is slow)"
    assert view.waiting == f"It is suspended {why}."


@pytest.mark.parametrize("died", [True, False])
def test_flow_whose_engine_is_gone_is_shown_as_interrupted(died):
    flow, outline = records.order()
    held = lease(flow, died=True) if died else None
    view = look(flow, outline, held)
    assert (view.state, view.shown_state) == ("RUNNING", "INTERRUPTED")
    assert view.to_dict()["interrupted"] is True
    assert look(flow, outline, lease(flow)).shown_state == "RUNNING"
    flow.enter(states.SUSPENDED, T + 6)
    assert look(flow, outline, held).shown_state == "SUSPENDED"


def test_duration_leaves_out_the_time_in_which_a_flow_was_suspended():
    flow, outline = records.order()
    flow.enter(states.SUSPENDING, T + 4)
    flow.enter(states.SUSPENDED, T + 5)
    assert look(flow, outline).duration == 6
    flow.enter(states.RUNNING, T + 1005)
    assert look(flow, outline, lease(flow), now=T + 1007).duration == 8
    flow.enter(states.SUCCESS, T + 1010)
    assert look(flow, outline, now=T + 5000).duration == 11
    flow.enter(states.RUNNING, T + 2000)
    assert look(flow, outline, lease(flow), now=T + 2003).duration == 14


def test_duration_leaves_out_the_time_after_an_engine_died():
    flow, outline = records.order()  # the latest that is known is of T + 4
    assert look(flow, outline, lease(flow, died=True), now=T + 5000).duration == 5
    flow.enter(states.RUNNING, T + 1000)
    assert look(flow, outline, lease(flow), now=T + 1002).duration == 7


def test_queued_tasks_are_told_apart_from_running_ones():
    flow, outline = records.order()
    held = lease(flow)
    view = look(flow, outline, held)
    assert (view.queued, view.atom("reserve").queued) == (1, True)
    assert (view.counts["RUNNING"], view.shown_counts.get("RUNNING")) == (1, None)
    line = tree.figures(tree.FlowTree(outline, view))
    assert ", 1 queued" in line and "running" not in line
    assert not [lane for lane in timelines.timeline(view).lanes if lane.worker is None]
    assert "queued" in drawing.draw(outline, view, format="mermaid")
    records.change(flow, "reserve", started=T + 6, worker="host-a:1")
    view = look(flow, outline, held)
    assert (view.queued, view.atom("reserve").queued) == (0, False)
    assert view.atom("reserve").attempts[-1].queued == 2


def test_queued_task_tells_which_worker_has_taken_it():
    flow, outline = records.order()
    records.change(flow, "reserve", worker="host-a:1")
    atom = look(flow, outline, lease(flow)).atom("reserve")
    assert (atom.queued, atom.worker) == (True, "host-a:1")
    assert atom.waiting.endswith("the worker that took it has no slot free for it yet.")


def test_tasks_of_a_local_engine_are_not_called_queued():
    flow, outline = records.order()
    flow.meta[models.ENGINE] = "parallel"
    view = look(flow, outline, lease(flow), now=T + 100)
    assert view.queued == 0
    assert view.atom("reserve").waiting is None


def test_a_retry_says_when_it_tries_again():
    flow, outline = records.order()
    records.change(flow, "pay again", state=states.RETRYING).meta["retry_at"] = NOW + 5
    records.change(flow, "reserve", state=states.PENDING)
    view = look(flow, outline, lease(flow))
    at = time.strftime("%H:%M:%S", time.gmtime(NOW + 5))
    assert view.atom("pay again").waiting == f"Next try at {at}, in 5.0 s."
    assert view.waiting == f"Retry pay again: Next try at {at}, in 5.0 s."
    late = look(flow, outline, lease(flow), now=NOW + 6)
    assert late.atom("pay again").waiting == f"Next try at {at}: it is due."
    assert (
        look(flow, outline).atom("pay again").waiting.endswith("as soon as somebody runs the flow.")
    )


def test_what_is_to_be_reverted_says_what_comes_first():
    flow, outline = records.order()
    records.change(flow, "reserve", "capture", state=states.SUCCESS, intention=states.REVERT)
    assert waiting(flow, outline, "reserve", lease(flow)) == "It is to be reverted, after capture."
    assert waiting(flow, outline, "capture", lease(flow)) == "It is to be reverted next."


@pytest.mark.parametrize("state", [states.FAILURE, states.REVERTED])
def test_what_never_began_in_a_flow_that_ended_says_so(state):
    flow, outline = records.order(state)
    view = look(flow, outline)
    assert view.waiting is None
    assert view.finished
    assert view.atom("archive").waiting == "It never began: the flow ended before it."
    assert view.ended == T + 20


def test_a_wish_is_told_in_words():
    flow, outline = records.order()
    view = look(flow, outline, lease(flow), wish=FlowCommand("cancel", "too late", "ann", NOW))
    assert view.wish == "cancelled by ann: too late"


# -- failures, reversions, attempts ---------------------------------------------------------------


def test_a_failure_is_told_with_its_traceback_and_what_was_behind_it():
    view = look(*records.failed())
    (failure,) = view.failures
    assert failure.atom == "capture"
    assert failure.type == "ValueError"
    assert failure.line == "ValueError: card refused"
    assert (failure.worker, failure.attempt, failure.at) == ("host-b:7", 1, T + 4.4)
    text = failure.text
    assert (
        text.index("KeyError: 'limit'")
        < text.index("It was behind")
        < text.index("ValueError: card refused")
    )
    assert "Traceback (most recent call last):" in text
    assert "records.py" in text
    assert view.error == "ValueError: card refused"


def test_the_revert_path_is_in_the_order_in_which_it_happened():
    view = look(*records.failed())
    assert [undone.atom for undone in view.revert_path] == ["capture", "reserve"]
    assert {undone.state for undone in view.revert_path} == {"REVERTED"}
    assert view.revert_path[0].attempt.worker == "host-a:1"
    assert view.revert_path[0].attempt.runtime == pytest.approx(0.3)


def test_attempts_are_told_with_how_they_ended():
    view = look(*records.failed())
    first, second = view.atom("capture").attempts
    assert (first.action, first.state, first.worker) == ("execute", "FAILURE", "host-b:7")
    assert first.error == "ValueError: card refused"
    assert (second.action, second.state, second.attempt) == ("revert", "REVERTED", 4)


def test_a_failed_item_of_a_map_is_told():
    flow, outline = records.order()
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


def test_items_of_a_map_are_told_as_far_as_there_is_room():
    flow, outline = records.order()
    items = models.Items(1, [f"m{n}" for n in range(1000)])
    items[990].put(states.FAILURE, records.failure("lost"))
    items[0].submitted = T + 4
    records.change(flow, "notify", attempt=1, items=items, state=states.RUNNING)
    rows = look(flow, outline, lease(flow), redactor=Redactor(True)).atom("notify").item_rows
    assert len(rows) == 100
    assert (rows[0].index, rows[0].input) == (990, "'m990'")
    assert [row.state for row in rows[1:4]] == ["RUNNING", "PENDING", "PENDING"]


# -- what is not known ----------------------------------------------------------------------------


def test_without_an_outline_the_atoms_are_told_all_the_same():
    flow, _ = records.order()
    view = look(flow, None, lease(flow))
    # What began first comes first, and what did not begin comes by name.
    names = ["check stock", "read cart", "pay again", "reserve"]
    names += ["archive", "capture", "check address", "notify"]
    assert [atom.name for atom in view.atoms] == names
    assert view.tree.children[2].kind == "retry"
    assert len(view.outline.nodes) == 9


def test_records_that_are_not_in_the_outline_are_told_at_the_end():
    flow, outline = records.order()
    records.atom(flow, "of an older version", states.SUCCESS)
    view = look(flow, outline)
    assert view.atoms[-1].name == "of an older version"
    assert view.outline.nodes[-1].notes == "not part of the flow any more"


def test_atoms_without_a_record_are_pending():
    _, outline = records.order()
    flow = models.FlowDetail("order")
    view = look(flow, outline)
    assert view.counts == {"PENDING": 7}
    assert view.atoms[0].uuid is None


def test_values_are_told_by_name_and_shown_only_when_asked_for():
    flow, outline = records.order()
    store = records.atom(flow, models.INJECTOR, states.SUCCESS)
    store.results = {"cart": [1, 2], "db_password": "hidden!"}
    view = look(flow, outline)
    assert view.values == {"cart": "list, 2 items", "db_password": "str, 7 characters"}
    assert view.total == 7
    assert view.atom(models.INJECTOR) is None
    shown = look(flow, outline, redactor=Redactor(show_values=True))
    assert shown.values == {"cart": [1, 2], "db_password": "***"}
    assert shown.atom("read cart").result == "{'items': 3}"


# -- what it costs --------------------------------------------------------------------------------


def best_of(times, call):
    return min(_took(call) for _ in range(times))


def _took(call):
    began = time.process_time()
    call()
    return time.process_time() - began


def test_a_view_of_many_atoms_costs_what_they_are_many():
    """10 ms for a thousand, more or less; a loop in a loop would take twenty times as long for each
    of twenty thousand."""
    few, many = records.wide(1000), records.wide(20_000)
    one = best_of(5, lambda: look(*few))
    assert one < 0.2
    assert best_of(3, lambda: look(*many)) < 20 * 5 * one


def test_a_deep_flow_is_looked_at_without_recursion():
    nodes = [OutlineNode("f0", FLOW, None)]
    nodes += [OutlineNode(f"f{depth}", FLOW, depth - 1) for depth in range(1, 3000)]
    nodes.append(OutlineNode("last", TASK, 2999))
    flow = models.FlowDetail("f0")
    flow.enter(states.RUNNING, T)
    records.atom(flow, "last", states.PENDING)
    view = look(flow, Outline(tuple(nodes), ()), lease(flow))
    assert view.atom("last").waiting == "It is ready, and is handed out next."
    assert len(view.atom("last").path) == 3000


def test_a_view_cannot_be_changed():
    view = look(*records.order())
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.name = "other"
