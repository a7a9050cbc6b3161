"""One incarnation of an engine: it reads the stored flows, runs them to their end, and deletes
them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crashing import audit, children, flows, judging, snapshots, workers
from tests.seams import stores
from wbengine import engines as loading
from wbengine import exceptions, operations, states
from wbengine.persistence import backends, base, models
from wbengine.signals import Signal

ENDED = (states.SUCCESS, states.REVERTED)
SIGNAL = Signal("s", "1", 1.0)
PAUSED = "tests.crashing.tasks.Paused"
PAUSE_SECONDS = 0.3


@dataclass(frozen=True)
class Work:
    """The work of all incarnations: the flows of one book in a store."""

    folder: Path
    conf: Mapping[str, Any] | str
    options: Mapping[str, Any]
    flows: tuple[str, ...]
    nap: float = 0.0
    destroy: bool = True
    #: Number of flows that run at the same time, each in a thread.
    threads: int = 1
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def book(self) -> str:
        return f"book-{self.folder.name}"

    def uuid(self, flow: str) -> str:
        return f"{flow}-{self.folder.name}"

    def path(self, what: str, flow: str = "") -> Path:
        return self.folder / (f"{what}-{flow}" if flow else what)

    def effects(self, flow: str) -> list[str]:
        return audit.read(self.path("audit", flow))


def live(work: Work, number: int, kill: children.Kill | None = None) -> int:
    """Start the `number`-th engine process and return its pid.

    It writes `found-<number>` before its first change, `end` after all flows ended, and
    `rest-<number>` and `hits-<number>` at the end.
    """

    def run() -> None:
        hits = children.Hits(kill)
        hits.install()
        _live(work, number)
        hits.save()
        write_json(work.path(f"rest-{number}"), hits.rest)
        write_json(work.path(f"hits-{number}"), hits.counts)

    return children.fork(run, work.path(f"engine-{number}.log"))


def end(work: Work) -> dict[str, snapshots.Snapshot] | None:
    """Return the final records of all flows, if they ended."""
    return read_json(work.path("end"))


def cuts(work: Work, number: int, effects: Mapping[str, int]) -> dict[str, judging.Cut]:
    """Return the records that the `number`-th process read (none if it was killed earlier), by
    flow.

    `effects` are the numbers of effects at the preceding kill.
    """
    seen = read_json(work.path(f"found-{number}")) or {}
    return {flow: judging.Cut(*seen.get(flow, (None, 0)), count) for flow, count in effects.items()}


def hits(work: Work, number: int) -> dict[str, int]:
    return read_json(work.path(f"hits-{number}")) or {}


def rest(work: Work, number: int) -> float:
    """Return the maximum number of seconds between two saves in a process that finished."""
    seconds: float = read_json(work.path(f"rest-{number}"))
    return seconds


def _live(work: Work, number: int) -> None:
    limit(work.limits)
    with backends.backend(work.conf) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            if work.path("end").exists():
                _destroy_rest(work, connection)
                return
            known = _snapshots(work, connection)
            seen = {flow: (current, len(work.effects(flow))) for flow, current in known.items()}
            write_json(work.path(f"found-{number}"), seen)
            if len(known) <= len(work.flows):
                save(work, connection)
            wish(work, connection)
            touch(work, connection)
        _run_all(work, backend)
        with contextlib.closing(backend.get_connection()) as connection:
            connection.remove_pause(PAUSED)
        with backends.backend(work.conf) as other, other.get_connection() as connection:
            current = _snapshots(work, connection)
            # If a process was killed after its flow had ended, the lease has to expire.
            held = {flow: connection.get_lease(work.uuid(flow)) for flow in current}
            assert number or not any(held.values()), f"leases are left: {held}"
            write_json(work.path("end"), current)
        with contextlib.closing(backend.get_connection()) as connection:
            _destroy(work, connection)


def preload(kinds: Iterable[str] = ()) -> None:
    """Import the modules that engines import on demand, before any fork."""
    for name in [*_PARTS, *(name for kind in {*kinds, "memory"} for name in stores.MODULES[kind])]:
        importlib.import_module(name)


_PARTS = (
    "concurrent.futures.thread",
    "jsonschema",
    "kombu.common",
    "networkx",
    "wbengine.engines._local",
    "wbengine.engines.worker_based.engine",
    "wbengine.transports._folder.folder_broker",
)


def limit(limits: Mapping[str, Any]) -> None:
    """Set constants of modules ("module:NAME") to small values, to reach limits sooner."""
    for place, value in limits.items():
        module, _, name = place.partition(":")
        held = importlib.import_module(module)
        assert hasattr(held, name), f"{place} is gone"
        setattr(held, name, value)


def touch(work: Work, connection: base.Connection) -> None:
    """Update one atom of a flow that no engine runs, in a way that engines do not use."""
    atom = connection.get_atom_details(work.uuid("resting"))
    atom.meta["told"] = "touched"
    connection.update_atom_details(atom)


def wish(work: Work, connection: base.Connection) -> None:
    """Send a command and a signal to the owner of a flow that no engine runs.

    The command stays stored until an owner handled it, also if an owner was killed here.
    """
    flow, owner = work.uuid("bystander"), stores.owner()
    wanted = base.FlowCommand("suspend", reason="it is late", by="somebody", at=1.0)
    try:
        dead = connection.get_lease(flow)
        lease = connection.acquire_lease(
            flow, str(owner), 30.0, dead=None if dead is None else dead.epoch
        )
        assert connection.commands([flow]) == ({flow: wanted} if lease.command else {})
        connection.send_command(flow, wanted)
        assert connection.commands([flow]) == {flow: wanted}
        assert connection.put_signal(flow, SIGNAL)  # also if a killed process sent it before
        assert connection.signals([flow]) == {flow: [SIGNAL]}
        assert connection.end_lease(lease, wanted) is None
        assert not connection.commands([flow]), "a command that was handled is stored"
    finally:
        owner.end_run()


def save(work: Work, connection: base.Connection) -> None:
    """Save the book with its flows and one flow that is never run."""
    book = models.LogBook("crash", uuid=work.book)
    for flow in (*work.flows, "bystander"):
        detail = models.FlowDetail(flow, uuid=work.uuid(flow))
        detail.meta["told"] = flow
        book.add(detail)
    detail.add(models.TaskDetail("resting", uuid=work.uuid("resting")))
    connection.save_logbook(book)


def _snapshots(work: Work, connection: base.Connection) -> dict[str, snapshots.Snapshot]:
    by_flow = {}
    for flow in (*work.flows, "bystander"):
        with contextlib.suppress(exceptions.NotFound):
            by_flow[flow] = snapshots.take_whole(connection, work.uuid(flow))
    return by_flow


def _run_all(work: Work, backend: base.Backend) -> None:
    if work.threads == 1:
        for flow in work.flows:
            run(work, flow, backend)
        return
    with futures.ThreadPoolExecutor(work.threads) as pool:
        for done in [pool.submit(run, work, flow, backend) for flow in work.flows]:
            done.result()


def run(work: Work, flow: str, backend: base.Backend, pause: float | None = None) -> None:
    """Run one flow until it has ended.

    :param pause: seconds between two attempts to write, instead of the default.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(work.uuid(flow))
    if detail.state in ENDED:
        return
    engine = loading.load(
        flows.make(flow),
        store=flows.store(str(work.path("audit", flow)), work.nap),
        flow_detail=detail,
        backend=backend,
        **work.options,
    )
    if pause is not None:
        backend.write_pause = pause
    if flow == "main":
        operations.pause_tasks(backend, PAUSED, reason="kills", by="engine", seconds=PAUSE_SECONDS)
    if flow.startswith(("main", "stepped")):
        with contextlib.closing(backend.get_connection()) as connection:
            connection.put_signal(work.uuid(flow), Signal(flows.SIGNAL, "1", 1.0))
    for _ in range(flows.ROUNDS):
        try:
            engine.run()
        except (ValueError, exceptions.WorkerLost, exceptions.WrappedFailure):
            pass
        if engine.storage.get_flow_state() in ENDED or engine.storage.get_revert_failures():
            return  # a reversion that was lost with its worker stays failed
    raise AssertionError(f"{flow} does not come to its end: {engine.storage.get_flow_state()}")


