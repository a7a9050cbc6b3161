"""Processes that fork workers or engines, and execute orders, one line of JSON each.

Each child has its own connections and threads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.crashing import children
from tests.fleet import tasks
from tests.seams import ledgers

EXCHANGE, TOPIC = "fleet", "t"


def _lines(stream: int) -> Iterator[Any]:
    with open(stream, encoding="utf-8", closefd=False) as file:
        for line in file:
            yield json.loads(line)


def _say(stream: int, what: Any) -> None:
    os.write(stream, json.dumps(what).encode() + b"\n")


def _load(url: str, *names: str) -> None:
    """Import the modules that each child would import."""
    for name in names:
        importlib.import_module(name)
    kind = url.partition("://")[0]
    if kind == "redis":
        importlib.import_module("wbengine.transports._redis.redis_broker")
        ledgers.preloaded(url)
    elif kind == "amqp":
        importlib.import_module("kombu.transport.pyamqp")


# Workers.


def workers(url: str, folder: Path) -> None:
    """Answer `{"start": N}` with the pids, and `{"stop": [pid, ...]}` with the exit codes."""
    _load(url, "wbengine.engines.worker_based.worker")
    for order in _lines(0):
        if "start" in order:
            pids = [_worker(url, folder) for _ in range(order["start"])]
            _say(1, pids)
            continue
        for pid in order["stop"]:
            os.kill(pid, signal.SIGTERM)
        _say(1, [children.ended(pid, 30) for pid in order["stop"]])


def _worker(url: str, folder: Path) -> int:
    def work() -> None:
        from wbengine.engines.worker_based import worker

        started = worker.Worker(EXCHANGE, TOPIC, [tasks], threads_count=2, url=url)

        def stop(number: int, frame: object) -> None:
            threading.Thread(target=started.stop, daemon=True).start()

        signal.signal(signal.SIGTERM, stop)
        started.run(display_banner=False)

    return children.fork(work, folder / "workers.log", patience=36_000)


# Engines.


def engines(url: str, folder: Path, count: int) -> None:
    """Send each order to all engines, and answer with the list of their answers."""
    _load(
        url,
        "concurrent.futures.thread",
        "networkx",
        "wbengine.engines.worker_based.engine",
        "wbengine.engines.worker_based.executor",
        "wbengine.persistence.backends._memory",
    )
    hands = [_engine(url, folder, number) for number in range(count)]
    answers = [_lines(heard) for _, heard, _ in hands]
    for order in _lines(0):
        for replies, _, _ in hands:
            _say(replies, order)
        _say(1, [next(answer) for answer in answers])
    for replies, _, _ in hands:
        os.close(replies)
    for _, _, pid in hands:
        children.ended(pid, 30)


def _engine(url: str, folder: Path, number: int) -> tuple[int, int, int]:
    orders, replies = os.pipe()
    heard, answers = os.pipe()

    def work() -> None:
        os.close(replies)
        serve(url, number, _lines(orders), lambda what: _say(answers, what))

    pid = children.fork(work, folder / "engines.log", patience=36_000)
    os.close(orders)
    os.close(answers)
    return replies, heard, pid


def serve(
    url: str, number: int, orders: Iterator[Mapping[str, Any]], answer: Callable[[Any], None]
) -> None:
    """Run one engine process, which executes orders."""
    from wbengine.engines.worker_based import executor as executors

    executor = executors.WorkerTaskExecutor(f"engine-{number}", EXCHANGE, url=url)
    for order in orders:
        match order["do"]:
            case "wait":
                answer(_wait(executor, order["workers"], order["seconds"]))
            case "look":
                answer(_look(executor, set(order["pids"]), order["seconds"]))
            case "run":
                answer(_run(executor, number, order["tasks"]))
            case "count":
                answer(sum(executor._proxy.dispatcher.handled.values()))
            case "end":
                executor.stop()
                answer(dict(executor._proxy.dispatcher.refused))


def _wait(executor: Any, count: int, seconds: float) -> dict[str, Any]:
    """Wait for `count` workers. Return how many are missing, also for one worker more."""
    began = time.monotonic()
    missing = executor.wait_for_workers(count, seconds)
    took = time.monotonic() - began
    return {"missing": missing, "seconds": took, "more": executor.wait_for_workers(count + 1, 0.5)}


def _look(executor: Any, pids: set[int], seconds: float) -> dict[str, Any]:
    """Return whether exactly these workers are known, and how long that took."""
    began = time.monotonic()
    known: list[int] = []
    while True:
        known = sorted(int(one.identity.rsplit("-", 2)[1]) for one in executor.workers())
        took = time.monotonic() - began
        if known == sorted(pids) or took > seconds:
            break
        time.sleep(0.02)
    return {"right": known == sorted(pids), "known": len(known), "seconds": took}


def _run(executor: Any, number: int, count: int) -> dict[str, Any]:
    """Run a flow of `count` tasks. Return its state and the number of processes that ran tasks."""
    from wbengine import engines as wbengines
    from wbengine.patterns import unordered_flow

    flow = unordered_flow.Flow(f"fleet-{number}")
    flow.add(*(tasks.Where(name=f"t{each}", provides=f"p{each}") for each in range(count)))
    loaded = wbengines.load(flow, engine="worker-based", executor=executor)
    began = time.monotonic()
    try:
        loaded.run()
    except Exception as error:
        return {"state": repr(error)[:300], "seconds": 0.0, "results": 0, "processes": 0}
    results = loaded.storage.fetch_all()
    return {
        "state": loaded.storage.get_flow_state(),
        "seconds": time.monotonic() - began,
        "results": len(results),
        "processes": len(set(results.values())),
    }


if __name__ == "__main__":
    kind, url, folder, *rest = sys.argv[1:]
    children.die_with_parent(os.getppid())
    with contextlib.suppress(KeyboardInterrupt):
        if kind == "workers":
            workers(url, Path(folder))
        else:
            engines(url, Path(folder), int(rest[0]))
