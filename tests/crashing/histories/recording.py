"""Records histories of rows from processes that are killed, and checks them.

A process without threads calls `run`, because it forks the clients. The clients of a ledger in
memory are threads: instead of kills, they end before or after an operation without a record of its
reply.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import math
import mmap
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.crashing.histories import defects, model
from tests.crashing.histories.client import OPERATIONS, Client, Died, ids_of
from tests.support.linearizability import UNKNOWN, Operation, find_violation

#: See `Client`.
Store = tuple[str, str | None]

CLIENTS: Final = 8
#: Average number of operations between two kills, and the interval at which they are counted.
_OPERATIONS_PER_KILL: Final = 200
_COUNT_SECONDS: Final = 0.001
#: Chance that a thread ends during an operation.
_MORTALITY: Final = 0.01
#: Modules that all clients would otherwise import.
_MODULES: Final = {
    "redis": ("wbengine.transports._redis.redis_broker", "wbengine.transports._redis.redis_ledger"),
    "postgresql": (
        "wbengine.transports._sql.postgresql_broker",
        "wbengine.transports._sql.sql_ledger",
    ),
    "filesystem": ("wbengine.transports._folder.folder_broker",),
    "mysql": ("wbengine.transports._sql.mysql_broker", "wbengine.transports._sql.sql_ledger"),
}
#: Name of the client that reads the final rows.
_READER: Final = "reader"


def run(
    url: str, ledger: str | None, histories: int, seed: int, folder: str, defect: str = ""
) -> dict[str, Any]:
    """Record and check histories of a broker, and of its ledger unless a separate one is given.

    Return figures and violations.
    """
    defects.plant(defect)
    kind = url.partition(":")[0]
    logs = Path(folder)
    logs.mkdir(parents=True, exist_ok=True)
    record = _record_threads if kind == "memory" else _record_processes
    for module in _MODULES.get(kind, ()):
        importlib.import_module(module)
    kills = record((url, ledger), histories, random.Random(seed), logs)
    errors, rows = _read_logs(logs, has_two_steps=kind == "filesystem")
    violations = []
    # A search that finds no order takes long, so short histories are first, and one is enough.
    for id, operations in sorted(rows.items(), key=lambda row: len(row[1])):
        violation = find_violation(operations, model.step, None)
        if violation is not None:
            violations.append(f"{id}\n{violation}")
            break
    recorded = [operation for operations in rows.values() for operation in operations]
    return {
        "histories": histories,
        "rows": len(rows),
        "operations": len(recorded),
        "unknown": sum(operation.reply is UNKNOWN for operation in recorded),
        "kills": kills,
        "errors": errors,
        "violations": violations,
    }


def _client(
    store: Store, name: str, counts: Any, record: Callable[[bytes], object], chance: random.Random
) -> Client:
    return Client(store, name, counts, record, f"{name} {chance.random()}")


# Processes.


def _record_processes(store: Store, histories: int, chance: random.Random, logs: Path) -> int:
    """Return the number of kills."""
    shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    counts = shared[:CLIENTS]
    names = (f"w{number}" for number in range(1, sys.maxsize))
    places: dict[int, int] = {}
    kills = 0

    def start(place: int) -> None:
        name = next(names)
        client_of = functools.partial(_client, store, name, (counts, place))
        places[_fork(client_of, histories, logs / name, chance)] = place

    def end(options: int) -> int:
        """Return the place of a client that has ended, or -1. Exit if it failed."""
        pid, status = os.waitpid(-1, options)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit("a client failed")
        return places.pop(pid, -1)

    for place in range(CLIENTS):
        start(place)
    total = histories * OPERATIONS
    while (count := sum(counts)) < total:
        until = min(total, count + chance.expovariate(1 / _OPERATIONS_PER_KILL))
        while sum(counts) < until and end(os.WNOHANG) < 0:
            time.sleep(_COUNT_SECONDS)
        os.kill(chance.choice([*places]), signal.SIGKILL)
        kills += 1
        start(end(0))
    while places:
        end(0)
    _read_rows(store, histories, logs)
    return kills


def _fork(
    client_of: Callable[..., Client], histories: int, log: Path, chance: random.Random
) -> int:
    seed = random.Random(chance.random())
    pid = os.fork()
    if pid:
        return pid
    code = 1
    logging.disable()  # Each kill leads to a warning.
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        client_of(functools.partial(os.write, file), seed).run(histories)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# Threads.


def _record_threads(store: Store, histories: int, chance: random.Random, logs: Path) -> int:
    """Return the number of clients that ended during an operation."""
    counts = [0] * CLIENTS
    names = (f"w{number}" for number in range(1, sys.maxsize))
    deaths: list[str] = []
    failures: list[BaseException] = []
    kept = _client(store, "first", (counts, 0), lambda record: None, chance)

    def live(place: int, seed: random.Random) -> None:
        while True:
            name = next(names)
            try:
                with open(logs / name, "ab") as file:
                    client = _client(store, name, (counts, place), file.write, seed)
                    client.mortality = _MORTALITY
                    client.run(histories)
                return
            except Died:
                deaths.append(name)
            except BaseException as error:
                failures.append(error)
                counts[place] = histories * OPERATIONS  # This ends the other threads.
                return

    threads = [
        threading.Thread(target=live, args=(place, random.Random(chance.random())))
        for place in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _read_rows(store, histories, logs)
    del kept
    if failures:
        raise failures[0]
    return len(deaths)


# Check.


def _read_rows(store: Store, histories: int, logs: Path) -> None:
    """Record the final state of each row."""
    with open(logs / _READER, "ab") as file:
        client = Client(store, _READER, ([0], 0), file.write, "")
        for history in range(histories):
            client.read(history)


def _read_logs(logs: Path, *, has_two_steps: bool) -> tuple[list[str], dict[str, list[Operation]]]:
    """Return the failures of operations, and the operations on each row."""
    errors: list[str] = []
    rows: dict[str, list[Operation]] = defaultdict(list)
    takes: list[tuple[str, float, int]] = []
    published: dict[str, set[int]] = defaultdict(set)
    for log in logs.iterdir():
        calls: dict[int, tuple[float, Any]] = {}
        replies: dict[int, tuple[float, Any]] = {}
        for kind, number, at, content in _records(log):
            if kind == "error":
                errors.append(content)
            else:
                (replies if kind == "reply" else calls)[number] = at, content
        for number, (started, content) in calls.items():
            ended, answers = replies.get(number, (math.inf, None))
            if not isinstance(content, int):
                operations = [
                    (*each, UNKNOWN if answers is None else answers[place])
                    for place, each in enumerate(content)
                ]
            elif answers is None:
                takes.append((log.name, started, content))
                continue
            else:
                operations = [("claim", *each) for each in answers]
            for name, id, arguments, reply in operations:
                if name == "publish":
                    published[id].update(arguments)
                    continue
                is_take = isinstance(content, int)
                for step in _steps(name, reply, is_take, has_two_steps):
                    times = tuple(arguments), started, ended
                    rows[id].append(Operation(log.name, step[0], *times, step[1]))
    for id, claim in _unknown_claims(takes, published):
        rows[id].append(claim)
    return errors, rows


def _steps(name: str, reply: Any, is_take: bool, has_two_steps: bool) -> Iterator[tuple[str, Any]]:
    """Yield the names and replies of the steps of an operation on one row.

    A folder claims or finishes rows in one step, and reads those in the next one that it could not
    claim or finish. Another process may change a row in between.
    """
    if has_two_steps and is_take and (reply is None or reply[0] != "GRANTED"):
        yield "claim_perhaps", None
    if has_two_steps and name == "finish_and_publish" and reply is False:
        yield "finish_perhaps", None
        yield "is_foreign", True
    elif not (is_take and reply is None):
        yield name, reply


def _records(log: Path) -> Iterator[Sequence[Any]]:
    for line in log.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):  # A killed process may have written a part.
            yield json.loads(line)


def _unknown_claims(
    takes: Iterable[tuple[str, float, int]], published: dict[str, set[int]]
) -> Iterator[tuple[str, Operation]]:
    """A take without a reply may have claimed any row whose request was published there."""
    for holder, started, history in takes:
        for id in ids_of(history):
            for epoch in sorted(published[id]):
                yield id, Operation(holder, "claim", (epoch, holder), started)
