"""Workflows with faulty functions, damaged records and missing tasks."""

import asyncio
import logging
import threading
import time

import pytest

from tests.support.continued_engines import continued, parked, suspended
from wbengine import engines, exceptions, operations, states, task
from wbengine.patterns import unordered_flow
from wbengine.persistence import backends, models

EFFECTS = []


@pytest.fixture(autouse=True)
def _no_effects():
    EFFECTS.clear()


@pytest.fixture
def store():
    backend = backends.fetch("memory://")
    yield backend
    backend.close()


@task.task
def add(number):
    EFFECTS.append(("add", number))
    return number + 1


@add.revert
def remove(number):
    EFFECTS.append(("remove", number))


@task.task
def wait_briefly(number):
    time.sleep(0.02)
    EFFECTS.append(("wait", number))


@wait_briefly.revert
def undo_wait(number):
    EFFECTS.append(("undo", number))


@task.task
def fail():
    raise ValueError("no")


def suspended_after(workflow, store, effect):
    """Return the stored flow of a workflow that was suspended after an effect."""
    return stored(suspended(workflow, store, lambda name: effect in EFFECTS), store)


def stored(engine, store):
    return store.get_connection().get_flow_details(engine.storage.flow_uuid)


def added(*numbers):
    return [("add", number) for number in numbers]


@task.workflow
def swallow(steps):
    for number in range(4):
        try:
            steps.run(add, number)
        except BaseException:
            EFFECTS.append("swallowed")
    return "done"


@task.workflow
async def swallow_async(steps):
    for number in range(4):
        try:
            await steps.run(add, number)
        except BaseException:
            EFFECTS.append("swallowed")
    return "done"


@pytest.mark.parametrize("workflow", [swallow, swallow_async])
def test_function_that_swallows_all_exceptions_can_be_suspended(store, workflow):
    detail = suspended_after(workflow, store, ("add", 1))
    assert [effect for effect in EFFECTS if effect != "swallowed"] == added(0, 1)
    EFFECTS.clear()
    engine = engines.load(workflow, flow_detail=detail, backend=store)
    engine.run()
    assert engine.storage.fetch("result") == "done"
    assert added(2, 3) == EFFECTS


@task.workflow
def compute_long(steps):
    number = steps.run(add, 1)
    time.sleep(0.05)
    return steps.run(add, number)


@pytest.mark.filterwarnings("ignore:.*uses time.sleep:RuntimeWarning")
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_function_may_compute_between_its_steps(kind):
    assert engines.run(compute_long, engine=kind)["result"] == 3


def test_cancellation_after_the_function_returned_ends_the_run():
    may_return = threading.Event()
    threads = []

    @task.workflow
    def workflow(steps):
        threads.append(threading.current_thread())
        may_return.wait(10)

    @task.task
    def cancel_after_return():
        may_return.set()
        threads[0].join(10)
        engine.cancel()

    engine = engines.load(unordered_flow.Flow("all").add(workflow(), cancel_after_return()))
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


@task.workflow
async def leave_steps(steps, fails):
    others = [asyncio.ensure_future(steps.run(wait_briefly, number)) for number in range(2)]
    await steps.run(add, 1)
    EFFECTS.append(("others", len(others)))
    if fails:
        await steps.run(fail)
    return "done"


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("fails", [False, True])
def test_steps_that_were_not_awaited_end_before_the_workflow(kind, fails, caplog):
    engine = engines.load(leave_steps, {"fails": fails}, engine=kind)
    with caplog.at_level(logging.ERROR):
        if fails:
            with pytest.raises(ValueError, match=r"^no$"):
                engine.run()
        else:
            engine.run()
    begun = [number for what, number in EFFECTS if what == "wait"]
    undone = [number for what, number in EFFECTS if what == "undo"]
    assert sorted(undone) == (sorted(begun) if fails else [])
    assert not caplog.records, "coroutines were not closed"


@task.workflow
async def wait_in_task_groups(steps):
    async with asyncio.TaskGroup() as outer:
        outer.create_task(steps.wait_for("a"))
        async with asyncio.TaskGroup() as inner:
            inner.create_task(steps.wait_for("b"))
            return await steps.wait_for("c")


@task.workflow
async def wait_before_last_step(steps):
    try:
        return await steps.wait_for("c")
    finally:
        await steps.run(add, 1)


@pytest.mark.parametrize("workflow", [wait_in_task_groups, wait_before_last_step])
def test_parked_workflow_closes_its_coroutines_silently(workflow, store, caplog):
    engine = parked(engines.load(workflow, backend=store))
    for number, name in enumerate("abc"):
        operations.signal(store, engine.storage.flow_uuid, name, number)
    resumed = continued(engine, workflow, store)
    resumed.run()
    assert resumed.storage.fetch("result") == 2
    assert not caplog.records


