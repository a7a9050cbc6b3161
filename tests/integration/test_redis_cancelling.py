"""Requests that are cancelled while they are being published."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter

import pytest

from tests.support import tcp_proxy, workers
from tests.support.redis_ends import url_with_port
from tests.support.workers import until
from wbengine import exceptions, task
from wbengine._calls import invocation
from wbengine._concurrency import crash_points
from wbengine.engines.worker_based import executor as executors
from wbengine.transports._redis import redis_ledger, redis_scripts

BEGUN: Counter[str] = Counter()


class Begin(task.Task):
    def execute(self, name):
        BEGUN[name] += 1
        return name


@pytest.fixture(autouse=True)
def no_task_has_begun():
    BEGUN.clear()


class Results(dict):
    """Results of calls by the name of the task; an instance is the callback of the executor."""

    def __init__(self):
        self.calls = []

    def __call__(self, call, outcome):
        self.calls.append(call)
        self[call.arguments["name"]] = outcome.value


class RepeatedCalls:
    """Repeated calls of a function in a thread until the end of the block."""

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


class PointBlocker:
    """Crash point hook that blocks the threads that reach one point."""

    def __init__(self, place):
        self._place, self.there, self.go_on = place, threading.Event(), threading.Event()

    def __call__(self, place):
        if place == self._place:
            self.there.set()
            assert self.go_on.wait(60)

    def __enter__(self):
        crash_points.install(self)
        return self

    def __exit__(self, *_):
        self.go_on.set()
        crash_points.install(None)


def new_call(name, epoch=1):
    return invocation.Invocation(
        Begin("begin"), "execute", name, 1, {"name": name}, flow_uuid="flow", epoch=epoch
    )


def can_start(executor):
    """Start the executor; return True if that succeeded within its short timeout."""
    try:
        executor.start()
    except exceptions.TransportFailure:
        return False
    return True


@contextlib.contextmanager
def behind_a_proxy(redis_url, redis_server, patience):
    """Yield a proxy and an executor that connects to Redis through it; the worker does not."""
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(tcp_proxy.threaded(redis_server.port))
        url = f"{url_with_port(redis_url, redis_server, proxy.port)}?socket_timeout={patience}"
        stack.enter_context(workers.worker_in_thread(str(redis_url), Begin))
        executor = executors.WorkerTaskExecutor("e", "default", ["t"], url=url)
        stack.callback(executor.stop)
        until(lambda: can_start(executor))
        assert executor.wait_for_workers(1, 60) == 0
        yield proxy, executor


def disturb(proxy):
    def do(chance):
        if chance.random() < 0.7:
            proxy.cut()
        else:
            proxy.stall()
            time.sleep(0.4)  # longer than the timeout for replies
            proxy.resume()

    return do


@contextlib.contextmanager
def running(*calls):
    """Run the calls in threads until all have returned."""
    threads = [threading.Thread(target=call, args=args) for call, *args in calls]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def test_requests_are_published_with_their_rows(redis_url, redis_server, monkeypatch):
    """One round trip publishes both, also those of a flow that is continued."""
    opened, ends = [], Results()
    monkeypatch.setattr(redis_ledger.RedisLedger, "_open", lambda _, rows: opened.append(rows))
    with behind_a_proxy(redis_url, redis_server, 5) as (_, executor):
        executor.submit(new_call("first"), ends)
        executor.submit(new_call("continued", epoch=2), ends)
        until(lambda: len(ends) == 2)
    assert not opened


def load_scripts(client, make):
    for step in (redis_scripts.SCRIPTS["read_rows"], make):
        client.script_load(step.text)


def cancel_during_publication(stack, proxy, executor, make, ends, epoch=1):
    """Cancel a request whose row the step `make` creates late, so that no row can be revoked."""
    call, look = new_call("late", epoch), redis_scripts.SCRIPTS["read_rows"]
    blocker = stack.enter_context(PointBlocker("executor.before-open"))
    stack.enter_context(running((executor.submit, call, ends)))
    assert blocker.there.wait(60)
    proxy.hold(look.digest)
    stack.enter_context(running((executor.cancel, [call])))
    until(lambda: proxy.held(look.digest))
    proxy.hold(make.digest)
    blocker.go_on.set()
    until(lambda: proxy.held(make.digest))
    proxy.let_go(look.digest)


@pytest.mark.parametrize("epoch", [1, 2])
def test_cancel_of_request_being_published_waits_for_its_row(
    redis_url, redis_server, client, epoch
):
    """The cancel finds no row, and the worker starts the request after that."""
    ends = Results()
    make = redis_scripts.SCRIPTS["open_and_publish"]
    load_scripts(client, make)
    with contextlib.ExitStack() as stack:
        proxy, executor = stack.enter_context(behind_a_proxy(redis_url, redis_server, 60))
        cancel_during_publication(stack, proxy, executor, make, ends, epoch)
        time.sleep(0.2)  # enough time to report an early result
        assert not ends
        proxy.let_go(make.digest)
        until(lambda: ends)
    assert BEGUN["late"] == (ends["late"] == "late")


def test_row_that_is_being_opened_does_not_count_as_revoked(redis_url, redis_server, client):
    """The first attempt to revoke it gets no reply, and the second one finds no row."""
    ends = Results()
    make, revoke = (
        redis_scripts.SCRIPTS["open_and_publish"],
        redis_scripts.SCRIPTS["revoke_rows"],
    )
    for script in (make, revoke):
        client.script_load(script.text)
    with contextlib.ExitStack() as stack:
        proxy, executor = stack.enter_context(behind_a_proxy(redis_url, redis_server, 60))
        call = new_call("late")
        proxy.hold(make.digest)
        stack.enter_context(running((executor.submit, call, ends)))
        until(lambda: proxy.held(make.digest))
        proxy.hold(revoke.digest)
        stack.enter_context(running((executor.cancel, [call])))
        until(lambda: proxy.held(revoke.digest))
        proxy.stall()
        proxy.cut()
        proxy.hold(make.digest)
        proxy.hold(revoke.digest)
        proxy.resume()
        until(lambda: proxy.held(make.digest) and proxy.held(revoke.digest))
        proxy.let_go(revoke.digest)
        time.sleep(0.2)  # enough time to report an early result
        assert not ends
        proxy.let_go(make.digest)
        until(lambda: ends)
    assert BEGUN["late"] == (ends["late"] == "late")


@pytest.mark.parametrize("seed", range(2))
def test_request_cancelled_before_start_never_starts(redis_url, redis_server, seed):
    ends = Results()
    with contextlib.ExitStack() as stack:
        proxy, executor = stack.enter_context(behind_a_proxy(redis_url, redis_server, 0.3))
        chance = random.Random(seed)
        threads = []
        with RepeatedCalls(seed, disturb(proxy)):
            for number in range(150):
                name = f"{seed}-{number}"
                call = new_call(name)
                cancels = chance.random() < 0.6
                if cancels:
                    wait = chance.choice((0, 0.001, 0.003, 0.02, 0.35, 0.5))
                    threads.append(threading.Timer(wait, executor.cancel, [(call,)]))
                    threads[-1].start()
                executor.submit_many((call,), ends)
                if chance.random() < 0.5:
                    time.sleep(chance.random() * 0.01)
        for thread in threads:
            thread.join()
        until(lambda: len(ends) == 150)
        time.sleep(0.3)  # delayed messages have arrived
    assert len(ends.calls) == 150
    for number in range(150):
        name = f"{seed}-{number}"
        value = ends[name]
        if value == name:
            assert BEGUN[name] == 1
        else:
            # If revoking a row got no reply, the result is uncertain.
            ended = value.check(exceptions.Cancelled, exceptions.WorkerLost)
            assert BEGUN[name] <= (ended is exceptions.WorkerLost)
    assert {value == name for name, value in ends.items()} == {True, False}
