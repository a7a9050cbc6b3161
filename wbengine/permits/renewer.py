"""Asks for the permits of all flows that this process runs, renews them, and gives them back.

Each place where limits are kept has a thread for that, as long as a flow here is limited there.  It
asks for all flows of the process together, as soon as one of them needs a permit or gives one back;
then when the next of a rate can be had; and else after a pause, as other processes give back
permits, too.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from wbengine.concurrency import per_process
from wbengine.permits import stores
from wbengine.permits.accounts import HORIZON, PermitRequest
from wbengine.permits.limits import Quota
from wbengine.persistence import base, leases

__all__ = ["Holder", "Member", "PermitRenewer", "of_process"]

LOG: Final = logging.getLogger(__name__)

#: Seconds the thread waits for another limited flow.
_LINGER: Final = 2.0
#: Seconds to the next look at permits that others have: at first, and at most.
_FIRST: Final = 0.05
_LONGEST: Final = 1.0
#: So many times what is held is renewed within its time.
_RENEWALS: Final = 3


class Member(NamedTuple):
    """A run of a flow, which may have a part in several limits.

    `epoch` is that of its lease; for `seconds` what it holds is its own without another word.
    """

    flow: str
    epoch: int = 0
    seconds: float = leases.LEASE_SECONDS


class Holder:
    """One member's part in one limit; made by `PermitRenewer.join`.  `wake` is called, from the
    renewer's thread, when there is a permit to take."""

    __slots__ = (
        "_later", "_most_ready", "_renewer", "held", "member", "name", "quota", "ready",
        "renew_at", "wake", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        renewer: PermitRenewer,
        name: str,
        quota: Quota,
        member: Member,
        wake: Callable[[], object],
    ) -> None:
        self._renewer = renewer
        self.name = name
        self.quota = quota
        self.member = member
        self.wake = wake
        #: All permits that are ours: in use, to be taken, or for later.
        self.held = 0
        #: To be taken now.
        self.ready = 0
        #: How many could be used besides those in use.
        self.wanted = 0
        self.renew_at = math.inf
        # Of a rate.
        self._most_ready: int | None = None
        if quota.interval is not None:
            self._most_ready = max(1, round(HORIZON / 2 / quota.interval))
        # When permits may be used that are ours already.
        self._later: list[float] = []

    @property
    def spare(self) -> int:
        """Permits that are ours and not in use."""
        return self.ready + len(self._later)

    def want(self, count: int) -> None:
        """So many could be used besides those in use; what is spare then is given back."""
        with self._renewer.changed:
            more = count > self.wanted
            self.wanted = count
            if self._trim() or more:
                self._renewer.ask_soon(self.name)

    def _trim(self) -> bool:
        """Give back what nobody here wants any more, the latest first; whether there was any."""
        surplus = self.spare - self.wanted
        for _ in range(surplus):
            if self._later:
                self._later.remove(max(self._later))
                heapq.heapify(self._later)
            else:
                self.ready -= 1
            self.held -= 1
        return surplus > 0

    def take(self) -> bool:
        """Use a permit from now on; False: there is none."""
        with self._renewer.changed:
            if not self.ready:
                return False
            self.ready -= 1
            self.wanted -= 1
            return True

    def use_anyway(self) -> None:
        """Count something that is under way, whether there is a permit for it or not."""
        with self._renewer.changed:
            self.held += 1
            self._renewer.ask_soon(self.name)

    def give_back(self) -> None:
        """What used a permit has ended."""
        with self._renewer.changed:
            self.held -= 1
            self._renewer.ask_soon(self.name)

    def request(self) -> PermitRequest:
        """What is to be said; the caller has the lock."""
        flow, epoch, seconds = self.member
        return PermitRequest(flow, epoch, self.held, max(0, self.wanted - self.spare), seconds)

    def add(self, permits: list[float], now: float) -> None:
        """Take in what was given; the caller has the lock."""
        self.held += len(permits)
        for seconds in permits:
            heapq.heappush(self._later, now + seconds)
        self.renew_at = now + self.member.seconds / _RENEWALS
        if self._trim():  # it wants less than when it was asked
            self._renewer.ask_soon(self.name)

    @property
    def due(self) -> float:
        """When the next permit may be used."""
        return self._later[0] if self._later else math.inf

    def collect_due(self, now: float) -> bool:
        """Whether there are more permits to take now; the caller has the lock."""
        before = self.ready
        while self._later and self._later[0] <= now:
            heapq.heappop(self._later)
            self.ready += 1
        more = self.ready > before
        lost = 0 if self._most_ready is None else self.ready - self._most_ready
        if lost > 0:  # the run loop was busy: they are not saved up for when it has time
            self.ready -= lost
            self.held -= lost
            self._renewer.ask_soon(self.name)
        return more


class _Limit:
    """What the flows of this process have of one limit."""

    __slots__ = ("due", "holders", "pause")

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        #: When to ask, and how long the next pause is.
        self.due = math.inf
        self.pause = _FIRST


