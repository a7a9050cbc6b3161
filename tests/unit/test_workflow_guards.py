"""Warnings about functions of workflows that cannot be repeated, or that block the engine."""

import asyncio
import datetime as dt
import logging
import os
import random
import secrets
import threading
import time
import urllib.request
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from datetime import datetime as moment
from random import choice
from time import monotonic as clock

import pytest

from wbengine import engines, task
from wbengine._runtime.workflows import guards
from wbengine._runtime.workflows.async_program import AsyncProgram
from wbengine._runtime.workflows.history import History


@task.task
def charge(order):
    return order


@pytest.mark.parametrize(
    ("function", "name", "replacement"),
    [
        (lambda steps: time.time(), "time.time", "steps.now()"),
        (lambda steps: clock(), "time.monotonic", "steps.now()"),
        (lambda steps: time.sleep(1), "time.sleep", "steps.sleep()"),
        (lambda steps: asyncio.sleep(1), "asyncio.sleep", "steps.sleep()"),
        (lambda steps: dt.datetime.now(), "datetime.datetime.now", "steps.now()"),
        (lambda steps: moment.utcnow(), "datetime.datetime.utcnow", "steps.now()"),
        (lambda steps: date.today(), "date.today", "steps.now()"),
        (lambda steps: moment.today(), "date.today", "steps.now()"),
        (lambda steps: random.random(), "random.random", "steps.random()"),
        (lambda steps: choice([1]), "random.choice", "steps.random()"),
        (lambda steps: secrets.token_hex(), "secrets.token_hex", "a step"),
        (lambda steps: os.urandom(4), "os.urandom", "a step"),
        (lambda steps: uuid.uuid1(), "uuid.uuid1", "steps.uuid4()"),
        (lambda steps: uuid.uuid4(), "uuid.uuid4", "steps.uuid4()"),
        (lambda steps: threading.Thread(), "threading.Thread", "a step"),
        (lambda steps: ThreadPoolExecutor(), "ThreadPoolExecutor", "a step"),
        (lambda steps: urllib.request.urlopen("x"), "urllib.request.urlopen", "a step"),
        (lambda steps: open("x"), "open", "a step"),  # noqa: SIM115
        (lambda steps: [uuid.uuid4() for _ in range(3)], "uuid.uuid4", "steps.uuid4()"),
        (lambda steps: lambda: time.sleep(1), "time.sleep", "steps.sleep()"),
        (lambda steps: map(time.sleep, [1]), "time.sleep", "steps.sleep()"),
        (lambda steps: charge("order"), "charge()", "steps.run(charge, ...)"),
    ],
)
def test_forbidden_use_is_found_with_its_replacement(function, name, replacement):
    (use,) = guards.uses(function)
    assert use.name.endswith(name) and use.replacement == replacement
    assert use.line == function.__code__.co_firstlineno


def test_forbidden_use_of_an_enclosing_scope_is_found():
    module = time

    def function(steps):
        return module.sleep

    assert [use.name for use in guards.uses(function)] == ["time.sleep"]


class Own:
    time = sleep = now = open = random = None


@pytest.mark.parametrize(
    "function",
    [
        lambda steps: steps.now() and steps.sleep(1) and steps.random() and steps.uuid4(),
        lambda steps: random.Random(steps.uuid4().int).choice([1, 2]),
        lambda steps: dt.datetime(2026, 1, 2) - dt.timedelta(days=1),
        lambda steps: moment.fromisoformat("2026-01-02"),
        lambda steps: Own.time or Own.sleep or Own.now or Own.open or Own.random,
        lambda steps: uuid.UUID(int=1),
        lambda steps, time, open: time.sleep(open),
        lambda steps: asyncio.gather(steps.run(deque)),
        lambda steps: os.path.join("a", "b"),
        lambda steps: [charge, steps.run(charge, 1)],
    ],
)
def test_repeatable_code_causes_no_warning(function):
    assert guards.uses(function) == []


def test_inner_variable_with_the_name_of_a_module_is_no_use():
    clock = time

    def function(steps):
        def inner(clock):
            return lambda: clock.sleep(1)

        return inner, clock.strftime

    assert guards.uses(function) == []


def test_first_run_of_a_workflow_warns_once_for_each_use():
    @task.workflow
    def workflow(steps):
        started = time.time()
        again = time.time()
        return started + again + random.random()

    with pytest.warns(RuntimeWarning) as caught:
        engines.run(workflow)
        engines.run(workflow)
    line = workflow.fn.__code__.co_firstlineno + 2
    name = f"Workflow '{__name__}.{workflow.__qualname__}'"
    reason = "which a replay cannot repeat"
    assert [str(each.message) for each in caught] == [
        f"{name} uses time.time in line {line}, {reason}: use steps.now() instead",
        f"{name} uses random.random in line {line + 2}, {reason}: use steps.random() instead",
    ]
    assert [(each.filename, each.lineno) for each in caught] == [
        (__file__, line),
        (__file__, line + 2),
    ]


def program_of(function, clock):
    return AsyncProgram(
        function,
        {},
        History("flow", []),
        read=lambda position: None,
        read_version=lambda change, newest, is_replaying: newest,
        publish=lambda name, value: None,
        tag=lambda tags, is_replaying: None,
        store_large=lambda value, where, limit: value,
        seed="seed",
        inherited_seeds=(),
        now=0.0,
        first_signals={},
        clock=clock,
    )


@pytest.mark.parametrize(("seconds", "warnings"), [(1.0, 0), (1.1, 1)])
def test_blocking_async_function_is_logged_once(seconds, warnings, caplog):
    async def blocking(steps):
        return "result"

    times = iter([0.0, seconds, 10.0, 10.0 + seconds])
    with caplog.at_level(logging.WARNING, "wbengine"):
        for _ in range(2):
            program = program_of(blocking, times.__next__)
            program.advance()
            assert program.value == "result"
    assert len(caplog.records) == warnings
    assert all("blocking" in text and "a step" in text for text in caplog.messages)