def _destroy(work: Work, connection: base.Connection) -> None:
    if work.destroy:
        connection.destroy_flow(work.uuid("bystander"))
        write_json(work.path("destroyed"), "bystander")
        _destroy_rest(work, connection)


def _destroy_rest(work: Work, connection: base.Connection) -> None:
    """Destroy the book, and check that a destroyed flow leaves nothing."""
    if not work.destroy:
        return
    left = _snapshots(work, connection)
    if work.path("destroyed").exists():
        assert "bystander" not in left, "what was destroyed is there"
    else:
        ended = end(work) or {}
        assert [left.get(flow) for flow in work.flows] == [ended.get(flow) for flow in work.flows]
    with contextlib.suppress(exceptions.NotFound):
        connection.destroy_logbook(work.book)


def options(kind: str, folder: Path, expiry: float = 30.0) -> dict[str, Any]:
    """Return the options of engines of a kind, for a broker in `folder`.

    :param expiry: seconds of silence after which a worker is lost.
    """
    if kind != "worker-based":
        return {"engine": kind}
    return {
        "engine": kind,
        "url": f"filesystem://{folder}",
        "topics": [workers.TOPIC],
        "worker_expiry": expiry,
        "transition_timeout": 20.0,
    }


def write_json(path: Path, value: Any) -> None:
    """Write the file atomically."""
    private = path.with_name(f".{path.name}.{os.getpid()}")
    private.write_text(json.dumps(value), encoding="utf-8")
    private.rename(path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def expected(folder: Path, names: Iterable[str]) -> dict[str, judging.FlowHistory]:
    """Run the flows without kills in this process, and return their histories."""
    folder.mkdir(parents=True)
    work = Work(folder, {"connection": "memory"}, options("serial", folder), tuple(names))
    with (
        backends.backend(work.conf) as backend,
        contextlib.closing(backend.get_connection()) as connection,
    ):
        save(work, connection)
        touch(work, connection)
        for flow in work.flows:
            run(work, flow, backend)
        final = _snapshots(work, connection)
    histories = {
        flow: judging.FlowHistory(flow, work.effects(flow), final[flow]) for flow in work.flows
    }
    histories["bystander"] = judging.FlowHistory("bystander", [], final["bystander"])
    return histories
