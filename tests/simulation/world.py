"""A world of engines, workers, a broker, a ledger and a store with faults.

It is deterministic: events happen only through `do`, so that the same steps have the same result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.seams import ledgers, server
from tests.simulation.broker import MODELS, Broker, Message
from tests.simulation.engines import Engine
from tests.simulation.fleet import Worker
from tests.simulation.judge import Judge
from tests.simulation.kinds import OFFERS, Bad, One, Six, Two
from tests.simulation.processes import Process
from tests.simulation.steps import STEPS
from tests.simulation.store import RUNNING, Atom, Flow, Store
from wbengine._concurrency.clocks import Clock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import worker_commands

#: Seconds within which all work ends after the world was healed.
HEALED: Final = 400.0
#: Additional seconds for each attempt of a task that kills its workers: that many workers have to
#: be lost first.
KILLS: Final = 80.0
#: Seconds after which a broker closes the connection of a frozen process, if it does.
HEARTBEATS: Final = 30.0
#: Maximum number of process steps at one moment.
BUSY: Final = 10_000
#: Number of schedule steps between two snapshots of the server.
KEPT_EVERY: Final = 8
Step = tuple[str, int]


@dataclass(frozen=True)
class Setting:
    """Constants of a world.

    `timeout`: how long requests wait; `capacity`: maximum number of requests of a queue in the
    broker (None: the default).
    """

    broker: str = "amqp"
    ledger: bool = True
    timeout: float | None = 60.0
    capacity: int | None = None
    on_worker_lost: str = "fail"
    #: True if receiving a request also claims it.
    claiming: bool = False
    #: True if flows are not stored and end with their engines: then the row and the message of a
    #: request are written in one step.
    one_step: bool = False
    #: True if any message may be lost, and a broker may restart empty.
    lossy: bool = True


class TrueClock(Clock):
    """The clock of the ledger."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:  # type: ignore[override]
        return self._world.now

    time = monotonic  # type: ignore[assignment]


