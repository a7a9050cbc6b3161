"""Processes that perform the same operation on one store or ledger at the same moment.

    race("take", 4, conf, uuids) -> the report of each process

A process without threads forks them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.seams import ledgers
from tests.support import fresh


def race(task: str, count: int, *arguments: Any) -> list[Any]:
    """Run `task(number, ready, *arguments)` in `count` processes; return their reports."""
    results: list[Any] = fresh.call(__name__, "start", task, count, *arguments, real=False)
    return results


#: Current step of each forked process.
_steps = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("I")
#: Maximum number of steps between two processes.
LEAD = 1


def meet(number: int, step: int) -> None:
    """Report that process `number` reached `step` (from 1), and wait for slower processes."""
    _steps[1 + number] = step
    while min(_steps[1 : 1 + _steps[0]]) < step - LEAD:
        time.sleep(0)


def leave(number: int) -> None:
    """Remove process `number` from those that others wait for."""
    _steps[1 + number] = 2**32 - 1


def start(task: str, count: int, *arguments: Any) -> list[Any]:
    """Run `race` in the process that forks the others."""
    _import(arguments[0])
    _steps[0] = count
    start, begin = os.pipe()
    runners = []
    for number in range(count):
        ready, told = os.pipe()
        answer, answers = os.pipe()
        if not os.fork():
            os.close(begin)
            _run(TASKS[task], number, arguments, told, start, answers)
        os.close(told)
        os.close(answers)
        runners.append((ready, answer))
    for ready, _ in runners:
        os.read(ready, 1)
    os.close(begin)  # starts all processes
    results = []
    for _, answer in runners:
        with open(answer) as file:
            results.append(json.loads(file.read() or '{"error": "it died"}'))
    for _ in runners:
        os.wait()
    errors = [told["error"] for told in results if isinstance(told, dict) and "error" in told]
    if errors:
        sys.exit("\n".join(errors))
    return results


def _import(conf: Any) -> None:
    """Import the modules that the processes need for a store or ledger, without creating it."""
    place = conf if isinstance(conf, str) else ""
    ledgers.preloaded(place)
    backends = importlib.import_module("wbengine.persistence.backends")
    if not place.startswith(("redis", "dir")):
        backends.fetch(conf).close()  # loads the driver without connecting


def _run(
    task: Callable[..., Any], number: int, arguments: Any, told: int, start: int, answers: int
) -> None:
    def ready() -> None:
        os.write(told, b".")
        os.read(start, 1)

    try:
        result = task(number, ready, *arguments)
    except BaseException:
        result = {"error": traceback.format_exc()}
    leave(number)
    with open(answers, "w") as file:
        json.dump(result, file)
    sys.stdout.flush()
    os._exit(0)


# Stores.


def take(number: int, ready: Callable[[], None], conf: Any, uuids: list[str]) -> list[Any]:
    """Acquire a lease of each flow; return the granted leases."""
    from wbengine import exceptions
    from wbengine.persistence import backends

    granted = []
    with contextlib.closing(backends.fetch(conf)) as backend, backend.get_connection() as store:
        store.get_lease(uuids[0])
        ready()
        for step, uuid in enumerate(uuids, 1):
            meet(number, step)
            try:
                lease = store.acquire_lease(uuid, f"owner {number}", 60)
            except exceptions.FlowBusy:
                continue
            granted.append([lease.flow, lease.owner, lease.epoch])
    return granted


def count(number: int, ready: Callable[[], None], conf: Any, uuid: str, times: int) -> list[int]:
    """Increment a number in the store, each time with a lease; return the epochs."""
    from wbengine import exceptions
    from wbengine.persistence import backends

    epochs: list[int] = []
    with contextlib.closing(backends.fetch(conf)) as backend, backend.get_connection() as store:
        store.get_lease(uuid)
        ready()
        while len(epochs) < times:
            try:
                lease = store.acquire_lease(uuid, f"owner {number}", 60)
            except exceptions.FlowBusy:
                time.sleep(0.001)
                continue
            flow = store.get_flow_details(uuid)
            (atom,) = flow
            atom.results = (atom.results or 0) + 1
            store.save_changes(flow, [atom], flow_row=False, lease=lease)
            store.release_lease(lease)
            epochs.append(lease.epoch)
    return epochs


def upgrade(number: int, ready: Callable[[], None], conf: Any) -> str:
    """Upgrade a store to the current layout, and write to it."""
    from wbengine.persistence import backends, models

    with contextlib.closing(backends.fetch(conf)) as backend, backend.get_connection() as store:
        ready()
        store.upgrade()
        return store.save_logbook(models.LogBook(f"book {number}")).uuid


# Ledgers.


def claim(number: int, ready: Callable[[], None], place: str, ids: list[str]) -> Any:
    """Claim and finish each row; return the granted ids and the duration."""
    granted = []
    holder = f"w{number}"
    with contextlib.closing(ledgers.open_ledger(place)) as ledger:
        ledger.renew(holder)
        ready()
        started = time.monotonic()
        for step, id in enumerate(ids, 1):
            meet(number, step)
            if ledger.claim(id, 1, holder).granted:
                granted.append(id)
                assert ledger.finish(id, 1, holder, holder.encode())
    return [granted, time.monotonic() - started]


def finish(number: int, ready: Callable[[], None], place: str, ids: list[str]) -> Any:
    """Finish all rows in one process, and reopen them in reverse order in the other."""
    with contextlib.closing(ledgers.open_ledger(place)) as ledger:
        ledger.renew("w")
        ready()
        if number:
            return {id: ledger.finish(id, 1, "w", id.encode()) for id in ids}
        reopened = {id: ledger.reopen(id, 2) for id in reversed(ids)}
        return {id: result and result.decode() for id, result in reopened.items()}


def open_(number: int, ready: Callable[[], None], place: str, ids: list[str]) -> str:
    """Open rows of a new ledger at the epoch 1 + `number`; return its digest."""
    ready()
    with contextlib.closing(ledgers.open_ledger(place)) as ledger:
        for id in ids:
            ledger.open(id, 1 + number)
        return ledger.digest


TASKS: dict[str, Callable[..., Any]] = {
    task.__name__.rstrip("_"): task for task in (take, count, upgrade, claim, finish, open_)
}
