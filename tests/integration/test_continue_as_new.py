"""Workflows that continue as new attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from wbengine import engines, exceptions, operations, states, task
from wbengine.drawing import _step_rows
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.steps import AsyncSteps, Steps
from wbengine.testing import run_submitted
from wbengine.views import flow_status

EFFECTS: list[Any] = []


@pytest.fixture(autouse=True)
def _no_effects() -> None:
    EFFECTS.clear()


@pytest.fixture(params=["memory", "sqlite", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Backend]:
    urls = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path}/flows.db",
        "folder": f"dir://{tmp_path}/flows",
    }
    with backends.backend(urls[request.param]) as made:
        yield made


@task.task
def add(number: int, step: int = 1) -> int:
    EFFECTS.append(number)
    return number + step


@add.revert
def remove(number: int) -> None:
    EFFECTS.append(-number)


@task.task
def fail(times: int = 1000) -> None:
    EFFECTS.append("fail")
    if EFFECTS.count("fail") <= times:
        raise ValueError("no")


@task.workflow
def count(steps: Steps, number: int = 0, step: int = 1, limit: int = 5) -> int:
    number = steps.run(add, number, step)
    if number < limit:
        steps.continue_as_new(number=number)
    return number


@task.workflow
async def count_later(steps: AsyncSteps, number: int = 0, step: int = 1, limit: int = 5) -> int:
    first, _ = await asyncio.gather(steps.run(add, number, step), steps.sleep(0))
    if first < limit:
        steps.continue_as_new(number=first)
    return first


def steps_of(engine: Any, store: base.Backend) -> list[str]:
    flow = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    return [atom.name for atom in flow if atom.is_step]


@pytest.mark.parametrize("workflow", [count, count_later])
@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_workflow_continues_with_new_inputs_until_it_returns(
    workflow: Any, kind: str, store: base.Backend
) -> None:
    engine = engines.load(workflow, backend=store, engine=kind, store={"step": 2, "limit": 7})
    engine.run()
    assert engine.storage.fetch("result") == 8
    assert EFFECTS == [0, 2, 4, 6]
    names = steps_of(engine, store)
    assert {name.partition("/")[2].partition(".")[0] for name in names} == {"4"}


def test_continuation_without_a_store_needs_none() -> None:
    assert engines.run(count)["result"] == 5


def test_workflow_in_a_graph_continues(store: base.Backend) -> None:
    @task.task(provides="number")
    def begin() -> int:
        return 2

    flow = linear_flow.Flow("f").add(begin(), count(), fail(inject={"times": 0}))
    engine = engines.load(flow, backend=store, store={"limit": 4})
    engine.run()
    assert engine.storage.fetch("result") == 4
    assert EFFECTS == [2, 3, "fail"]


@task.workflow
def fails_in_third(steps: Steps, number: int = 0, times: int = 1000) -> int:
    number = steps.run(add, number)
    if number < 3:
        steps.continue_as_new(number=number)
    steps.run(fail, times)
    return number


def test_failure_undoes_only_the_steps_of_the_last_attempt(store: base.Backend) -> None:
    engine = engines.load(fails_in_third, backend=store)
    with pytest.raises(ValueError, match="no"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert EFFECTS == [0, 1, 2, "fail", -2]


def test_retry_of_a_workflow_begins_with_the_continued_inputs(store: base.Backend) -> None:
    retried = fails_in_third.options(retries=1)
    engine = engines.load(retried("w"), backend=store, store={"times": 1})
    engine.run()
    assert EFFECTS == [0, 1, 2, "fail", -2, 2, "fail"]


@task.workflow
def fails_at_limit(steps: Steps, number: int = 0, limit: int = 5, times: int = 1000) -> int:
    number = steps.run(add, number)
    if number < 3:
        steps.continue_as_new(number=number)
    steps.run(fail, times)
    return steps.run(add, limit)


def test_continued_input_cannot_be_replaced_in_a_fork(tmp_path: Path) -> None:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        inputs = {"number": 0, "limit": 5, "times": 1}
        handle = engines.submit(fails_at_limit, inputs=inputs, backend=store)
        run_submitted(store)
        assert handle.state == states.REVERTED

        with pytest.raises(exceptions.InvalidState, match=r"'number'.* has continued as new"):
            operations.fork(store, handle.id, "0", edits=operations.Edits({"number": 9}))
        edits = operations.Edits({"limit": 7})
        fork = operations.fork(store, handle.id, "0", edits=edits)
        begun = len(EFFECTS)
        run_submitted(store)
        assert engines.handle(fork.uuid, backend=store).result()["result"] == 8
        assert EFFECTS[begun:] == [2, "fail", 7]


def test_rebound_continued_input_cannot_be_replaced_in_a_retry(store: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(fails_in_third("w", rebind={"number": "start"}))
    engine = engines.load(flow, backend=store, store={"start": 0, "times": 1})
    with pytest.raises(ValueError, match="no"):
        engine.run()
    engine = engines.load(flow, flow_detail=engine.storage.flow_detail, backend=store)
    engine.prepare()
    edits = operations.Edits({"start": 9})
    with pytest.raises(exceptions.InvalidState, match=r"'start'.* has continued as new"):
        engine.reset(failed_only=True, edits=edits)


@task.workflow
def collect(steps: Steps, items: list[str] | None = None) -> list[str]:
    items = [*(items or []), steps.wait_for("item")]
    if len(items) < 3:
        steps.continue_as_new(items=items)
    return items


def test_each_signal_is_received_once_by_all_attempts(store: base.Backend) -> None:
    engine = engines.load(collect, backend=store)
    for item in "abc":
        engine.signal("item", item)
    engine.run()
    assert engine.storage.fetch("result") == ["a", "b", "c"]


@task.workflow
async def collect_first(steps: AsyncSteps, first: list[str] | None = None) -> list[str]:
    if first is None:
        waits = [asyncio.ensure_future(steps.wait_for(name)) for name in ("x", "y")]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        steps.continue_as_new(first=[each.result() for each in done][:1])
    return [*first, await steps.wait_for("y", timeout=60)]


def test_signal_of_an_unfinished_wait_stays_for_the_next_attempt(store: base.Backend) -> None:
    engine = engines.load(collect_first, backend=store)
    engine.signal("x", "from x")
    engine.signal("y", "from y")
    engine.run()
    assert engine.storage.fetch("result") == ["from x", "from y"]


@task.workflow
def publish_and_tag(steps: Steps, number: int = 0) -> int:
    if number == 0:
        steps.publish("status", "begun")
        steps.tag(order=17)
        assert steps.version("change", 1) == 1
        steps.continue_as_new(number=steps.run(add, number))
    assert steps.version("change", 2) == 2
    return number


def test_published_values_and_tags_stay_in_the_next_attempt(store: base.Backend) -> None:
    engine = engines.load(publish_and_tag, backend=store)
    engine.run()
    flow = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    assert dict(flow.tags) == {"order": 17}
    assert operations.published(store, flow.uuid) == {"status": "begun"}


@task.workflow
def continue_in_scope(steps: Steps) -> None:
    with steps.scope():
        steps.run(add, 1)
        steps.continue_as_new()


@task.workflow
async def continue_in_scope_of_other(steps: AsyncSteps) -> None:
    async def hold() -> None:
        async with steps.scope():
            await steps.wait_for("never")

    holding = asyncio.ensure_future(hold())
    await steps.run(add, 1)
    assert not holding.done()
    steps.continue_as_new()


@task.workflow
def continue_at_once(steps: Steps) -> None:
    steps.continue_as_new()


@task.workflow
def continue_with_unknown(steps: Steps, number: int = 0) -> None:
    steps.run(add, 1)
    steps.continue_as_new(numbr=3)


@pytest.mark.parametrize(
    ("workflow", "message"),
    [
        (continue_in_scope, "cannot continue as new in a scope"),
        (continue_in_scope_of_other, "cannot continue as new in a scope"),
        (continue_at_once, "must call a step before"),
        (continue_with_unknown, r"no input 'numbr' \(did you mean 'number'"),
    ],
)
def test_invalid_continuation_is_refused(workflow: Any, message: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=message):
        engines.run(workflow)
    assert ([] if workflow is continue_at_once else [1, -1]) == EFFECTS


def test_function_that_catches_all_exceptions_still_continues() -> None:
    @task.workflow
    def stubborn(steps: Steps, number: int = 0) -> int:
        try:
            number = steps.run(add, number)
            if number < 3:
                steps.continue_as_new(number=number)
        except BaseException:
            return -1
        return number

    assert engines.run(stubborn)["result"] == 3


def test_continuation_by_another_coroutine_ends_the_function() -> None:
    @task.workflow
    async def watched(steps: AsyncSteps, number: int = 0) -> int:
        async def watch() -> None:
            await steps.run(add, number)
            steps.continue_as_new(number=number + 1)

        if number == 2:
            return number
        watching = asyncio.ensure_future(watch())
        await steps.wait_for("never")
        return -1 if watching.done() else -2

    assert engines.run(watched)["result"] == 2


def test_suspended_flow_continues_with_its_latest_inputs(store: base.Backend) -> None:
    engine = engines.load(count, backend=store)

    def suspend(state: str, details: Any) -> None:
        if EFFECTS == [0, 1, 2]:
            engine.suspend()

    engine.atom_notifier.register(states.SUCCESS, suspend)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUSPENDED
    flow = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    engine = engines.load(count, backend=store, flow_detail=flow)
    engine.run()
    assert engine.storage.fetch("result") == 5
    assert EFFECTS == [0, 1, 2, 3, 4]


def test_cancelled_flow_undoes_the_steps_of_the_current_attempt(store: base.Backend) -> None:
    engine = engines.load(count, backend=store)

    def cancel(state: str, details: Any) -> None:
        if EFFECTS == [0, 1, 2]:
            engine.cancel()

    engine.atom_notifier.register(states.SUCCESS, cancel)
    with pytest.raises(exceptions.Cancelled):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert EFFECTS in ([0, 1, 2, -2], [0, 1, 2, 3, -3], [0, 1, 2])


def test_flow_show_says_that_earlier_steps_are_final(store: base.Backend) -> None:
    engine = engines.load(count, backend=store)
    engine.run()
    view = flow_status.read(store.get_connection(), engine.storage.flow_uuid)
    (workflow,) = (atom for atom in view.atoms if atom.steps is not None)
    assert workflow.steps is not None
    assert (workflow.steps.continued, len(workflow.steps.shown)) == (4, 1)
    first, *_ = _step_rows.rows(workflow.steps)
    assert first.text == "continued as new 4 times: the steps before are final"


def test_signal_that_is_sent_during_a_continuation_is_received(store: base.Backend) -> None:
    engine = engines.load(collect, backend=store)
    sent = iter("bc")

    def send_next(state: str, details: Any) -> None:
        item = next(sent, None)
        if item is not None:
            engine.signal("item", item)

    engine.atom_notifier.register(states.SUCCESS, send_next)
    engine.signal("item", "a")
    engine.run()
    assert engine.storage.fetch("result") == ["a", "b", "c"]


@pytest.mark.slow
def test_many_continuations_keep_the_flow_small(store: base.Backend) -> None:
    engine = engines.load(count, backend=store, store={"limit": 300})
    engine.run()
    assert engine.storage.fetch("result") == 300
    assert len(steps_of(engine, store)) == 1
    assert len(engine.storage.flow_detail) == 3


# Kills of processes whose workflow continues as new.


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.parametrize("store", ["sqlite", "postgresql_url"])
def test_workflow_continues_after_a_kill_at_each_crash_point(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/flows.db" if store == "sqlite" else request.getfixturevalue(store)
    ended = python.run(
        ["-m", "tests.support.continued_kills", url, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout) > 20
