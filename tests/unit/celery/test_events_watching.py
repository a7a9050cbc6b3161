"""Events of wbengine's own requests: what is told of them, and that nothing else changes."""

from __future__ import annotations

import collections
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.workers import until, worker_in_thread
from wbengine import engines, invocation, task
from wbengine import exceptions as exc
from wbengine.engines.worker_based import endpoint, server
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side import observing
from wbengine.interop.celery.monitoring import events, state, watching
from wbengine.patterns import linear_flow
from wbengine.types.failure import Failure


class Double(task.Task):
    def execute(self, x: Any) -> Any:
        return 2 * x

    def revert(self, **kwargs: Any) -> None:
        pass


class Bad(task.Task):
    def execute(self) -> None:
        raise ValueError("as ever")


DOUBLE = f"{__name__}.Double"
GRANTED = ledgers.Claim(ledgers.GRANTED, 1)


class Bench:
    """A server that is watched, and what its watch told."""

    def __init__(self, *, ledger: str | None = None, slots: int = 1, watched: bool = True) -> None:
        self.told: list[dict[str, Any]] = []
        self.watch = watching.Watch(
            lambda type, **fields: self.told.append({"type": type, **fields})
        )
        make: Callable[..., server.Server]
        make = observing.server_for(self.watch if watched else None)
        self.ledger = ledger
        self.server = make("w1", {"t": "t"}, endpoint.endpoints_of([Double]), slots, ledger=ledger)

    def request(self, id: str = "r1", epoch: int = 1, now: float = 0.0, **body: Any) -> Any:
        headers: dict[str, Any] = {env.WBE_VERSION: env.VERSION, env.WBE_EPOCH: epoch}
        headers |= {env.WBE_ATTEMPT: 3, env.ROOT_ID: "flow-1"}
        headers |= body.pop("headers", {})
        if self.ledger is not None:
            headers[env.WBE_LEDGER] = self.ledger
        content = {
            "action": "execute", "arguments": {"x": 1}, "task_cls": DOUBLE,
            "task_name": "double it", "task_version": [1, 0], **body,
        }  # fmt: skip
        message = env.Envelope(
            pr.REQUEST, content, correlation_id=id, reply_to="engine", headers=headers
        )
        return self.server.on_request(message, f"receipt of {id}", now)

    def job(self, id: str, epoch: int = 1) -> server.Job:
        return self.server._roll.jobs[id, epoch]

    def run(self, id: str = "r1", value: Any = 2) -> None:
        self.request(id)
        self.server.on_finished(self.job(id), invocation.Outcome(value, "w1", 1.0, 1.5))

    @property
    def types(self) -> list[str]:
        return [each["type"] for each in self.told]


def test_the_life_of_a_request() -> None:
    bench = Bench()
    bench.request()
    assert (bench.watch.active, bench.watch.processed) == (1, 1)
    bench.server.on_finished(bench.job("r1"), invocation.Outcome({"y": (2,)}, "w1", 1.0, 1.5))
    assert (bench.watch.active, bench.watch.processed) == (0, 1)
    assert bench.told == [
        {
            "type": "task-received", "uuid": "r1", "name": DOUBLE, "args": "()",
            "kwargs": "{'x': 1}", "retries": 2, "eta": None, "expires": None,
            "root_id": "flow-1", "parent_id": None, "atom": "double it",
        },
        {"type": "task-started", "uuid": "r1"},
        {"type": "task-succeeded", "uuid": "r1", "result": "{'y': (2,)}", "runtime": 0.5},
    ]  # fmt: skip


def test_what_is_told_is_what_the_catalogue_says() -> None:
    bench = Bench()
    bench.run()
    bench.run("r2", Failure.from_exception(ValueError("x")))
    bench.request("r3", task_cls="no.such.Task")
    for each in bench.told:
        known = {field.name for field in events.CATALOGUE[each["type"]].fields}
        assert set(each) - {"type", "atom"} == known


