"""Workflows whose functions call steps in unusual ways."""

import asyncio
import contextlib
import functools
import threading

import pytest

from tests.support.continued_engines import continued, suspended
from wbengine import engines, exceptions, task
from wbengine.persistence import backends

EFFECTS = []
#: The `Steps` of a workflow, for callers outside its function.
LEAKED = []

ENGINES = pytest.mark.parametrize("engine", ["serial", "parallel"])


@pytest.fixture(autouse=True)
def _no_effects():
    EFFECTS.clear()
    LEAKED.clear()


@pytest.fixture
def store():
    backend = backends.fetch("memory://")
    yield backend
    backend.close()


@task.task
def add(number):
    EFFECTS.append(("add", number))
    return number


@add.revert
def remove(number):
    EFFECTS.append(("remove", number))


async def raise_error():
    raise LookupError("no")


async def add_later(steps, number):
    for _ in range(10):
        await asyncio.sleep(0)
    await steps.run(add, number)


@task.workflow
async def leave_coroutine_in_scope(steps):
    try:
        async with steps.scope():
            await asyncio.gather(steps.run(add, 1), add_later(steps, 2), raise_error())
    except LookupError:
        pass
    return await steps.run(add, 3)


@ENGINES
def test_no_step_starts_in_a_scope_that_has_failed(engine):
    assert engines.run(leave_coroutine_in_scope, engine=engine)["result"] == 3
    assert EFFECTS == [("add", 1), ("remove", 1), ("add", 3)]


@task.workflow
async def add_two_in_scope(steps):
    async def add_both():
        await steps.run(add, 1)
        await steps.run(add, 2)

    async with steps.scope():
        await asyncio.gather(add_both(), raise_error())


@ENGINES
def test_coroutine_left_in_a_failed_scope_cannot_continue(engine):
    with pytest.raises(LookupError, match=r"^no$"):
        engines.run(add_two_in_scope, engine=engine)
    assert ("add", 2) not in EFFECTS


@pytest.mark.parametrize("options", [{"retries": "3"}, {"retries": 2, "backoff": "1s"}])
def test_step_with_invalid_retries_fails_before_it_begins(options):
    @task.task(**options)
    def broken():
        EFFECTS.append("broken")
        raise LookupError("no")

    @task.workflow
    def workflow(steps):
        steps.run(add, 1)
        steps.run(broken)

    engine = engines.load(workflow)
    with pytest.raises(exceptions.CompilationFailure, match="broken"):
        engine.run()
    assert EFFECTS == [("add", 1), ("remove", 1)]


@task.task
def stop():
    raise StopIteration("value")


@task.workflow
async def stop_async(steps):
    await steps.run(add, 1)
    return await steps.run(stop)


@task.workflow
def stop_plain(steps):
    steps.run(add, 1)
    return steps.run(stop)


@pytest.mark.parametrize(
    ("workflow", "error"), [(stop_async, RuntimeError), (stop_plain, StopIteration)]
)
def test_stop_iteration_in_a_step_fails_the_workflow(workflow, error):
    with pytest.raises(error):
        engines.run(workflow)
    assert EFFECTS == [("add", 1), ("remove", 1)]


@task.task
def call_leaked_steps(call):
    operations = {
        "run": lambda: LEAKED[0].run(add, 1),
        "map": lambda: LEAKED[0].map(add, [1]),
        "version": lambda: LEAKED[0].version("change", 2),
        "publish": lambda: LEAKED[0].publish("name", 1),
    }
    operations[call]()


@task.workflow
def leak_steps(steps, call):
    LEAKED.append(steps)
    return steps.run(call_leaked_steps, call)


@task.task
async def call_leaked_async_steps():
    await LEAKED[0].run(add, 1)


@task.workflow
async def leak_async_steps(steps):
    LEAKED.append(steps)
    return await steps.run(call_leaked_async_steps)


