"""Workflows: functions whose steps are tasks."""

import asyncio
import contextlib
import datetime as dt
import sys
import time

import pytest

from tests.support.continued_engines import continued, parked, suspended
from tests.support.engine_threads import Running
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, retry, signals, states, task
from wbengine._runtime.gates import signals_and_sleeps
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, models

EFFECTS = []


@pytest.fixture(autouse=True)
def _no_effects():
    EFFECTS.clear()


@task.task
def add(a, b=1):
    EFFECTS.append(f"add {a} {b}")
    return a + b


@add.revert
def subtract(a, b, result):
    EFFECTS.append(f"subtract {a} {b} {result}")


@task.task
def double(number):
    EFFECTS.append(f"double {number}")
    return number * 2


@task.task
def fail(number):
    raise ValueError(number)


@task.task(retries=2, retry_on=ValueError)
def fail_once(key):
    EFFECTS.append(f"try {key}")
    if EFFECTS.count(f"try {key}") == 1:
        raise ValueError(key)
    return key


@fail_once.revert(failed=True)
def undo_try(key, result):
    EFFECTS.append(f"undo {key} {type(result).__name__}")


@task.task(retries=1)
def always_fail(key):
    EFFECTS.append(f"try {key}")
    raise KeyError(key)


class Multiply(task.Task):
    def execute(self, a, b):
        return a * b


ENGINES = pytest.mark.parametrize("engine", ["serial", "parallel"])


@pytest.fixture
def store(tmp_path):
    backend = backends.fetch(f"sqlite:///{tmp_path}/flows.db")
    yield backend
    backend.close()


def run(workflow, engine="serial", **inputs):
    return engines.run(workflow, inputs, engine=engine)["result"]


def interrupted(workflow, backend, effect):
    """Return an engine that continues a workflow, which was suspended when the effect occurred."""
    engine = suspended(workflow, backend, lambda name: effect in EFFECTS)
    return continued(engine, workflow, backend)


def result_of(engine):
    engine.run()
    return engine.storage.fetch("result")


def failures_of(engine):
    with pytest.raises(Exception) as caught:
        engine.run()
    return caught.value


@task.workflow
def count_up(steps, start):
    value = start
    while value < 5:
        value = steps.run(add, value)
    return steps.run(double, number=value)


@task.workflow
async def count_up_async(steps, start):
    value = start
    while value < 5:
        value = await steps.run(add, value)
    return await steps.run(double, number=value)


@ENGINES
@pytest.mark.parametrize("workflow", [count_up, count_up_async])
def test_workflow_returns_results_of_dependent_steps(workflow, engine):
    assert run(workflow, engine, start=2) == 10
    assert EFFECTS == ["add 2 1", "add 3 1", "add 4 1", "double 5"]


def test_workflow_is_one_atom_in_a_graph_flow():
    flow = linear_flow.Flow("all")
    flow.add(
        Multiply(provides="start", inject={"a": 1, "b": 2}),
        count_up(),
        double(rebind={"number": "result"}),
    )
    engine = engines.load(flow)
    engine.run()
    assert engine.storage.get(double().name) == 20


def test_workflow_accepts_default_and_injected_arguments():
    @task.workflow
    def workflow(steps, a, b=5):
        return steps.run(Multiply, a=a, b=b)

    flow = linear_flow.Flow("all").add(workflow(inject={"a": 3}))
    assert engines.run(flow)["result"] == 15


@ENGINES
def test_map_returns_results_in_order(engine):
    @task.workflow
    def workflow(steps):
        return steps.map(add, [1, 2, 3], max_in_flight=2, b=10)

    @task.workflow
    async def workflow_async(steps):
        return await steps.map(add, [1, 2, 3], max_in_flight=2, b=10)

    assert run(workflow, engine) == run(workflow_async, engine) == [11, 12, 13]


def test_map_starts_no_item_after_a_failure():
    @task.workflow
    def workflow(steps):
        try:
            steps.map(fail, [1, 2, 3], max_in_flight=1)
        except ValueError as error:
            return error.args

    engine = engines.load(workflow)
    assert result_of(engine) == (1,)
    assert sum(record.is_step for record in engine.storage.flow_detail) == 1


