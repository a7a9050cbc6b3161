"""Tags that tasks and workflows set while they run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.continued_engines import continued, suspended
from wbengine import engines, exceptions, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, base
from wbengine.types import _tags

SEEN: list[Any] = []


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Backend]:
    SEEN.clear()
    url = "memory" if request.param == "memory" else f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as backend:
        yield backend


def listed(store: base.Backend, *conditions: str) -> list[dict[str, Any]]:
    with store.get_connection() as connection:
        return [dict(row.tags) for row in connection.list_flows(tags=conditions).flows]


class Tagging(task.Task):
    def execute(self) -> None:
        assert self.request is not None
        self.request.tag(phase="one", amount=5)
        self.request.tag(phase="two", **{"env/zone": "b"})


class AsyncTagging(task.Task):
    async def execute(self) -> None:
        assert self.request is not None
        self.request.tag(phase="zero")
        await asyncio.to_thread(self.request.tag, phase="two", amount=5)
        self.request.tag(**{"env/zone": "b"})


TAGS = {"phase": "two", "amount": 5, "env/zone": "b"}


@pytest.mark.parametrize("cls", [Tagging, AsyncTagging])
@pytest.mark.parametrize("engine", ["serial", "parallel", "parallel://?executor=processes"])
def test_task_sets_tags(store: base.Backend, cls: type[task.Task], engine: str) -> None:
    loaded = engines.load(linear_flow.Flow("f").add(cls()), backend=store, engine=engine)
    loaded.run()
    assert listed(store, "phase=two", "amount>4") == [TAGS]
    assert loaded.storage.flow_detail.tags == TAGS


class Looking(task.Task):
    store: Any = None

    def execute(self) -> None:
        assert self.request is not None
        self.request.tag(phase="running")
        for _ in range(600):
            if SEEN.append(listed(self.store, "phase=running")) or SEEN[-1]:
                return
            threading.Event().wait(0.05)


def test_tags_are_listed_while_the_task_runs(store: base.Backend) -> None:
    looking = Looking()
    looking.store = store
    engines.run(linear_flow.Flow("f").add(looking), backend=store, engine="parallel")
    assert SEEN[-1] == [{"phase": "running"}]


class Failing(Tagging):
    def execute(self) -> None:
        super().execute()
        raise RuntimeError("no")


def test_failed_task_keeps_its_tags(store: base.Backend) -> None:
    with pytest.raises(RuntimeError, match="no"):
        engines.run(linear_flow.Flow("f").add(Failing()), backend=store)
    assert listed(store) == [TAGS]


def test_tag_of_submission_is_not_changed(
    store: base.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    tags = {"phase": "given", **{f"k{number}": "v" for number in range(30)}}
    engines.run(linear_flow.Flow("f").add(Tagging()), backend=store, tags=tags)
    assert listed(store) == [{**tags, "amount": 5}]
    assert "tag phase was set at the submission and cannot be changed" in caplog.text
    assert "at most 32 tags, got 33" in caplog.text


class Invalid(task.Task):
    def execute(self, value: Any) -> None:
        assert self.request is not None
        self.request.tag(valid=1, x=value)


@pytest.mark.parametrize("value", [float("nan"), "\ud800", "a ", 10**20])
def test_invalid_tag_fails_the_task_without_effects(store: base.Backend, value: Any) -> None:
    with pytest.raises(ValueError, match="the value of tag x"):
        engines.run(Invalid(inject={"value": value}), backend=store)
    assert listed(store) == [{}]


class InThread(task.Task):
    def execute(self, copies: bool) -> None:
        request = self.request
        assert request is not None

        def run() -> None:
            try:
                request.tag(x=1)
            except RuntimeError as error:
                SEEN.append(str(error))

        context = contextvars.copy_context() if copies else contextvars.Context()
        thread = threading.Thread(target=context.run, args=(run,))
        thread.start()
        thread.join()


def test_thread_without_context_of_task_cannot_set_tags(store: base.Backend) -> None:
    engines.run(InThread(), backend=store, inputs={"copies": False})
    assert listed(store) == [{}] and "copy_context" in SEEN[0]
    engines.run(InThread(), backend=store, inputs={"copies": True})
    assert listed(store, "x=1") == [{"x": 1}]


@task.task
def tag_item(self: task.Task, item: int) -> None:
    assert self.request is not None
    self.request.tag(**{f"item{item}": item})


def test_items_of_map_set_tags(store: base.Backend) -> None:
    flow = unordered_flow.Flow("f").add(task.Map(tag_item(), over="items"))
    engines.run(flow, backend=store, inputs={"items": [1, 2, 3]}, engine="parallel")
    assert listed(store) == [{"item1": 1, "item2": 2, "item3": 3}]


class LeavingThread(task.Task):
    """Its first attempt fails, and leaves a thread that sets a tag during the second one."""

    retries = 1

    def execute(self) -> None:
        request = self.request
        assert request is not None
        if request.attempt == 1:
            request.tag(phase="one")
            context = contextvars.copy_context()
            late = threading.Thread(target=context.run, args=(lambda: request.tag(phase="late"),))
            SEEN.append(late)
            raise RuntimeError("again")
        request.tag(phase="two")
        SEEN[0].start()
        SEEN[0].join()


def test_late_tag_of_earlier_attempt_is_ignored(store: base.Backend) -> None:
    engines.run(LeavingThread(), backend=store)
    assert listed(store) == [{"phase": "two"}]


# Events.


def test_lost_repeated_and_reordered_events_have_the_same_result() -> None:
    events: list[dict[str, Any]] = []
    call = _tags.CallTags(lambda event, details: events.append(details))
    for tags in ({"a": 1}, {"b": 2}, {"a": 3}, {"a": True}):
        call.set(tags)
    call.resend()
    first, latest = _tags.new_tags(events[0], _tags.Latest())
    assert first == {"a": 1}
    second, latest = _tags.new_tags(events[2], latest)
    assert second == {"b": 2, "a": 3}
    assert _tags.new_tags(events[1], latest) == ({}, latest)
    third, last = _tags.new_tags(events[4], latest)
    assert third == {"a": True}
    assert _tags.new_tags(events[3], last) == ({}, last)


def test_late_event_of_earlier_copy_sets_no_tags() -> None:
    events: list[dict[str, Any]] = []
    calls = [
        _tags.CallTags(lambda _, details: events.append(details), epoch) for epoch in (1, 2, 2)
    ]
    for call in calls:
        call.set({"a": call is calls[1]})
    tags, latest = _tags.new_tags(events[0], _tags.Latest())
    assert tags == {"a": False}
    tags, latest = _tags.new_tags(events[1], latest)
    assert tags == {"a": True}
    assert _tags.new_tags(events[0], latest) == ({}, latest)
    # The broker delivered the copy twice.
    assert _tags.new_tags(events[2], latest)[0] == {"a": False}


MALFORMED: list[Any] = [
    None, 5, *({"a": pair} for pair in (5, [1], ["1", 2], [1, None])), {"a b": [1, 2]}, {1: [1, 2]},
]  # fmt: skip


@pytest.mark.parametrize("tags", MALFORMED)
def test_malformed_event_sets_no_tags(tags: Any) -> None:
    latest = _tags.Latest()
    for details in ({"epoch": 1, "call": "c", "tags": tags}, {"tags": {"a": [1, 1]}}):
        assert _tags.new_tags(details, latest) == ({}, latest)


# Workflows.


@task.task
def work(number: int) -> int:
    return number


@task.task
def tag_later(self: task.Task) -> None:
    assert self.request is not None
    self.request.tag(phase="step")


@task.workflow
def tagging(steps: Any) -> None:
    SEEN.append(1)
    steps.tag(phase="first", calls=len(SEEN))
    steps.run(tag_later)
    steps.run(work, 2)
    steps.tag(last=len(SEEN))


@task.workflow
async def tagging_async(steps: Any) -> None:
    SEEN.append(1)
    steps.tag(phase="first", calls=len(SEEN))
    await steps.run(tag_later)
    await steps.run(work, 2)
    steps.tag(last=len(SEEN))


@pytest.mark.parametrize("workflow", [tagging, tagging_async])
def test_replay_does_not_set_earlier_tags_again(store: base.Backend, workflow: Any) -> None:
    engine = suspended(workflow, store, lambda name: name.endswith(".0-tag_later"))
    assert listed(store) == [{"phase": "step", "calls": 1}]
    continued(engine, workflow, store).run()
    assert listed(store) == [{"phase": "step", "calls": 1, "last": 2}]


@task.workflow
def catching(steps: Any) -> None:
    for key in ("team", "x"):
        try:
            steps.tag(**{key: "b"})
        except ValueError as error:
            SEEN.append(str(error))
            steps.run(work, 1)
    try:
        steps.tag(x=object())
    except TypeError as error:
        SEEN.append(str(error))
    steps.run(work, 2)


def test_workflow_cannot_change_tag_of_submission(store: base.Backend) -> None:
    """A replay raises the same exceptions."""
    engine = suspended(catching, store, lambda name: name.endswith(".0-work"), tags={"team": "a"})
    continued(engine, catching, store).run()
    assert listed(store) == [{"team": "a", "x": "b"}]
    assert sum("cannot be changed" in text for text in SEEN) == 2


def test_other_code_cannot_set_tags_of_workflow(store: base.Backend) -> None:
    kept: list[Any] = []

    @task.workflow
    def leaking(steps: Any) -> None:
        kept.append(steps)

    engines.run(leaking, backend=store)
    with pytest.raises((RuntimeError, exceptions.WorkflowInterrupted)):
        kept[0].tag(x=1)
