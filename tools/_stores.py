"""Benchmark of stores: wbengine's stores and levels of durability, TaskFlow's backends, and DBOS.

The measured flow is the same program for wbengine and TaskFlow, whose modules have the same names.
The first half of this module runs in the measuring process, which has only one of these packages.
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
#: Shapes: `tasks` in parallel, `tasks` in sequence, `tasks` flows with a chain of three tasks, or
#: a workflow with `tasks` steps in sequence.
SHAPES = ("wide", "chain", "flows", "workflow", "async-workflow")
STEPS_OF_A_FLOW = 3
#: Stores that need a server -> the function that starts it.
SERVERS = {"postgresql": "postgresql", "mysql": "mariadb"}
#: Targets: tasks/s of `batch`, and multiples of TaskFlow's sqlite and of DBOS for `each`.
MIN_BATCH_RATE = 3000
MIN_RATIO = 5
MIN_RATIO_DBOS = {"sqlite": 5, "postgresql": 3}
#: The same for workflows, which cost more than flows.
MIN_WORKFLOW_BATCH_RATE = 1500
MIN_WORKFLOW_RATIO_DBOS = {"sqlite": 3, "postgresql": 2}


def measure(request: dict[str, Any]) -> dict[str, float]:
    """Run empty tasks in this process with the given package."""
    package = request["package"]
    if package == "dbos":
        return _measure_dbos(request)
    engines = importlib.import_module(f"{package}.engines")
    models = importlib.import_module(f"{package}.persistence.models")
    backends = importlib.import_module(f"{package}.persistence.backends")
    # loads modules that are imported on first use
    engines.run(_flow(package, "wide", 1), engine="serial")
    with backends.backend(request["conf"]) as backend:
        if request["shape"] == "flows":
            flow = _flow(package, "chain", STEPS_OF_A_FLOW)
            began = time.perf_counter()
            for _ in range(request["tasks"]):
                engines.run(flow, backend=backend, engine="serial", **request["options"])
            return _figures(began, began)
        flow = _flow(package, request["shape"], request["tasks"])
        with contextlib.closing(backend.get_connection()) as connection:
            if request.get("again"):
                return _measure_resuming(engines, connection, backend, flow)
        gc.collect()
        began = time.perf_counter()
        engine = engines.load(
            flow,
            book=models.LogBook("bench"),
            backend=backend,
            engine="serial",
            **request["options"],
        )
        engine.compile()
        engine.prepare()
        engine.validate()
        loaded = time.perf_counter()
        engine.run()
        result = _figures(began, loaded)
        assert engine.storage.get_flow_state() == "SUCCESS"
    return result


def _figures(began: float, loaded: float) -> dict[str, float]:
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"load": loaded - began, "run": ended - loaded, "all": ended - began, "peak_mb": peak}


def _measure_dbos(request: dict[str, Any]) -> dict[str, float]:
    """Measure the same with DBOS: a workflow that calls steps in sequence."""
    dbos = importlib.import_module("dbos").DBOS
    url = request["conf"]["connection"]
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
        chain(1)  # loads modules that are imported on first use
        gc.collect()
        began = time.perf_counter()
        if request["shape"] == "flows":
            for _ in range(request["tasks"]):
                chain(STEPS_OF_A_FLOW)
        else:
            chain(request["tasks"])
        return _figures(began, began)
    finally:
        dbos.destroy()


def _measure_resuming(engines: Any, connection: Any, backend: Any, flow: Any) -> dict[str, float]:
    """Measure reading and resuming a flow that has ended."""
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
    if shape in ("workflow", "async-workflow"):
        return _workflow(task, shape, tasks)
    pattern = "unordered_flow" if shape == "wide" else "linear_flow"
    patterns = importlib.import_module(f"{package}.patterns.{pattern}")

    class Nothing(task.Task):  # type: ignore[name-defined, misc]
        def execute(self) -> None:
            return None

    return patterns.Flow(shape).add(*(Nothing(name=f"task-{n}") for n in range(tasks)))


def _workflow(task: Any, shape: str, tasks: int) -> Any:
    @task.task  # type: ignore[untyped-decorator, unused-ignore]
    def nothing(number: int) -> None:
        return None

    @task.workflow  # type: ignore[untyped-decorator, unused-ignore]
    def sequence(steps: Any) -> None:
        for number in range(tasks):
            steps.run(nothing, number)

    @task.workflow  # type: ignore[untyped-decorator, unused-ignore]
    async def async_sequence(steps: Any) -> None:
        for number in range(tasks):
            await steps.run(nothing, number)

    return sequence if shape == "workflow" else async_sequence


# -- The process that starts the measuring processes -------------------------------------------


def measure_in_process(python: str, **request: Any) -> dict[str, float]:
    """Call `measure` in a new process of the interpreter `python`."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    output = subprocess.run(
        [python, __file__, json.dumps(request)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def start_servers(kinds: list[str], until: contextlib.ExitStack) -> dict[str, Any]:
    """Start the servers that some of `kinds` need and return those that are available, by kind."""
    started = {}
    for kind in kinds:
        if kind in SERVERS:
            from tests.support import servers

            try:
                started[kind] = until.enter_context(getattr(servers, SERVERS[kind])())
            except servers.ServerMissing as error:
                print(f"not measured: {error}")
    return started


@contextlib.contextmanager
def new_store(kind: str, folder: str | None, servers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configuration of a new store of this kind."""
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
    """The rows of a comparison, printed as they are measured."""

    def __init__(self, options: Any, servers: dict[str, Any]) -> None:
        self._options = options
        self._servers = servers
        self._tasks = options.tasks[0]
        #: (package, kind, level) -> tasks/s, including loading.
        self.rates: dict[tuple[str, str, str], float] = {}
        unit = "flows" if options.shape == "flows" else "tasks"
        shape = f"of {STEPS_OF_A_FLOW} steps" if options.shape == "flows" else options.shape
        print(
            f"{self._tasks:,} {unit}, {shape}, serial; best of {options.repeat}"
            f"\n{'':<10}{'store':<12}{'level':<7}{'load s':>9}{'run s':>9}{f'{unit}/s':>10}"
            f"{'TaskFlow x':>12}"
        )

    def row(self, package: str, python: str, kind: str, level: str = "") -> None:
        """Measure a store with new processes and new stores, and print the fastest run."""
        options, runs = self._options, []
        # TaskFlow's runs take half a minute each and are only the reference.
        for _ in range(options.repeat if package == "wbengine" else 1):
            with new_store(kind, options.folder, self._servers) as conf:
                runs.append(
                    measure_in_process(
                        python, package=package, conf=conf, shape=options.shape, tasks=self._tasks,
                        options={"durability": level} if level else {},
                    )
                )  # fmt: skip
        fastest = min(runs, key=lambda run: run["all"])
        rate = self.rates[package, kind, level] = self._tasks / fastest["all"]
        base = self.base
        times = "" if base is None else f"{rate / base:>12,.1f}"
        print(
            f"{package:<10}{kind:<12}{level:<7}{fastest['load']:>9.3f}{fastest['run']:>9.3f}{rate:>10,.0f}"
            f"{times}",
            flush=True,
        )

    @property
    def base(self) -> float | None:
        """The reference rate, or None."""
        return self.rates.get(("taskflow", "sqlite", ""))


def compare(options: Any, peers: Mapping[str, str], servers: dict[str, Any]) -> bool:
    """Print the table of all stores and return whether all targets are met.

    :param peers: name of a package -> its interpreter.
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
    return _are_targets_met(table.rates, table.base, options.shape)


def grow(options: Any, kind: str, servers: dict[str, Any]) -> None:
    """Print the costs of running and resuming flows of growing size on one store."""
    print(
        f"{kind}, durability={options.durability}, {options.shape}, serial"
        f"\n{'tasks':>9}{'load+run s':>12}{'us/task':>9}{'peak MB':>9}{'growth':>8}"
        f"{'read s':>9}{'resume s':>10}{'peak MB':>9}"
    )
    before: tuple[int, float] | None = None
    for tasks in options.tasks:
        request = {"package": "wbengine", "shape": options.shape, "tasks": tasks}
        request["options"] = {"durability": options.durability}
        runs = []
        for _ in range(options.repeat):
            with new_store(kind, options.folder, servers) as conf:
                run = measure_in_process(sys.executable, conf=conf, **request)
                later = measure_in_process(sys.executable, conf=conf, again=True, **request)
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


def _are_targets_met(
    rates: dict[tuple[str, str, str], float], base: float | None, shape: str = "wide"
) -> bool:
    good, is_workflow = True, "workflow" in shape
    min_batch_rate = MIN_WORKFLOW_BATCH_RATE if is_workflow else MIN_BATCH_RATE
    for kind in ("sqlite", "dir"):
        batch, each = (rates.get(("wbengine", kind, level)) for level in ("batch", "each"))
        if batch is not None and shape != "flows":
            good &= _report_target(
                batch >= min_batch_rate,
                f"{kind}, batch: {batch:,.0f} tasks/s (at least {min_batch_rate:,})",
            )
        if each is not None and base is not None:
            good &= _report_target(
                each >= MIN_RATIO * base,
                f"{kind}, each: {each / base:.1f} times TaskFlow's sqlite (at least {MIN_RATIO})",
            )
    for kind, times in (MIN_WORKFLOW_RATIO_DBOS if is_workflow else MIN_RATIO_DBOS).items():
        ours, theirs = rates.get(("wbengine", kind, "each")), rates.get(("dbos", kind, ""))
        if ours is not None and theirs is not None:
            good &= _report_target(
                ours >= times * theirs,
                f"{kind}, each: {ours / theirs:.1f} times DBOS (at least {times})",
            )
    if base is None:
        print("not compared with TaskFlow")
    return good


def _report_target(good: bool, text: str) -> bool:
    print(f"{'passed' if good else 'FAILED'}: {text}")
    return good


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
