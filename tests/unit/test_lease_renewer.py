"""Renewal of leases, and commands for their owners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import until
from wbengine import exceptions
from wbengine.persistence import _lease_renewer, _leases, base, models
from wbengine.persistence.backends import _memory


class Store(_memory.MemoryBackend):
    """Store of one flow that counts renewals, and can fail or block."""

    def __init__(self) -> None:
        super().__init__()
        book, self.flow = models.LogBook("b"), models.FlowDetail("f")
        book.add(self.flow)
        with self.get_connection() as connection:
            connection.save_logbook(book)
        self.renewals = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.problem: Exception | None = None

    def get_connection(self) -> _memory.MemoryConnection:
        store = self

        class Connection(_memory.MemoryConnection):
            def renew_lease(self, lease: _leases.Lease, seconds: float) -> None:
                store.asked.set()
                store.gate.wait(600)
                if store.problem is not None:
                    raise store.problem
                super().renew_lease(lease, seconds)
                store.renewals.release()

        return Connection(self)

    def held(self, seconds: float = 0.06, **options: Any) -> _lease_renewer.HeldLease:
        with self.get_connection() as connection:
            lease = connection.acquire_lease(self.flow.uuid, "me", seconds)
        clock: Callable[[], float] = options.get("clock", _lease_renewer.now)
        return _lease_renewer.HeldLease(self, lease, seconds, clock(), **options)


def renewing() -> list[threading.Thread]:
    """Return the threads of this process that renew leases."""
    return [thread for thread in threading.enumerate() if thread.name == "wbengine-leases"]


def test_renewal_thread_ends_when_idle_and_starts_again() -> None:
    """Each store has one thread. Threads of earlier tests may still be idle."""
    earlier = renewing()

    def own() -> list[threading.Thread]:
        return [thread for thread in renewing() if thread not in earlier]

    kept = _lease_renewer.LeaseRenewer()
    stores = Store(), Store()
    for _ in range(2):
        held_leases = [store.held() for store in stores]
        for held in held_leases:
            kept.add(held)
        for store in stores:
            for _ in range(3):
                assert store.renewals.acquire(timeout=60)
        assert len(own()) == len(stores)
        for held in held_leases:
            held.check()
            kept.remove(held)
        until(lambda: not own(), within=_lease_renewer.IDLE_SECONDS)


def test_blocked_store_does_not_delay_leases_of_other_stores() -> None:
    """Leases that are added after the store blocked are renewed."""
    kept, hanging, first, second = _lease_renewer.LeaseRenewer(), Store(), Store(), Store()
    hanging.gate.clear()
    stuck = hanging.held()
    kept.add(stuck)
    leases_held = [first.held()]
    kept.add(leases_held[0])
    assert hanging.asked.wait(60)
    leases_held.append(second.held())
    kept.add(leases_held[1])
    for store in (first, second):
        for _ in range(2):
            assert store.renewals.acquire(timeout=60)
    hanging.gate.set()
    assert hanging.renewals.acquire(timeout=60)
    for held in (stuck, *leases_held):
        kept.remove(held)


def test_lost_lease_is_reported_once() -> None:
    kept, store = _lease_renewer.LeaseRenewer(), Store()
    told: list[str] = []
    heard = threading.Event()
    held = store.held()

    def hear() -> None:
        told.append("lost")
        heard.set()

    held.on_lost = hear
    with store.get_connection() as connection:
        connection.acquire_lease(store.flow.uuid, "other", 100, dead=held.lease.epoch)
    kept.add(held)
    assert heard.wait(60)
    held.lose(exceptions.LeaseLost("again"))
    assert told == ["lost"]
    with pytest.raises(exceptions.LeaseLost, match="other took it over"):
        held.check()


def test_expired_lease_is_renewed_by_check_or_lost() -> None:
    """If the store cannot be reached, an expired lease counts as lost."""
    now = [0.0]
    store = Store()
    held = store.held(15.0, clock=lambda: now[0])
    held.check()
    assert not store.asked.is_set(), "nothing is asked as long as there is time"
    now[0] = 16.0
    held.check()
    assert store.renewals.acquire(timeout=0)
    store.problem = exceptions.StorageFailure("down")
    now[0] = 30.0
    held.check()
    now[0] = 31.0
    with pytest.raises(exceptions.LeaseLost, match="was not renewed in time"):
        held.check()
    store.problem = None
    with pytest.raises(exceptions.LeaseLost):
        held.check()


def test_failed_renewal_is_repeated_after_short_delay() -> None:
    now = [0.0]
    store = Store()
    held = store.held(15.0, clock=lambda: now[0])
    assert (held.due, held.until) == (5.0, 15.0)
    store.problem = exceptions.StorageFailure("down")
    now[0] = 5.0
    held.renew()
    assert (held.due, held.until, held.error) == (6.0, 15.0, None)
    store.problem = None
    now[0] = 6.0
    held.renew()
    assert (held.due, held.until) == (11.0, 21.0)


def hear(held: _lease_renewer.HeldLease, *commands: base.FlowCommand) -> None:
    """Pass commands to a lease, and wait until they are executed."""
    for command in commands:
        held.receive(command)
        for thread in threading.enumerate():
            if thread.name == "wbengine-command":
                thread.join(60)


def test_command_runs_once_and_stays_stored() -> None:
    """A command is ignored while no run has begun, and after the lease was closed."""
    store = Store()
    held = store.held(60)
    done: list[base.FlowCommand] = []
    uuid = store.flow.uuid

    def do(command: base.FlowCommand) -> bool:
        done.append(command)
        return command.at == 1.0

    with store.get_connection() as connection:
        connection.send_command(uuid, base.FlowCommand("suspend", at=1.0))
        (command,) = connection.commands([uuid]).values()
        hear(held, command)
        assert done == [] and connection.commands([uuid])
        held.begin_run(do)
        hear(held, command, command)
        assert done == [command] and connection.commands([uuid]) == {uuid: command}
        hear(held, command._replace(at=2.0))
        assert len(done) == 2
        assert held.executed_command == command  # The other one came too late.
        held.close()
        hear(held, command._replace(at=3.0))
        assert len(done) == 2


def test_command_is_repeated_if_its_thread_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    store, done = Store(), threading.Event()
    held = store.held(60)
    held.begin_run(lambda command: not done.set())
    with store.get_connection() as connection:
        connection.send_command(store.flow.uuid, base.FlowCommand("suspend"))
        (command,) = connection.commands([store.flow.uuid]).values()

    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_lease_renewer.threads.Thread, "start", fail)
        held.receive(command)
    assert not done.is_set()
    held.receive(command)
    assert done.wait(60)


def test_leases_are_renewed_after_an_engine_failed() -> None:
    kept, store, failed = _lease_renewer.LeaseRenewer(), Store(), threading.Event()
    held = store.held()

    def fail() -> None:
        failed.set()
        raise RuntimeError("no")

    held.on_tick = fail
    held.begin_run(lambda command: True)
    kept.add(held)
    assert failed.wait(60)
    while store.renewals.acquire(blocking=False):
        pass
    for _ in range(2):
        assert store.renewals.acquire(timeout=10)
    kept.remove(held)


def test_run_begins_with_the_command_of_its_lease() -> None:
    store = Store()
    done: list[base.FlowCommand] = []
    with store.get_connection() as connection:
        connection.send_command(store.flow.uuid, base.FlowCommand("cancel"))
    held = store.held(60)
    held.begin_run(lambda command: not done.append(command))
    assert done == [base.FlowCommand("cancel")] == [held.executed_command]


@pytest.mark.parametrize(("seconds", "is_woken"), [(10.0, True), (1000.0, False)])
def test_thread_is_woken_for_a_lease_that_is_due_earlier(seconds: float, is_woken: bool) -> None:
    renewer: Any = _lease_renewer._StoreLeases(lambda: 0.0)
    renewer._running, renewer._until = True, 100.0
    woken: list[bool] = []
    renewer._changed = SimpleNamespace(notify_all=lambda: woken.append(True))
    renewer.add(Store().held(seconds, clock=lambda: 0.0))
    assert bool(woken) is is_woken
