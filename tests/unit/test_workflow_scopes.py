"""Scopes of workflows: which steps belong to them, and their open waits."""

import asyncio
import contextlib
import contextvars

import pytest

from tests.support.continued_engines import continued, parked
from wbengine import engines, states, task
from wbengine.persistence import backends

EFFECTS = []


@pytest.fixture(autouse=True)
def _no_effects():
    EFFECTS.clear()


@task.task
def book(number):
    EFFECTS.append(("book", number))
    return number


@book.revert
def cancel(number):
    EFFECTS.append(("cancel", number))


@task.task
def fail():
    raise LookupError("sold out")


def cancelled(workflow):
    """Run a workflow; return the numbers of the bookings that its scopes cancelled."""
    engines.run(workflow)
    return [number for effect, number in EFFECTS if effect == "cancel"]


def bookings(steps, *numbers):
    with steps.scope():
        for number in numbers:
            yield steps.run(book, number)
        raise LookupError("sold out")


async def async_bookings(steps, *numbers):
    async with steps.scope():
        for number in numbers:
            yield await steps.run(book, number)
        raise LookupError("sold out")


@task.workflow
def book_between_values(steps):
    with contextlib.suppress(LookupError):
        for number in bookings(steps, 1, 2):
            steps.run(book, number * 10)


@task.workflow
async def book_between_values_async(steps):
    with contextlib.suppress(LookupError):
        async for number in async_bookings(steps, 1, 2):
            await steps.run(book, number * 10)


@task.workflow
async def continue_generator_in_tasks(steps):
    generator = async_bookings(steps, 1, 2)
    with contextlib.suppress(LookupError):
        for number in 10, 20, 30:
            await asyncio.create_task(anext(generator))
            await steps.run(book, number)


@pytest.mark.parametrize(
    "workflow", [book_between_values, book_between_values_async, continue_generator_in_tasks]
)
def test_scope_of_a_generator_contains_no_steps_of_its_caller(workflow):
    assert cancelled(workflow) == [2, 1]
    assert ("book", 20) in EFFECTS


@task.workflow
async def create_tasks_in_generator(steps):
    async def pairs():
        async with steps.scope():
            await asyncio.gather(steps.run(book, 1), steps.run(book, 2))
            yield
            raise LookupError

    with contextlib.suppress(LookupError):
        async for _ in pairs():
            await steps.run(book, 3)


def test_tasks_created_in_the_scope_of_a_generator_belong_to_it():
    assert cancelled(create_tasks_in_generator) == [2, 1]


@task.workflow
def end_generator_in_scope(steps):
    def values():
        with steps.scope():
            yield

    generator = values()
    next(generator)
    with contextlib.suppress(LookupError), steps.scope():
        next(generator, None)
        steps.run(book, 1)
        raise LookupError


def test_scope_stays_open_when_a_generator_leaves_an_older_scope():
    assert cancelled(end_generator_in_scope) == [1]


@contextlib.contextmanager
def plain_block(steps):
    with steps.scope():
        yield


class Block:
    def __init__(self, steps):
        self.scope = steps.scope()

    def __enter__(self):
        self.scope.__enter__()

    def __exit__(self, *error):
        return self.scope.__exit__(*error)


@contextlib.contextmanager
def stack_block(steps):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Block(steps))
        yield


@contextlib.asynccontextmanager
async def async_block(steps):
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(steps.scope())
        yield


def in_block(block):
    @task.workflow
    def workflow(steps):
        def values():
            with block(steps):
                yield steps.run(book, 1)
                raise LookupError

        with contextlib.suppress(LookupError):
            for _ in values():
                steps.run(book, 2)
        with contextlib.suppress(LookupError), block(steps):
            steps.run(book, 3)
            raise LookupError

    return workflow


@task.workflow
async def in_async_block(steps):
    async def values():
        async with async_block(steps):
            yield await steps.run(book, 1)
            raise LookupError

    with contextlib.suppress(LookupError):
        async for _ in values():
            await steps.run(book, 2)
    with contextlib.suppress(LookupError):
        async with async_block(steps):
            await steps.run(book, 3)
            raise LookupError


@pytest.mark.parametrize(
    "workflow", [*map(in_block, (plain_block, Block, stack_block)), in_async_block]
)
def test_scope_of_a_context_manager_contains_the_block_of_its_caller(workflow):
    assert cancelled(workflow) == [1, 3]


@task.workflow
def book_in_another_context(steps):
    with contextlib.suppress(LookupError), steps.scope():
        contextvars.Context().run(steps.run, book, 1)
        raise LookupError


@task.workflow
async def book_in_callback(steps):
    later = []
    with contextlib.suppress(LookupError):
        async with steps.scope():
            first = asyncio.create_task(steps.sleep(0))
            first.add_done_callback(
                lambda _: later.append(asyncio.ensure_future(steps.run(book, 1)))
            )
            await first
            await steps.sleep(0)
            await later[0]
            raise LookupError


@pytest.mark.parametrize("workflow", [book_in_another_context, book_in_callback])
def test_scope_contains_steps_that_start_in_another_context(workflow):
    assert cancelled(workflow) == [1]


@task.workflow
async def fail_beside_waits(steps):
    async def wait_in_scope():
        async with steps.scope():
            await steps.run(book, 1)
            await steps.wait_any("never", "ever")

    with contextlib.suppress(LookupError):
        async with steps.scope():
            await steps.run(book, 2)
            await asyncio.gather(
                asyncio.shield(steps.wait_for("go")),
                steps.sleep(3600),
                wait_in_scope(),
                steps.run(fail),
            )
    await steps.run(book, 3)
    return await steps.wait_for("go")


def test_failed_scope_cancels_its_open_waits():
    store = backends.fetch("memory://")
    engine = parked(engines.load(fail_beside_waits, backend=store))
    assert EFFECTS == [
        ("book", 2), ("book", 1), ("cancel", 1), ("cancel", 2), ("book", 3)
    ]  # fmt: skip
    resumed = continued(engine, fail_beside_waits, store)
    resumed.signal("go", 7)
    resumed.run()
    assert resumed.storage.get_flow_state() == states.SUCCESS
    assert resumed.storage.fetch("result") == 7
    assert len(EFFECTS) == 5
