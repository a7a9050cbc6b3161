"""One run of the census, from the choice of engine to the record of what happened."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wbengine import engines, exceptions, states
from wbengine.examples.census import flow, tasks
from wbengine.examples.census.fleet import TOPIC, Fleet, Unavailable
from wbengine.examples.census.options import Options
from wbengine.examples.census.progress import Board
from wbengine.examples.census.record import Record
from wbengine.examples.census.sources import Group, Tree
from wbengine.invocation import LOCAL
from wbengine.types.failure import Failure
from wbengine.views import flow as views
from wbengine.views.flow import FlowView

#: The page, beside `tasks.REPORT`.
PAGE: Final = "census.html"
SERIAL: Final = "serial"
PARALLEL: Final = "parallel"
WORKER_BASED: Final = "worker-based"


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that failed, who ran it, and what it raised."""

    task: str
    worker: str
    failure: Failure


@dataclass(eq=False)
class FlowFailed(Exception):
    """The flow did not succeed; `state` says how it ended (REVERTED if all was undone)."""

    state: str | None
    failed: list[Failed] = field(default_factory=list)
    error: Exception | None = None


def run(
    options: Options,
    tree: Tree,
    groups: Sequence[Group],
    board: Board,
    finish: Callable[[Record], None],
) -> Record:
    """Take the census, write the report, `finish`.

    A run that does not succeed leaves nothing in the output folder, also when it is interrupted,
    be it while it finishes.

    :raises FlowFailed: the flow did.
    :raises Unavailable: there is nobody to run it.
    """
    made = _missing_folders(options.out / tasks.PARTIAL)
    before = _reports(options.out)
    try:
        with _engine(options, tree, groups, board) as engine:
            seconds = _watch(engine, board)
            view = _look(engine, board)
        census = json.loads((options.out / tasks.REPORT).read_text("utf-8"))
        record = Record(options.engine, seconds, view, census)
        finish(record)
    except BaseException as error:
        if not (isinstance(error, FlowFailed) and error.state == states.REVERTED):
            _sweep(options.out, groups, made, before)
        raise
    return record


@contextlib.contextmanager
def _engine(options: Options, tree: Tree, groups: Sequence[Group], board: Board) -> Iterator[Any]:
    """The engine of the kind asked for, ready to run the flow."""
    census = flow.build(groups, options.fail)
    for node, _ in census.iter_nodes():
        node.notifier.register(tasks.BEGUN, _begun, kwargs={"board": board, "name": node.name})
    store = flow.store(tree, str(options.out))
    if options.engine == SERIAL:
        yield engines.load(census, store=store, engine=SERIAL)
    elif options.engine == PARALLEL:
        # Parsing keeps the interpreter busy: threads would wait for each other.
        yield engines.load(
            census,
            store=store,
            engine=PARALLEL,
            executor="processes",
            max_workers=options.workers,
        )
    else:
        with Fleet(options.workers) as fleet, _remote_executor(fleet) as executor:
            board.say(f"waiting for {options.workers} workers")
            fleet.wait(executor)
            yield engines.load(census, store=store, engine=WORKER_BASED, executor=executor)


@contextlib.contextmanager
def _remote_executor(fleet: Fleet) -> Iterator[Any]:
    # Not on top: the other kinds of engine need no broker.
    from wbengine.engines.worker_based.executor import WorkerTaskExecutor

    executor = WorkerTaskExecutor(str(uuid.uuid4()), fleet.exchange, [TOPIC], url=fleet.url)
    try:
        executor.start()
        yield executor
    except exceptions.TransportFailure as error:
        raise Unavailable(f"no broker at {fleet.url}: {error}") from error
    finally:
        executor.stop()


def _watch(engine: Any, board: Board) -> float:
    """Run the flow; returns the seconds it took."""
    failed: list[Failed] = []

    def receive(state: str, details: dict[str, Any]) -> None:
        board.atom(state, details)
        result = details.get("result")
        if state == states.FAILURE and isinstance(result, Failure):
            name, worker = details["task_name"], details.get("worker")
            if worker is None or worker == LOCAL:
                place = board.place(name)
                worker = "an unknown worker" if place is None else f"process {place}"
            failed.append(Failed(name, worker, result))

    engine.atom_notifier.register(engine.atom_notifier.ANY, receive)
    board.begin()
    started = time.monotonic()
    try:
        engine.run()
    except exceptions.TransportFailure:
        raise
    except Exception as error:
        raise FlowFailed(engine.storage.get_flow_state(), failed, error) from error
    return time.monotonic() - started


def _begun(_: str, board: Board, name: str, details: dict[str, Any]) -> None:
    board.begun(name, details["pid"])


def _look(engine: Any, board: Board) -> FlowView:
    """How the flow ran; on this host the process is the worker."""
    detail = engine.storage.flow_detail.copy()
    for atom in detail:
        if atom.worker == LOCAL:
            atom.worker = f"process {board.place(atom.name)}"
    return views.view(detail, engine.compilation.outline, now=time.time())


def _missing_folders(folder: Path) -> list[Path]:
    return [path for path in [*reversed(folder.parents), folder] if not path.exists()]


def _reports(out: Path) -> dict[str, tuple[int, int]]:
    """The reports that are there, and which ones: those of an earlier run, or of this one."""
    found: dict[str, tuple[int, int]] = {}
    for name in (tasks.REPORT, PAGE):
        with contextlib.suppress(OSError):
            stat = (out / name).stat()
            found[name] = stat.st_ino, stat.st_mtime_ns
    return found


def _sweep(
    out: Path,
    groups: Sequence[Group],
    made: Sequence[Path],
    before: Mapping[str, tuple[int, int]],
) -> None:
    """Remove what was written and could not be reverted any more: the run was cut short."""
    for name, which in _reports(out).items():
        if before.get(name) != which:
            with contextlib.suppress(OSError):
                (out / name).unlink()
    partial = out / tasks.PARTIAL
    for name in [tasks.REPORT, *(f"{group.name}.json" for group in groups)]:
        with contextlib.suppress(OSError):
            (partial / name).unlink()
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()
