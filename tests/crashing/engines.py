"""One life of an engine: it finds what an earlier one left, runs it to its end, and tidies up."""

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

from tests.crashing import audit, children, flows, judging, pictures, workers
from tests.seams import stores
from wbengine import engines as loading
from wbengine import exceptions, states
from wbengine.persistence import backends, base, models
from wbengine.signals import Signal

ENDED = (states.SUCCESS, states.REVERTED)
SIGNAL = Signal("s", "1", 1.0)


@dataclass(frozen=True)
class Work:
    """What is to be done, the same for all lives: flows of one book, in a store."""

    folder: Path
    conf: Mapping[str, Any] | str
    options: Mapping[str, Any]
    flows: tuple[str, ...]
    nap: float = 0.0
    destroy: bool = True
    #: So many flows are run at a time, each in a thread.
    threads: int = 1
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def book(self) -> str:
        return f"book-{self.folder.name}"

    def uuid(self, flow: str) -> str:
        return f"{flow}-{self.folder.name}"

    def path(self, what: str, flow: str = "") -> Path:
        return self.folder / (f"{what}-{flow}" if flow else what)

    def deeds(self, flow: str) -> list[str]:
        return audit.read(self.path("audit", flow))


def live(work: Work, number: int, kill: children.Kill | None = None) -> int:
    """Let the `number`-th engine process live; its pid.

    It writes `found-<number>` before it changes anything, `end` when all flows have ended, and
    `rest-<number>` and `hits-<number>` when all is done.
    """

    def run() -> None:
        hits = children.Hits(kill)
        hits.install()
        _live(work, number)
        hits.save()
        write_json(work.path(f"rest-{number}"), hits.rest)
        write_json(work.path(f"hits-{number}"), hits.counts)

    return children.fork(run, work.path(f"engine-{number}.log"))


def end(work: Work) -> dict[str, pictures.Picture] | None:
    """What all flows came to, if they did."""
    return read_json(work.path("end"))


def cuts(work: Work, number: int, deeds: Mapping[str, int]) -> dict[str, judging.Cut]:
    """What the `number`-th process found (nothing, if it did not come so far), by flow; `deeds`
    were done when the one before it was killed.
    """
    found = read_json(work.path(f"found-{number}")) or {}
    return {flow: judging.Cut(*found.get(flow, (None, 0)), count) for flow, count in deeds.items()}


def hits(work: Work, number: int) -> dict[str, int]:
    return read_json(work.path(f"hits-{number}")) or {}


def rest(work: Work, number: int) -> float:
    """The most seconds that a process which came to its end let pass between two saves."""
    found: float = read_json(work.path(f"rest-{number}"))
    return found


def _live(work: Work, number: int) -> None:
    limit(work.limits)
    with backends.backend(work.conf) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            if work.path("end").exists():
                _destroy_rest(work, connection)
                return
            known = _pictures(work, connection)
            seen = {flow: (told, len(work.deeds(flow))) for flow, told in known.items()}
            write_json(work.path(f"found-{number}"), seen)
            if len(known) <= len(work.flows):
                save(work, connection)
            wish(work, connection)
            touch(work, connection)
        _run_all(work, backend)
        with backends.backend(work.conf) as other, other.get_connection() as connection:
            told = _pictures(work, connection)
            # Of a process that died after its flow had ended, time ends the lease.
            held = {flow: connection.get_lease(work.uuid(flow)) for flow in told}
            assert number or not any(held.values()), f"leases are left: {held}"
            write_json(work.path("end"), told)
        with contextlib.closing(backend.get_connection()) as connection:
            _destroy(work, connection)


def preload(kinds: Iterable[str] = ()) -> None:
    """Import what engines import when they need it, before any child is forked."""
    for name in [*_PARTS, *(name for kind in {*kinds, "memory"} for name in stores.MODULES[kind])]:
        importlib.import_module(name)


_PARTS = (
    "concurrent.futures.thread",
    "jsonschema",
    "kombu.common",
    "networkx",
    "wbengine.engines.local",
    "wbengine.engines.worker_based.engine",
    "wbengine.transports.filesystem",
)


def limit(limits: Mapping[str, Any]) -> None:
    """Set constants of modules ("module:NAME"), so that what takes megabytes takes little."""
    for place, value in limits.items():
        module, _, name = place.partition(":")
        held = importlib.import_module(module)
        assert hasattr(held, name), f"{place} is gone"
        setattr(held, name, value)


