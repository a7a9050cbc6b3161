"""Steps of workflows in views and timelines: folded loops, attempts, waits and counts."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support import shown_workflows
from tests.support.engine_threads import Gate, Running
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, report, states, task
from wbengine.drawing import _step_rows, _terminal_tree
from wbengine.persistence import _leases, _owners, _step_notes, backends, base, models
from wbengine.views import _atoms, _flow_list, _step_detail, _timeline, flow_status, watcher
from wbengine.views import _steps as steps
from wbengine.views._steps import Repetition


@task.task
def charge(order):
    return order


@task.task
def poll(number):
    return number


@task.task(retries=1)
def ship(order):
    raise ValueError(order)


@task.workflow(name="checkout")
def succeed(flow_steps, order):
    flow_steps.run(charge, order=order)
    for number in range(5):
        flow_steps.run(poll, number)
        flow_steps.sleep(0)
    return flow_steps.run(charge, order=order)


@task.workflow(name="checkout")
def fan_out(flow_steps, order):
    return flow_steps.map(poll, range(4))


@task.workflow(name="checkout")
def catch(flow_steps, order):
    with contextlib.suppress(ValueError):
        flow_steps.run(ship, order=order)


@task.workflow(name="checkout", retries=1)
def fail(flow_steps, order):
    flow_steps.run(charge, order=order)
    flow_steps.run(ship, order=order)


@task.workflow(name="checkout")
def fail_later(flow_steps, order):
    with contextlib.suppress(ValueError):
        flow_steps.run(ship, order=order)
    raise ValueError("of the workflow")


@task.task
def charge_nothing(order):
    raise ValueError(order)


@task.workflow(name="checkout")
def doze(flow_steps, order):
    flow_steps.sleep(0.01)
    flow_steps.sleep(0.01)
    flow_steps.run(charge_nothing, order)


@task.workflow(name="checkout")
def translate(flow_steps, order):
    try:
        flow_steps.run(ship, order=order)
    except ValueError as error:
        raise LookupError("no ship") from error


@task.task
def book(order):
    return order


@book.revert
def cancel(order):
    pass


@task.workflow(name="checkout")
def undo(flow_steps, order):
    flow_steps.run(book, order)
    flow_steps.run(book, order)
    flow_steps.run(ship, order)


@task.workflow(name="checkout")
def wait(flow_steps, order):
    flow_steps.run(charge, order=order)
    return flow_steps.wait_for("approved", 3600)


@task.task(concurrency=1)
def call(number):
    if number == 0:
        HELD.pop()()


@task.workflow(name="checkout")
def limit(flow_steps, order):
    return flow_steps.map(call, range(3))


@task.workflow(name="checkout")
def limit_one(flow_steps, order):
    return flow_steps.run(call, 1)


HELD: list[Gate] = []


@task.task(rate_limit="100/s")
def hold(order):
    HELD.pop()()


@task.workflow(name="checkout")
def hold_limited(flow_steps, order):
    return flow_steps.run(hold, order)


@task.task
def hold_long(order):
    HELD.pop()()


@task.workflow(name="checkout")
def hold_unlimited(flow_steps, order):
    return flow_steps.run(hold_long, order)


@pytest.fixture(params=["memory://", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[base.Backend]:
    uri = f"sqlite:///{tmp_path}/flows.db" if request.param == "sqlite" else request.param
    backend = backends.fetch(uri)
    with contextlib.closing(backend.get_connection()) as connection:
        connection.upgrade()
    yield backend
    backend.close()


def run(workflow, backend: base.Backend, **options: object) -> str:
    engine = engines.load(workflow, {"order": "book"}, backend=backend, **options)
    with contextlib.suppress(ValueError, LookupError):
        engine.run()
    return engine.storage.flow_uuid


def view(backend: base.Backend, uuid: str) -> flow_status.FlowView:
    with contextlib.closing(backend.get_connection()) as connection:
        return flow_status.read(connection, uuid)


def workflow_in(flow: flow_status.FlowView) -> tuple[_atoms.AtomView, _atoms.StepsView]:
    """Return the view of the workflow, and the views of its steps."""
    atom = flow.atom("checkout")
    assert atom is not None and atom.steps is not None
    return atom, atom.steps


def rows(backend: base.Backend, uuid: str, limit: int | None = None) -> list[str]:
    _, steps_view = workflow_in(view(backend, uuid))
    texts = [row.text for row in _step_rows.rows(steps_view, limit)]
    return [" ".join(part for part in text.split("  ") if "ms" not in part) for text in texts]


@pytest.mark.parametrize(
    "names, parts",
    [
        ("", []),
        ("abc", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
        ("aab", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
        ("aaab", [(0, 1, 3), (3, 1, 1)]),
        ("xababab", [(0, 1, 1), (1, 2, 3)]),
        ("abababa", [(0, 2, 3), (6, 1, 1)]),
        ("aabaabaab", [(0, 3, 3)]),
    ],
)
def test_fold_finds_bodies_of_loops(names: str, parts: list[tuple[int, int, int]]) -> None:
    assert steps.fold(names) == [Repetition(*part) for part in parts]


def test_fold_covers_each_step_once() -> None:
    names = "abcabcabc" + "x" * 50 + "yzyzy" + "q"
    covered = sum(part.length * part.times for part in steps.fold(names))
    assert covered == len(names)


def test_shorten_keeps_first_and_latest_parts() -> None:
    parts = steps.fold(range(1000))
    first, latest = steps.shorten(parts)
    assert (first[0].start, latest[-1].start) == (0, 999)
    assert len(first) + len(latest) < 100
    assert steps.shorten(parts[:5]) == (parts[:5], ())


def test_loop_is_shown_once_with_its_latest_iteration(store: base.Backend) -> None:
    assert rows(store, run(succeed, store)) == [
        "0 charge",
        "5 x poll, sleep-0; the latest:",
        "9 poll",
        "10 sleep-0",
        "11 charge",
    ]


def test_limit_of_rows_keeps_the_latest_steps(store: base.Backend) -> None:
    assert rows(store, run(succeed, store), limit=2) == ["... 11 earlier steps", "11 charge"]


def test_map_of_steps_is_folded(store: base.Backend) -> None:
    assert rows(store, run(fan_out, store)) == ["4 x poll; the latest:", "3 poll"]


def test_failed_step_shows_its_attempts_and_error(store: base.Backend) -> None:
    (row,) = rows(store, run(catch, store))
    assert row == "0 ship failure attempt 2 ValueError: book"


def test_earlier_attempt_of_the_workflow_is_one_row(store: base.Backend) -> None:
    first, *others = rows(store, run(fail, store))
    assert first.startswith("attempt 1: 2 steps: ")
    assert [row.split()[:2] for row in others] == [["0", "charge"], ["1", "ship"]]


def test_steps_are_not_counted_as_tasks(store: base.Backend) -> None:
    uuid = run(succeed, store)
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = connection.list_flows(uuid=uuid).flows
    shown = view(store, uuid)
    assert row.counts == shown.counts == {states.SUCCESS: 1}
    assert [atom.name for atom in shown.atoms] == ["checkout"]


def test_plan_contains_the_workflow_but_not_its_steps(store: base.Backend) -> None:
    uuid = run(fail, store)
    assert operations.plan(store, uuid, operations._resuming.RETRY).run == ("checkout",)


def stored_wait(backend: base.Backend) -> models.FlowDetail:
    """Return the records of a workflow that is suspended while it waits for a signal."""
    engine = engines.load(wait, {"order": "book"}, backend=backend)

    def on_change(state: str, details: Any) -> None:
        if details["task_name"].endswith("approved"):
            engine.suspend()

    engine.atom_notifier.register(states.RUNNING, on_change)
    engine.run()
    detail = engine.storage.flow_detail
    (step,) = (record for record in detail if record.name.endswith("approved"))
    step.meta[models.WAITS_FOR] = {"signal": "approved", "since": 1.0, "until": None}
    return detail


def test_workflow_shows_the_wait_of_its_step(store: base.Backend) -> None:
    detail = stored_wait(store)
    workflow = next(record for record in detail if record.name == "checkout")
    workflow.state = detail.state = states.RUNNING
    lease = _leases.Lease(detail.uuid, str(_owners.new()), 1)
    atom, steps_view = workflow_in(flow_status.view(detail, lease=lease, now=2.0))
    assert atom.waits_for is not None
    assert (atom.shown_state, atom.waits_for.signal) == (states.WAITING, "approved")
    assert (steps_view.shown[-1].waiting or "").startswith("waiting for signal 'approved' since")


def test_suspended_workflow_shows_its_next_wait(store: base.Backend) -> None:
    flow = flow_status.view(stored_wait(store), now=2.0)
    atom, steps_view = workflow_in(flow)
    assert (atom.waits_for, atom.shown_state) == (None, states.WAITING)
    text = "waiting for signal 'approved' since 00:00:01; the flow is suspended"
    assert steps_view.shown[-1].waiting == text
    assert flow.waiting == (
        "The flow is suspended. When it continues, checkout waits for signal 'approved'."
    )
    assert flow.shown_step_counts == {states.SUCCESS: 1, states.WAITING: 1}
    assert flow.done == "1 of 2 steps"


def test_suspended_workflow_is_listed_with_its_next_wait(store: base.Backend) -> None:
    stored_wait(store)
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = _flow_list.page(connection).flows
    assert row.waits_for == ()
    assert [wait.signal for wait in row.will_wait_for] == ["approved"]


def test_step_of_an_ended_flow_does_not_wait(store: base.Backend) -> None:
    detail = stored_wait(store)
    detail.state = states.FAILURE
    flow = flow_status.view(detail, now=2.0)
    _, steps_view = workflow_in(flow)
    assert (flow.waiting, steps_view.shown[-1].waiting) == (None, None)


def test_counts_of_steps_are_those_of_the_latest_attempt(store: base.Backend) -> None:
    uuid = run(fail, store)
    flow = view(store, uuid)
    _, steps_view = workflow_in(flow)
    assert len(steps_view.earlier) == 1
    assert flow.step_counts == steps_view.counts == {states.REVERTED: 2}
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = _flow_list.page(connection).flows
        assert _flow_list.size(connection, uuid) == 3
    assert (row.step_counts, row.done) == (flow.step_counts, "0 of 2 steps")


def test_failed_workflow_names_the_step_that_raised(store: base.Backend) -> None:
    flow = view(store, run(fail, store))
    (failure,) = flow.failures
    assert (failure.atom, failure.step_name, failure.step_attempt) == (
        "checkout", "checkout/3.1-ship", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "workflow, error",
    [
        (fail, "ship: ValueError: book"),
        (undo, "ship: ValueError: book"),
        (fail_later, "checkout: ValueError: of the workflow"),
        (translate, "checkout: LookupError: no ship"),
    ],
)
def test_error_of_a_flow_names_the_step_whose_exception_left_the_workflow(
    workflow: Any, error: str, store: base.Backend
) -> None:
    uuid = run(workflow, store)
    with contextlib.closing(store.get_connection()) as connection:
        (row,) = connection.list_flows(uuid=uuid).flows
        assert row.error == error
        assert connection.list_flows(error=error.partition(":")[0]).flows == [row]


def test_caught_failure_of_a_step_is_not_that_of_its_workflow(store: base.Backend) -> None:
    assert view(store, run(catch, store)).failures == ()


def test_other_exception_of_a_workflow_is_not_that_of_a_step(store: base.Backend) -> None:
    (failure,) = view(store, run(fail_later, store)).failures
    assert (failure.message, failure.step) == ("of the workflow", None)


@pytest.mark.parametrize(
    "text, arguments, is_complete",
    [
        ("", {}, True),
        ('{"a":1,"b":["x"]}', {"a": 1, "b": ["x"]}, True),
        ('{"a":1,"b":12...', {"a": 1}, False),
        ('{"a":1,"b":"hunt...', {"a": 1}, False),
        ('{"a":1,"b...', {"a": 1}, False),
        ('{"a":{"$wbe":"tuple","v":[1]}}', {"a": (1,)}, True),
        ("[0,1]", {}, False),
    ],
)
def test_arguments_are_read_from_the_start_of_their_json(
    text: str, arguments: dict[str, Any], is_complete: bool
) -> None:
    note = _step_notes.StepNote("w", 1, 0, "shop:charge", "", text)
    assert _step_detail.arguments_of(note) == (arguments, is_complete)


def test_revert_path_contains_steps_in_their_order(store: base.Backend) -> None:
    flow = view(store, run(undo, store))
    names = [undone.atom for undone in flow.revert_path]
    assert names == ["checkout/1.1-book", "checkout/1.0-book", "checkout"]
    assert {undone.state for undone in flow.revert_path} == {states.REVERTED}


def test_durations_of_execution_and_reversion_are_separate(store: base.Backend) -> None:
    atom, steps_view = workflow_in(view(store, run(undo, store)))
    for each in atom, steps_view.shown[0]:
        assert each.execution_runtime is not None and each.reversion_runtime == each.runtime
    assert atom.execution_runtime == atom.attempts[0].runtime
    shipped = steps_view.shown[-1]
    assert (shipped.execution_runtime, shipped.reversion_runtime) == (shipped.runtime, None)


def test_start_of_a_reverted_step_or_task_is_that_of_its_execution(store: base.Backend) -> None:
    atom, steps_view = workflow_in(view(store, run(undo, store)))
    for each in atom, steps_view.shown[0]:
        assert each.execution_start is not None and each.started is not None
        assert each.execution_start < each.started  # `started` is the start of the reversion.
    assert atom.execution_start == atom.attempts[0].started
    shipped = steps_view.shown[-1]
    assert shipped.execution_start == shipped.started


def test_steps_without_revert_are_reverted_after_the_failure(store: base.Backend) -> None:
    uuid = run(doze, store)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
    events = [event for event in watcher.events_of(detail) if "/" in event.name]
    states_of = [(event.name.rpartition("-")[2], event.state) for event in events]
    failed = states_of.index(("charge_nothing", states.FAILURE))
    assert states_of[failed + 1 :] == [
        ("charge_nothing", states.REVERTED),
        ("0.01", states.REVERTED),
        ("0.01", states.REVERTED),
    ]
    assert [event.at for event in events] == sorted(event.at or 0.0 for event in events)


def test_last_attempt_of_a_step_without_revert_keeps_its_failure(store: base.Backend) -> None:
    uuid = run(undo, store)
    with contextlib.closing(store.get_connection()) as connection:
        record = next(each for each in connection.get_flow_details(uuid) if "ship" in each.name)
    assert record.state == states.REVERTED
    assert [attempt.state for attempt in record.all_attempts] == [states.FAILURE] * 2


def test_tree_shows_steps_below_their_workflow(store: base.Backend) -> None:
    shown = view(store, run(fan_out, store))
    lines = _terminal_tree.text(shown.outline, shown).splitlines()
    assert "checkout" in lines[1]
    assert lines[2].strip().endswith("4 x poll; the latest:")


class Watched:
    """A workflow that an engine runs in another thread."""

    def __init__(self, workflow, backend: base.Backend, engine: str = "serial") -> None:
        self._backend = backend
        self.engine = engines.load(workflow, {"order": "book"}, backend=backend, engine=engine)
        self.uuid = self.engine.storage.flow_uuid

    @property
    def flow(self) -> flow_status.FlowView:
        return view(self._backend, self.uuid)

    @property
    def atom(self) -> _atoms.AtomView:
        return workflow_in(self.flow)[0]

    @property
    def steps(self) -> Sequence[_atoms.StepView]:
        atom = self.flow.atom("checkout")
        return () if atom is None or atom.steps is None else atom.steps.shown

    def wait_for(self, condition: Callable[[], object]) -> None:
        until(lambda: self.steps and condition())


@contextlib.contextmanager
def held(workflow, backend: base.Backend, engine: str = "serial") -> Iterator[Watched]:
    """Run a workflow, one step of which runs until the context exits."""
    gate = Gate()
    HELD.append(gate)
    watched = Watched(workflow, backend, engine)
    with Running(watched.engine):
        assert gate.inside.wait(60)
        try:
            yield watched
        finally:
            gate.let.set()


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_step_without_permit_shows_that_it_waits(store: base.Backend, engine: str) -> None:
    with held(limit, store, engine) as watched:
        watched.wait_for(lambda: watched.steps[0].started)
        first, *others = watched.steps
    text = "starts when the limit permits it: 1 at once"
    assert (first.shown_state, first.waiting) == (states.RUNNING, None)
    assert [(step.shown_state, step.waiting) for step in others] == [(states.WAITING, text)] * 2


def test_workflow_waits_for_the_permits_of_its_steps(store: base.Backend) -> None:
    with held(limit, store):
        watched = Watched(limit_one, store)
        with Running(watched.engine):
            watched.wait_for(lambda: watched.flow.waiting)
            flow, atom = watched.flow, watched.atom
            watched.engine.suspend()
    assert atom.waiting == "Step 0 call: Starts when the limit permits it: 1 at once."
    assert (atom.state, flow.waiting) == (states.RUNNING, f"checkout: {atom.waiting}")


def test_step_of_a_paused_type_shows_the_pause(store: base.Backend) -> None:
    operations.pause_tasks(store, f"{__name__}.poll", reason="the bank is down")
    watched = Watched(fan_out, store)
    with Running(watched.engine):
        watched.wait_for(lambda: watched.steps[0].waiting)
        atom = watched.atom
        watched.engine.suspend()
    text = r"Step 0 poll: Its task type is paused .*: the bank is down\."
    assert re.fullmatch(text, atom.waiting or "")
    assert atom.gate is not None and atom.gate.kind == _atoms.PAUSE


@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_limited_step_that_runs_does_not_wait(store: base.Backend, engine: str) -> None:
    with held(hold_limited, store, engine) as watched:
        watched.wait_for(lambda: watched.steps[0].started)
        (step,), atom = watched.steps, watched.atom
    assert (step.shown_state, step.waiting) == (states.RUNNING, None)
    assert (atom.shown_state, atom.waiting) == (states.RUNNING, None)


def test_step_that_began_before_a_pause_is_not_paused(store: base.Backend) -> None:
    with held(hold_unlimited, store) as watched:
        operations.pause_tasks(store, f"{__name__}.*")
        watched.wait_for(lambda: watched.steps[0].state == states.RUNNING)
        (step,) = watched.steps
    assert (step.shown_state, step.waiting) == (states.RUNNING, None)


IS_CHANGED: list[bool] = []


@task.workflow(name="checkout")
def change(flow_steps, order):
    flow_steps.run(poll if IS_CHANGED else charge, 1)
    flow_steps.wait_for("paid")


def test_error_of_a_changed_function_is_shown(store: base.Backend) -> None:
    engine = engines.load(change, {"order": "book"}, backend=store)
    engine.park_after = 0.0
    engine.run()
    uuid = engine.storage.flow_uuid
    IS_CHANGED.append(True)
    try:
        with pytest.raises(exceptions.NonDeterministicWorkflow):
            operations.resume(store, uuid).run()
    finally:
        IS_CHANGED.clear()
    flow_view = view(store, uuid)
    assert flow_view.state == states.FAILURE and not flow_view.failures
    assert str(flow_view.error).startswith("NonDeterministicWorkflow: Workflow 'checkout' must")


def view_of(workflow: type) -> flow_status.FlowView:
    with backends.backend("memory://") as backend:
        engine = engines.load(workflow, backend=backend)
        with contextlib.suppress(ConnectionError):
            engine.run()
        return flow_status.view(engine.storage.flow_detail, now=engine.storage.flow_detail.created)


@pytest.fixture(scope="module")
def undone() -> flow_status.FlowView:
    return view_of(shown_workflows.undone)


def test_timeline_contains_bars_of_steps(undone: flow_status.FlowView) -> None:
    (lane,) = _timeline.timeline(undone).lanes
    steps = {bar.name: (bar.state, bar.action) for bar in lane.bars if bar.is_step}
    assert steps == {
        "undone / 0 book": (states.REVERTED, "revert"),
        "undone / 1 ship": (states.REVERTED, "revert"),
    }


def test_timeline_contains_the_latest_iteration_of_a_loop() -> None:
    shown = view_of(shown_workflows.looped)
    (lane,) = _timeline.timeline(shown).lanes
    steps = [bar.name for bar in lane.bars if bar.is_step]
    assert steps == ["looped / 9 poll (latest of 10)"]


def test_steps_are_not_counted_as_attempts(undone: flow_status.FlowView) -> None:
    chart = _timeline.timeline(undone)
    assert [lane.attempts for lane in chart.lanes] == [2]  # execution and reversion
    bars = [bar for lane in chart.lanes for bar in lane.bars if not bar.is_step]
    assert sum(lane.busy for lane in chart.lanes) == sum(bar.seconds for bar in bars)


def test_suspended_workflow_ends_in_the_timeline_when_suspended() -> None:
    with backends.backend("memory://") as backend:
        engine = engines.load(shown_workflows.looped, backend=backend)
        engine.atom_notifier.register(states.SUCCESS, lambda *_, **__: engine.suspend())
        engine.run()
        detail = engine.storage.flow_detail
    shown = flow_status.view(detail, now=(detail.created or 0.0) + 3600)
    assert shown.state == states.SUSPENDED
    assert _timeline.timeline(shown).seconds < 600
    (atom,) = shown.atoms
    text = "Continues behind its complete steps when an engine runs the flow."
    assert atom.waiting == text


def test_report_lists_steps_and_counts_one_atom(undone: flow_status.FlowView) -> None:
    page = report.html(undone)
    assert "A flow of <b>1</b> atom" in page
    section = page[page.index('<section id="steps"') :]
    assert "2 steps of 1 workflow." in section
    assert re.search("undone / 1 ship.*reverted.*ConnectionError: no answer &lt;img", section)
    assert "<img" not in page
