"""Values that workflows publish."""

import asyncio

import pytest

from tests.support.continued_engines import continued, suspended
from wbengine import engines, exceptions, operations, signals, task
from wbengine.persistence import backends


@pytest.fixture
def store(tmp_path):
    backend = backends.fetch(f"sqlite:///{tmp_path}/flows.db")
    yield backend
    backend.close()


@task.task
def work(number):
    return number


@task.workflow
def count(steps):
    seen = []
    for number in range(4):
        seen.append(steps.run(work, number))
        steps.publish("seen", seen)
        steps.publish("percent", 25 * (number + 1))


@task.workflow
async def count_async(steps):
    seen = []
    for number in range(4):
        seen.append(await steps.run(work, number))
        await asyncio.sleep(0)
        steps.publish("seen", seen)
        steps.publish("percent", 25 * (number + 1))


WORKFLOWS = pytest.mark.parametrize("workflow", [count, count_async])


@WORKFLOWS
@pytest.mark.filterwarnings("ignore:.*uses asyncio.sleep:RuntimeWarning")
def test_latest_published_value_remains_after_the_run(store, workflow):
    engine = engines.load(workflow, backend=store)
    engine.run()
    uuid = engine.storage.flow_uuid
    values = operations.published(store, uuid)
    assert values == engines.handle(uuid, backend=store).published()
    assert values == {"seen": [0, 1, 2, 3], "percent": 100}


CALLS = []


@task.workflow
def publish_calls(steps):
    CALLS.append(1)
    steps.publish("first", len(CALLS))
    steps.run(work, 1)
    steps.run(work, 2)
    steps.publish("last", len(CALLS))


def test_replay_does_not_publish_earlier_values_again(store):
    CALLS.clear()
    engine = suspended(publish_calls, store, lambda name: name.endswith(".0-work"))
    uuid = engine.storage.flow_uuid
    assert operations.published(store, uuid) == {"first": 1}
    continued(engine, publish_calls, store).run()
    assert operations.published(store, uuid) == {"first": 1, "last": 2}


@pytest.mark.parametrize(
    "name, value, error, message",
    [
        ("", 1, ValueError, "Name of a published value must be 1 to 255 printable"),
        (5, 1, TypeError, "Name of a published value must be a str"),
        ("x", "a" * signals.MAX_VALUE_BYTES, exceptions.NotEncodable, "at most 65,536 bytes"),
        ("x", object(), exceptions.NotEncodable, "published value 'x'"),
    ],
)
def test_invalid_published_value_is_refused(name, value, error, message):
    @task.workflow
    def publish(steps):
        steps.publish(name, value)

    with pytest.raises(error, match=message):
        engines.run(publish)


def test_flow_without_workflow_has_no_published_values(store):
    engine = engines.load(work(inject={"number": 1}), backend=store)
    engine.run()
    assert operations.published(store, engine.storage.flow_uuid) == {}
