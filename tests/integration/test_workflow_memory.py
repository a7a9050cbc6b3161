"""Results of steps that a running workflow holds in memory."""

from __future__ import annotations

import asyncio
import gc
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.reading import read_flow
from wbengine import engines, exceptions, states, task
from wbengine.persistence import backends, base, models
from wbengine.persistence._stored_results import StoredResult
from wbengine.steps import AsyncSteps, Steps

STEPS = 12
#: Results and their copies that may exist at a time: of the latest step and of the one before.
MAX_ALIVE = 4
MARK = "result of a step"

alive_counts: list[int] = []
executed: list[int] = []
reverted: list[tuple[int, object]] = []
interrupt_at: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_counted() -> None:
    gc.collect()
    gc.freeze()  # so that each count searches only the objects of this test
    for each in (alive_counts, executed, reverted, interrupt_at):
        each.clear()


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[base.Backend]:
    backend = backends.fetch(f"sqlite:///{tmp_path}/flows.db")
    yield backend
    backend.close()


@pytest.fixture
def postgres_store(postgresql_url: str) -> Iterator[base.Backend]:
    backend = backends.fetch(postgresql_url)
    yield backend
    backend.close()


def count_alive() -> int:
    gc.collect()
    # Objects of other libraries may not be comparable with a text.
    lists = (each for each in gc.get_objects() if type(each) is list and each)
    return sum(1 for each in lists if type(each[0]) is str and each[0] == MARK)


@task.task
def rows(number: int) -> list[Any]:
    executed.append(number)
    alive_counts.append(count_alive())
    if number in interrupt_at:
        raise KeyboardInterrupt
    return [MARK, number]


@task.task
def reserve(number: int) -> list[Any]:
    return [MARK, number]


@reserve.revert
def release(number: int, result: Any) -> None:
    reverted.append((number, result))


@task.task
def take(values: Any) -> int:
    alive_counts.append(count_alive())
    return len(values)


@task.workflow
def collect(steps: Steps) -> list[int]:
    return [steps.run(rows, number)[1] for number in range(STEPS)]


@task.workflow
async def collect_async(steps: AsyncSteps) -> list[int]:
    return [(await steps.run(rows, number))[1] for number in range(STEPS)]


WORKFLOWS = pytest.mark.parametrize("workflow", [collect, collect_async])


def reload(engine: Any, workflow: Any, backend: base.Backend) -> Any:
    detail = backend.get_connection().get_flow_details(engine.storage.flow_uuid)
    return engines.load(workflow, flow_detail=detail, backend=backend)


def interrupted(workflow: Any, backend: base.Backend, at: int) -> Any:
    """Return the engine of a workflow that was interrupted in its step `at`."""
    interrupt_at.append(at)
    engine = engines.load(workflow, backend=backend)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    interrupt_at.clear()
    return engine


@WORKFLOWS
@pytest.mark.parametrize("engine", ["serial", "parallel"])
def test_running_workflow_holds_few_results(
    workflow: Any, engine: Any, store: base.Backend
) -> None:
    loaded = engines.load(workflow, backend=store, engine=engine)
    loaded.run()
    assert loaded.storage.fetch("result") == list(range(STEPS))
    assert len(alive_counts) == STEPS
    assert max(alive_counts) <= MAX_ALIVE
    assert count_alive() <= MAX_ALIVE


def test_running_workflow_holds_few_results_on_postgresql(
    postgres_store: base.Backend,
) -> None:
    engine = engines.load(collect, backend=postgres_store)
    engine.run()
    assert engine.storage.fetch("result") == list(range(STEPS))
    assert max(alive_counts) <= MAX_ALIVE


@WORKFLOWS
def test_workflow_without_a_store_holds_one_copy_of_each_result(workflow: Any) -> None:
    engines.run(workflow)
    assert max(alive_counts) <= STEPS + MAX_ALIVE


def test_running_workflow_holds_no_arguments_of_complete_steps(store: base.Backend) -> None:
    @task.workflow
    def workflow(steps: Steps) -> Any:
        return sum(steps.run(take, [MARK, number]) for number in range(STEPS))

    engine = engines.load(workflow, backend=store)
    engine.run()
    assert engine.storage.fetch("result") == 2 * STEPS
    assert max(alive_counts) <= MAX_ALIVE


def test_results_are_read_from_the_store_during_and_after_the_run(store: base.Backend) -> None:
    engine = engines.load(collect, backend=store)
    engine.run()
    records = [
        each
        for each in engine.storage.flow_detail
        if isinstance(each, models.TaskDetail) and each.is_step
    ]
    assert all(type(each.held_results) is StoredResult for each in records)
    assert [each.results for each in records] == [[MARK, number] for number in range(STEPS)]
    assert [engine.storage.get(each.name)[1] for each in records] == list(range(STEPS))
    assert [each.copy().results[1] for each in records] == list(range(STEPS))