CALLS = ["run", "map", "version", "publish"]


@ENGINES
@pytest.mark.parametrize(
    ("workflow", "inputs"),
    [*((leak_steps, {"call": call}) for call in CALLS), (leak_async_steps, {})],
    ids=[*CALLS, "async"],
)
def test_step_cannot_call_steps_of_its_workflow(engine, workflow, inputs):
    with pytest.raises(RuntimeError, match="Only the function of a workflow"):
        engines.run(workflow, inputs, engine=engine)
    assert EFFECTS == []


@task.workflow
def call_steps_in_thread(steps):
    errors = []

    def call():
        try:
            steps.run(add, 1)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return errors


@pytest.mark.filterwarnings("ignore:.*uses threading.Thread:RuntimeWarning")
def test_other_thread_cannot_call_steps():
    assert "not another thread" in engines.run(call_steps_in_thread)["result"][0]


@task.workflow
def keep_steps(steps):
    LEAKED.append(steps)


def test_steps_cannot_be_called_after_the_workflow():
    engines.run(keep_steps)
    with pytest.raises(RuntimeError, match="while it runs"):
        LEAKED[0].run(add, 1)


def test_generator_is_refused_as_workflow():
    def plain(steps):
        yield steps.run(add, 1)

    async def asynchronous(steps):
        yield await steps.run(add, 1)

    for function in (plain, asynchronous):
        with pytest.raises(TypeError, match="must not contain 'yield'"):
            task.workflow(function)


@task.workflow
async def wait_for_event(steps):
    await steps.run(add, 1)
    await asyncio.Event().wait()


@task.workflow
async def wait_for_each_other(steps):
    first, second = asyncio.Queue(), asyncio.Queue()

    async def receive(source, target):
        target.put_nowait(await source.get())

    await steps.run(add, 1)
    await asyncio.gather(receive(first, second), receive(second, first))


@task.workflow
def wait_without_step(steps):
    steps.run(add, 1)
    steps._program.wait()


@task.workflow
def return_waiting_coroutine(steps):
    steps.run(add, 1)
    return asyncio.Event().wait()


@pytest.mark.parametrize(
    "workflow", [wait_for_event, wait_for_each_other, wait_without_step, return_waiting_coroutine]
)
def test_workflow_that_waits_for_no_step_fails(workflow, caplog):
    with pytest.raises(RuntimeError, match="waits forever"):
        engines.run(workflow)
    assert EFFECTS == [("add", 1), ("remove", 1)]
    assert not caplog.records


def items_of_steps(steps):
    for number in range(3):
        yield steps.run(add, number)


def items_and_sleeps(steps):
    for number in range(3):
        yield number
        steps.sleep(0.001)


def items_and_timeouts(steps):
    for number in range(3):
        yield number
        steps.wait_for("go", timeout=0.001, default=None)


def items_of_maps(steps):
    return (sum(steps.map(add, [number, 0], max_in_flight=1)) for number in range(3))


def items_of_list(steps):
    return [0, 1, 2]


@task.task
def double(number):
    return 2 * number


@ENGINES
@pytest.mark.parametrize("limit", [1, 2, 9])
@pytest.mark.parametrize(
    "items", [items_of_steps, items_and_sleeps, items_and_timeouts, items_of_maps, items_of_list]
)
def test_limited_map_ends_if_its_items_call_steps(items, limit, engine):
    @task.workflow
    def workflow(steps):
        return steps.map(double, items(steps), max_in_flight=limit)

    assert engines.run(workflow, engine=engine)["result"] == [0, 2, 4]


@task.workflow
def map_computed_items(steps):
    return steps.map(double, items_of_steps(steps), max_in_flight=2)