def touch(work: Work, connection: base.Connection) -> None:
    """Write what engines do not write this way: one atom, of the flow that nobody runs."""
    atom = connection.get_atom_details(work.uuid("resting"))
    atom.meta["told"] = "touched"
    connection.update_atom_details(atom)


def wish(work: Work, connection: base.Connection) -> None:
    """Want something of who runs the flow that no engine runs; he hears of that, and nobody later.

    One who died in the middle of this ran it, too.
    """
    flow, owner = work.uuid("bystander"), stores.owner()
    wanted = base.FlowCommand("suspend", reason="it is late", by="somebody", at=1.0)
    try:
        dead = connection.get_lease(flow)
        lease = connection.take_lease(
            flow, str(owner), 30.0, dead=None if dead is None else dead.epoch
        )
        assert not connection.commands([flow]), "a wish about one who died is told to another"
        assert connection.put_command(lease, wanted)
        assert connection.commands([flow]) == {flow: wanted._replace(epoch=lease.epoch)}
        connection.clear_command(lease, wanted)
        assert not connection.commands([flow])
        assert connection.put_signal(flow, SIGNAL)  # also if one who died gave it
        assert connection.signals([flow]) == {flow: [SIGNAL]}
        connection.give_back_lease(lease)
    finally:
        owner.let_go()


def save(work: Work, connection: base.Connection) -> None:
    """The book, its flows, and one that nobody ever runs."""
    book = models.LogBook("crash", uuid=work.book)
    for flow in (*work.flows, "bystander"):
        detail = models.FlowDetail(flow, uuid=work.uuid(flow))
        detail.meta["told"] = flow
        book.add(detail)
    detail.add(models.TaskDetail("resting", uuid=work.uuid("resting")))
    connection.save_logbook(book)


def _pictures(work: Work, connection: base.Connection) -> dict[str, pictures.Picture]:
    told = {}
    for flow in (*work.flows, "bystander"):
        with contextlib.suppress(exceptions.NotFound):
            told[flow] = pictures.take_whole(connection, work.uuid(flow))
    return told


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

    `pause`: seconds between two tries to write, instead of the usual ones.
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
    for _ in range(flows.ROUNDS):
        try:
            engine.run()
        except (ValueError, exceptions.WorkerLost, exceptions.WrappedFailure):
            pass
        if engine.storage.get_flow_state() in ENDED or engine.storage.get_revert_failures():
            return  # a reversion that was lost with its worker stays so
    raise AssertionError(f"{flow} does not come to its end: {engine.storage.get_flow_state()}")


def _destroy(work: Work, connection: base.Connection) -> None:
    if work.destroy:
        connection.destroy_flow(work.uuid("bystander"))
        write_json(work.path("destroyed"), "bystander")
        _destroy_rest(work, connection)


def _destroy_rest(work: Work, connection: base.Connection) -> None:
    """The book; of a flow whose destruction was begun, nothing may be left after that either."""
    if not work.destroy:
        return
    left = _pictures(work, connection)
    if work.path("destroyed").exists():
        assert "bystander" not in left, "what was destroyed is there"
    else:
        ended = end(work) or {}
        assert [left.get(flow) for flow in work.flows] == [ended.get(flow) for flow in work.flows]
    with contextlib.suppress(exceptions.NotFound):
        connection.destroy_logbook(work.book)


def options(kind: str, folder: Path, expiry: float = 30.0) -> dict[str, Any]:
    """How engines of a kind are made, for a broker in `folder`; `expiry` is the silence, in
    seconds, after which a worker is lost.
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
    """Whole, or not at all."""
    private = path.with_name(f".{path.name}.{os.getpid()}")
    private.write_text(json.dumps(value), encoding="utf-8")
    private.rename(path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def expected(folder: Path, names: Iterable[str]) -> dict[str, judging.Story]:
    """What becomes of flows that nobody disturbs, in this process: stories by flow."""
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
        told = _pictures(work, connection)
    stories = {flow: judging.Story(flow, work.deeds(flow), told[flow]) for flow in work.flows}
    stories["bystander"] = judging.Story("bystander", [], told["bystander"])
    return stories
