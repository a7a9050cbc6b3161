"""Forks of stored flows, on all kinds of stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import fork_flows
from tests.support.fork_flows import EFFECTS, FAILING, flow_of, run, submit
from wbengine import engines, exceptions, operations, states
from wbengine.jobs import base as jobs
from wbengine.operations import Edits, _bulk, _bulk_selection, _operation
from wbengine.persistence import base, models
from wbengine.persistence._bulk_records import BulkFlow
from wbengine.persistence._step_notes import StepNote

from . import places


@pytest.fixture(autouse=True)
def clean() -> None:
    EFFECTS.clear()
    FAILING.clear()


@pytest.fixture
def board(backend: base.Backend) -> Iterator[jobs.JobBoard]:
    with fork_flows.board_of(backend) as board:
        yield board


class World:
    """A store with its board: submits, runs and forks flows."""

    def __init__(self, store: base.Backend, board: jobs.JobBoard) -> None:
        self.store = store
        self.board = board

    def flow(self, factory: Any, *failing: str, **inputs: Any) -> str:
        """Run a flow whose tasks of these names fail; return its uuid."""
        FAILING.update(failing)
        uuid = submit(self.store, self.board, factory, **inputs)
        run(self.store, self.board)
        FAILING.clear()
        EFFECTS.clear()
        return uuid

    def revert(self, uuid: str) -> None:
        run(self.store, self.board, *self.to_post(uuid), never_resolve=False)

    def to_post(self, uuid: str) -> tuple[str, ...]:
        """Return the flow if its job is on a separate board."""
        return () if fork_flows.keeps_jobs(self.store) else (uuid,)

    def fork(self, uuid: str, start: str, **options: Any) -> str:
        return operations.fork(self.store, uuid, start, **options).uuid

    def run_fork(self, uuid: str, start: str, **options: Any) -> models.FlowDetail:
        fork = self.fork(uuid, start, **options)
        run(self.store, self.board, fork)
        return flow_of(self.store, fork)


@pytest.fixture
def world(backend: base.Backend, board: jobs.JobBoard) -> World:
    return World(backend, board)


def inherited(flow: models.FlowDetail) -> set[str]:
    return {
        record.name.rpartition("-")[2]
        for record in flow
        if record.meta_value(models.INHERITED) is not None
    }


CARD: dict[str, Any] = {"card": "a", "order": 1}


@places.everywhere
def test_fork_of_graph_runs_task_and_its_dependents_again(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    flow = world.run_fork(uuid, "C")
    assert EFFECTS == ["C", "D"]
    assert flow.state == states.SUCCESS and inherited(flow) == {"A", "B", "E"}


@places.everywhere
def test_fork_of_workflow_repeats_no_step_before_the_start(world: World) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    flow = world.run_fork(uuid, "failed")
    assert EFFECTS == ["ship"]
    assert flow.state == states.SUCCESS and inherited(flow) == {"charge", "pack"}


@places.everywhere
def test_fork_and_original_refer_to_each_other(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    fork = world.fork(uuid, "D", reason="fixed", by="ann")
    (entry,) = flow_of(world.store, uuid).forks
    assert (entry["flow"], entry["start"]) == (fork, "D")
    flow = flow_of(world.store, fork)
    assert flow.meta[models.FORKED_FROM] == {"flow": uuid, "start": "D", "own": False}
    assert flow.history[-1].why == f"forked from {uuid} at D by ann: fixed"


@places.everywhere
def test_fork_with_new_input_uses_it_in_tasks_that_run_again(world: World) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    flow = world.run_fork(uuid, "ship", edits=Edits({"address": "there"}))
    (shipped,) = [record for record in flow if record.name.endswith("ship")]
    assert shipped.results == "ship 1 to there"


@places.everywhere
def test_fork_with_new_result_of_inherited_task_provides_it(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    flow = world.run_fork(uuid, "D", edits=Edits({}, {"B": "other"}))
    assert EFFECTS == ["D"]
    assert {record.results for record in flow if record.name == "B"} == {"other"}


@pytest.mark.parametrize(
    ("start", "edits", "text"),
    [
        ("D", Edits({"card": "b"}), "Input 'card' .* task 'C' has used it"),
        ("D", Edits({}, {"A": "b"}), "Result of task 'A' .* 'B' has used it"),
        ("D", Edits({"crad": "b"}), "no input 'crad'.*did you mean 'card'"),
        ("D", Edits({}, {"BB": 1}), "no task 'BB'"),
    ],
)
def test_fork_refuses_values_that_inherited_tasks_have_used(
    world: World, start: str, edits: Edits, text: str
) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    with pytest.raises((exceptions.InvalidState, exceptions.NotFound), match=text) as caught:
        world.fork(uuid, start, edits=edits)
    assert "fork" not in str(caught.value) and flow_of(world.store, uuid).forks == ()


@pytest.mark.parametrize("edits", [Edits({"amount": 6}), Edits({}, {"charge": "other"})])
def test_fork_refuses_values_that_inherited_steps_have_used(world: World, edits: Edits) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    with pytest.raises(exceptions.InvalidState, match=r"(an inherited|a recorded) step"):
        world.fork(uuid, "ship", edits=edits)


def test_fork_with_new_result_of_inherited_step_continues_with_it(world: World) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    flow = world.run_fork(uuid, "pack", edits=Edits({}, {"charge": "paid by hand"}))
    assert EFFECTS == ["pack", "ship"] and flow.state == states.SUCCESS


@places.everywhere
def test_failed_fork_reverts_only_its_own_results(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    FAILING.add("D")
    fork = world.fork(uuid, "C")
    run(world.store, world.board, fork, never_resolve=False)
    flow = flow_of(world.store, fork)
    assert EFFECTS == ["C", "D", "undo D", "undo C"]
    assert flow.state == states.REVERTED
    assert {record.name: record.state for record in flow if record.name == "A"} == {
        "A": states.SUCCESS
    }


@places.everywhere
def test_failed_fork_of_workflow_reverts_only_its_own_steps(world: World) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    FAILING.add("ship")
    fork = world.fork(uuid, "pack")
    run(world.store, world.board, fork, never_resolve=False)
    assert EFFECTS == ["pack", "ship", "undo pack"]
    assert flow_of(world.store, fork).state == states.REVERTED


def test_reverted_fork_keeps_inherited_results_when_it_is_retried(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    FAILING.add("D")
    fork = world.fork(uuid, "C")
    run(world.store, world.board, fork, never_resolve=False)
    FAILING.clear()
    EFFECTS.clear()
    operations.request(world.store, fork, "retry")
    run(world.store, world.board, fork)
    assert EFFECTS == ["C", "D"] and flow_of(world.store, fork).state == states.SUCCESS


def test_task_without_result_runs_again_with_its_dependents(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "B", **CARD)
    world.run_fork(uuid, "E")
    assert sorted(EFFECTS) == ["B", "D", "E"]


def test_retry_scope_runs_again_as_a_whole(world: World) -> None:
    uuid = world.flow(fork_flows.retried)
    flow = world.run_fork(uuid, "C")
    assert EFFECTS == ["B", "C", "D"] and flow.state == states.SUCCESS
    assert inherited(flow) == {"A"}


def test_ignored_tasks_stay_ignored_in_forks(world: World) -> None:
    uuid = world.flow(fork_flows.ignoring)
    flow = world.run_fork(uuid, "D")
    assert EFFECTS == ["D"] and flow.state == states.SUCCESS


def test_fork_of_reverted_flow_inherits_nothing(world: World) -> None:
    FAILING.add("D")
    uuid = submit(world.store, world.board, fork_flows.diamond, **CARD)
    run(world.store, world.board, never_resolve=False)
    EFFECTS.clear()
    FAILING.clear()
    flow = world.run_fork(uuid, "D")
    assert sorted(EFFECTS) == ["A", "B", "C", "D", "E"] and inherited(flow) == set()


def test_fork_of_fork_inherits_through_both(world: World) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    FAILING.add("ship")
    first = world.run_fork(uuid, "pack")
    FAILING.clear()
    EFFECTS.clear()
    second = world.run_fork(first.uuid, "failed")
    assert EFFECTS == ["ship"] and inherited(second) == {"charge", "pack"}
    owners = {
        record.name.rpartition("-")[2]: record.meta_value(models.RESULT_OWNER)
        for record in second
        if record.is_step
    }
    assert owners == {"charge": uuid, "pack": first.uuid, "ship": None}


@places.everywhere
@pytest.mark.parametrize(("start", "expected"), [("ship", [1, 2]), ("charge", [2, 2])])
def test_fork_decides_versions_after_its_start_again(
    world: World, start: str, expected: list[int]
) -> None:
    uuid = world.flow(fork_flows.versioned, newest=1)
    flow = world.run_fork(uuid, start, edits=Edits(inputs={"newest": 2}))
    (workflow,) = [record for record in flow if record.name.endswith("versioned")]
    assert workflow.results[:2] == expected


@places.everywhere
@pytest.mark.parametrize("is_undone", [False, True], ids=["plain", "undo"])
def test_fork_repeats_keys_and_times_of_inherited_steps_only(world: World, is_undone: bool) -> None:
    uuid = submit(world.store, world.board, fork_flows.keyed)
    run(world.store, world.board)
    keys = EFFECTS.copy()
    EFFECTS.clear()
    fork = world.fork(uuid, "2", undo=is_undone)
    if is_undone:
        world.revert(uuid)
    run(world.store, world.board, *(world.to_post(fork) if is_undone else (fork,)))
    assert flow_of(world.store, fork).state == states.SUCCESS
    *undone, new = EFFECTS
    assert undone == ([f"undo {keys[2]}"] if is_undone else [])
    assert new not in keys
    EFFECTS.clear()
    forks_of_fork = [world.run_fork(fork, start) for start in ("2", "1")]
    assert [each.state for each in forks_of_fork] == [states.SUCCESS] * 2
    assert len(EFFECTS) == 3 and not {*keys, new}.intersection(EFFECTS)


@places.everywhere
@pytest.mark.parametrize(
    ("start", "effects", "received"),
    [("ship", ["ship"], 3), ("1", ["ship"], 2), ("0", ["charge", "ship"], 2)],
)
def test_fork_of_continued_workflow_continues_its_last_attempt(
    world: World, start: str, effects: list[str], received: int
) -> None:
    uuid = submit(world.store, world.board, fork_flows.continued)
    for number in (1, 2, 3):
        operations.signal(world.store, uuid, "approval", number)
    run(world.store, world.board)
    EFFECTS.clear()
    fork = world.fork(uuid, start)
    with world.store.get_connection() as connection:
        numbers = [each.number for each in connection.signals([fork])[fork]]
    assert sorted(numbers) == list(range(1, received + 1))
    operations.signal(world.store, fork, "approval", "again")
    run(world.store, world.board, fork)
    flow = flow_of(world.store, fork)
    assert effects == EFFECTS and flow.state == states.SUCCESS
    (workflow,) = (record for record in flow if record.meta_value(models.WORKFLOW) is not None)
    charged, approval, _ = workflow.results
    assert "of 3" in charged and approval == (3 if received == 3 else "again")


@places.everywhere
def test_fork_inherits_received_signals_and_no_later_ones(world: World) -> None:
    store, board = world.store, world.board
    uuid = submit(store, board, fork_flows.approved)
    operations.signal(store, uuid, "approval", "one")
    operations.signal(store, uuid, "approval", "two")
    run(store, board)
    EFFECTS.clear()
    fork = world.fork(uuid, "2")
    with store.get_connection() as connection:
        assert [each.number for each in connection.signals([fork])[fork]] == [1]
    operations.signal(store, fork, "approval", "new")
    run(store, board, fork)
    flow = flow_of(store, fork)
    (workflow,) = [record for record in flow if record.meta_value(models.WORKFLOW)]
    assert workflow.results == ["one", "new"] and EFFECTS == ["ship"]


@pytest.mark.parametrize(
    ("start", "error", "text"),
    [
        ("shipp", exceptions.NotFound, "no task or step 'shipp'.*did you mean 'ship'"),
        ("9", exceptions.NotFound, "no task or step '9'"),
        ("failed", exceptions.NotFound, "has no failed task or step"),
    ],
)
def test_fork_from_unknown_start_is_refused(
    world: World, start: str, error: type[Exception], text: str
) -> None:
    uuid = world.flow(fork_flows.order, amount=5, address="here")
    with pytest.raises(error, match=text):
        world.fork(uuid, start)


def test_fork_from_name_of_several_steps_lists_them(world: World) -> None:
    uuid = world.flow(fork_flows.looped)
    with pytest.raises(exceptions.MultipleChoices, match="name one of 0-charge, 1-charge, 2"):
        world.fork(uuid, "charge")
    world.run_fork(uuid, "1-charge")
    assert EFFECTS == ["charge", "charge"]


@places.everywhere
def test_fork_of_flow_with_pending_request_is_refused(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    operations.request(world.store, uuid, "retry")
    with pytest.raises(exceptions.InvalidState, match="pending request"):
        world.fork(uuid, "D")


def test_fork_of_flow_that_has_not_ended_is_refused(world: World) -> None:
    uuid = submit(world.store, world.board, fork_flows.diamond, **CARD)
    with pytest.raises(exceptions.InvalidState, match="is in PENDING: only a flow that has ended"):
        world.fork(uuid, "D")


@places.everywhere
def test_flow_whose_fork_lives_cannot_be_reverted(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    fork = world.fork(uuid, "D")
    for operation in ("revert", "retry"):
        with pytest.raises(exceptions.InvalidState, match=f"its fork {fork}, which has not ended"):
            operations.request(world.store, uuid, operation)
        with pytest.raises(exceptions.InvalidState, match=f"its fork {fork}"):
            getattr(operations, operation)(world.store, uuid)
    run(world.store, world.board, fork)
    operations.request(world.store, uuid, "revert")
    EFFECTS.clear()
    world.revert(uuid)
    assert sorted(EFFECTS) == ["undo A", "undo B", "undo C", "undo D", "undo E"]


def test_flow_with_living_fork_of_its_fork_cannot_be_reverted(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    first = world.run_fork(uuid, "D")
    second = world.fork(first.uuid, "D")
    with pytest.raises(exceptions.InvalidState, match=f"its fork {second}"):
        operations.request(world.store, uuid, "revert")


def test_conductor_does_not_revert_flow_with_fork_that_lives(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    with world.store.get_connection() as connection:
        connection.send_command(uuid, base.FlowCommand("revert", at=1.0))
        flow = connection.get_flow_details(uuid)
        # A fork that was stored at the same time as the command.
        fork, book = models.FlowDetail("fork"), models.LogBook("book")
        book.add(fork)
        connection.save_logbook(book)
        flow.meta[models.FORKS] = [{"flow": fork.uuid, "start": "D", "at": 1.0, "own": False}]
        connection.save_changes(flow, ())
    world.revert(uuid)
    assert not [effect for effect in EFFECTS if effect.startswith("undo")]
    assert flow_of(world.store, uuid).state == states.FAILURE


@places.everywhere
def test_owning_fork_reverts_inherited_results_instead_of_original(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    FAILING.add("D")
    fork = world.fork(uuid, "C", own=True)
    run(world.store, world.board, fork, never_resolve=False)
    assert [effect for effect in EFFECTS if effect not in ("undo B", "undo E")] == [
        *("C", "D", "undo D", "undo C", "undo A"),
    ]
    assert {"undo B", "undo E"} < {*EFFECTS}
    EFFECTS.clear()
    operations.request(world.store, uuid, "revert")
    world.revert(uuid)
    assert EFFECTS == ["undo D", "undo C"]
    assert flow_of(world.store, uuid).state == states.REVERTED


def test_owning_fork_of_workflow_reverts_inherited_steps(world: World) -> None:
    uuid = world.flow(fork_flows.order, "ship", amount=5, address="here")
    FAILING.add("ship")
    fork = world.fork(uuid, "ship", own=True)
    run(world.store, world.board, fork, never_resolve=False)
    assert EFFECTS == ["ship", "undo pack", "undo charge"]
    EFFECTS.clear()
    operations.request(world.store, uuid, "revert")
    world.revert(uuid)
    assert EFFECTS == []


def test_flow_with_owning_fork_is_superseded(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    fork = world.fork(uuid, "D", own=True)
    assert flow_of(world.store, uuid).successor == fork
    with pytest.raises(exceptions.InvalidState, match=f"superseded by its fork {fork}"):
        operations.request(world.store, uuid, "retry")
    with pytest.raises(exceptions.InvalidState, match=f"superseded by its fork {fork}"):
        world.fork(uuid, "D")


@places.everywhere
def test_fork_with_undo_starts_after_the_original_is_reverted(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    fork = world.fork(uuid, "C", undo=True)
    assert flow_of(world.store, fork).awaits_reversion
    world.revert(uuid)
    run(world.store, world.board, *world.to_post(fork))
    assert EFFECTS == ["undo D", "undo C", "C", "D"]
    assert flow_of(world.store, uuid).state == states.REVERTED
    assert flow_of(world.store, fork).state == states.SUCCESS


def test_fork_with_undo_does_not_start_if_a_revert_fails(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    FAILING.add("undo C")
    fork = world.fork(uuid, "C", undo=True)
    world.revert(uuid)
    assert EFFECTS == ["undo D", "undo C"] and flow_of(world.store, fork).awaits_reversion
    assert flow_of(world.store, uuid).state == states.FAILURE
    FAILING.clear()
    operations.request(world.store, uuid, "revert")
    world.revert(uuid)
    run(world.store, world.board, *world.to_post(fork))
    assert EFFECTS[2:] == ["undo C", "C", "D"]
    assert flow_of(world.store, fork).state == states.SUCCESS


@places.everywhere
def test_waiting_fork_is_cancelled_after_the_revert_of_the_original_failed(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    FAILING.add("undo D")
    fork = world.fork(uuid, "D", undo=True)
    with pytest.raises(exceptions.InvalidState, match=r"when the reversion of flow .* has ended"):
        operations.cancel(world.store, fork)
    world.revert(uuid)
    EFFECTS.clear()
    operations.cancel(world.store, fork)
    world.revert(fork)
    assert EFFECTS[-1] == "undo A" and sorted(EFFECTS) == [f"undo {task}" for task in "ABCE"]
    assert flow_of(world.store, fork).state == states.REVERTED
    FAILING.clear()
    operations.revert(world.store, uuid).run()
    assert EFFECTS[-1] == "undo D" and flow_of(world.store, uuid).state == states.REVERTED


@places.everywhere
def test_fork_whose_original_is_deleted_is_cancelled(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    FAILING.add("undo D")
    fork = world.fork(uuid, "D", undo=True)
    world.revert(uuid)
    EFFECTS.clear()
    with pytest.raises(
        exceptions.InvalidState, match=f"its fork {fork} starts when it is reverted"
    ):
        operations.delete(world.store, uuid)
    operations.delete(world.store, uuid, force=True)
    world.revert(fork)
    flow = flow_of(world.store, fork)
    assert flow.state == states.REVERTED and sorted(EFFECTS) == [f"undo {task}" for task in "ABCE"]
    assert (
        flow.meta[models.CANCELLED]["reason"] == f"flow {uuid} was deleted before it was reverted"
    )


@places.everywhere
def test_flow_that_reverts_results_of_others_is_deleted_after_them(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    fork = world.run_fork(uuid, "D", own=True).uuid
    user = world.run_fork(fork, "D").uuid
    for needed, other in (fork, f"Delete the fork first|{user}"), (fork, "only"):
        with pytest.raises(exceptions.InvalidState, match=other):
            operations.delete(world.store, needed)
    operations.delete(world.store, user)
    with pytest.raises(exceptions.InvalidState, match=f"inherited from flow {uuid}"):
        operations.delete(world.store, fork)
    operations.delete(world.store, uuid)
    operations.delete(world.store, fork)


@places.on("sqlite", "postgresql")
def test_fork_with_undo_gets_the_unique_key(world: World) -> None:
    FAILING.add("D")
    submitted = engines.submit(
        fork_flows.diamond, backend=world.store, board=world.board, inputs=CARD, unique="order 1"
    )
    run(world.store, world.board)
    fork = world.fork(submitted.id, "D", undo=True)
    again = engines.submit(
        fork_flows.diamond, backend=world.store, board=world.board, inputs=CARD, unique="order 1"
    )
    assert again.id == fork


def test_fork_after_reverted_scope_inherits_its_steps(world: World) -> None:
    uuid = world.flow(fork_flows.scoped, "ship")
    flow = world.run_fork(uuid, "ship")
    assert EFFECTS == ["ship"] and flow.state == states.SUCCESS


def test_fork_inside_reverted_scope_repeats_the_reverted_steps(world: World) -> None:
    uuid = world.flow(fork_flows.scoped, "ship")
    flow = world.run_fork(uuid, "revert-scope")
    assert EFFECTS == ["pack", "undo pack", "ship"] and inherited(flow) == {"charge"}


@pytest.mark.parametrize(("failing", "again"), [("pack", ["pack"]), ("ship", ["ship"])])
def test_fork_repeats_one_of_concurrent_steps(world: World, failing: str, again: list[str]) -> None:
    uuid = world.flow(fork_flows.gathered, failing)
    flow = world.run_fork(uuid, failing)
    assert [effect for effect in EFFECTS if effect != "charge"][: len(again)] == again
    assert flow.state == states.SUCCESS and EFFECTS[-1] == "charge"


def test_task_after_which_nothing_failed_can_be_the_start(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    flow = world.run_fork(uuid, "B")
    assert EFFECTS == ["B", "D"] and flow.state == states.SUCCESS


def test_fork_inherits_step_that_was_overtaken_by_the_start(world: World) -> None:
    uuid = world.flow(fork_flows.overtaken, "ship")
    notes = [StepNote.of(record) for record in flow_of(world.store, uuid) if record.is_step]
    orders = {note.position: note.completed for note in notes if note is not None}
    assert orders == {0: 2, 1: 1, 2: 3}
    flow = world.run_fork(uuid, "pack")
    assert EFFECTS == ["pack", "ship"] and flow.state == states.SUCCESS
    assert len(inherited(flow)) == 1


def test_fork_of_workflow_whose_function_failed_inherits_all_steps(world: World) -> None:
    uuid = world.flow(fork_flows.checked, "checked")
    flow = world.run_fork(uuid, "failed")
    assert EFFECTS == ["ship"] and flow.state == states.SUCCESS


@places.everywhere
def test_many_flows_are_forked_by_one_operation(world: World) -> None:
    flows = [world.flow(fork_flows.order, "ship", amount=5, address="here") for _ in range(2)]
    done = world.flow(fork_flows.order, amount=5, address="here")
    rows = [BulkFlow(uuid, states.FAILURE) for uuid in flows] + [BulkFlow(done, states.SUCCESS)]
    bulk = _bulk.start(world.store, "flow fork", rows, {"start": "failed"}, reason="release 42")
    bulk = _bulk.carry_out(_bulk.BulkRun(world.store, bulk, "me"), lambda _: None)
    assert (bulk.done, bulk.skipped) == (2, 1)
    forks = [entry["flow"] for uuid in flows for entry in flow_of(world.store, uuid).forks]
    run(world.store, world.board, *forks)
    assert EFFECTS == ["ship", "ship"]
    assert {flow_of(world.store, fork).state for fork in forks} == {states.SUCCESS}
    with world.store.get_connection() as connection:
        (skipped,) = connection.bulks.skipped(bulk.uuid)
    assert "has no failed task or step" in skipped.reason


def selected(store: base.Backend, name: str, *, forks: bool = False, **conditions: Any) -> set[str]:
    """Return the uuids of the flows that a filter selects for an operation."""
    chosen = _bulk_selection.Filter(**conditions, forks=forks)
    with store.get_connection() as connection:
        rows = _bulk_selection.select_for(connection, _operation.load(name), chosen, {})
    return {row.uuid for row in rows}


@places.everywhere
def test_filters_of_fork_leave_out_forks_and_forked_flows(world: World) -> None:
    by_state = {"states": (states.SUCCESS,)}
    forked, other = (world.flow(fork_flows.diamond, **CARD) for _ in range(2))
    assert selected(world.store, "flow fork", **by_state) == {forked, other}
    fork = world.run_fork(forked, "D").uuid
    assert selected(world.store, "flow fork", **by_state) == {other}
    assert selected(world.store, "flow fork", forks=True, **by_state) == {fork, other}
    again = world.run_fork(fork, "D").uuid
    assert selected(world.store, "flow fork", forks=True, **by_state) == {again, other}


@places.everywhere
def test_filters_of_retry_leave_out_forked_flows_only(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    FAILING.add("D")
    fork = world.run_fork(uuid, "failed").uuid
    FAILING.clear()
    failed = {"states": (states.FAILURE,)}
    assert selected(world.store, "flow retry", **failed) == {fork}
    assert selected(world.store, "flow revert", **failed) == {uuid, fork}


@places.everywhere
def test_fork_starts_after_a_script_reverts_the_original(
    world: World,
) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    FAILING.add("undo D")
    fork = world.fork(uuid, "D", undo=True)
    world.revert(uuid)
    assert flow_of(world.store, fork).awaits_reversion
    FAILING.clear()
    operations.revert(world.store, uuid).run()
    EFFECTS.clear()
    run(world.store, world.board, *world.to_post(fork))
    assert EFFECTS == ["D"] and flow_of(world.store, fork).state == states.SUCCESS


@places.everywhere
@pytest.mark.parametrize("is_forked_again", [False, True])
def test_fork_whose_results_were_reverted_cannot_run_again(
    world: World, is_forked_again: bool
) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    fork = world.fork(uuid, "D")
    if is_forked_again:
        run(world.store, world.board, *world.to_post(fork))
        fork = world.fork(fork, "D")
    FAILING.add("D")
    run(world.store, world.board, *world.to_post(fork), never_resolve=False)
    FAILING.clear()
    assert flow_of(world.store, fork).state == states.REVERTED
    operations.revert(world.store, uuid).run()
    for run_again in (
        lambda: operations.retry(world.store, fork),
        lambda: operations.request(world.store, fork, "retry"),
        lambda: world.fork(fork, "D"),
    ):
        with pytest.raises(exceptions.InvalidState, match=f"results of flow {uuid}"):
            run_again()


@places.everywhere
def test_fork_whose_results_moved_to_another_fork_runs_again(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    FAILING.add("D")
    fork = world.fork(uuid, "D")
    run(world.store, world.board, *world.to_post(fork), never_resolve=False)
    FAILING.clear()
    owner = world.run_fork(uuid, "D", undo=False, own=True)
    operations.retry(world.store, fork).run()
    assert flow_of(world.store, fork).state == states.SUCCESS
    operations.revert(world.store, owner.uuid).run()
    with pytest.raises(exceptions.InvalidState, match=f"results of flow {owner.uuid}"):
        world.fork(fork, "D")


@places.everywhere
def test_fork_that_waits_for_its_original_cannot_be_resumed(world: World) -> None:
    uuid = world.flow(fork_flows.diamond, **CARD)
    fork = world.fork(uuid, "D", undo=True)
    with pytest.raises(exceptions.InvalidState, match=f"starts when flow {uuid} is reverted"):
        operations.resume(world.store, fork)


def test_reverted_flow_is_saved_after_the_change_of_its_fork(world: World) -> None:
    """The change writes what it has read: the fork would never start."""
    uuid = world.flow(fork_flows.diamond, "D", **CARD)
    fork = world.fork(uuid, "D", undo=True)
    with world.store.get_connection() as connection:
        lease = connection.acquire_lease(uuid, "engine", 60)
        change = connection.acquire_lease(fork, "somebody who tags it", 60)
        detail = flow_of(world.store, uuid)
        detail.enter(states.REVERTED, 1.0)
        with pytest.raises(exceptions.StorageFailure, match="is being changed"):
            connection.save_changes(detail, (), lease=lease)
        assert flow_of(world.store, uuid).state != states.REVERTED
        connection.release_lease(change)
        connection.save_changes(detail, (), lease=lease)
    assert not flow_of(world.store, fork).awaits_reversion