@ENGINES
def test_gathered_steps_run_in_parallel(engine):
    @task.workflow
    async def workflow(steps):
        return await asyncio.gather(*(steps.run(add, number) for number in range(5)))

    assert run(workflow, engine) == [1, 2, 3, 4, 5]


def test_exception_reverts_steps_in_reverse_order():
    @task.workflow
    def workflow(steps):
        for number in (1, 2):
            steps.run(add, number)
        steps.run(fail, number=3)

    engine = engines.load(workflow)
    error = failures_of(engine)
    assert type(error) is ValueError and error.args == (3,)
    assert engine.storage.get_flow_state() == states.REVERTED
    assert EFFECTS == ["add 1 1", "add 2 1", "subtract 2 1 3", "subtract 1 1 2"]


def test_exception_of_the_function_itself_reverts_steps():
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        raise LookupError("mine")

    assert isinstance(failures_of(engines.load(workflow)), LookupError)
    assert EFFECTS == ["add 1 1", "subtract 1 1 2"]


def test_caught_exception_reverts_nothing_until_workflow_fails():
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        try:
            steps.run(fail, number=2)
        except ValueError:
            EFFECTS.append("caught")
        steps.run(add, 3)
        steps.run(fail, number=4)

    failures_of(engines.load(workflow))
    assert EFFECTS == ["add 1 1", "caught", "add 3 1", "subtract 3 1 4", "subtract 1 1 2"]


def test_caught_exception_is_not_a_failure_of_the_flow():
    @task.workflow
    def workflow(steps):
        try:
            steps.run(fail, number=2)
        except ValueError as error:
            return str(error.args)

    engine = engines.load(workflow)
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert not engine.storage.get_failures()


def test_scope_reverts_its_own_steps():
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        try:
            with steps.scope():
                steps.run(add, 2)
                steps.run(add, 3)
                steps.run(fail, number=4)
        except ValueError:
            EFFECTS.append("caught")
        return steps.run(add, 5)

    assert run(workflow) == 6
    assert EFFECTS[3:] == ["subtract 3 1 4", "subtract 2 1 3", "caught", "add 5 1"]


def test_steps_of_a_reverted_scope_are_not_reverted_again():
    @task.workflow
    def workflow(steps):
        try:
            with steps.scope():
                steps.run(add, 2)
                raise LookupError
        except LookupError:
            steps.run(fail, number=1)

    failures_of(engines.load(workflow))
    assert EFFECTS == ["add 2 1", "subtract 2 1 3"]


def test_async_scopes_revert_steps_of_their_own_task():
    @task.workflow
    async def workflow(steps):
        async def book(number, is_sold_out):
            try:
                async with steps.scope():
                    await steps.run(add, number)
                    if is_sold_out:
                        raise LookupError
            except LookupError:
                return "sold out"
            return "booked"

        return await asyncio.gather(book(1, False), book(2, True))

    assert run(workflow) == ["booked", "sold out"]
    assert EFFECTS[2:] == ["subtract 2 1 3"]


def test_step_is_retried_as_its_task_declares():
    @task.workflow
    def workflow(steps):
        return steps.run(fail_once, key="x")

    assert run(workflow) == "x"
    assert EFFECTS == ["try x", "undo x Failure", "try x"]


def test_step_fails_after_its_last_retry():
    @task.workflow
    def workflow(steps):
        steps.run(always_fail, key="x")

    assert isinstance(failures_of(engines.load(workflow)), KeyError)
    assert EFFECTS == ["try x", "try x"]


def fail_first(steps):
    steps.run(add, len(EFFECTS))
    if len(EFFECTS) == 1:
        raise LookupError
    return "done"


def test_retry_of_the_workflow_begins_with_new_steps():
    assert run(task.workflow(retries=1)(fail_first)) == "done"
    assert EFFECTS == ["add 0 1", "subtract 0 1 1", "add 2 1"]


def test_retry_controller_around_a_workflow_repeats_it():
    flow = linear_flow.Flow("all", retry.Times(2)).add(task.workflow(fail_first)())
    assert engines.run(flow)["result"] == "done"