class World:
    """Engines and workers by name.  `trace` contains the steps."""

    def __init__(self, setting: Setting | None = None, **options: Any) -> None:
        self.setting = setting or Setting(**options)
        self.now = 1000.0
        self.count = self.most_steps = 0
        self.judge = Judge(self)
        self.broker = Broker(MODELS[self.setting.broker])
        self.ledger = ledgers.in_memory(TrueClock(self)) if self.setting.ledger else None
        self.store = Store()
        self.engines: dict[str, Engine] = {}
        self.workers: dict[str, Worker] = {}
        self.ids = itertools.count(1)
        self.back_at: float | None = None
        self.cuts: list[tuple[float, Process]] = []
        self.trace: list[Step] = []
        #: Restores the server to its last snapshot.
        self.set_back: Callable[[], None] | None = None
        #: What a restarting broker may lose.
        self.losses = (
            ("nothing", "transient", "all", "queues") if self.setting.lossy else ("nothing",)
        )

    # Steps.

    def do(self, name: str, choice: int = 0) -> None:
        """Do one step; `choice` selects the process and the way.  An impossible step has no effect.

        :raises Violation: if an invariant is violated
        """
        if self.ledger is not None and len(self.trace) % KEPT_EVERY == 0:
            self.set_back = self.kept()
        self.trace.append((name, choice))
        STEPS[name](self, choice)
        self.settle()
        self.judge.books()

    def play(self, steps: Iterable[str]) -> None:
        """Do the printed steps of a trace, then `heal`."""
        for step in steps:
            name, _, choice = step.partition(" ")
            if name != "heal":
                self.do(name, int(choice or 0))
        self.heal()

    def settle(self) -> None:
        """Let all processes work until they only wait for time."""
        self.most_steps = self.count + BUSY
        moved = True
        while moved:
            moved = False
            for process in [*self.engines.values(), *self.workers.values()]:
                if process.has_work():
                    moved |= process.work()
            moved |= self.hand_out()

    def hand_out(self) -> bool:
        """Deliver queued messages to consumers in turn."""
        if not self.broker.up:
            return False
        did = False
        for queue, messages in self.broker.queues.items():
            while messages:
                line = self.broker.consumers[queue]
                for _ in range(len(line)):
                    process = line[0]
                    line.rotate(-1)
                    if process.takes(queue):
                        process.take(messages.pop(0))
                        did = True
                        break
                else:
                    break
        return did

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        turns = 0
        while True:
            self.settle()
            due = self.next_due()
            if due is None or due > until:
                break
            turns = turns + 1 if due <= self.now else 0
            if turns > 100:
                self.judge.fail(f"the time stands still: {self.clocks()}")
            self.now = max(self.now, due)
            if self.back_at is not None and self.now >= self.back_at:
                self.back_up()
            if self.cuts:
                self.cut_frozen()
            self.broker.land(self.now)
            for process in [*self.engines.values(), *self.workers.values()]:
                if process.awake:
                    at = process.due()
                    if at is not None and at <= self.now:
                        process.on_time()
        self.now = until

    def clocks(self) -> dict[str, float | None]:
        """Return the seconds until the next timed work of each process."""
        every = [*self.engines.values(), *self.workers.values()]
        due_times = {each.name: each.due() for each in every if each.awake}
        return {name: at and at - self.now for name, at in due_times.items()}

    def next_due(self) -> float | None:
        due_times = [due for due in (self.back_at, self.broker.next_due()) if due is not None]
        due_times += [at for at, _ in self.cuts]
        for process in [*self.engines.values(), *self.workers.values()]:
            if process.awake:
                at = process.due()
                if at is not None:
                    due_times.append(at)
                due_times += [t for t in (process.slow_until, process.goes_on) if t > self.now]
        return min(due_times, default=None)

    # Faults of processes.

    def living(self, processes: dict[str, Any]) -> list[Any]:
        return [each for each in processes.values() if not each.dead]

    def end(self, process: Process) -> None:
        """End a process; its unacknowledged messages are requeued."""
        if process.dead:
            return
        process.dead = True
        process.batch = None
        self.disconnect(process)
        for lane in (process.todo, process.inbox, process.first, process.letters):
            lane.clear()
        if isinstance(process, Worker):
            process.running.clear()
            self.broker.remove(process.name)  # the queue expires
            del self.workers[process.name]
        elif isinstance(process, Engine):
            # Their rows are swept later.
            self.judge.undropped |= process.undropped
            self.judge.undropped |= {id for chore, id in process.chores if chore == process.drop}
            if self.setting.one_step:
                self.judge.undropped |= self.store.forget(process)
            if self.broker.model.ours or not process.own:
                self.broker.remove(process.uuid)
            del self.engines[process.name]
            for each in self.engines.values():
                if each.uuid == process.uuid:
                    each.shared = self.now

    def disconnect(self, process: Process) -> None:
        process.put_down()
        self.broker.cancel(process)
        taken = list(process.unacked)
        process.stale.update((m, None) for m in taken if m not in set(process.inbox))
        process.unacked.clear()
        for message in taken:
            message.taker = None
            if self.broker.model.redelivers or message.kind != pr.REQUEST:
                self.broker.back(message)
        process.inbox = type(process.inbox)(m for m in process.inbox if m not in set(taken))

    def strike(self, process: Process, fate: str) -> None:
        if process.dead:
            return
        if fate == "kill":
            self.end(process)
        elif not process.frozen:
            process.frozen = True
            if self.broker.model.pushes:
                self.cuts.append((self.now + HEARTBEATS, process))

    def cut_frozen(self) -> None:
        """Close the connections of frozen processes whose heartbeats stopped."""
        due = [cut for cut in self.cuts if cut[0] <= self.now]
        for cut in due:
            self.cuts.remove(cut)
            if cut[1].frozen and not cut[1].dead:
                cut[1].connected = False
                self.disconnect(cut[1])

    def thaw(self, process: Process) -> None:
        process.frozen = False
        process.blemished()
        if not process.connected:
            process.connected = True
            if self.broker.up and getattr(process, "began", True):
                process.declare()

    def new_worker(self, offer: list[Any], slots: int, topics: list[str] | None = None) -> Worker:
        name = f"w{next(self.ids)}"
        ahead = 37.0 * len(name) * (next(self.ids) % 5)
        worker = Worker(self, name, ahead, offer, topics or ["t"], slots)
        self.workers[name] = worker
        return worker

    def new_engine(self, own: bool = False) -> Engine:
        name = f"e{next(self.ids)}"
        engine = Engine(self, name, 11.0 * (next(self.ids) % 7), own=own)
        self.engines[name] = engine
        return engine

    def begun(self, workers: int = 1, offer: Sequence[Any] = (One,)) -> tuple[Engine, list[Worker]]:
        """Return an engine and `workers` discovered workers with one slot."""
        engine = self.new_engine()
        engine.begin()
        discovered = [self.new_worker(list(offer), 1) for _ in range(workers)]
        self.pass_time(1.0)
        return engine, discovered

    def new_flow(self, engine: Engine, atoms: list[Atom]) -> Flow:
        flow = Flow(f"f{next(self.ids)}", atoms)
        self.store.add(flow)
        engine.own_flow(flow)
        return flow

    def submit(self, engine: Engine, kind: Any, seconds: float = 0.01) -> tuple[Atom, Flow]:
        """Submit a flow with one task to an engine."""
        atom = self.new_atom(kind, seconds)
        return atom, self.new_flow(engine, [atom])

    def new_atom(self, kind: Any, seconds: float = 0.01, **options: Any) -> Atom:
        uuid = f"a{next(self.ids)}"
        return Atom(uuid, kind(uuid), {"seconds": seconds}, **options)

    def resume(self, flow: Flow) -> Engine:
        """Resume a flow without an owner on a shared or a new engine."""
        shared = [
            e
            for e in self.living(self.engines)
            if e.awake and not e.own and flow.name not in e.flows
        ]
        if shared and len(self.trace) % 2:
            engine: Engine = shared[0]
        else:
            engine = self.new_engine(own=not shared or len(self.trace) % 3 > 0)
        engine.own_flow(flow)
        return engine

    # The broker.

    def may_lose(self, message: Message) -> bool:
        if self.setting.lossy or message.kind in (pr.NOTIFY, worker_commands.ASK):
            return True
        state = message.envelope.body.get("state")
        return message.kind == pr.RESPONSE and state not in pr.STOP_STATES

    def go_down(self, seconds: float, loses: str) -> None:
        """Stop the broker; `loses` is "nothing", "transient", "all" (messages) or "queues", too."""
        if not self.broker.up:
            return
        self.broker.up = False
        self.back_at = self.now + seconds
        processes = [*self.engines.values(), *self.workers.values()]
        for process in processes:
            self.disconnect(process)
        if loses == "nothing":
            return
        keeps = loses == "transient"
        for queue, messages in list(self.broker.queues.items()):
            persistent = [m for m in messages if keeps and m.envelope.persistent]
            for message in persistent:
                # RabbitMQ marks messages as redelivered that it restores from disk.
                message.redelivered = message.redelivered or self.broker.model.pushes
            messages[:] = persistent
            if loses == "queues":
                self.broker.remove(queue)
        flying = [m for m in self.broker.in_flight() if keeps and m.envelope.persistent]
        self.broker.flying.clear()
        for message in flying:
            self.broker.send(message)

    def block(self, seconds: float) -> None:
        """Block publishing, but not consuming: the broker is short of memory."""
        for process in [*self.engines.values(), *self.workers.values()]:
            process.slow_until = max(process.slow_until, self.now + seconds)
            process.blemish = max(process.blemish, process.slow_until)

    def kept(self) -> Callable[[], None]:
        """Take a snapshot of a server's requests and rows; return a function that restores it."""
        assert self.ledger is not None
        rows_back = ledgers.snapshot(self.ledger)
        requests = {
            queue: [message for message in messages if message.kind == pr.REQUEST]
            for queue, messages in self.broker.queues.items()
        }

        def set_back() -> None:
            before = self.ledger.ids() if self.ledger is not None else set()
            rows_back()
            if self.ledger is not None:  # restored rows are swept later
                self.judge.undropped |= self.ledger.ids() - before
            for queue, messages in self.broker.queues.items():
                messages[:] = [each for each in messages if each.kind != pr.REQUEST]
                for message in requests.get(queue, ()):
                    self.broker.arrive(self.broker.copy(message, self.now))

        return set_back

    def back_up(self) -> None:
        self.broker.up = True
        self.back_at = None
        for process in [*self.engines.values(), *self.workers.values()]:
            if process.connected and getattr(process, "began", True):
                process.declare()

    def whereabouts(self, atom: Atom) -> str:
        """Describe where a request is."""
        id = atom.request_id
        places = [f"runs {self.judge.runs.get(id)}"]
        if self.ledger is not None:
            places.append(f"row {self.ledger.state(id)}")
        for queue, messages in self.broker.queues.items():
            places += [f"in {queue}: {m}" for m in messages if m.envelope.correlation_id == id]
        for engine in self.engines.values():
            request = engine.tracker.request(id)
            if request is not None:
                places.append(f"in {engine.name}: {request.described()}")
        return "; ".join(places)

    # The end.

    def heal(self) -> None:
        """Remove all faults and check that all work ends.

        :raises Violation: if it does not, or if something is left
        """
        if self.back_at is not None:
            self.back_up()
        for process in [*self.engines.values(), *self.workers.values()]:
            self.thaw(process)
            process.fuse, process.slow_until, process.doubtful = -1, 0.0, ""
            if isinstance(process, Worker):
                process.obey("resume")
            if process.line is not None:
                process.line.ail(0, False)
            if isinstance(process, Engine):
                process.ails = ""
        for message in self.broker.in_flight():
            if message.due > self.now + 1:
                self.broker.pull(message)
                message.due = self.now + 0.5
                self.broker.send(message)
        atoms = [atom for atom in self.store.atoms.values() if isinstance(atom.task, Bad)]
        tries = sum(1 + atom.retries - atom.attempt + (atom.state == RUNNING) for atom in atoms)
        until = self.now + HEALED + KILLS * max(0, tries)
        while self.now < until:
            self.settle()
            for flow in self.store.orphans(self.now):
                self.resume(flow)
            if not any(worker.heals for worker in self.workers.values()):
                self.new_worker([One, Two, Six, Bad], 4).heals = True
            if self.over():
                break
            self.pass_time(1.0)
        for _ in range(12):
            self.serve_all()
            self.pass_time(1.0)
            while self.now < until + HEALED and any(w.running for w in self.workers.values()):
                self.pass_time(1.0)
        for _ in range(4):  # deliver the last messages
            self.pass_time(0.5)
        self.judge.end()

    def serve_all(self) -> None:
        """Start workers for queues without workers, in which late requests may remain."""
        for queue, messages in list(self.broker.queues.items()):
            topic = queue.partition(".")[0]
            offers = [
                offer
                for offer in (*OFFERS, [One, Two, Six, Bad])
                if server.queue_name(topic, [cls.__name__ for cls in offer]) == queue
            ]
            served = any(queue in worker.queues.values() for worker in self.workers.values())
            if offers and not served and any(m.kind == pr.REQUEST for m in messages):
                self.new_worker(list(offers[0]), 2, [topic])

    def over(self) -> bool:
        if not all(flow.finished for flow in self.store.flows.values()):
            return False
        if any(each.envelope.type in (pr.REQUEST, pr.RESPONSE) for each in self.broker.in_flight()):
            return False
        busy = any(w.running or w.core.running or w.unacked for w in self.workers.values())
        return not busy and not any(e.results or len(e.tracker) for e in self.engines.values())
