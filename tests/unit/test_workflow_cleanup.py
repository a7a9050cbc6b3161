"""The end of `async` workflows: remaining coroutines clean up before the workflow ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.continued_engines import continued, parked
from wbengine import engines, states, steps, task
from wbengine.persistence import backends

EFFECTS: list[str] = []
TASKS: list[asyncio.Future[str | None]] = []


@pytest.fixture(autouse=True)
def _no_effects() -> Iterator[None]:
    EFFECTS.clear()
    yield
    TASKS.clear()


@task.task
def book(what: str) -> str:
    EFFECTS.append(f"book {what}")
    return what


@book.revert
def cancel(what: str) -> None:
    EFFECTS.append(f"cancel {what}")


@task.task
def note(what: str) -> None:
    EFFECTS.append(f"note {what}")


@task.task
def fail() -> None:
    raise ValueError("failed")


async def offer(steps: steps.AsyncSteps, kind: str, name: str, seconds: float) -> str:
    async with steps.scope() if kind == "scope" else contextlib.AsyncExitStack():
        await steps.run(book, name)
        try:
            await steps.sleep(seconds)
        except asyncio.CancelledError:
            if kind == "except":
                await steps.run(note, f"cleanup {name}")
            raise
        finally:
            if kind == "finally":
                await steps.run(note, f"cleanup {name}")
    return name


@task.workflow
async def race(steps: steps.AsyncSteps, kind: str, end: str) -> list[str]:
    offers = [
        asyncio.ensure_future(offer(steps, kind, "a", 0)),
        asyncio.ensure_future(offer(steps, kind, "b", 3600)),
    ]
    done, rest = await asyncio.wait(offers, return_when=asyncio.FIRST_COMPLETED)
    for each in rest:
        if end != "leave":
            each.cancel()
        if end == "twice":
            await steps.run(note, "later")
            each.cancel()
    if end == "await":
        await asyncio.wait(rest)
    if end == "fail":
        await steps.run(fail)
    return [each.result() for each in done]


CLEANUPS = {"scope": "cancel b", "except": "note cleanup b", "finally": "note cleanup b"}


@pytest.mark.parametrize("end", ["leave", "cancel", "await"])
@pytest.mark.parametrize("kind", CLEANUPS)
def test_loser_of_a_race_cleans_up(kind: str, end: str) -> None:
    values = engines.run(race, {"kind": kind, "end": end})
    assert values["result"] == ["a"]
    assert EFFECTS[-1] == CLEANUPS[kind]


def test_reversion_of_a_scope_is_not_interrupted() -> None:
    engines.run(race, {"kind": "scope", "end": "twice"})
    assert EFFECTS.count("cancel b") == 1


def test_coroutines_clean_up_if_the_function_fails() -> None:
    with pytest.raises(ValueError, match="failed"):
        engines.run(race, {"kind": "except", "end": "fail"})
    assert "note cleanup b" in EFFECTS
    assert EFFECTS[-2:] == ["cancel b", "cancel a"]


@task.workflow
async def clean_up_slowly(steps: steps.AsyncSteps) -> str:
    async def wait() -> None:
        try:
            await steps.sleep(3600)
        finally:
            await steps.wait_for("go")
            await asyncio.gather(*(steps.run(note, str(number)) for number in range(3)))

    TASKS.append(asyncio.ensure_future(wait()))
    await steps.run(note, "begin")
    return "end"


def test_clean_up_continues_after_a_suspension(caplog: pytest.LogCaptureFixture) -> None:
    backend = backends.fetch("memory://")
    engine = parked(engines.load(clean_up_slowly, backend=backend))
    assert EFFECTS == ["note begin"]
    assert "returned without awaiting" in caplog.text
    caplog.clear()
    resumed = continued(engine, clean_up_slowly, backend)
    resumed.signal("go")
    resumed.run()
    assert resumed.storage.fetch("result") == "end"
    assert EFFECTS == ["note begin", "note 0", "note 1", "note 2"]
    assert caplog.text == ""
    backend.close()


@task.workflow
async def forget(steps: steps.AsyncSteps, kind: str) -> str:
    async def chain() -> None:
        await steps.run(book, "one")
        await steps.run(book, "two")

    async def fail_after_cancellation() -> None:
        try:
            await steps.sleep(3600)
        finally:
            raise LookupError("no")

    async def wait_forever() -> None:
        try:
            await steps.sleep(3600)
        finally:
            await asyncio.get_running_loop().create_future()

    coroutine = {
        "step": lambda: steps.run(book, "x"),
        "chain": chain,
        "fail": fail_after_cancellation,
        "wait": wait_forever,
    }[kind]()
    TASKS.append(asyncio.ensure_future(coroutine))
    if kind != "step":
        await steps.run(note, "begin")
    return "end"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("step", ".forget' returned without awaiting its coroutines ['AsyncSteps.run'], which are"),
        ("step", " and the results of its steps ['book']"),
        ("chain", "without awaiting its coroutines ['forget.<locals>.chain']"),
        ("fail", "test_workflow_cleanup.forget' failed after its cancellation"),
        ("wait", "test_workflow_cleanup.forget' waits forever after its cancellation"),
    ],
)
def test_forgotten_coroutines_are_reported(
    kind: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.load(forget, {"kind": kind})
    with caplog.at_level(logging.WARNING):
        engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert message in caplog.text
    assert "book two" not in EFFECTS


@task.workflow
async def wait_in_groups(steps: steps.AsyncSteps, has_members: bool) -> None:
    async def wait() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            if has_members:
                inner.create_task(steps.wait_for("go"))
                outer.create_task(steps.wait_for("go"))
            await steps.wait_for("go")

    try:
        await wait()
    except Exception as error:
        EFFECTS.append(f"caught {error!r}")
        raise


@pytest.mark.parametrize("has_members", [False, True])
def test_parked_workflow_ends_its_task_groups(
    has_members: bool, caplog: pytest.LogCaptureFixture
) -> None:
    parked(engines.load(wait_in_groups, {"has_members": has_members}, backend="memory://"))
    assert (EFFECTS, caplog.text) == ([], "")


@task.workflow
async def abandon_generator(steps: steps.AsyncSteps, end: str) -> None:
    async def read() -> AsyncIterator[str]:
        try:
            yield await steps.run(book, "a")
            yield await steps.run(book, "b")
        finally:
            EFFECTS.append("finally")
            await steps.run(note, "cleanup 1")
            await steps.run(note, "cleanup 2")

    async for _ in read():
        if end == "return":
            return
        if end == "park":
            await steps.wait_for("go")
        break
    await steps.run(note, "after")
    await steps.run(note, "later")


@pytest.mark.parametrize("end", ["return", "break"])
def test_abandoned_generator_cleans_up(end: str, caplog: pytest.LogCaptureFixture) -> None:
    engines.run(abandon_generator, {"end": end})
    assert EFFECTS[:2] == ["book a", "finally"]
    assert {"note cleanup 1", "note cleanup 2"} < set(EFFECTS)
    assert not caplog.text


def test_generator_of_a_parked_workflow_is_closed_in_each_run() -> None:
    backend = backends.fetch("memory://")
    engine = parked(engines.load(abandon_generator, {"end": "park"}, backend=backend))
    assert EFFECTS == ["book a", "finally"]
    engine = continued(engine, abandon_generator, backend)
    engine.signal("go")
    engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert EFFECTS[2] == "finally"
    assert {"note cleanup 1", "note cleanup 2"} < set(EFFECTS)
    backend.close()