@task.workflow
def three_steps(steps):
    first = steps.run(add, 1)
    second = steps.run(add, first)
    numbers = [steps.random(), str(steps.uuid4()), steps.now().isoformat()]
    return [steps.run(double, number=second), *numbers]


def test_resumed_workflow_does_not_repeat_complete_steps(store):
    resumed = interrupted(three_steps, store, "add 2 1")
    assert result_of(resumed)[0] == 6
    assert EFFECTS == ["add 1 1", "add 2 1", "double 3"]


@task.workflow
def random_values(steps):
    values = [steps.random(), str(steps.uuid4()), steps.now().isoformat()]
    steps.run(add, 1)
    values += [steps.random(), str(steps.uuid4()), steps.now().isoformat()]
    EFFECTS.append(values)
    steps.run(double, number=1)
    steps.run(double, number=2)
    return steps.now()


def test_replayed_function_receives_the_same_random_values(store):
    resumed = interrupted(random_values, store, "double 1")
    resumed.run()
    values = [effect for effect in EFFECTS if isinstance(effect, list)]
    assert len(values) == 2 and values[0] == values[1]
    assert resumed.storage.fetch("result").tzinfo is dt.UTC


@task.workflow
def one_or_two(steps):
    steps.run(add, 1 if "changed" not in EFFECTS else 2)
    steps.run(double, number=1)
    steps.run(double, number=2)


def test_changed_function_suspends_with_an_error_and_reverts_nothing(store):
    resumed = interrupted(one_or_two, store, "double 1")
    EFFECTS.append("changed")
    error = failures_of(resumed)
    assert isinstance(error, exceptions.NonDeterministicWorkflow)
    assert "step 0 is recorded as" in str(error) and "steps.version" in str(error)
    assert not any("subtract" in str(effect) for effect in EFFECTS)
    EFFECTS.remove("changed")
    continued(resumed, one_or_two, store).run()
    assert EFFECTS == ["add 1 1", "double 1", "double 2"]


@task.workflow
def shorter(steps):
    steps.run(add, 1)
    if "changed" not in EFFECTS:
        steps.run(double, number=1)
        steps.run(double, number=2)


def test_function_that_ends_before_its_recorded_steps_is_refused(store):
    resumed = interrupted(shorter, store, "double 1")
    EFFECTS.append("changed")
    error = failures_of(resumed)
    assert isinstance(error, exceptions.NonDeterministicWorkflow)
    assert "is not called any more" in str(error)


@task.workflow
def versioned(steps):
    if "changed" in EFFECTS and steps.version("two", 2) >= 2:
        steps.run(add, 2)
    else:
        steps.run(add, 1)
    steps.run(double, number=1)
    late = "changed" in EFFECTS and steps.version("late", 3)
    return [late, steps.run(double, number=2)]


def test_version_keeps_the_old_path_only_for_passed_points(store):
    resumed = interrupted(versioned, store, "add 1 1")
    EFFECTS.append("changed")
    assert result_of(resumed) == [3, 4]
    assert "add 2 1" not in EFFECTS


def test_version_is_stored_before_the_next_step_begins(store):
    """A copy of the flow while a step runs is the flow after a crash of its engine."""
    exported = []

    @task.task
    def export():
        exported.append(operations.export(store, engine.storage.flow_uuid))

    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        if steps.version("two", 2) >= 2:
            steps.run(double, number=1)
        steps.run(export)

    engine = engines.load(workflow, backend=store)
    engine.run()
    with contextlib.closing(backends.fetch("memory://")) as other_store:
        detail = operations.import_flow(other_store, exported[0])
        engines.load(workflow, flow_detail=detail, backend=other_store).run()
    assert EFFECTS == ["add 1 1", "double 1"]


def test_new_run_uses_the_newest_version():
    EFFECTS.append("changed")
    assert run(versioned) == [3, 4]
    assert "add 2 1" in EFFECTS


def store_signal(backend, engine, name, value):
    signal = signals.Signal.of(name, value, time.time())
    backend.get_connection().put_signal(engine.storage.flow_uuid, signal)


def send_at(engine, step, name, value):
    """Send a signal when a step starts whose name ends so."""

    def on_start(state, details):
        if details["task_name"].endswith(step):
            engine.signal(name, value)

    engine.atom_notifier.register(states.RUNNING, on_start)