def test_a_task_that_fails() -> None:
    bench = Bench()
    try:
        raise ValueError("it's bad")
    except ValueError:
        bench.run(value=Failure())
    assert bench.types == ["task-received", "task-started", "task-failed"]
    assert bench.told[-1]["exception"] == """ValueError("it's bad")"""
    assert "test_a_task_that_fails" in bench.told[-1]["traceback"]


def test_a_revert_has_a_name_of_its_own() -> None:
    bench = Bench()
    bench.request(action="revert", result=["success", 2], failures={})
    assert bench.told[0]["name"] == f"{DOUBLE}.revert"


def test_what_cannot_be_run_here() -> None:
    bench = Bench()
    bench.request(task_cls="no.such.Task")
    assert bench.types == ["task-received", "task-failed"]
    assert bench.told[0]["name"] == "no.such.Task"
    assert bench.told[1]["exception"].startswith("NotFound(")
    bench.request("r2", arguments=7)
    assert bench.types[2:] == ["task-received", "task-failed"]
    assert (bench.told[2]["name"], bench.told[2]["kwargs"]) == ("r2", "{}")
    assert bench.watch.active == 0


def test_what_comes_too_late() -> None:
    bench = Bench()
    bench.request(headers={env.EXPIRES: 1.5e9}, now=2e9)
    assert bench.told[0]["expires"] == "2017-07-14T02:40:00+00:00"
    assert bench.told[1] == {
        "type": "task-revoked", "uuid": "r1", "terminated": False, "signum": None, "expired": True,
    }  # fmt: skip


def test_what_is_cancelled_before_and_while_it_runs() -> None:
    bench = Bench()
    bench.request("r1")
    bench.request("r2")
    assert bench.types == ["task-received", "task-started", "task-received"]
    bench.server.on_cancel([("r1", 1), ("r2", 1)])
    cancelled = Failure.from_exception(exc.Cancelled("it was told to end"))
    bench.server.on_finished(bench.job("r1"), invocation.Outcome(cancelled))
    assert [(e["uuid"], e["terminated"]) for e in bench.told[3:]] == [("r2", False), ("r1", True)]
    assert set(bench.types[3:]) == {"task-revoked"}
    assert bench.watch.active == 0


def test_what_waits_goes_back_when_the_worker_ends() -> None:
    bench = Bench()
    bench.request("r1")
    bench.request("r2")
    bench.server.drain(1.0)
    assert bench.told[-1] == {
        "type": "task-rejected", "uuid": "r2", "requeued": True, "requeue": True,
    }  # fmt: skip
    bench.server.die(2.0)
    assert (bench.types[-1], bench.told[-1]["uuid"]) == ("task-failed", "r1")
    assert "WorkerLost" in bench.told[-1]["exception"]
    assert bench.watch.active == 0


def test_a_request_that_turns_out_to_be_somebody_elses() -> None:
    bench = Bench(ledger="l1", slots=2)
    bench.request("r1")
    assert bench.told == []  # nobody knows yet
    bench.server.on_claim(bench.job("r1"), ledgers.Claim(ledgers.HELD, 1, holder="w2"))
    assert bench.told == []
    bench.request("r2")
    job = bench.job("r2")
    bench.server.on_claim(job, GRANTED)
    assert bench.types == ["task-received", "task-started"]
    bench.server.on_checked(job, None)
    assert bench.types[2:] == ["task-rejected"]
    assert bench.watch.active == 0


def test_a_row_that_cannot_be_released_is_run_after_all() -> None:
    bench = Bench(ledger="l1")
    for id in ("r1", "r2"):
        bench.request(id)
        bench.server.on_claim(bench.job(id), GRANTED)
    bench.server.drain(1.0)
    assert bench.types[3:] == ["task-rejected"]
    bench.server.on_finished(bench.job("r1"), invocation.Outcome(1))
    bench.server.on_released(bench.job("r2"), False)
    assert bench.types[4:] == ["task-succeeded", "task-received", "task-started"]


