"""Counts that do not depend on the machine, compared with `counts.json`.

They are calls of functions of the package, messages, bytes and commands.  An increase of 10 %
fails, and so does an unrecorded decrease.  `WBENGINE_RECORD_COUNTS=1 pytest tests/benchmarks`
records the counts.
"""

from __future__ import annotations

import gc
import struct
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.benchmarks import records, steps
from tests.benchmarks.calls import WAKES, WRITES, Calls
from tests.simulation import growth, meters, scaling
from tests.support import wiretap, workers
from tests.support.brokers import Broker
from wbengine import engines
from wbengine.engines.worker_based._engine_side import ledger_operations
from wbengine.transports._sql import postgresql_statements as sql
from wbengine.transports._sql.sql_session import Session
from wbengine.types import _references

LOCAL = 1000
CHAIN = 100
WIDE = 500

#: Counts of wide flows that depend on the load of the machine, because waiting messages are sent
#: together: they may double.  Other counts are exact, and of chains all except acknowledgements.
LOOSE = (WRITES, WAKES, "scripts", "reads by the server", "statements")
LOOSE_OF_CHAINS = ("acknowledgements",)


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Disable garbage collection, and let threads switch only where they wait.

    Rows are deleted when the flow ends, so that their number in one step does not depend on time.
    """
    monkeypatch.setattr(ledger_operations, "_DROP_DELAY_SECONDS", 3600)
    gc.collect()
    gc.disable()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.5)
    yield
    sys.setswitchinterval(interval)
    gc.enable()


def per_task(counts: Counter[str], tasks: int, what: str = "calls") -> dict[str, float]:
    return {f"{what} in {stage}": count / tasks for stage, count in counts.items()}


# Flows in this process.


@pytest.mark.parametrize("make", [steps.wide, steps.chain])
def test_calls_of_serial_flow_match_record(make: Callable[[int], Any]) -> None:
    engines.run(make(3), store={"x0": 0})  # fills caches
    check_serial(f"serial {make.__name__}, a task", make)


@pytest.mark.parametrize("make", [steps.wide, steps.chain])
def test_calls_of_serial_flow_in_process_with_large_values_match_record(
    make: Callable[[int], Any],
) -> None:
    engines.run(make(3), store={"x0": 0})
    _references.checked("0" * 64, 1, "bytes")
    check_serial(f"serial {make.__name__} after large values of others, a task", make)


def check_serial(case: str, make: Callable[[int], Any]) -> None:
    flow = make(LOCAL)
    loading, running = Calls(), Calls()
    with loading:
        engine = engines.load(flow, store={"x0": 0})
        engine.compile()
        engine.prepare()
        engine.validate()
    with running:
        engine.run()
    counts = per_task(loading.counts, LOCAL, "calls to load")
    counts |= per_task(running.counts, LOCAL, "calls to run")
    records.check(case, counts)


@pytest.mark.parametrize("make", [steps.wide, steps.chain])
def test_memory_of_flow_matches_record(make: Callable[[int], Any]) -> None:
    case = f"memory of {make.__name__}, an atom, {records.PYTHON}"
    if not (records.recording() or case in records.read()):
        pytest.skip(f"nothing is recorded for {records.PYTHON}")
    engines.run(make(3), store={"x0": 0})
    gc.collect()  # frees earlier objects
    blocks = sys.getallocatedblocks()
    tracemalloc.start()
    try:
        flow = make(LOCAL)
        built = tracemalloc.get_traced_memory()[0]
        engine = engines.load(flow, store={"x0": 0})
        engine.compile()
        engine.prepare()
        loaded = tracemalloc.get_traced_memory()[0]
        engine.run()
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()  # frees objects in reference cycles
        ended = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counts = {
        "bytes of the flow": built,
        "bytes of the engine": loaded - built,
        "bytes kept of the run": ended - loaded,
        "bytes at most": peak,
        "blocks": sys.getallocatedblocks() - blocks,
    }
    records.check(case, {name: count / LOCAL for name, count in counts.items()})


# Messages without a broker.


@pytest.mark.slow
def test_calls_and_messages_of_simulated_fleet_match_record() -> None:
    """A simulated engine with 12 workers on a manual clock."""
    calls = Calls()
    fleet = scaling.Fleet(scaling.Plan(12, 600, lost=0.0))
    fleet.meter = meters.Meter(lambda: 1e-6 * sum(calls.counts.values()))
    with calls:
        found = growth.measured(fleet)
    counts = {
        "calls of the engine": found["request_us"],
        "calls of the engine to submit": found["submit_us"],
        "calls of the engine to hear answers": found["answers_us"],
        "calls of the engine for a beat": found["beat_us"],
        "calls of the engine for a round, a worker": found["round_us"],
        "calls of the engine for a new worker": found["join_us"],
        "calls of workers, with beats": found["worker_us"],
        "calls of the ledger's methods": found["calls"],
        "acknowledgements": fleet.meter.counts["acknowledgements"] / 600,
    }
    for kind in (*growth.OF_A_REQUEST, *growth.OF_A_BEAT):
        counts[f"bytes of a message: {kind}"] = fleet.meter.size(kind)
        counts[f"messages: {kind}"] = fleet.meter.messages[kind] / 600
    records.check("messages, a task", counts)


# Flows on brokers, with a worker in a thread.


def run(make: Callable[[int], Any], tasks: int, url: str, told: Callable[[], Any]) -> Any:
    """Return the calls of a flow by stage on both sides, and the increase of `told`'s counts."""
    calls = Calls()
    with calls, workers.worker_in_thread(url, steps, threads_count=4):
        options = {"engine": "worker-based", "url": url}
        engines.run(make(3), store={"x0": 0}, **options)
        engine = engines.load(make(tasks), store={"x0": 0}, **options)
        engine.compile()
        engine.prepare()
        before = {**told(), **calls.traffic()}
        calls.counts.clear()
        engine.run()
        counts = Counter(calls.counts)
        after = {**told(), **calls.traffic()}
    assert len(engine.storage.fetch_all()) > (tasks if make is steps.chain else 0)
    broker = {what: counts.pop(what) for what in [*counts] if what in _OTHERS}
    return per_task(counts, tasks) | {
        what: (after[what] - before[what]) / tasks for what in before
    } | {what: count / tasks for what, count in broker.items()}  # fmt: skip