def result_in_time(engine):
    """Return the result of a workflow that would wait forever after an error."""
    with Running(engine):
        pass
    return engine.storage.fetch("result")


@task.workflow
def waits(steps):
    value = steps.wait_for("approved", timeout=60)
    return [value, steps.run(add, value)]


def test_signal_ends_a_wait(store):
    engine = engines.load(waits, backend=store)
    with Running(engine):
        store_signal(store, engine, "approved", 4)
    assert engine.storage.fetch("result") == [4, 5]


def test_parked_workflow_continues_its_wait(store):
    engine = parked(engines.load(waits, backend=store))
    assert engine.storage.get_flow_state() == states.SUSPENDED
    assert [wait.signal for wait in engine.storage.flow_detail.waits_for] == ["approved"]
    store_signal(store, engine, "approved", 4)
    resumed = continued(engine, waits, store)
    assert result_of(resumed) == [4, 5]


def test_wait_that_times_out_raises_or_returns_its_default():
    @task.workflow
    def workflow(steps):
        default = steps.wait_for("never", timeout=0.01, default="default")
        try:
            steps.wait_for("never", timeout=0.01)
        except exceptions.SignalTimeout:
            return default

    assert run(workflow) == "default"


def test_sleep_waits_and_returns_none():
    @task.workflow
    def workflow(steps):
        before = steps.now()
        assert steps.sleep(0.05) is None
        return (steps.now() - before).total_seconds()

    assert run(workflow) >= 0.05


def test_cancelled_workflow_reverts_its_steps(store):
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        try:
            steps.wait_for("never")
        except Exception:
            EFFECTS.append("caught")

    engine = engines.load(workflow, backend=store)

    def on_running(state, details):
        if "wait-for" in details["task_name"]:
            engine.cancel()

    engine.atom_notifier.register(states.RUNNING, on_running)
    assert isinstance(failures_of(engine), exceptions.Cancelled)
    assert EFFECTS == ["add 1 1", "subtract 1 1 2"]


def test_failure_beside_a_workflow_ends_its_wait():
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        steps.wait_for("never")

    flow = unordered_flow.Flow("all").add(workflow(), fail(inject={"number": 1}))
    assert isinstance(failures_of(engines.load(flow, engine="parallel")), ValueError)


def test_results_are_copies_of_the_stored_ones():
    @task.task
    def numbers():
        return [1, 2]

    @task.workflow
    def workflow(steps):
        values = steps.run(numbers)
        values.append(3)
        return values

    engine = engines.load(workflow)
    engine.run()
    record = next(record for record in engine.storage.flow_detail if record.is_step)
    assert record.results == [1, 2] and engine.storage.fetch("result") == [1, 2, 3]


def test_step_records_are_named_by_attempt_position_and_task():
    engine = engines.load(count_up, {"start": 4})
    engine.run()
    names = [record.name for record in engine.storage.flow_detail if record.is_step]
    prefix = f"{__name__}.count_up/1."
    assert names == [f"{prefix}0-add", f"{prefix}1-double"]
    assert all(isinstance(record, models.TaskDetail) for record in engine.storage.flow_detail)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda steps: steps.run(add, c=1), "unexpected keyword argument 'c'"),
        (lambda steps: steps.run(add), "requires 'a'"),
        (lambda steps: steps.run(add, 1, a=1), "multiple values for argument 'a'"),
        (lambda steps: steps.run(add, 1, 2, 3), "too many positional arguments"),
        (lambda steps: steps.run(add()), "use the class add"),
        (lambda steps: steps.run(len), "must be a task class"),
        (lambda steps: steps.run(count_up), "must be a plain task"),
        (lambda steps: steps.run(task.Sleep, 1), "steps.sleep or steps.wait_for to wait"),
        (lambda steps: steps.sleep("long"), "must be a number of seconds"),
        (lambda steps: steps.version("x", 0), "must be 1 or more"),
        (lambda steps: steps.map(add, [], max_in_flight=0), "at least 1"),
        (lambda steps: steps.wait_any(), "at least one signal"),
    ],
)
def test_invalid_call_of_a_step_fails_in_the_function(call, message):
    @task.workflow
    def workflow(steps):
        call(steps)

    assert message in str(failures_of(engines.load(workflow)))


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: task.workflow(len), "must decorate a function"),
        (lambda: task.workflow(lambda: None), "must have a positional parameter for its steps"),
        (lambda: task.workflow(lambda *, steps: None), "must have a positional parameter"),
        (lambda: task.workflow(lambda **steps: None), "must have a positional parameter"),
        (lambda: task.workflow(retrys=3), "has no option 'retrys'"),
        (lambda: task.workflow(timelimit=3), "its options are provides, name, version"),
        (lambda: task.workflow(concurrency=3), "put it into a flow with this limit: flow.concurr"),
        (lambda: task.workflow(backoff=3), "backoff but no retries"),
    ],
)
def test_invalid_workflow_is_refused(decorate, message):
    with pytest.raises((TypeError, ValueError), match=message):
        decorate()


