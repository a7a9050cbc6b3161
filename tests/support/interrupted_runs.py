"""Interrupts runs of engines in this process, and checks after each run that nothing is left
behind.

    python -m tests.support.interrupted_runs serial|parallel FOLDER --points NAME ... [--part I/N]
    python -m tests.support.interrupted_runs serial|parallel FOLDER --signals COUNT [--seed SEED]

With `--points`, the program interrupts once at each instruction of the functions whose names or
files contain one of these texts, or at every Nth instruction from the Ith on. Without a text, it
includes all of wbengine and the modules of the standard library that it uses. With `--signals`,
another process sends COUNT SIGINTs at random times.

The program keeps the traceback of each interrupt, as a REPL does. Then it checks that another
process can write to the store, that no lease remains, that the engine can finish its flow in this
thread, and that another engine can run another flow in another thread. The last line of the output
is a JSON object with the counts and the problems.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Final

from tests.support import python
from tests.support.interrupted import interrupt_at, record
from wbengine import engines, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import _lease_renewer, backends, models

#: Seconds after which a run counts as hung.
LIMIT: Final = 60.0
#: Traced modules other than wbengine.
_LIBRARY: Final = ("contextlib.py", "functools.py", "queue.py", "threading.py")

#: Writes to the store, or sends SIGINT after the given seconds. It answers each line with one
#: line.
_HELPER: Final = """
import os, signal, sqlite3, sys, time
path = sys.argv[1]
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin:
    try:
        if line.startswith("write"):
            connection = sqlite3.connect(path, timeout=1.0, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE wbe_flowdetails SET name = name")
            connection.execute("COMMIT")
            connection.close()
        else:
            time.sleep(float(line))
            os.kill(os.getppid(), signal.SIGINT)
        print("done", flush=True)
    except Exception as error:
        print(repr(error), flush=True)
"""


class Step(task.Task):
    def execute(self) -> str:
        return self.name

    def revert(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


class FailsOnce(Step):
    """Fails the first time in each flow."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._has_failed = False

    def execute(self) -> str:
        if not self._has_failed:
            self._has_failed = True
            raise LookupError(self.name)
        return self.name


def make_flow() -> linear_flow.Flow:
    parts = unordered_flow.Flow("parts").add(Step("b"), Step("c"))
    steps = (Step("a", provides="a"), parts, FailsOnce("d"), Step("e"))
    return linear_flow.Flow("flow", retry.Times(9, "retry")).add(*steps)


class Trials:
    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        path = os.path.join(folder, "store.db")
        self.backend = backends.fetch(f"sqlite:///{path}")
        with contextlib.closing(self.backend.get_connection()) as connection:
            connection.upgrade()
        self.interrupted = self.finished = self._threads = 0
        self.problems: dict[str, list[str]] = {}
        self._helper = python.start(
            ["-c", _HELPER, path],
            real=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> None:
        assert self._helper.stdin is not None
        print(line, file=self._helper.stdin, flush=True)

    def answer(self) -> str:
        assert self._helper.stdout is not None
        return self._helper.stdout.readline().strip()

    def close(self) -> None:
        assert self._helper.stdin is not None
        self._helper.stdin.close()
        self._helper.wait(LIMIT)

    def new_engine(self) -> Any:
        book, detail = models.LogBook("book"), models.FlowDetail("flow")
        book.add(detail)
        with contextlib.closing(self.backend.get_connection()) as connection:
            connection.save_logbook(book)
        return engines.load(make_flow(), flow_detail=detail, backend=self.backend, engine=self.kind)

    def _report(self, problem: str, where: str) -> None:
        print(f"{where}: {problem}", flush=True)
        self.problems.setdefault(problem, []).append(where)

    def attempt(self, run: Callable[[Callable[[], Any]], Any], where: str) -> None:
        """Call `run(engine.run)`, which is interrupted, and check the state afterwards."""
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        print(where, flush=True)  # context for the traceback of a hang
        engine = self.new_engine()
        try:
            run(engine.run)
            self.finished += 1
        except KeyboardInterrupt as interrupt:
            self.interrupted += 1
            sys.last_value = interrupt  # like a REPL: it keeps all objects of the run alive
        except BaseException as error:
            self._report(f"interrupted run raised {error!r:.200}", where)
        self._check(engine, where)
        if (grown := threading.active_count()) > self._threads:
            print(f"{where}: {grown - self._threads} more threads", flush=True)
            self._threads = grown
        faulthandler.cancel_dump_traceback_later()

    def _check(self, engine: Any, where: str) -> None:
        self.ask("write")
        if (answer := self.answer()) != "done":
            self._report(f"another process cannot write: {answer}", where)
        uuid = engine.storage.flow_uuid
        with contextlib.closing(self.backend.get_connection()) as connection:
            if (lease := connection.get_lease(uuid)) is not None:
                self._report("the lease was not given back", f"{where} {lease}")
        store = _lease_renewer.of_process()._stores.get(self.backend)
        if store is not None and any(held.lease.flow == uuid for held in store._held_leases):
            self._report("the lease is still renewed", where)
        try:
            if engine.storage.get_flow_state() == states.SUCCESS:
                engine.reset()
            engine.run()
        except BaseException as error:
            self._report(f"next run raised {error!r:.200}", where)
        with contextlib.closing(self.backend.get_connection()) as connection:
            stored = connection.get_flow_details(uuid)
        end_states = {stored.state, *(atom.state for atom in stored)}
        if end_states != {states.SUCCESS}:
            self._report(f"the store has {end_states}", where)
        results: list[BaseException | None] = []

        def run_another() -> None:
            try:
                self.new_engine().run()
                results.append(None)
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=run_another, daemon=True)
        thread.start()
        thread.join(LIMIT / 2)
        if not results:
            self._report("a run in another thread hangs", where)
            faulthandler.dump_traceback(all_threads=True)
        elif results[0] is not None:
            self._report(f"a run in another thread raised {results[0]!r:.200}", where)

    # -- interrupts -------------------------------------------------------------------------------

    def at_points(self, wanted: Sequence[str], part: str, rng: random.Random | None) -> None:
        def is_wanted(code: CodeType) -> bool:
            name = f"{code.co_filename}:{getattr(code, 'co_qualname', code.co_name)}"
            if wanted:
                return any(text in name for text in wanted)
            return "/wbengine/" in name or code.co_filename.endswith(_LIBRARY)

        counts = record(self.new_engine().run, is_wanted)
        first, every = map(int, part.split("/"))
        for point in list(counts)[first::every]:
            nth = 1 if rng is None else rng.randint(1, counts[point])
            self.attempt(lambda run, p=point, n=nth: interrupt_at(p, run, n), f"{point} ({nth})")

    def by_signals(self, count: int, rng: random.Random) -> None:
        seconds = min(self._seconds() for _ in range(3))
        while self.interrupted < count and sum(map(len, self.problems.values())) < count:
            delay = rng.uniform(0.0, seconds)
            self.attempt(lambda run, d=delay: self._signalled(run, d), f"after {delay:.5f} s")

    def _seconds(self) -> float:
        engine, began = self.new_engine(), time.perf_counter()
        engine.run()
        return time.perf_counter() - began

    def _signalled(self, run: Callable[[], Any], delay: float) -> None:
        is_over = False
        try:
            self.ask(str(delay))
            run()
            is_over = True
            # Python can drop the exception, for example in a callback of a weak reference.
            select.select([self._helper.stdout], [], [], LIMIT)
            time.sleep(0.01)
        except KeyboardInterrupt:
            if not is_over:
                raise
        finally:
            self.answer()  # follows the only signal


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("folder")
    parser.add_argument("--points", nargs="*")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--signals", type=int)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trials = Trials(args.kind, args.folder)
    for _ in range(3):
        trials.new_engine().run()
    rng = None if args.seed is None else random.Random(args.seed)
    if args.signals is not None:
        trials.by_signals(args.signals, rng or random.Random())
    else:
        trials.at_points(args.points or (), args.part, rng)
    trials.close()
    report = {
        "interrupted": trials.interrupted,
        "finished": trials.finished,
        "threads": threading.active_count(),
        "problems": trials.problems,
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