class PermitRenewer:
    """Keeps the permits of this process in one store."""

    def __init__(self, store: stores.Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        #: The lock of all that is here.
        self.changed: Final = threading.Condition()
        self._limits: dict[str, _Limit] = {}
        self._thread: threading.Thread | None = None
        # Held while the store is asked: what is said last counts.
        self._asking = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether no flow has a part in anything, and no thread runs."""
        return not self._limits and self._thread is None

    def close(self) -> None:
        """No flow will have a part in anything any more."""
        self._store.close()

    def join(self, name: str, quota: Quota, member: Member, wake: Callable[[], object]) -> Holder:
        """Take part in a limit, as the only member of this process that is a run of its flow."""
        holder = Holder(self, name, quota, member, wake)
        with self.changed:
            limit = self._limits.setdefault(name, _Limit())
            limit.holders[member.flow] = holder
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._main, name="wbengine-limits", daemon=True
                )
                self._thread.start()
        return holder

    def leave(self, holders: list[Holder]) -> None:
        """Give back all of these at once; a store that fails lets them expire."""
        with self._asking:
            requests = {}
            with self.changed:
                for holder in holders:
                    limit, flow = self._limits.get(holder.name), holder.member.flow
                    if limit is None or limit.holders.get(flow) is not holder:
                        continue  # the flow is run anew
                    del limit.holders[flow]
                    if not limit.holders:
                        del self._limits[holder.name]
                    gone = PermitRequest(flow, holder.member.epoch, 0, 0, 0)
                    others = [other.request() for other in limit.holders.values()]
                    requests[holder.name] = holder.quota, [gone, *others]
                self.changed.notify()
            self._settle(requests)

    def ask_soon(self, name: str) -> None:
        """Something is to be said about a limit; the caller has the lock."""
        limit = self._limits.get(name)
        if limit is not None:
            limit.pause = _FIRST
            if limit.due > 0:
                limit.due = 0.0
                self.changed.notify()

    # -- the thread -----------------------------------------------------------------------------

    def _main(self) -> None:
        while self._wait():
            with self._asking:
                now, requests = self._clock(), {}
                with self.changed:
                    for name, limit in self._limits.items():
                        if limit.due <= now:
                            limit.due = math.inf
                            found = [holder.request() for holder in limit.holders.values()]
                            # Of several tasks with one limit that of any.
                            requests[name] = next(iter(limit.holders.values())).quota, found
                if requests:
                    self._settle(requests)
            self._wake()

    def _wait(self) -> bool:
        """Wait until something is to be done; False: the thread ends."""
        with self.changed:
            while True:
                if not self._limits and not self.changed.wait_for(lambda: self._limits, _LINGER):
                    self._thread = None
                    return False
                seconds = self._due() - self._clock()
                if seconds <= 0:
                    return True
                self.changed.wait(min(seconds, threading.TIMEOUT_MAX))

    def _due(self) -> float:
        limits = self._limits.values()
        holders = itertools.chain.from_iterable(limit.holders.values() for limit in limits)
        return min((*(limit.due for limit in limits), *(holder.due for holder in holders)))

    def _settle(self, requests: dict[str, stores.Requests]) -> None:
        """Say what is wanted, and take in what is given."""
        try:
            answers = self._store.settle(requests)
        except Exception as error:
            LOG.warning("Limits could not be looked at: %s", error)
            answers = {}
        now = self._clock()
        with self.changed:
            for name in requests:
                limit = self._limits.get(name)
                if limit is None:
                    continue
                answer = answers.get(name)
                if answer is None:
                    limit.due = min(limit.due, now + _LONGEST)
                    continue
                given = False
                for flow, permits in answer.permits.items():
                    if flow in limit.holders:
                        limit.holders[flow].add(permits, now)
                        given = given or bool(permits)
                limit.due = min(limit.due, self._next(limit, answer.again, given, now))

    def _next(self, limit: _Limit, again: float | None, given: bool, now: float) -> float:
        """When to ask about a limit again."""
        holders = limit.holders.values()
        found = min((holder.renew_at for holder in holders), default=math.inf)
        if any(holder.wanted > holder.spare for holder in holders):
            if again is None:
                limit.pause = _FIRST if given else min(2 * limit.pause, _LONGEST)
                again = limit.pause
            found = min(found, now + again)
        return found

    def _wake(self) -> None:
        """Tell who has permits to take."""
        with self.changed:
            now = self._clock()
            found = [
                holder
                for limit in self._limits.values()
                for holder in limit.holders.values()
                if holder.collect_due(now)
            ]
        for holder in found:
            holder.wake()


class _Renewers:
    """The renewers of this process, by the places where limits are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str | base.Backend | None, PermitRenewer] = {}

    def __call__(self, place: str | base.Backend | None) -> PermitRenewer:
        with self._lock:
            found = self._known.get(place)
            if found is None:
                for key in [key for key, one in self._known.items() if one.idle]:
                    self._known.pop(key).close()
                found = self._known[place] = PermitRenewer(stores.store_of(place))
            return found


#: The renewer for a place: the URL of a Redis, a backend, or None.
of_process: Final = per_process.PerProcess(_Renewers)