@task.workflow
def exit_once(steps):
    steps.run(add, 1)
    if "exit" not in EFFECTS:
        EFFECTS.append("exit")
        raise SystemExit("no")
    return steps.run(add, 2)


@task.workflow
async def exit_once_async(steps):
    await steps.run(add, 1)
    if "exit" not in EFFECTS:
        EFFECTS.append("exit")
        raise SystemExit("no")
    return await steps.run(add, 2)


@pytest.mark.parametrize("workflow", [exit_once, exit_once_async])
def test_exit_in_a_function_suspends_the_flow(store, workflow):
    engine = engines.load(workflow, backend=store)
    with pytest.raises(SystemExit):
        engine.run()
    assert stored(engine, store).state == states.SUSPENDED
    continued(engine, workflow, store).run()
    assert EFFECTS == [("add", 1), "exit", ("add", 2)]


@task.workflow
def add_twice(steps, fails=False):
    number = steps.run(add, steps.run(add, 1))
    if fails:
        steps.run(fail)
    return number


@pytest.mark.parametrize("note", [{}, {"position": "0"}, {"task": None}])
def test_damaged_step_note_is_an_error(store, note):
    detail = suspended_after(add_twice, store, ("add", 1))
    record = next(record for record in detail if record.is_step)
    content = dict(record.meta[models.STEP])
    record.meta[models.STEP] = {**content, **note} if note else note
    connection = store.get_connection()
    connection.save_changes(detail, [record], flow_row=False)
    engine = engines.load(add_twice, flow_detail=detail, backend=store)
    with pytest.raises(exceptions.CorruptRecord, match="must contain its place"):
        engine.run()
    assert added(1) == EFFECTS
    record.meta[models.STEP] = content
    connection.save_changes(detail, [record], flow_row=False)
    continued(engine, add_twice, store).run()
    assert added(1, 2) == EFFECTS


@task.workflow
def add_three(steps):
    for number in range(3):
        steps.run(add, number)


@pytest.mark.parametrize(
    "note", [{"position": 7}, {"completed": 7}, {"attempt": 7}, {"position": 1}]
)
def test_missing_step_is_an_error(store, note):
    detail = suspended_after(add_three, store, ("add", 1))
    EFFECTS.clear()
    record = next(record for record in detail if record.is_step)
    record.meta[models.STEP] = {**record.meta[models.STEP], **note}
    store.get_connection().save_changes(detail, [record], flow_row=False)
    engine = engines.load(add_three, flow_detail=detail, backend=store)
    with pytest.raises(exceptions.CorruptRecord, match="is missing or damaged"):
        engine.run()
    assert EFFECTS == []


def test_reversion_of_a_missing_task_is_an_error(store, monkeypatch):
    engine = engines.load(add_twice, {"fails": True}, backend=store)

    def on_reverted(state, details):
        if ("remove", 2) in EFFECTS:
            engine.suspend()

    engine.atom_notifier.register(states.REVERTED, on_reverted)
    engine.run()
    assert [*added(1, 2), ("remove", 2)] == EFFECTS
    with monkeypatch.context() as context:
        context.delitem(globals(), "add")
        again = continued(engine, add_twice, store)
        with pytest.raises(exceptions.NotFound, match=r"cannot be reverted.*:add'"):
            again.run()
        assert again.storage.get_flow_state() == states.FAILURE
    assert [*added(1, 2), ("remove", 2)] == EFFECTS


@task.workflow
def raise_at_once(steps):
    raise ValueError("no")


@task.workflow
def wait_for_signal(steps):
    steps.run(add, 1)
    steps.wait_for("never")


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_failure_of_a_workflow_ends_the_run_without_resolution(kind):
    flow = unordered_flow.Flow("all").add(wait_for_signal(), raise_at_once())
    with pytest.raises(ValueError, match=r"^no$"):
        engines.run(flow, engine=kind, never_resolve=True)
    assert ("remove", 1) not in EFFECTS


REVERT_BEGINS, FLOW_IS_CANCELLED = threading.Event(), threading.Event()


@task.task
def fail_to_revert_once():
    EFFECTS.append("execute")


@fail_to_revert_once.revert
def revert_after_cancellation():
    EFFECTS.append("revert")
    if not REVERT_BEGINS.is_set():
        REVERT_BEGINS.set()
        FLOW_IS_CANCELLED.wait(10)
        raise ValueError("no")


@task.workflow
def revert_scope(steps):
    with steps.scope():
        steps.run(fail_to_revert_once)
        steps.run(fail)


def test_failed_revert_of_a_scope_is_repeated_after_a_cancellation():
    @task.task
    def cancel(self):
        REVERT_BEGINS.wait(10)
        engine.cancel()
        while not self.cancelled:
            time.sleep(0.01)
        FLOW_IS_CANCELLED.set()

    flow = unordered_flow.Flow("all").add(revert_scope(), cancel())
    engine = engines.load(flow, engine="parallel")
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert EFFECTS == ["execute", "revert", "revert"]