_OTHERS = (WRITES, WAKES)


def check(
    broker: str, make: Callable[[int], Any], tasks: int, url: str, told: Callable[[], Any] = dict
) -> None:
    together = make is steps.wide
    records.least(
        f"{make.__name__} over {broker}, a task",
        lambda: run(make, tasks, url, told),
        less=not together,
        loose=LOOSE if together else LOOSE_OF_CHAINS,
    )


@pytest.mark.alone
def test_chain_over_memory_matches_record() -> None:
    check("memory", steps.chain, CHAIN, "memory://counted")


@pytest.mark.alone
@pytest.mark.parametrize(("make", "tasks"), [(steps.chain, CHAIN), (steps.wide, WIDE)])
def test_flow_over_redis_matches_record(
    make: Callable[[int], Any], tasks: int, redis_server: Broker, redis_url: str
) -> None:
    with redis_server.client() as client:

        def told() -> dict[str, int]:
            stats = client.info("stats")
            scripts = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
            return {
                "commands in the server": stats["total_commands_processed"],
                "scripts": scripts["calls"],
                "reads by the server": stats["total_reads_processed"],
            }

        check("Redis", make, tasks, redis_url, told)


@pytest.mark.alone
@pytest.mark.parametrize(("make", "tasks"), [(steps.chain, CHAIN), (steps.wide, WIDE)])
def test_flow_over_postgresql_matches_record(
    make: Callable[[int], Any], tasks: int, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counter(statements=0)
    run_one, run_all = Session.run, Session.run_all

    def count_one(session: Session, statement: Any, *values: Any) -> Any:
        # The others depend on time.
        counted["statements"] += statement not in (sql.NONEMPTY, sql.SETTLE, sql.REPORT)
        return run_one(session, statement, *values)

    def count_all(session: Session, *transactions: Any) -> Any:
        counted["statements"] += sum(map(len, transactions))
        return run_all(session, *transactions)

    monkeypatch.setattr(Session, "run", count_one)
    monkeypatch.setattr(Session, "run_all", count_all)

    def measure() -> dict[str, float]:
        counts = run(make, tasks, postgresql_url, lambda: dict(counted))
        return {"statements": counts["statements"]}

    records.least(
        f"{make.__name__} over PostgreSQL, a task",
        measure,
        loose=LOOSE if make is steps.wide else (),
    )


@pytest.mark.alone
@pytest.mark.parametrize(("make", "tasks"), [(steps.chain, CHAIN), (steps.wide, WIDE)])
def test_flow_over_rabbitmq_matches_record(
    make: Callable[[int], Any], tasks: int, rabbitmq_server: Broker, rabbitmq_url: str
) -> None:
    with wiretap.to(rabbitmq_server.port) as tap:
        url = rabbitmq_url.replace(f":{rabbitmq_server.port}/", f":{tap.port}/")
        check("RabbitMQ", make, tasks, url, lambda: spoken(tap.said))


#: Methods of AMQP 0-9-1 by class and number.
_METHODS = {(60, 40): "messages published", (60, 80): "acknowledgements"}


def spoken(streams: list[bytearray]) -> Counter[str]:
    """Count the methods in the frames (type, channel, size, content, end) that clients sent."""
    counts: Counter[str] = Counter(dict.fromkeys([*_METHODS.values(), "methods sent"], 0))
    for frames in map(bytes, streams):
        at = len(b"AMQP\x00\x00\x09\x01")
        while at + 11 <= len(frames):
            kind, _, size = struct.unpack_from("!BHI", frames, at)
            if kind == 1:
                method = struct.unpack_from("!HH", frames, at + 7)
                counts["methods sent"] += 1
                counts[_METHODS.get(method, "others")] += 1
            at += 7 + size + 1
    del counts["others"]
    return counts