@pytest.mark.parametrize("count", range(1, 6))
def test_limited_map_of_computed_items_continues_after_a_suspension(store, count):
    completed = []

    def is_due(name):
        completed.append(name)
        return len(completed) == count

    engine = suspended(map_computed_items, store, is_due)
    resumed = continued(engine, map_computed_items, store)
    resumed.run()
    assert resumed.storage.fetch("result") == [0, 2, 4]
    assert EFFECTS == [("add", 0), ("add", 1), ("add", 2)]


@task.task
def fail(number):
    raise LookupError(number)


def test_limited_map_notices_a_failure_while_its_items_call_steps():
    @task.workflow
    def workflow(steps):
        steps.map(fail, items_of_steps(steps), max_in_flight=9)

    loaded = engines.load(workflow)
    with pytest.raises(LookupError):
        loaded.run()
    # The first item failed while the second one was computed.
    assert EFFECTS == [("add", 0), ("add", 1), ("remove", 1), ("remove", 0)]


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def timed():
    yield


@task.workflow
@logged
@logged
async def hidden(steps, number=1):
    first, second = await asyncio.gather(steps.run(add, number), steps.run(add, 2))
    return first + second


@task.workflow
@timed()
async def hidden_in_context(steps):
    return await steps.run(add, 3)


@task.workflow
@logged
async def hidden_reversion(steps):
    try:
        async with steps.scope():
            await steps.run(add, 3)
            raise LookupError
    except LookupError:
        return 3


def scheduled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return asyncio.ensure_future(function(*args, **kwargs))

    return wrapper


@task.workflow
@scheduled
async def hidden_in_task(steps):
    return await steps.run(add, 3)


def constant(function):
    @functools.wraps(function)
    def wrapper(steps):
        steps.publish("progress", 1)
        return 3

    return wrapper


@task.workflow
@constant
async def never_called(steps):
    raise AssertionError


async def let_others_run():
    await asyncio.sleep(0)


def refusing(function):
    @functools.wraps(function)
    def wrapper(steps):
        raise LookupError("refused")

    return wrapper


@task.workflow
@refusing
async def refused(steps):
    raise AssertionError


def test_exception_of_a_plain_decorator_fails_the_workflow():
    with pytest.raises(LookupError, match=r"^refused$"):
        engines.run(refused)


@task.workflow
def return_coroutine(steps):
    async def compute():
        with steps.scope():
            steps.run(add, 1)
            await let_others_run()
        return 1

    async def compute_all():
        return 1 + sum(await asyncio.gather(compute(), compute()))

    return compute_all()


@ENGINES
@pytest.mark.parametrize(
    "workflow",
    [hidden, hidden_in_context, hidden_reversion, hidden_in_task, never_called, return_coroutine],
)
def test_async_workflow_behind_a_plain_decorator_runs(workflow, engine):
    assert engines.run(workflow, engine=engine)["result"] == 3


@task.workflow
def return_failing_coroutine(steps):
    async def compute():
        steps.run(add, 1)
        raise LookupError("no")

    return compute()


def test_failure_of_a_returned_coroutine_reverts_its_steps():
    with pytest.raises(LookupError, match=r"^no$"):
        engines.run(return_failing_coroutine)
    assert EFFECTS == [("add", 1), ("remove", 1)]


@task.workflow
@logged
def hidden_generator(steps):
    yield steps.run(add, 1)


@task.workflow
@logged
async def hidden_async_generator(steps):
    yield await steps.run(add, 1)


@pytest.mark.parametrize("workflow", [hidden_generator, hidden_async_generator])
def test_generator_behind_a_plain_decorator_fails(workflow):
    with pytest.raises(TypeError, match="must not contain 'yield'"):
        engines.run(workflow)


@task.workflow
async def wait_for_event_of_coroutine(steps):
    event = asyncio.Event()

    async def work():
        await steps.sleep(0.05)
        event.set()

    working = asyncio.ensure_future(work())
    await event.wait()
    await working
    return "done"


def test_workflow_may_wait_for_its_coroutines():
    assert engines.run(wait_for_event_of_coroutine)["result"] == "done"
