"""A long run of requests through PostgreSQL: rates, and sizes of the tables.

Engines open rows and publish requests; workers take, claim and finish them; the engines take the
replies and drop the rows. Nothing is stored about flows. The server has the settings of `initdb`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from typing import Any

import psycopg

from tests.support import servers
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import _encoding, resolve
from wbengine.transports._broker import Finish, Frame
from wbengine.transports._ledger import Opening

#: Maximum number of requests of an engine that are not finished.
IN_FLIGHT = 500
BATCH = 64
REQUEST_BYTES = 600
REPLY_BYTES = 300
PARTS = 10
MIN_LAST_RATE = 0.75
#: Maximum growth of the tables since the first part, in bytes. Sizes depend on the time since the
#: last vacuum.
MAX_GROWTH = 64e6
WAIT_SECONDS = 0.5

_SIZES = """
SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup,
  coalesce(round(100.0 * n_tup_hot_upd / nullif(n_tup_upd, 0)), 0)::int, vacuum_count,
  autovacuum_count
FROM pg_stat_user_tables WHERE relname LIKE 'wbe%%' ORDER BY 2 DESC LIMIT %s"""


def engine(url: str, name: str, wanted: int, backlog: int, done: Any, may_take: Event) -> None:
    """Send requests and take their replies, until all are answered.

    With a backlog, this number of requests is sent before the workers take any, again and again.
    """
    target = resolve(url)
    ledger = ledgers.choose(None, target)
    assert ledger is not None
    target.rows.ledger = ledger
    with target.open() as broker:
        broker.declare_queue("requests")
        broker.declare_queue(name, owned=True)
        broker.watch(name)
        body = b"x" * REQUEST_BYTES
        sent = answered = 0
        while answered < wanted:
            limit = IN_FLIGHT
            if backlog:
                limit = backlog if sent == answered else 0
            if backlog and limit:
                may_take.clear()
            while (count := min(BATCH, wanted - sent, limit - (sent - answered))) > 0:
                ids = [f"{name}-{uuid.uuid4().hex}" for _ in range(count)]
                headers = {"wbe-ledger": ledger.digest, "wbe-epoch": 1}
                frames = [
                    Frame("", "requests", 0, _encoding.label(id.encode() + b" ", headers, id), body)
                    for id in ids
                ]
                broker.open_and_publish([Opening(id, 1) for id in ids], frames)
                sent += count
                broker.refresh()
            may_take.set()
            broker.refresh()
            replies = [reply for _, reply in broker.take_many([(BATCH, [name])])]
            if replies:
                names = [bytes(reply.data).partition(b" ")[0].decode() for reply in replies]
                broker.settle_many(replies)
                ledger.drop_many(names)
                answered += len(replies)
                with done.get_lock():
                    done.value += len(replies)
            else:
                broker.wait(WAIT_SECONDS, [name])
    ledger.close()


def worker(url: str, name: str, may_take: Sequence[Event], has_ended: Event) -> None:
    """Take requests and finish them, unless an engine fills the queue."""
    target = resolve(url)
    ledger = ledgers.choose(None, target, "worker")
    assert ledger is not None
    ledger.renew(name)
    target.rows.ledger, target.rows.holder = ledger, name
    with target.open() as broker:
        broker.declare_queue("requests")
        broker.watch("requests")
        reply = b"y" * REPLY_BYTES
        while not has_ended.is_set():
            broker.refresh()
            if not all(event.is_set() for event in may_take):
                broker.wait(0.02)
                continue
            batch = []
            for _, taken in broker.take_many([(BATCH, ["requests"])]):
                id = bytes(taken.data).partition(b" ")[0].decode()
                assert taken.claim is not None and taken.claim.verdict == "GRANTED", taken.claim
                frame = Frame("", id.rpartition("-")[0], 0, id.encode() + b" ", reply)
                batch.append(Finish(id, 1, taken, frame))
            if batch:
                assert all(broker.finish(batch))
            else:
                broker.wait(WAIT_SECONDS, ["requests"])
    ledger.close()


@contextlib.contextmanager
def server_of(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with servers.postgresql() as server, server.database() as url:
        yield url


def measure(count: int, processes: int, backlog: int, hold: float, url: str | None) -> int:
    """Send requests, print the figures of each part of the run, and return the exit code.

    :param processes: number of engines, and of workers.
    :param backlog: number of requests that wait before the workers take them; 0: none wait long.
    :param hold: seconds for which another program has a transaction open, after the first part.
    :param url: an empty database; None: one of a private server.
    """
    with server_of(url) as url, psycopg.connect(url, autocommit=True) as admin:
        return _measure(url, admin, count, processes, processes, backlog, hold)


def _measure(
    url: str, admin: Any, count: int, engines: int, workers: int, backlog: int, hold: float
) -> int:
    context = multiprocessing.get_context("spawn")
    done, has_ended = context.Value("q", 0), context.Event()
    may_take = [context.Event() for _ in range(engines)]
    ledger = ledgers.choose(None, resolve(url))  # Creates the tables.
    assert ledger is not None
    ledger.close()
    with resolve(url).open() as broker:
        broker.declare_queue("requests")
    share = count // engines
    processes = [
        context.Process(
            target=engine, args=(url, f"engine{n}", share, backlog // engines, done, may_take[n])
        )
        for n in range(engines)
    ]
    helpers = [
        context.Process(target=worker, args=(url, f"worker{n}", may_take, has_ended))
        for n in range(workers)
    ]
    for process in (*helpers, *processes):
        process.start()
    total = share * engines
    rates, sizes = [], []
    last_count, last_time = 0, time.monotonic()
    holder: Any = None
    released_at = 0.0
    try:
        for part in range(1, PARTS + 1):
            while done.value < total * part // PARTS:
                if any(process.exitcode for process in (*processes, *helpers)):
                    print("a process failed")
                    return 1
                if holder is not None and time.monotonic() > released_at:
                    holder.close()
                    holder = None
                    print(f"  the transaction ended after {hold:.0f} s", flush=True)
                time.sleep(0.05)
            now, answered = time.monotonic(), done.value
            rates.append((answered - last_count) / (now - last_time))
            last_count, last_time = answered, now
            sizes.append(_show(admin, part, answered, rates[-1]))
            if hold and part == 1:
                holder = psycopg.connect(url)
                holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                holder.execute("SELECT count(*) FROM wbe_transport")
                released_at = time.monotonic() + hold
        for process in processes:
            process.join()
        has_ended.set()
        for process in helpers:
            process.join()
    finally:
        for process in (*helpers, *processes):
            process.terminate()
        if holder is not None:
            holder.close()
    left = admin.execute(
        "SELECT (SELECT count(*) FROM wbe_messages), (SELECT count(*) FROM wbe_ledger)"
    ).fetchone()
    ratio, growth = rates[-1] / rates[0], sizes[-1] - sizes[0]
    print(f"{total:,} requests; rate of the last part: {ratio:.2f} of the first;"
          f" growth: {growth / 1e6:.1f} MB; rows left: {left}")  # fmt: skip
    has_grown = growth > MAX_GROWTH and not hold
    return int(ratio < MIN_LAST_RATE or has_grown or left != (0, 0))


def _show(admin: Any, part: int, answered: int, rate: float) -> int:
    rows = admin.execute(_SIZES, (3,)).fetchall()
    print(f"{part:>2} {answered:>10,} requests {rate:>7,.0f}/s", flush=True)
    for name, table, indexes, live, dead, hot, vacuums, automatic in rows:
        print(f"   {name:<15} table {table / 1e6:>8.1f} MB  indexes {indexes / 1e6:>8.1f} MB "
              f" rows {live:>8,}  dead {dead:>9,}  HOT {hot:>3} %  vacuums {vacuums}+{automatic}",
              flush=True)  # fmt: skip
    return sum(table + indexes for _, table, indexes, *_ in rows)
