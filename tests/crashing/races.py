"""Races: several processes perform operations on one flow at the same moment.

Each process loads the flow before any of them runs it. Therefore no operation has read the end that
the first run reaches, and no task may run or be reverted after this end.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.crashing import children, stores
from wbengine import engines, exceptions, operations, states, task
from wbengine.conductors.backends import impl_blocking
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

PROCESSES = 3
#: Maximum delay of an operation in seconds, about the duration of a run.
DELAY = 0.02
AGAIN, DELETED = "ran again", "deleted during a run"
#: Initial states of the flows, and the operations that they allow.
STARTS: Mapping[str, Sequence[str]] = {
    "killed": ("resume", "revert", "repair", "conductor"),
    "suspended": ("resume", "retry", "revert", "repair", "conductor"),
    "failed": ("resume", "retry", "revert"),
    "reverted": ("retry", "retry", "prune"),
}


class Noted(task.Task):
    """A task that writes its actions to a file."""

    def execute(self, log: str) -> None:
        _note(log)

    def revert(self, log: str, **kwargs: Any) -> None:
        _note(log)


class Deciding(Noted):
    """A task whose result is defined by another file."""

    def execute(self, log: str) -> None:
        super().execute(log)
        mode = Path(f"{log}-mode").read_text()
        if mode == "killed":
            os._exit(0)
        if mode == "fails":
            raise ValueError(mode)


def _note(log: str) -> None:
    with open(log, "a") as file:
        file.write(f"{time.time()}\n")


def make_flow() -> linear_flow.Flow:
    return linear_flow.Flow("raced").add(Noted("first"), Deciding("second"), Noted("third"))


@dataclass(frozen=True)
class Order:
    """One operation of one process."""

    operation: str
    uuid: str
    on_busy: str
    delay: float


def run(count: int, kinds: Sequence[str], seed: int, folder: Path) -> int:
    """Run `count` races, print a table, and return the number of problems."""
    problems = 0
    with stores.databases(kinds, 1) as (databases,):
        for number, kind in enumerate(kinds):
            share = count // len(kinds) + (number < count % len(kinds))
            conf = stores.Stores(folder, databases).conf(kind, "records")
            figures = _Races(conf, folder / f"{kind}-log", random.Random(f"{seed} {kind}")).run(
                share
            )
            again, deleted = figures.pop(AGAIN), figures.pop(DELETED)
            problems += again + deleted
            results = ", ".join(f"{name} {figures[name]}" for name in sorted(figures))
            print(
                f"{kind:<12}{share:>6} races, flows that ran again: {again}, deleted during a run:"
                f" {deleted} ({results})",
                flush=True,
            )
    print(f"{count} races, {problems} problems")
    return problems


class _Races:
    def __init__(self, conf: Mapping[str, Any] | str, log: Path, chance: random.Random) -> None:
        self._conf = conf
        self._log = log
        self._chance = chance
        self._figures: Counter[str] = Counter({AGAIN: 0, DELETED: 0})

    def run(self, count: int) -> Counter[str]:
        with contextlib.ExitStack() as stack:
            pipes = [stack.enter_context(_process(self._conf)) for _ in range(PROCESSES)]
            for number in range(count):
                self._race(f"{number:08}-0000-4000-8000-{os.getpid():012}", pipes)
        return self._figures

    def _race(self, uuid: str, pipes: Sequence[Connection]) -> None:
        chance, start = self._chance, self._chance.choice(list(STARTS))
        self._log.unlink(missing_ok=True)
        _in_child(functools.partial(_prepare, self._conf, uuid, str(self._log), start))
        Path(f"{self._log}-mode").write_text(chance.choice(("fails", "succeeds")))
        names = [chance.choice(STARTS[start]) for _ in range(chance.choice((2, PROCESSES)))]
        if names.count("conductor") > 1:  # there is one job
            names = ["conductor", *(name for name in names if name != "conductor"), "resume"]
        racing = pipes[: len(names)]
        for name, pipe in zip(names, racing, strict=True):
            on_busy = chance.choice(("wait", "fail"))
            pipe.send(Order(name, uuid, on_busy, chance.uniform(0, DELAY)))
        for pipe in racing:
            pipe.recv()
        began = time.time()
        for pipe in racing:
            pipe.send("run")
        results = [pipe.recv() for pipe in racing]
        self._figures.update(results)
        pipes[0].send(Order("end", uuid, "wait", 0.0))
        self._judge(began, pipes[0].recv())
        if "LeaseLost" in results:
            self._figures[DELETED] += 1

    def _judge(self, began: float, history: Sequence[models.Change]) -> None:
        ends = [
            change.at
            for change in history
            if change.at > began and change.state in states.FLOW_ENDED
        ]
        moments = map(float, self._log.read_text().split())
        if ends and max(moments) > min(ends):
            self._figures[AGAIN] += 1


@contextlib.contextmanager
def _process(conf: Mapping[str, Any] | str) -> Iterator[Connection]:
    forking = multiprocessing.get_context("fork")
    mine, theirs = forking.Pipe()
    process = forking.Process(target=_perform_all, args=(conf, theirs, os.getpid()))
    process.start()
    try:
        yield mine
    finally:
        mine.send(None)
        process.join()


def _in_child(work: Callable[[], None]) -> None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


def _prepare(conf: Mapping[str, Any] | str, uuid: str, log: str, start: str) -> None:
    """Store a flow in its initial state, and post a job for it."""
    mode = {"killed": "killed", "suspended": "succeeds"}.get(start, "fails")
    Path(f"{log}-mode").write_text(mode)
    with backends.backend(conf) as backend:
        book = models.LogBook("races")
        engine = engines.load_from_factory(
            make_flow, store={"log": log}, book=book, backend=backend, uuid=uuid,
            never_resolve=start == "failed",
        )  # fmt: skip
        board = _board(backend)
        board.repost(uuid, "raced", book, jobs.JobPriority.NORMAL)
        if start == "suspended":
            engine.atom_notifier.register(states.SUCCESS, lambda *_, **__: engine.suspend())
        with contextlib.suppress(ValueError):
            engine.run()


def _board(backend: base.Backend) -> impl_sql.SQLJobBoard:
    board = impl_sql.SQLJobBoard("races", persistence=backend)
    board.connect()
    return board


def _perform_all(conf: Mapping[str, Any] | str, pipe: Connection, parent: int) -> None:
    children.die_with_parent(parent)
    logging.disable()
    with backends.backend(conf) as backend:
        backend.get_connection().upgrade()
        while (order := pipe.recv()) is not None:
            if order.operation == "end":
                pipe.send(_end(backend, order.uuid))
            else:
                _perform(backend, order, pipe)


def _perform(backend: base.Backend, order: Order, pipe: Connection) -> None:
    result = f"{order.operation}: done"
    try:
        work = _LOADERS[order.operation](backend, order)
    except (exceptions.InvalidState, exceptions.FlowBusy) as error:
        work, result = _do_nothing, f"{order.operation}: {type(error).__name__}"
    pipe.send("loaded")
    pipe.recv()
    time.sleep(order.delay)
    try:
        work()
    except exceptions.LeaseLost:
        result = "LeaseLost"
    except Exception as error:
        result = f"{order.operation}: {type(error).__name__}"
    pipe.send(result)


def _do_nothing() -> None:
    """Have no effect."""


def _load(backend: base.Backend, order: Order) -> Callable[[], object]:
    load = getattr(operations, order.operation)
    work: Callable[[], object] = load(backend, order.uuid, on_busy=order.on_busy).run
    return work


def _repair(backend: base.Backend, order: Order) -> Callable[[], object]:
    for detail in base.unfinished_flows(backend):
        if detail.uuid == order.uuid:
            return engines.load_from_detail(detail, backend=backend, on_busy=order.on_busy).run
    return _do_nothing


def _conduct(backend: base.Backend, order: Order) -> Callable[[], object]:
    conductor = impl_blocking.BlockingConductor(
        "races", _board(backend), backend, engine_options={"on_busy": order.on_busy}
    )
    return functools.partial(conductor.run, max_dispatches=1)


def _prune(backend: base.Backend, order: Order) -> Callable[[], object]:
    later = time.time() + 60
    return lambda: list(operations.prune(backend, before=later))


_LOADERS: Mapping[str, Callable[[base.Backend, Order], Callable[[], object]]] = {
    **dict.fromkeys(("resume", "retry", "revert"), _load),
    "repair": _repair,
    "conductor": _conduct,
    "prune": _prune,
}


def _end(backend: base.Backend, uuid: str) -> Sequence[models.Change]:
    """Delete the flow and its job, and return its history."""
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            history = connection.get_flow_details(uuid, lazy=True).history
        except exceptions.NotFound:
            return ()
    operations.delete(backend, uuid)
    return history