@pytest.mark.filterwarnings("ignore:Workflow .* uses asyncio.sleep:RuntimeWarning")
def test_timers_of_asyncio_are_refused():
    @task.workflow
    async def workflow(steps):
        await asyncio.sleep(1)

    assert "use await steps.sleep(seconds)" in str(failures_of(engines.load(workflow)))


@ENGINES
def test_signal_of_any_name_is_received_without_a_store(engine):
    loaded_engine = engines.load(waits, engine=engine)
    with Running(loaded_engine):
        loaded_engine.signal("other", 1)
        loaded_engine.signal("approved", 4)
    assert loaded_engine.storage.fetch("result") == [4, 5]


@task.workflow
def receive_changes(steps):
    first = steps.wait_for("change", timeout=0, default="none")
    values = list(steps.signals("change", timeout=0))
    steps.run(add, 1)
    return [first, *values, *steps.signals("change", timeout=0)]


@task.workflow
async def receive_changes_async(steps):
    first = await steps.wait_for("change", timeout=0, default="none")
    values = [value async for value in steps.signals("change", timeout=0)]
    await steps.run(add, 1)
    return [first, *values, *[value async for value in steps.signals("change", timeout=0)]]


@pytest.mark.parametrize("workflow", [receive_changes, receive_changes_async])
def test_each_signal_of_a_name_is_received_once_in_order(workflow):
    engine = engines.load(workflow)
    for value in (1, 2, 3):
        engine.signal("change", value)
    send_at(engine, "-add", "change", 4)
    assert result_of(engine) == [1, 2, 3, 4]


def test_wait_that_timed_out_leaves_its_signal_to_the_next_wait():
    @task.workflow
    def workflow(steps):
        assert steps.wait_for("change", timeout=0, default="none") == "none"
        steps.run(add, 1)
        return steps.wait_for("change", timeout=0, default="none")

    engine = engines.load(workflow)
    send_at(engine, "-add", "change", 4)
    assert result_of(engine) == 4


@task.workflow
def refuse_timeout(steps):
    with pytest.raises(ValueError, match="0 or more"):
        steps.wait_for("change", timeout=-1)
    return steps.wait_for("change", timeout=0, default="none")


@task.workflow
def refuse_name(steps):
    with pytest.raises(ValueError, match="printable"):
        steps.wait_any("change", "a\nb")
    return steps.wait_for("change", timeout=0, default="none")


@pytest.mark.parametrize("workflow", [refuse_timeout, refuse_name])
def test_invalid_wait_leaves_its_signal_to_the_next_wait(workflow):
    engine = engines.load(workflow)
    engine.signal("change", 4)
    assert result_of(engine) == 4


@pytest.mark.parametrize("call", ["wait_for", "wait_any"])
def test_cancelled_wait_leaves_its_signal_to_the_next_wait(call):
    @task.workflow
    async def workflow(steps):
        wait = asyncio.ensure_future(getattr(steps, call)("change"))
        await steps.run(add, 1)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        await steps.run(add, 2)
        return await steps.wait_for("change", timeout=0, default="none")

    engine = engines.load(workflow)
    send_at(engine, "2-add", "change", 4)
    assert result_of(engine) == 4