@WORKFLOWS
@pytest.mark.parametrize("at", [0, 5, STEPS - 1])
def test_resumed_workflow_replays_stored_results_and_releases_them(
    workflow: Any, at: int, store: base.Backend
) -> None:
    engine = interrupted(workflow, store, at)
    alive_counts.clear()
    executed.clear()
    resumed = reload(engine, workflow, store)
    del engine
    resumed.run()
    assert resumed.storage.fetch("result") == list(range(STEPS))
    assert executed == list(range(at, STEPS))
    assert max(alive_counts) <= MAX_ALIVE


def test_resumed_run_releases_results_before_it_reads_them_again(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = reload(interrupted(collect, store, STEPS - 1), collect, store)
    assert count_alive() >= STEPS - 1
    connection = type(store.get_connection())
    read, alive_before_reads = connection.get_flow_details, list[int]()

    def get_flow_details(*args: Any) -> models.FlowDetail:
        alive_before_reads.append(count_alive())
        return read(*args)

    monkeypatch.setattr(connection, "get_flow_details", get_flow_details)
    resumed.run()
    assert alive_before_reads
    assert max(alive_before_reads) <= MAX_ALIVE
    assert resumed.storage.fetch("result") == list(range(STEPS))


def test_result_that_the_function_modifies_is_stored_unmodified(store: base.Backend) -> None:
    @task.workflow
    def workflow(steps: Steps) -> Any:
        lengths = []
        for number in range(4):
            result = steps.run(rows, number)
            lengths.append(len(result))
            result.append("modified")
        return lengths

    engine = interrupted(workflow, store, 3)
    resumed = reload(engine, workflow, store)
    resumed.run()
    assert resumed.storage.fetch("result") == [2, 2, 2, 2]


@pytest.mark.parametrize("step", [reserve, rows], ids=["with revert", "without revert"])
def test_reverted_steps_keep_their_results_in_the_store(step: Any, store: base.Backend) -> None:
    """Reversion receives results that are only in the store."""

    @task.workflow
    def workflow(steps: Steps) -> Any:
        for number in range(4):
            steps.run(step, number)
        raise ValueError("no")

    engine = engines.load(workflow, backend=store)
    with pytest.raises(ValueError):
        engine.run()
    records = [each for each in read_flow(store, engine.storage.flow_uuid) if each.is_step]
    assert [each.results for each in records] == [[MARK, number] for number in range(4)]
    if step is reserve:
        assert reverted == [(number, [MARK, number]) for number in (3, 2, 1, 0)]
        assert {each.state for each in records} == {states.REVERTED}
    else:
        assert count_alive() <= 4 + MAX_ALIVE


def test_gathered_steps_hold_no_results_that_the_function_released(
    store: base.Backend,
) -> None:
    @task.workflow
    async def workflow(steps: AsyncSteps) -> Any:
        total = 0
        for first in range(0, STEPS, 3):
            batch = (steps.run(rows, number) for number in range(first, first + 3))
            total += sum(result[1] for result in await asyncio.gather(*batch))
        return total

    engine = engines.load(workflow, backend=store)
    engine.run()
    assert engine.storage.fetch("result") == sum(range(STEPS))
    assert max(alive_counts) <= 3 * MAX_ALIVE
    assert count_alive() <= MAX_ALIVE


def test_small_results_stay_in_memory(store: base.Backend) -> None:
    @task.workflow
    def workflow(steps: Steps) -> Any:
        return steps.run(take, [1, 2])

    engine = engines.load(workflow, backend=store)
    engine.run()
    (record,) = (each for each in engine.storage.flow_detail if each.is_step)
    assert isinstance(record, models.TaskDetail)
    assert record.held_results == 2


@WORKFLOWS
def test_failed_read_of_a_result_does_not_fail_the_workflow(
    workflow: Any, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = interrupted(workflow, store, 3)
    reading = type(store.get_connection())
    read = reading.get_atom_details

    def fail(*args: Any) -> None:
        raise exceptions.StorageFailure("the disk is on fire")

    resumed = reload(engine, workflow, store)
    records = [each for each in resumed.storage.flow_detail if each.is_step]
    # As after a write in the middle of a computation of the function.
    records[1].results = StoredResult(resumed.storage.writer._stored_result, records[1].uuid)
    monkeypatch.setattr(resumed.storage.writer, "acquire_lease", _keeping(resumed.storage.writer))
    monkeypatch.setattr(reading, "get_atom_details", fail)
    with pytest.raises(exceptions.StorageFailure, match="fire"):
        resumed.run()
    monkeypatch.setattr(reading, "get_atom_details", read)
    stored = store.get_connection().get_flow_details(engine.storage.flow_uuid)
    assert {each.state for each in stored if each.is_step} <= {states.SUCCESS, states.RUNNING}
    assert states.FAILURE not in {each.state for each in stored}
    again = reload(engine, workflow, store)
    again.run()
    assert again.storage.fetch("result") == list(range(STEPS))


def _keeping(writer: Any) -> Any:
    """Return `acquire_lease` that does not read the records again."""
    acquire = writer.acquire_lease

    def acquire_lease(owner: str, seconds: float) -> Any:
        lease, _ = acquire(owner, seconds)
        return lease, None

    return acquire_lease
