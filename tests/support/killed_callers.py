"""Processes that submit flows in their own transactions and are killed.

For 10,000 submissions: `python -m tests.support.killed_callers URL 10000 40` with the URL of an
empty database.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa

from tests.support import callers, python
from wbengine.persistence import backends as stores
from wbengine.persistence.backends._sql import tables

REPOSITORY = Path(__file__).resolve().parents[2]
#: Part of the transactions that are rolled back.
ROLLED_BACK = 0.3


def submit_until_killed(url: str, kind: str, seed: int) -> None:
    """Submit flows, each with an order of the same transaction, and print a line for each."""
    choices = random.Random(seed)
    with stores.backend(url) as store, callers.opened(kind, url) as connection:
        place, caller = callers.Place(url, store), callers.Caller(connection)
        while True:
            is_first = choices.random() < 0.5
            if is_first:
                handle = place.submit(connection)
            mark = handle.id if is_first else f"after {choices.random()}"
            caller.add(mark)
            if not is_first:
                handle = place.submit(connection)
                caller.execute(f"UPDATE orders SET mark = '{handle.id}' WHERE mark = '{mark}'")
            (caller.rollback if choices.random() < ROLLED_BACK else caller.commit)()
            os.write(1, b".")


def run(url: str, submissions: int, kills: int) -> dict[str, int]:
    """Submit flows and kill the submitting process at random times. Return numbers of records."""
    with stores.backend(url) as store:
        place = callers.Place(url, store)
        with callers.caller("driver", url):
            pass
        transactions = 0
        kinds = itertools.cycle(callers.KINDS[url.partition(":")[0]])
        for kills_left in range(kills, 0, -1):
            seed = random.randrange(1_000_000)
            process = python.start(
                ["-m", "tests.support.killed_callers", url, next(kinds), str(seed)],
                cwd=REPOSITORY, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            with process, process.stdout as output:
                share = (submissions - transactions) / kills_left
                is_last = kills_left == 1
                lines = round(share if is_last else share * random.uniform(0.5, 1.5))
                transactions += len(output.read(lines))
                process.kill()
                transactions += len(output.read())
        with callers.opened("driver", url) as connection, place.store.engine.begin() as own:
            orders = set(callers.Caller(connection).orders())
            flows = set(own.scalars(sa.select(tables.FLOWS.c.uuid)))
            jobs = set(own.scalars(sa.select(tables.JOBS.c.uuid)))
            books = own.scalar(sa.select(sa.func.count()).select_from(tables.BOOKS))
    return {
        "transactions": transactions,
        "commits": len(orders),
        "flows without a commit": len(flows - orders),
        "commits without a flow": len(orders - flows),
        "commits without a job": len(orders - jobs),
        "jobs without a commit": len(jobs - orders),
        "books without a flow": int(books or 0) - len(flows),
    }


if __name__ == "__main__":
    if sys.argv[2].isdigit():
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            submit_until_killed(sys.argv[1], sys.argv[2], int(sys.argv[3]))
