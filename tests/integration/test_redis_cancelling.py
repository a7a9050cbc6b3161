"""Requests that are cancelled while they are being published, on connections that break."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter

import pytest

from tests.support import tcp_proxy, workers
from tests.support.redis_ends import through
from tests.support.workers import until
from wbengine import _crash, exceptions, invocation, task
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based.ledger import ledger_scripts
from wbengine.transports import _redis_scripts

BEGUN: Counter[str] = Counter()


class Begin(task.Task):
    def execute(self, name):
        BEGUN[name] += 1
        return name


class Slowly:
    """Lets a thread do something again and again until the end."""

    def __init__(self, seed, do):
        self._chance, self._do, self._over = random.Random(seed), do, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._over.wait(self._chance.random() * 0.1):
            self._do(self._chance)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


class Halt:
    """Lets whoever comes to a place wait there."""

    def __init__(self, place):
        self._place, self.there, self.go_on = place, threading.Event(), threading.Event()

    def __call__(self, place):
        if place == self._place:
            self.there.set()
            assert self.go_on.wait(60)

    def __enter__(self):
        _crash.install(self)
        return self

    def __exit__(self, *_):
        self.go_on.set()
        _crash.install(None)


def begin(name):
    return invocation.Invocation(
        Begin("begin"), "execute", name, 1, {"name": name}, flow_uuid="flow"
    )


def started(executor):
    """Whether it could be: it waits for no answer for long."""
    try:
        executor.start()
    except exceptions.TransportFailure:
        return False
    return True


@contextlib.contextmanager
def behind_a_proxy(redis_url, redis_server, patience):
    """A proxy, and an executor that comes to its Redis by it; its worker does not."""
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(tcp_proxy.threaded(redis_server.port))
        url = f"{through(redis_url, redis_server, proxy.port)}?socket_timeout={patience}"
        stack.enter_context(workers.worker_in_thread(str(redis_url), Begin))
        executor = executors.WorkerTaskExecutor("e", "default", ["t"], url=url)
        stack.callback(executor.stop)
        until(lambda: started(executor))
        assert executor.wait_for_workers(1, 60) == 0
        yield proxy, executor


def disturb(proxy):
    def do(chance):
        if chance.random() < 0.7:
            proxy.cut()
        else:
            proxy.stall()
            time.sleep(0.4)  # longer than anybody waits for an answer
            proxy.resume()

    return do


@contextlib.contextmanager
def running(*calls):
    """Threads that make these calls, until they have."""
    threads = [threading.Thread(target=call, args=args) for call, *args in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def test_request_of_a_flow_without_a_store_is_published_with_its_row(
    redis_url, redis_server, client
):
    """One round trip for both; else the flow may be another engine's when the row is there."""
    make, ends = ledger_scripts.OPEN, {}
    client.script_load(make.text)

    def done(call, outcome):
        ends[call.arguments["name"]] = outcome.value

    with behind_a_proxy(redis_url, redis_server, 5) as (proxy, executor):
        proxy.hold(make.digest)
        executor.submit(begin("kept nowhere"), done)
        until(lambda: ends)
        assert not proxy.held(make.digest)
        executor.guard("flow", list)
        executor.submit(begin("kept"), done)
        until(lambda: proxy.held(make.digest))
        proxy.let_go(make.digest)
        until(lambda: len(ends) == 2)


def test_cancelled_request_does_not_begin_late(redis_url, redis_server, client):
    """Its row is made while it is looked for, and comes when it is told to have ended."""
    BEGUN.clear()
    ends = {}

    def done(call, outcome):
        ends[call.arguments["name"]] = outcome.value

    look, make = ledger_scripts.STATE, ledger_scripts.OPEN
    for step in (look, make):
        client.script_load(step.text)
    with contextlib.ExitStack() as stack:
        proxy, executor = stack.enter_context(behind_a_proxy(redis_url, redis_server, 1))
        executor.guard("flow", list)
        call = begin("late")
        halt = stack.enter_context(Halt("executor.before-open"))
        stack.enter_context(running((executor.submit, call, done)))
        assert halt.there.wait(60)
        proxy.hold(look.digest)
        stack.enter_context(running((executor.cancel, [call])))
        until(lambda: proxy.held(look.digest))  # there was nothing to revoke
        proxy.hold(make.digest)
        halt.go_on.set()
        until(lambda: proxy.held(make.digest))
        proxy.let_go(look.digest)
        until(lambda: ends)
        assert ends["late"].check(exceptions.Cancelled)
        assert proxy.held(make.digest) == 1
        proxy.let_go(make.digest)
        executor.submit(begin("next"), done)  # it is published after the other one, if that is
        until(lambda: "next" in ends)
    assert ends["next"] == "next"
    assert BEGUN == {"next": 1}


def test_request_that_is_published_with_its_row_is_looked_for_after_that(
    redis_url, redis_server, client
):
    """Who cancels it finds no row, and its worker begins it then: it did not end before."""
    BEGUN.clear()
    ends = {}

    def done(call, outcome):
        ends[call.arguments["name"]] = outcome.value

    look, make = ledger_scripts.STATE, _redis_scripts.OPEN_AND_PUT
    for step in (look, make):
        client.script_load(step.text)
    with contextlib.ExitStack() as stack:
        proxy, executor = stack.enter_context(behind_a_proxy(redis_url, redis_server, 60))
        call = begin("late")
        halt = stack.enter_context(Halt("executor.before-open"))
        stack.enter_context(running((executor.submit, call, done)))
        assert halt.there.wait(60)
        proxy.hold(look.digest)
        stack.enter_context(running((executor.cancel, [call])))
        until(lambda: proxy.held(look.digest))  # there was nothing to revoke
        proxy.hold(make.digest)
        halt.go_on.set()
        until(lambda: proxy.held(make.digest))
        proxy.let_go(look.digest)
        time.sleep(0.2)  # it would have ended by now
        assert not ends
        proxy.let_go(make.digest)
        until(lambda: ends)
    assert BEGUN["late"] == (ends["late"] == "late")


@pytest.mark.parametrize("seed", range(2))
def test_request_cancelled_before_it_began_never_begins(redis_url, redis_server, seed):
    BEGUN.clear()
    ends, told = {}, []

    def done(call, outcome):
        told.append(call)
        ends[call.arguments["name"]] = outcome.value

    with contextlib.ExitStack() as stack:
        proxy, executor = stack.enter_context(behind_a_proxy(redis_url, redis_server, 0.3))
        chance = random.Random(seed)
        threads = []
        with Slowly(seed, disturb(proxy)):
            for number in range(150):
                name = f"{seed}-{number}"
                call = begin(name)
                cancels = chance.random() < 0.6
                if cancels:
                    wait = chance.choice((0, 0.001, 0.003, 0.02, 0.35, 0.5))
                    threads.append(threading.Timer(wait, executor.cancel, [(call,)]))
                    threads[-1].start()
                executor.submit_many((call,), done)
                if chance.random() < 0.5:
                    time.sleep(chance.random() * 0.01)
        for thread in threads:
            thread.join()
        until(lambda: len(ends) == 150)
        time.sleep(0.3)  # what comes late has come
    assert len(told) == 150
    for number in range(150):
        name = f"{seed}-{number}"
        value = ends[name]
        if value == name:
            assert BEGUN[name] == 1
        else:
            # Where no answer came to the revoking of a row, nobody can tell.
            ended = value.check(exceptions.Cancelled, exceptions.WorkerLost)
            assert BEGUN[name] <= (ended is exceptions.WorkerLost)
    assert {value == name for name, value in ends.items()} == {True, False}