def test_whatever_happens_each_has_one_end_and_the_server_does_the_same() -> None:
    dice = random.Random(5)
    for _ in range(200):
        ledger = dice.choice([None, "l1"])
        watched, plain = Bench(ledger=ledger, slots=2), Bench(ledger=ledger, slots=2, watched=False)
        for number in range(30):
            seed, id = dice.random(), f"r{dice.randrange(12)}"
            shown = [repr(_happen(bench, random.Random(seed), id)) for bench in (watched, plain)]
            assert shown[0] == shown[1]
            assert watched.server.counts == plain.server.counts
            assert watched.watch.active == len(watched.server.begun)
            if number == 28:
                watched.server.die(9.0)
                plain.server.die(9.0)
        # Two epochs of one may be there at a time.
        left = collections.Counter(job.id for job in watched.server._roll.jobs.values())
        begun = collections.Counter[str]()
        for each in watched.told:
            if each["type"] == "task-received":
                begun[each["uuid"]] += 1
            elif each["type"] != "task-started":
                begun[each["uuid"]] -= 1
            assert begun[each["uuid"]] in (0, 1, 2)
        assert begun <= left


def _happen(bench: Bench, dice: random.Random, id: str) -> Any:
    core, jobs = bench.server, bench.server._roll.jobs
    epoch = dice.randint(1, 2)
    job = jobs.get((id, epoch))
    what = dice.randrange(9)
    if what < 3:
        effects = bench.request(id, epoch)
        for effect in list(effects):
            if isinstance(effect, server.Claim):
                verdict = dice.choice([ledgers.GRANTED] * 3 + [ledgers.STALE])
                effects += core.on_claim(effect.job, ledgers.Claim(verdict, epoch))
        return effects
    if what < 6 and job is not None and job.key in core._roll.begun:
        value = dice.choice([1, Failure.from_exception(ValueError("x"))])
        effects = core.on_finished(job, invocation.Outcome(value))
        return effects + (core.on_stored(job) if bench.ledger else [])
    if what == 6:
        return core.on_cancel([(id, epoch)])
    if what == 7 and dice.random() < 0.2:
        effects = core.suspend() if dice.random() < 0.5 else core.resume()
        for effect in list(effects):
            if isinstance(effect, server.Release):
                effects += core.on_released(effect.job, dice.random() < 0.7)
        return [effect for effect in effects if getattr(effect, "job", None) is not None]
    if what == 8 and job is not None:
        return core.on_checked(job, None)
    return None


def test_a_flow_as_monitors_see_it() -> None:
    seen = state.State()

    def tell(type: str, **fields: Any) -> None:
        seen.on(events.Event(type, "w@h", 1, 1.0, fields=fields))

    watch = watching.Watch(tell)
    url = f"memory://{uuid.uuid4()}"
    flow = linear_flow.Flow("f").add(Double("one", provides="x2"), Bad("two"))
    with worker_in_thread(url, Double, Bad, observer=watch):
        loaded = engines.load(flow, engine="worker-based", url=url, store={"x": 21})
        with pytest.raises(ValueError, match="as ever"):
            loaded.run()
        until(lambda: watch.active == 0)
    found = {task.name: task for task in seen.tasks()}
    assert {name: task.state for name, task in found.items()} == {
        DOUBLE: "SUCCESS",
        f"{__name__}.Bad": "FAILURE",
        f"{DOUBLE}.revert": "SUCCESS",
    }
    assert (found[DOUBLE].kwargs, found[DOUBLE].result) == ("{'x': 21}", "42")
    assert {task.root_id for task in found.values()} == {loaded.storage.flow_uuid}
    assert watch.processed == len(found)


# Values. ------------------------------------------------------------------------------------------
