"""Maximum lengths of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wbengine import engines, exceptions, retry, signals, task
from wbengine._introspection import object_names
from wbengine._sql import dialects
from wbengine.conductors import backends as conductors
from wbengine.engines.worker_based import executor, worker
from wbengine.engines.worker_based import protocol as pr
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.patterns import linear_flow
from wbengine.persistence import models
from wbengine.schedules import Schedule
from wbengine.transports import _ledger as ledgers

FLOW = "wbengine.patterns.linear_flow.Flow"


class Nothing(task.Task):
    def execute(self) -> None: ...


class Each(task.Task):
    def execute(self, item: int) -> None: ...


class Taking(task.Task):
    def execute(self, **values: Any) -> None: ...


class Twice(Nothing):
    retries = 1


class Limited(Nothing):
    rate_limit = "1/s"


def flow_of(*tasks: task.Task) -> linear_flow.Flow:
    return linear_flow.Flow("f").add(*tasks)


def limited(limit: str) -> None:
    made = Limited()
    made.limit = limit
    engines.load(flow_of(made)).compile()


def limited_flow(limit: str) -> None:
    made = flow_of(Nothing())
    made.rate_limit, made.limit = "1/s", limit
    engines.load(made).compile()


def request(name: str) -> None:
    told = {"task_cls": "c", "task_name": name, "task_version": "1", "action": "execute"}
    pr.Request.validate(told)


def board() -> jobs.JobBoard:
    made = boards.fetch("b", "memory")
    made.connect()
    return made


def claimed(who: str) -> None:
    where = board()
    where.claim(where.post("j"), who)


def with_worker(**options: Any) -> None:
    worker.Worker(
        **{"exchange": "x", "topic": "t", "tasks": [Nothing], "url": "memory://", **options}
    )


#: Kind of name: its maximum length, and a function that creates an object with the name.
NAMES: dict[str, tuple[int, Callable[[str], object]]] = {
    "flow": (255, linear_flow.Flow),
    "task": (255, Nothing),
    "function of a task": (
        255,
        lambda name: task.FunctorTask(print, name=name, auto_extract=False),
    ),
    "decorated function": (255, lambda name: task.task(name=name)(print)()),
    "Map": (243, lambda name: task.Map(Each(), name=name)),
    "retry": (255, lambda name: retry.Times(1, name=name)),
    "retry of a flow": (249, lambda name: linear_flow.Flow(name, retry=retry.Times(1))),
    "retry of a task": (249, lambda name: engines.load(flow_of(Twice(name))).compile()),
    "log book": (255, models.LogBook),
    "flow record": (255, lambda name: models.FlowDetail(name, "u")),
    "task record": (255, lambda name: models.TaskDetail(name, "u")),
    "record read": (255, lambda name: models.RetryDetail.from_dict({"name": name, "uuid": "u"})),
    "loaded flow": (255, lambda name: engines.load(flow_of(Nothing()), name=name)),
    "submitted flow": (
        255,
        lambda name: engines.submit(FLOW, ["f"], backend="sqlite://", name=name),
    ),
    "unique": (255, lambda key: engines.submit(FLOW, ["f"], backend="sqlite://", unique=key)),
    "provided value": (255, lambda name: Nothing(provides=name)),
    "provided values": (255, lambda name: Nothing(provides=("a", name))),
    "provided items": (255, lambda name: Nothing(provides={name})),
    "required value": (255, lambda name: Taking(requires=name)),
    "required values": (255, lambda name: Taking(requires=["a", name])),
    "rebound value": (255, lambda name: Each(rebind={"item": name})),
    "injected value": (255, lambda name: Nothing(inject={name: 1})),
    "list of a Map": (255, lambda name: task.Map(Each(), over=name)),
    "input": (255, lambda name: engines.load(flow_of(Nothing()), inputs={name: 1})),
    "job": (255, lambda name: board().post(name)),
    "owner of a job": (255, claimed),
    "job board": (255, lambda name: boards.fetch(name, "memory")),
    "namespace": (
        255,
        lambda name: boards.fetch(
            "b", {"board": "sqlite", "connection": "sqlite://", "namespace": name}
        ),
    ),
    "conductor": (255, lambda name: conductors.fetch("blocking", name, board())),
    "signal": (255, lambda name: signals.Signal.of(name, 1, 1.0)),
    "awaited signal": (255, lambda name: task.WaitFor(name, name="w")),
    "signal that names its task": (246, task.WaitFor),
    "schedule": (255, lambda name: Schedule(name=name, factory=FLOW, every=60)),
    "factory of a schedule": (255, lambda name: Schedule(name="s", factory=name, every=60)),
    "limit": (255, limited),
    "limit of a flow": (255, limited_flow),
    "key of a tag": (64, lambda key: engines.load(flow_of(Nothing()), tags={key: "v"})),
    "value of a tag": (256, lambda value: engines.load(flow_of(Nothing()), tags={"k": value})),
    "topic": (120, lambda name: with_worker(topic=name)),
    "exchange": (120, lambda name: with_worker(exchange=name)),
    "worker": (60, lambda name: with_worker(name=name)),
    "executor": (255, lambda uuid: executor.WorkerTaskExecutor(uuid, "x", url="memory://")),
    "topic of an engine": (
        120,
        lambda name: executor.WorkerTaskExecutor("u", "x", name, url="memory://"),
    ),
    "prefix of a Redis": (
        120,
        lambda name: with_worker(url="redis://", transport_options={"prefix": name}),
    ),
    "request id": (120, ledgers.check_id),
    "task of a request": (255, request),
}


@pytest.mark.parametrize("kind", NAMES)
def test_name_has_a_maximum_length(kind: str) -> None:
    most, give = NAMES[kind]
    give("x" * most)
    refused = (ValueError, exceptions.CompilationFailure, exceptions.InvalidFormat)
    with pytest.raises(refused) as caught:
        give("x" * (most + 1))
    # The message contains the limit of the derived name, such as `<task>_retry`.
    limit = {249: 255, 246: 255}.get(most, most)
    length = limit + 1
    assert f"at most {limit} characters, got {length}: '" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_error_shows_kind_limit_length_and_beginning_of_name() -> None:
    with pytest.raises(ValueError) as caught:
        linear_flow.Flow("ab" * 500_000)
    assert str(caught.value) == (
        f"Flow name must have at most 255 characters, got 1,000,000: '{'ab' * 20}...'"
    )


def test_name_length_is_counted_in_characters() -> None:
    name = "𝄞" * 255
    assert linear_flow.Flow(name).name == name


def test_record_with_too_long_name_is_rejected() -> None:
    with pytest.raises(exceptions.InvalidFormat, match="TaskDetail must have at most 255"):
        models.TaskDetail.from_dict({"name": "x" * 256, "uuid": "u"})


def test_names_of_map_items_fit_the_maximum_length() -> None:
    request(task.Map(Each(), name="x" * 243).of_item(2**31 - 1).name)


def test_longest_name_fits_into_database_key() -> None:
    assert object_names.MAX_NAME_LENGTH <= dialects.MAX_KEY_LENGTH
