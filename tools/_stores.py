"""What it costs to keep records: our backends and levels of durability, TaskFlow's backends, DBOS.

The flow that is measured is the same program for us and TaskFlow: the modules have the same names.
The first half of this module is what a measuring process runs, with nothing but such a package.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEVELS = ("each", "batch", "end")
#: `tasks` at once, one after the other; or so many flows, each a chain of three.
SHAPES = ("wide", "chain", "flows")
STEPS_OF_A_FLOW = 3
DBOS = ("dbos>=3.4,<4", "psycopg[binary]>=3.1")
#: Those that need a server, and what starts one.
SERVERS = {"postgresql": "postgresql", "mysql": "mariadb"}
#: What is promised: tasks/s of `batch`, and how many times TaskFlow's sqlite `each` is.
LEAST_BATCH = 3000
LEAST_TIMES = 5
LEAST_TIMES_DBOS = {"sqlite": 5, "postgresql": 3}


def measure(what: dict[str, Any]) -> dict[str, float]:
    """Run tasks that do nothing, in this process, with the package that is named."""
    package = what["package"]
    if package == "dbos":
        return _of_dbos(what)
    engines = importlib.import_module(f"{package}.engines")
    models = importlib.import_module(f"{package}.persistence.models")
    backends = importlib.import_module(f"{package}.persistence.backends")
    engines.run(_flow(package, "wide", 1), engine="serial")  # what is only imported when needed
    with backends.backend(what["conf"]) as backend:
        if what["shape"] == "flows":
            flow = _flow(package, "chain", STEPS_OF_A_FLOW)
            began = time.perf_counter()
            for _ in range(what["tasks"]):
                engines.run(flow, backend=backend, engine="serial", **what["options"])
            return _figures(began, began)
        flow = _flow(package, what["shape"], what["tasks"])
        with contextlib.closing(backend.get_connection()) as connection:
            if what.get("again"):
                return _again(engines, connection, backend, flow)
        gc.collect()
        began = time.perf_counter()
        engine = engines.load(
            flow, book=models.LogBook("bench"), backend=backend, engine="serial", **what["options"]
        )
        engine.compile()
        engine.prepare()
        engine.validate()
        loaded = time.perf_counter()
        engine.run()
        found = _figures(began, loaded)
        assert engine.storage.get_flow_state() == "SUCCESS"
    return found


def _figures(began: float, loaded: float) -> dict[str, float]:
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"load": loaded - began, "run": ended - loaded, "all": ended - began, "peak_mb": peak}


def _of_dbos(what: dict[str, Any]) -> dict[str, float]:
    """The same by DBOS: a workflow that calls steps, one after the other."""
    dbos = importlib.import_module("dbos").DBOS
    url = what["conf"]["connection"]
    dbos(config={"name": "bench", "system_database_url": url, "run_admin_server": False,
                 "log_level": "ERROR"})  # fmt: skip

    @dbos.step()  # type: ignore[untyped-decorator, unused-ignore]
    def nothing(number: int) -> None:
        return None

    @dbos.workflow()  # type: ignore[untyped-decorator, unused-ignore]
    def chain(steps: int) -> None:
        for number in range(steps):
            nothing(number)

    dbos.launch()
    try:
        chain(1)  # what is only imported when needed
        gc.collect()
        began = time.perf_counter()
        if what["shape"] == "flows":
            for _ in range(what["tasks"]):
                chain(STEPS_OF_A_FLOW)
        else:
            chain(what["tasks"])
        return _figures(began, began)
    finally:
        dbos.destroy()


def _again(engines: Any, connection: Any, backend: Any, flow: Any) -> dict[str, float]:
    """What it costs to find the records of a flow that has ended, and to go on from them."""
    gc.collect()
    began = time.perf_counter()
    ((detail,),) = connection.get_logbooks()
    read = time.perf_counter()
    engines.load(flow, flow_detail=detail, backend=backend, engine="serial").run()
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"read": read - began, "resume": ended - read, "peak_mb": peak}


def _flow(package: str, shape: str, tasks: int) -> Any:
    task = importlib.import_module(f"{package}.task")
    pattern = "unordered_flow" if shape == "wide" else "linear_flow"
    patterns = importlib.import_module(f"{package}.patterns.{pattern}")

    class Nothing(task.Task):  # type: ignore[name-defined, misc]
        def execute(self) -> None:
            return None

    return patterns.Flow(shape).add(*(Nothing(name=f"task-{n}") for n in range(tasks)))


# The process that measures those. ----------------------------------------------------------------


def measured(python: str, **what: Any) -> dict[str, float]:
    """`measure` in a fresh process of the interpreter `python`."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    told = subprocess.run(
        [python, __file__, json.dumps(what)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def served(kinds: list[str], until: contextlib.ExitStack) -> dict[str, Any]:
    """The servers that some of `kinds` need, by kind, until then; those that are to be had."""
    found = {}
    for kind in kinds:
        if kind in SERVERS:
            from tests.support import servers

            try:
                found[kind] = until.enter_context(getattr(servers, SERVERS[kind])())
            except servers.ServerMissing as error:
                print(f"not measured: {error}")
    return found


@contextlib.contextmanager
def kept(kind: str, folder: str | None, servers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The configuration of a fresh backend of this kind."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as place:
        if kind == "dir":
            yield {"connection": "dir", "path": f"{place}/records"}
        elif kind == "sqlite":
            yield {"connection": f"sqlite:///{place}/records.db"}
        elif kind in servers:
            with servers[kind].database() as url:
                yield {"connection": url}
        else:
            yield {"connection": kind}


class Table:
    """The rows of one comparison, printed as they are measured."""

    def __init__(self, options: Any, servers: dict[str, Any]) -> None:
        self._options = options
        self._servers = servers
        self._tasks = options.tasks[0]
        #: Tasks/s of load and run, by package, kind and level.
        self.rates: dict[tuple[str, str, str], float] = {}
        what = "flows" if options.shape == "flows" else "tasks"
        shape = f"of {STEPS_OF_A_FLOW} steps" if options.shape == "flows" else options.shape
        print(
            f"{self._tasks:,} {what}, {shape}, serial; best of {options.repeat}"
            f"\n{'':<10}{'store':<12}{'level':<7}{'load s':>9}{'run s':>9}{f'{what}/s':>10}"
            f"{'TaskFlow x':>12}"
        )

    def row(self, package: str, python: str, kind: str, level: str = "") -> None:
        """Measure one backend: fresh processes on fresh stores, the fastest of them."""
        options, runs = self._options, []
        # TaskFlow's take half a minute each, and are not what is to be judged.
        for _ in range(options.repeat if package == "wbengine" else 1):
            with kept(kind, options.folder, self._servers) as conf:
                runs.append(
                    measured(
                        python, package=package, conf=conf, shape=options.shape, tasks=self._tasks,
                        options={"durability": level} if level else {},
                    )
                )  # fmt: skip
        one = min(runs, key=lambda run: run["all"])
        rate = self.rates[package, kind, level] = self._tasks / one["all"]
        base = self.base
        times = "" if base is None else f"{rate / base:>12,.1f}"
        print(
            f"{package:<10}{kind:<12}{level:<7}{one['load']:>9.3f}{one['run']:>9.3f}{rate:>10,.0f}"
            f"{times}",
            flush=True,
        )

    @property
    def base(self) -> float | None:
        """What the others are compared with."""
        return self.rates.get(("taskflow", "sqlite", ""))


def compare(options: Any, peers: Mapping[str, str], servers: dict[str, Any]) -> bool:
    """Print the table of all stores, and whether they do what is promised.

    `peers` are the interpreters of other packages, by name.
    """
    table = Table(options, servers)
    for kind in ("sqlite", "dir") if "taskflow" in peers and options.shape != "flows" else ():
        table.row("taskflow", peers["taskflow"], kind)
    for kind in ("sqlite", "postgresql") if "dbos" in peers and options.shape != "wide" else ():
        if kind == "sqlite" or kind in servers:
            table.row("dbos", peers["dbos"], kind)
    for kind in options.stores:
        if kind in SERVERS and kind not in servers:
            continue
        for level in LEVELS:
            table.row("wbengine", sys.executable, kind, level)
    return _judged(table.rates, table.base, options.shape)


def grow(options: Any, kind: str, servers: dict[str, Any]) -> None:
    """Print what a run costs on one store as flows grow, and what it costs to resume them."""
    print(
        f"{kind}, durability={options.durability}, {options.shape}, serial"
        f"\n{'tasks':>9}{'load+run s':>12}{'us/task':>9}{'peak MB':>9}{'growth':>8}"
        f"{'read s':>9}{'resume s':>10}{'peak MB':>9}"
    )
    before: tuple[int, float] | None = None
    for tasks in options.tasks:
        given = {"package": "wbengine", "shape": options.shape, "tasks": tasks}
        given["options"] = {"durability": options.durability}
        runs = []
        for _ in range(options.repeat):
            with kept(kind, options.folder, servers) as conf:
                run = measured(sys.executable, conf=conf, **given)
                later = measured(sys.executable, conf=conf, again=True, **given)
                runs.append((run["all"], run["peak_mb"], later))
        took, peak, later = min(runs, key=lambda run: run[0])
        growth = ""
        if before is not None:
            growth = f"{math.log(took / before[1]) / math.log(tasks / before[0]):.2f}"
        print(
            f"{tasks:>9,}{took:>12.3f}{1e6 * took / tasks:>9.1f}{peak:>9.0f}{growth:>8}"
            f"{later['read']:>9.3f}{later['resume']:>10.3f}{later['peak_mb']:>9.0f}",
            flush=True,
        )
        before = (tasks, took)


def _judged(
    rates: dict[tuple[str, str, str], float], base: float | None, shape: str = "wide"
) -> bool:
    good = True
    for kind in ("sqlite", "dir"):
        batch, each = (rates.get(("wbengine", kind, level)) for level in ("batch", "each"))
        if batch is not None and shape != "flows":
            good &= _say(batch >= LEAST_BATCH, f"{kind}, batch: {batch:,.0f} tasks/s"
                         f" (at least {LEAST_BATCH:,})")  # fmt: skip
        if each is not None and base is not None:
            good &= _say(each >= LEAST_TIMES * base, f"{kind}, each: {each / base:.1f} times"
                         f" TaskFlow's sqlite (at least {LEAST_TIMES})")  # fmt: skip
    for kind, times in LEAST_TIMES_DBOS.items():
        ours, theirs = rates.get(("wbengine", kind, "each")), rates.get(("dbos", kind, ""))
        if ours is not None and theirs is not None:
            good &= _say(ours >= times * theirs, f"{kind}, each: {ours / theirs:.1f} times DBOS"
                         f" (at least {times})")  # fmt: skip
    if base is None:
        print("not compared with TaskFlow")
    return good


def _say(good: bool, text: str) -> bool:
    print(f"{'passed' if good else 'FAILED'}: {text}")
    return good


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
