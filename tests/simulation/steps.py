"""Steps of a schedule.

The choice of a step selects the process and the way; an impossible step has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.broker import Message
from tests.simulation.kinds import HOLDS, KINDS, OFFERS, PASSES, SECONDS
from wbengine.engines.worker_based import protocol as pr

if TYPE_CHECKING:
    from tests.simulation.fleet import Worker
    from tests.simulation.world import World

#: Maximum number of processes of one kind at a time, and of flows in total.
MOST: Final = 4
MOST_FLOWS: Final = 8
#: Seconds after which requests that ran before their server was restored have ended.
FORGOTTEN: Final = 60.0


def _some(found: list[Any], choice: int) -> Any:
    return found[choice % len(found)] if found else None


def _submit(world: World, choice: int) -> None:
    """Submit a flow of one to three tasks."""
    if len(world.store.flows) >= MOST_FLOWS:
        return
    choice, kind = divmod(choice, len(KINDS))
    choice, seconds = divmod(choice, len(SECONDS))
    choice, more = divmod(choice, 3)
    choice, own = divmod(choice, 2)
    engines = [each for each in world.living(world.engines) if each.awake and not each.own]
    engine = _some(engines, choice)
    if engine is None or (own and len(world.engines) < MOST):
        engine = world.new_engine(own=bool(own))
    atoms = [
        world.new_atom(
            KINDS[(kind + i) % len(KINDS)],
            SECONDS[(seconds + i) % len(SECONDS)],
            priority=(choice + i) % 10,
            retries=choice % 2,
        )
        for i in range(more + 1)
    ]
    choice, timed = divmod(choice, 8)
    if timed < 2:
        setattr(atoms[0].task, ("expires", "eta")[timed], HOLDS[choice % len(HOLDS)])
    world.new_flow(engine, atoms)


def _pass(world: World, choice: int) -> None:
    world.pass_time(PASSES[choice % len(PASSES)])


def _deliver(world: World, choice: int) -> None:
    """Deliver a message in flight at once."""
    message = _some(world.broker.in_flight(), choice)
    if message is not None and world.broker.up:
        world.broker.pull(message)
        world.broker.arrive(message)


def _hold(world: World, choice: int) -> None:
    choice, seconds = divmod(choice, len(HOLDS))
    message = _some(world.broker.in_flight(), choice)
    if message is not None:
        world.broker.pull(message)
        message.due += HOLDS[seconds]
        message.tampered = True
        world.broker.send(message)
        _blame(world, message)


def _blame(world: World, message: Message) -> None:
    """Mark all processes as disturbed after a fault of a message."""
    if message.kind != pr.REQUEST:
        for process in [*world.engines.values(), *world.workers.values()]:
            process.blemish = max(process.blemish, message.due, world.now)


def _lose(world: World, choice: int) -> None:
    losable = [m for m in world.broker.in_flight() if world.may_lose(m)]
    message = _some(losable, choice)
    if message is not None:
        world.broker.pull(message)
        world.judge.lost_message(message)
        _blame(world, message)


def _double(world: World, choice: int) -> None:
    choice, seconds = divmod(choice, len(HOLDS))
    candidates = world.broker.in_flight()
    if world.ledger is None:
        # Without a ledger two workers would both run a duplicated request.
        candidates = [m for m in candidates if m.kind != pr.REQUEST]
    message = _some(candidates, choice)
    if message is not None:
        world.broker.again(message, world.now + HOLDS[seconds])


def _jobs(world: World) -> list[tuple[Worker, Any]]:
    return [(w, job) for w in world.workers.values() if w.awake for job in w.running]


def _finish(world: World, choice: int) -> None:
    choice, how = divmod(choice, 4)
    job = _some(_jobs(world), choice)
    if job is not None:
        job[0].end(job[1], ("value", "failure", "value", "unsendable")[how])


def _tell(world: World, choice: int) -> None:
    job = _some(_jobs(world), choice)
    if job is not None:
        job[0].tell(job[1], next(world.ids))


def _worker(world: World, choice: int) -> None:
    if len(world.workers) < MOST:
        choice, offer = divmod(choice, len(OFFERS))
        choice, slots = divmod(choice, 3)
        topics = [["t"], ["t", "u"], ["u"], ["t"]][choice % 4]
        world.new_worker(list(OFFERS[offer]), slots + 1, topics)


def _kill_worker(world: World, choice: int) -> None:
    worker = _some(world.living(world.workers), choice)
    if worker is not None:
        world.end(worker)


def _stop_worker(world: World, choice: int) -> None:
    worker = _some(world.living(world.workers), choice)
    if worker is not None and worker.awake:
        worker.stop()


def _freeze_worker(world: World, choice: int) -> None:
    worker = _some(world.living(world.workers), choice)
    if worker is not None:
        world.strike(worker, "freeze")


def _thaw(world: World, choice: int) -> None:
    frozen = [p for p in [*world.engines.values(), *world.workers.values()] if p.frozen]
    process = _some(frozen, choice)
    if process is not None:
        world.thaw(process)


def _kill_engine(world: World, choice: int) -> None:
    engine = _some(world.living(world.engines), choice)
    if engine is not None:
        world.end(engine)


def _freeze_engine(world: World, choice: int) -> None:
    engine = _some(world.living(world.engines), choice)
    if engine is not None:
        world.strike(engine, "freeze")


def _resume(world: World, choice: int) -> None:
    """Resume a flow whose owner is dead or has lost its lease."""
    flow = _some(world.store.orphans(world.now), choice)
    if flow is not None:
        world.resume(flow)


def _suspend(world: World, choice: int) -> None:
    engine = _some([e for e in world.living(world.engines) if e.awake], choice)
    if engine is not None and world.broker.up and not world.setting.one_step:
        engine.suspend()


def _trip(world: World, choice: int) -> None:
    """Let a process die or freeze after some more of its steps."""
    choice, fuse = divmod(choice, 24)
    choice, fate = divmod(choice, 2)
    process = _some(world.living(world.workers) + world.living(world.engines), choice)
    if process is not None:
        process.fuse, process.fate = fuse, ("kill", "freeze")[fate]


def _slow(world: World, choice: int) -> None:
    choice, seconds = divmod(choice, len(HOLDS))
    process = _some(world.living(world.workers) + world.living(world.engines), choice)
    if process is not None:
        process.slow_until = world.now + HOLDS[seconds]
        process.blemish = process.slow_until


def _ail_ledger(world: World, choice: int) -> None:
    choice, calls = divmod(choice, 3)
    choice, applied = divmod(choice, 2)
    process = _some(world.living(world.workers) + world.living(world.engines), choice)
    if process is not None and process.line is not None:
        process.line.ail(calls + 1, bool(applied))


def _ail_store(world: World, choice: int) -> None:
    choice, how = divmod(choice, 2)
    engine = _some(world.living(world.engines), choice)
    if engine is not None and not world.setting.one_step:
        engine.ails = ("applied", "lost")[how]


def _cut(world: World, choice: int) -> None:
    """Break a connection, which is restored at once."""
    process = _some(world.living(world.workers) + world.living(world.engines), choice)
    if process is not None and world.broker.up and getattr(process, "began", True):
        world.disconnect(process)
        process.declare()


def _doubt(world: World, choice: int) -> None:
    """Leave the next published request of an engine unconfirmed."""
    choice, how = divmod(choice, 2)
    engine = _some(world.living(world.engines), choice)
    if engine is not None:
        engine.doubtful = ("kept", "lost")[how]


def _cancel(world: World, choice: int) -> None:
    """Cancel a task."""
    engine = _some([e for e in world.living(world.engines) if e.awake and len(e.tracker)], choice)
    if engine is not None:
        engine.cancel(_some(engine.tracker.requests(), choice // 4).invocation)


def _order(world: World, choice: int) -> None:
    """Suspend or resume a worker."""
    choice, what = divmod(choice, 2)
    worker = _some([w for w in world.living(world.workers) if w.awake], choice)
    if worker is not None:
        worker.obey(("suspend", "resume")[what])


def _bounce(world: World, choice: int) -> None:
    """Restart the broker."""
    choice, seconds = divmod(choice, len(HOLDS))
    world.go_down(HOLDS[seconds], world.losses[choice % len(world.losses)])


def _block(world: World, choice: int) -> None:
    """Block publishing at the broker for some time, but not consuming."""
    world.block(HOLDS[choice % len(HOLDS)])


def _set_back(world: World, choice: int) -> None:
    """Restart the server of broker and ledger with its state of some steps ago."""
    choice, seconds = divmod(choice, len(HOLDS))
    if world.set_back is not None and world.broker.up and not world.setting.one_step:
        world.go_down(HOLDS[seconds], "nothing")
        world.set_back()
        world.judge.seen["set back"] += 1
        for engine in world.engines.values():
            for request in engine.tracker.requests():
                engine.evidence.fails(request, "set back")
        for process in [*world.engines.values(), *world.workers.values()]:
            process.blemish = max(process.blemish, world.now + HOLDS[seconds] + FORGOTTEN)


STEPS: Final[dict[str, Callable[[World, int], None]]] = {
    "submit": _submit,
    "pass": _pass,
    "deliver": _deliver,
    "hold": _hold,
    "lose": _lose,
    "double": _double,
    "finish": _finish,
    "tell": _tell,
    "worker": _worker,
    "kill_worker": _kill_worker,
    "stop_worker": _stop_worker,
    "freeze_worker": _freeze_worker,
    "thaw": _thaw,
    "kill_engine": _kill_engine,
    "freeze_engine": _freeze_engine,
    "resume": _resume,
    "suspend": _suspend,
    "trip": _trip,
    "slow": _slow,
    "ail_ledger": _ail_ledger,
    "ail_store": _ail_store,
    "cut": _cut,
    "doubt": _doubt,
    "bounce": _bounce,
    "cancel": _cancel,
    "order": _order,
    "block": _block,
    "set_back": _set_back,
}