@task.workflow
async def wait_twice(steps):
    """The first wait ends without a signal, the second one continues."""
    first = asyncio.ensure_future(steps.wait_for("change", timeout=0, default="none"))
    second = asyncio.ensure_future(steps.wait_for("change"))
    return [await first, await steps.run(add, 1), await second]


@task.workflow
async def wait_beside_wait_any(steps):
    first = asyncio.ensure_future(steps.wait_any("go", "change"))
    second = asyncio.ensure_future(steps.wait_for("change"))
    await steps.run(double, 1)
    return [await first, await steps.run(add, 1), await second]


@task.workflow
async def cancel_first_wait(steps):
    first = asyncio.ensure_future(steps.wait_for("change"))
    second = asyncio.ensure_future(steps.wait_for("change"))
    await asyncio.ensure_future(steps.sleep(0))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return [first.cancelled(), await steps.run(add, 1), await second]


@pytest.mark.parametrize(
    ("workflow", "first"),
    [
        (wait_twice, "none"),
        (wait_beside_wait_any, ("go", 3)),
        (cancel_first_wait, True),
    ],
)
def test_longest_open_wait_receives_the_signal(store, workflow, first):
    engine = engines.load(workflow, backend=store)
    send_at(engine, "-add", "change", 4)
    send_at(engine, "-double", "go", 3)
    assert result_in_time(engine) == [first, 2, 4]


@task.workflow
async def wait_with_timeout_beside_longer_wait(steps, timeout):
    first = asyncio.ensure_future(steps.wait_for("change"))
    await steps.run(add, 1)
    return [await steps.wait_for("change", timeout, default="none"), await first]


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_signal_that_is_read_at_a_timeout_ends_the_longest_wait(store, timeout):
    engine = engines.load(wait_with_timeout_beside_longer_wait, {"timeout": timeout}, backend=store)
    last = "0-add" if timeout == 0 else "2-wait-for-change"

    def on_start(state, details):
        if details["task_name"].endswith(last):
            store_signal(store, engine, "change", 4)

    engine.atom_notifier.register(states.RUNNING, on_start)
    assert result_in_time(engine) == ["none", 4]


@task.workflow
async def wait_beside_shorter_wait(steps):
    first = steps.wait_for("change")
    return await asyncio.gather(first, steps.wait_for("change", timeout=0.02, default="none"))


def test_signal_that_arrives_between_two_waits_ends_the_longest_wait(monkeypatch):
    engine = engines.load(wait_beside_shorter_wait)
    get = signals_and_sleeps.ReceivedSignals.get

    def get_and_send(self, name, number):
        signal = get(self, name, number)
        if not len(self):
            engine.signal("change", 4)
        return signal

    monkeypatch.setattr(signals_and_sleeps.ReceivedSignals, "get", get_and_send)
    assert result_in_time(engine) == [4, "none"]


@task.workflow
def wait_often(steps):
    values = []
    for _ in range(5):
        values.append(steps.wait_for("change"))
        steps.sleep(0)
    return values


def test_waits_read_stored_signals_only_if_needed(store, monkeypatch):
    engine = engines.load(wait_often, backend=store)
    for value in range(5):
        operations.signal(store, engine.storage.flow_uuid, "change", value)
    reads = []
    read = signals_and_sleeps.ReceivedSignals.read
    monkeypatch.setattr(
        signals_and_sleeps.ReceivedSignals, "read", lambda self: (reads.append(1), read(self))
    )
    assert result_in_time(engine) == [0, 1, 2, 3, 4]
    assert len(reads) == 1


@task.workflow
async def wait_in_parallel(steps):
    waits = [steps.wait_for("change", timeout, default="none") for timeout in (None, 0, 0, 0)]
    return await asyncio.gather(*waits)


def test_parallel_waits_receive_the_signals_in_order():
    engine = engines.load(wait_in_parallel)
    for value in (1, 2, 3):
        engine.signal("change", value)
    assert result_of(engine) == [1, 2, 3, "none"]


@task.workflow(retries=1, retry_on=ValueError)
async def fail_once_in_group(steps):
    async with asyncio.TaskGroup() as group:
        group.create_task(steps.run(add, 1))
        if EFFECTS.count("add 1 1") == 0:
            group.create_task(steps.run(fail, 1))
    return "end"


