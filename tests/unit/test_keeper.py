"""Leases are kept as long as they are wanted, and no store holds up the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from wbengine import exceptions
from wbengine.persistence import base, keeper, leases, models
from wbengine.persistence.backends import memory


class Store(memory.MemoryBackend):
    """Keeps one flow; notes renewals, and can be made to fail or to hang."""

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

    def get_connection(self) -> memory.MemoryConnection:
        store = self

        class Connection(memory.MemoryConnection):
            def renew_lease(self, lease: leases.Lease, seconds: float) -> None:
                store.asked.set()
                store.gate.wait(600)
                if store.problem is not None:
                    raise store.problem
                super().renew_lease(lease, seconds)
                store.renewals.release()

        return Connection(self)

    def tenure(self, seconds: float = 0.06, **options: Any) -> keeper.Tenure:
        with self.get_connection() as connection:
            lease = connection.take_lease(self.flow.uuid, "me", seconds)
        clock: Callable[[], float] = options.get("clock", keeper.now)
        return keeper.Tenure(self, lease, seconds, clock(), **options)


def test_a_lease_is_renewed_until_it_is_dropped() -> None:
    """By a thread that ends when there has been nothing to keep for a while."""
    kept, store = keeper.Keeper(), Store()
    tenure = store.tenure()
    kept.keep(tenure)
    for _ in range(3):
        assert store.renewals.acquire(timeout=60)
    tenure.check()
    kept.drop(tenure)
    assert kept._kept == {}


def test_the_thread_ends_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of it when no flow is run."""
    monkeypatch.setattr(keeper, "LINGER", 0.01)
    kept = keeper.Keeper()
    for store in (Store(), Store()):
        tenure = store.tenure()
        kept.keep(tenure)
        assert store.renewals.acquire(timeout=60)
        kept.drop(tenure)
        while kept._watching:
            for thread in threading.enumerate():
                if thread.name == "wbengine-leases":
                    thread.join(0.05)


def test_a_store_that_hangs_holds_up_nobody_else() -> None:
    """Also when the others came later."""
    kept, hanging, first, second = keeper.Keeper(), Store(), Store(), Store()
    hanging.gate.clear()
    stuck = hanging.tenure()
    kept.keep(stuck)
    tenures = [first.tenure()]
    kept.keep(tenures[0])
    assert hanging.asked.wait(60)
    tenures.append(second.tenure())
    kept.keep(tenures[1])
    for store in (first, second):
        for _ in range(2):
            assert store.renewals.acquire(timeout=60)
    hanging.gate.set()
    assert hanging.renewals.acquire(timeout=60)
    for tenure in (stuck, *tenures):
        kept.drop(tenure)


def test_whoever_lost_it_is_told_once() -> None:
    """By the thread that finds out; from then on nothing passes."""
    kept, store = keeper.Keeper(), Store()
    told: list[str] = []
    heard = threading.Event()
    tenure = store.tenure()

    def hear() -> None:
        told.append("lost")
        heard.set()

    tenure.lost = hear
    with store.get_connection() as connection:
        connection.take_lease(store.flow.uuid, "other", 100, dead=tenure.lease.epoch)
    kept.keep(tenure)
    assert heard.wait(60)
    tenure.lose(exceptions.LeaseLost("again"))
    assert told == ["lost"]
    with pytest.raises(exceptions.LeaseLost, match="other took it over"):
        tenure.check()


def test_time_that_is_over_is_asked_for_again() -> None:
    """The store knows whether somebody took it; if it does not say, it counts as lost."""
    now = [0.0]
    store = Store()
    tenure = store.tenure(15.0, clock=lambda: now[0])
    tenure.check()
    assert not store.asked.is_set(), "nothing is asked as long as there is time"
    now[0] = 16.0
    tenure.check()
    assert store.renewals.acquire(timeout=0)
    store.problem = exceptions.StorageFailure("down")
    now[0] = 30.0
    tenure.check()
    now[0] = 31.0
    with pytest.raises(exceptions.LeaseLost, match="could not be renewed"):
        tenure.check()
    store.problem = None
    with pytest.raises(exceptions.LeaseLost):
        tenure.check()


def test_a_store_that_fails_is_asked_again_soon() -> None:
    """Not at once, and not as late as usual."""
    now = [0.0]
    store = Store()
    tenure = store.tenure(15.0, clock=lambda: now[0])
    assert (tenure.due, tenure.until) == (5.0, 15.0)
    store.problem = exceptions.StorageFailure("down")
    now[0] = 5.0
    tenure.renew()
    assert (tenure.due, tenure.until, tenure.error) == (6.0, 15.0, None)
    store.problem = None
    now[0] = 6.0
    tenure.renew()
    assert (tenure.due, tenure.until) == (11.0, 21.0)


def hear(tenure: keeper.Tenure, *wishes: base.Wish) -> None:
    """Tell a tenure of wishes, and wait until they are done."""
    for wish in wishes:
        tenure.hear(wish)
        for thread in threading.enumerate():
            if thread.name == "wbengine-wish":
                thread.join(60)


def test_a_wish_is_done_once_and_cleared() -> None:
    """One that is of another run is left alone, and so is each while nobody could do it."""
    store = Store()
    tenure = store.tenure(60)
    done: list[base.Wish] = []
    uuid = store.flow.uuid
    with store.get_connection() as connection:
        connection.wish(uuid, base.Wish("suspend", at=1.0))
        (wish,) = connection.wishes([uuid]).values()
        hear(tenure, wish)
        assert done == [] and connection.wishes([uuid])
        tenure.wished = done.append
        hear(tenure, wish._replace(epoch=wish.epoch + 1))
        assert done == [] and connection.wishes([uuid])
        hear(tenure, wish, wish)
        assert done == [wish] and not connection.wishes([uuid])
        hear(tenure, wish._replace(at=2.0))
        assert len(done) == 2


def test_the_keeper_looks_what_is_wanted() -> None:
    """Of those that can do it; in a store that fails, another time."""
    kept, store = keeper.Keeper(), Store()
    tenure = store.tenure(60)
    heard, stirred = threading.Event(), threading.Event()
    tenure.wished = lambda wish: heard.set()
    tenure.stir = stirred.set
    kept.keep(tenure)
    with store.get_connection() as connection:
        connection.wish(store.flow.uuid, base.Wish("cancel"))
        assert heard.wait(60) and stirred.wait(60)
    kept.drop(tenure)
    assert not kept._looks