@pytest.mark.parametrize("backend", [None, "store"])
def test_retry_on_of_a_workflow_matches_failures_in_a_task_group(backend, store):
    options = {"backend": store} if backend else {}
    engine = engines.load(fail_once_in_group, **options)
    assert result_of(engine) == "end"
    assert EFFECTS == ["add 1 1", "subtract 1 1 2", "add 1 1"]


@task.workflow
async def cancel_received(steps):
    """Cancel a wait before the function receives its signal."""
    first, second = (asyncio.ensure_future(steps.wait_for("change")) for _ in range(2))
    await steps.wait_for("go")  # Its completion is delivered before the one of `first`.
    first.cancel()
    values = [await second]
    await steps.wait_for("resume")
    return [*values, *[value async for value in steps.signals("change", timeout=0)]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_signal_of_cancelled_wait_is_received_once(store, count):
    engine = engines.load(cancel_received, backend=store)
    engine.park_after = 1.0
    engine.signal("go")
    for value in range(count):
        engine.signal("change", value)
    with Running(engine):
        pass
    assert engine.parked is not None
    assert [wait.signal for wait in engine.storage.flow_detail.waits_for] == ["resume"]
    resumed = continued(engine, cancel_received, store)
    resumed.signal("resume")
    assert sorted(result_in_time(resumed)) == list(range(count))


@task.workflow
async def fail_beside_wait(steps, call):
    try:
        async with steps.scope(), asyncio.TaskGroup() as group:
            await steps.run(add, 1)
            group.create_task(getattr(steps, call[0])(call[1]))
            await steps.run(add, 2)
            raise LookupError
    except ExceptionGroup:
        return "reverted"


@pytest.mark.parametrize("call", [("wait_for", "never"), ("sleep", 3600), ("wait_any", "never")])
def test_scope_does_not_wait_for_cancelled_wait(call):
    assert result_in_time(engines.load(fail_beside_wait, {"call": call})) == "reverted"
    assert EFFECTS[2:] == ["subtract 2 1 3", "subtract 1 1 2"]


@task.workflow
def park_at_second_wait(steps):
    return [steps.wait_for("change") for _ in range(2)]


def test_wait_shows_the_number_of_the_next_signal(store):
    engine = engines.load(park_at_second_wait, backend=store)
    engine.signal("change", 1)
    waits = [(wait.signal, wait.number) for wait in parked(engine).storage.flow_detail.waits_for]
    assert waits == [("change", 2)]


@task.workflow
def approve(steps):
    answers = [steps.wait_any("approved", "rejected", timeout=60) for _ in range(2)]
    return [*answers, steps.wait_any("approved", "other", timeout=0, default="timeout")]


def test_wait_any_returns_the_signal_that_was_sent_first(store):
    engine = engines.load(approve, backend=store)
    engine.signal("rejected", "no")
    engine.signal("approved", "yes")
    assert result_of(engine) == [("rejected", "no"), ("approved", "yes"), "timeout"]


RUNNING = []


@task.task(concurrency=1, limit="one at a time")
def work_alone(number):
    RUNNING.append(number)
    most = len(RUNNING)
    time.sleep(0.01)
    RUNNING.remove(number)
    EFFECTS.append(most)
    return number


@task.task(concurrency=1, concurrency_key=lambda number: number % 2)
def work_by_parity(number):
    return number


@task.workflow
async def limited(steps):
    first = await asyncio.gather(*(steps.run(work_alone, number) for number in range(6)))
    return first + await steps.map(work_by_parity, range(4))


@pytest.mark.parametrize("stored", [False, True])
def test_concurrency_limit_of_a_task_applies_to_steps(store, stored):
    engine = engines.load(limited, engine="parallel", backend=store if stored else None)
    assert result_of(engine) == [*range(6), *range(4)]
    assert EFFECTS == [1] * 6


@task.workflow
def pausable(steps):
    steps.run(add, 1)
    steps.run(double, number=1)
    return "done"


@ENGINES
def test_steps_of_a_paused_type_wait_until_it_is_resumed(store, engine):
    operations.pause_tasks(store, f"{__name__}.double")
    loaded_engine = engines.load(pausable, backend=store, engine=engine)
    with Running(loaded_engine):
        until(loaded_engine.paused_tasks)
        assert loaded_engine.paused_tasks() == {f"{__name__}.double": 1}
        assert EFFECTS == ["add 1 1"]
        operations.resume_tasks(store, f"{__name__}.double")
    assert EFFECTS == ["add 1 1", "double 1"]


def test_pause_during_a_run_delays_later_steps(store):
    engine = engines.load(pausable, backend=store)

    def on_change(state, details):
        if "add" in details["task_name"]:
            operations.pause_tasks(store, "*.double")
            engine._ownership.held.on_pauses(tuple(operations.paused_tasks(store)))

    engine.atom_notifier.register(states.RUNNING, on_change)
    with Running(engine):
        until(engine.paused_tasks)
        engine.cancel()
    assert EFFECTS == ["add 1 1", "subtract 1 1 2"]


def test_task_with_a_revert_must_be_importable():
    @task.task
    def local():
        return 1

    @local.revert
    def undo_local():
        """Do nothing."""

    @task.workflow
    def workflow(steps):
        steps.run(local)

    assert "must be defined at the top level of a module" in str(
        failures_of(engines.load(workflow))
    )


def test_revert_of_a_task_that_is_not_imported_fails(monkeypatch):
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        monkeypatch.setattr(sys.modules[__name__], "add", None)
        raise LookupError

    engine = engines.load(workflow)
    assert "the module of the workflow does not contain its task" in str(failures_of(engine))
    assert engine.storage.get_flow_state() == states.FAILURE
    monkeypatch.undo()
    engine.notifier.register(states.RUNNING, lambda state, details: engine.cancel())
    failures_of(engine)
    assert engine.storage.get_flow_state() == states.REVERTED
    assert EFFECTS == ["add 1 1", "subtract 1 1 2"]


def test_task_without_revert_is_reverted_without_a_call():
    @task.task
    def local():
        return 1

    @task.workflow
    def workflow(steps):
        steps.run(local)
        raise LookupError

    engine = engines.load(workflow)
    failures_of(engine)
    record = next(record for record in engine.storage.flow_detail if record.is_step)
    assert (record.state, record.attempt, record.results) == (states.REVERTED, 1, 1)


@pytest.mark.parametrize("stored", [False, True])
def test_reset_workflow_begins_with_new_steps(store, stored):
    engine = engines.load(count_up, {"start": 4}, backend=store if stored else None)
    engine.run()
    engine.reset()
    engine.run()
    assert EFFECTS == ["add 4 1", "double 5"] * 2
    names = [record.name for record in engine.storage.flow_detail if record.is_step]
    assert names[2:] == [f"{__name__}.count_up/2.0-add", f"{__name__}.count_up/2.1-double"]


def test_reset_after_reversion_begins_with_new_steps():
    engine = engines.load(task.workflow(fail_first))
    failures_of(engine)
    assert result_of(engine) == "done"
    assert EFFECTS == ["add 0 1", "subtract 0 1 1", "add 2 1"]


@task.task
def stay(number):
    EFFECTS.append(f"stay {number}")


@stay.revert
def cannot_undo(number):
    raise OSError(number)


def test_failed_revert_of_a_step_is_raised_once():
    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        steps.run(stay, number=2)
        raise LookupError

    engine = engines.load(workflow)
    error = failures_of(engine)
    assert type(error) is OSError and error.args == (2,)
    assert engine.storage.get_flow_state() == states.FAILURE
    assert EFFECTS == ["add 1 1", "stay 2"]


def test_repeated_reversion_of_workflow_is_another_attempt():
    @task.workflow(name="workflow")
    def workflow(steps):
        steps.run(stay, number=2)
        raise LookupError

    engine = engines.load(workflow)
    for reversions in (1, 2):
        failures_of(engine)
        record = engine.storage.record("workflow")
        assert (record.attempt, record.reversions) == (1 + reversions, reversions)
        engine.revert()


def test_failed_revert_in_a_scope_is_raised_in_the_function():
    @task.workflow
    def workflow(steps):
        try:
            with steps.scope():
                steps.run(stay, number=2)
                raise LookupError
        except OSError:
            return "not undone"

    assert run(workflow) == "not undone"
