"""Acquire, renew and release permits for all flows of this process.

Each store of limits has one thread while a flow of this process is limited there. It sends the
requests of all flows together: when one needs or releases a permit, before the next permit of a
rate is available, and at intervals, because other processes release permits too. The answers
contain the quotas in force. While flows wait longer than a second for the next request, the thread
reads each second whether an operator changed their limits.

Flows receive permits of a rate up to a second ahead, and use them when they are due without this
thread, which may wait for an answer then. A permit that is used late would start more tasks in a
period than the limit, so permits that are older than `MAX_LATE_SECONDS` are returned, except the
latest one.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from wbengine._concurrency import conditions, per_process, threads
from wbengine._limits import account_stores, limit_changes
from wbengine._limits.permit_sharing import (
    KEPT_SECONDS,
    Answer,
    Correction,
    PermitRequest,
)
from wbengine._tasks.limit_attributes import Quota
from wbengine.persistence import _leases, base

__all__ = ["MAX_LATE_SECONDS", "Member", "Membership", "PermitRenewer", "StoreClock", "of_process"]

LOG: Final = logging.getLogger(__name__)

#: Time after which a permit of a rate is returned if a flow has a later one.
MAX_LATE_SECONDS: Final = 0.1
#: Time without limited flows after which the thread ends.
_IDLE_SECONDS: Final = 2.0
#: Pauses between requests for permits that other processes have.
_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 1.0
_RENEWALS_PER_LEASE: Final = 3
#: Interval between two reads of the changes of limits.
_POLL_SECONDS: Final = 1.0
#: Time after which the difference between the clocks is measured again.
_CLOCK_SECONDS: Final = 60.0


class Member(NamedTuple):
    """Run of a flow under limits.

    `epoch` is that of its lease. Its permits expire after `seconds` without another request.
    `home` is that of `account_stores.home_of`.
    """

    flow: str
    epoch: int = 0
    seconds: float = _leases.LEASE_SECONDS
    home: str = ""


class _Permit(NamedTuple):
    """An assigned permit.

    :ivar due: the time of the renewer's clock from which it may be used.
    :ivar cost: its units of the rate.
    :ivar start: the same time on the clock of the store.
    """

    due: float
    cost: float
    start: float


class StoreClock:
    """The times of the store on the clock of the renewer.

    The difference of the clocks is between two bounds: an answer is created after the request was
    sent, and before it is received. The upper bound of the fastest answer counts, so permits are
    never due too early, and a slow answer does not make them late.
    """

    __slots__ = ("_difference", "_measured_at")

    def __init__(self) -> None:
        self._difference = self._measured_at = -math.inf

    def local(self, at: float, sent: float, received: float) -> float:
        """Return the local time of an answer.

        :param at: its time on the clock of the store.
        :param sent: the local time before the request, and `received` that after the answer.
        """
        is_possible = sent - at <= self._difference <= received - at
        if not is_possible or received > self._measured_at + _CLOCK_SECONDS:
            self._difference, self._measured_at = received - at, received
        return at + self._difference


class Membership:
    """Membership of one run in one limit, created by `PermitRenewer.join`.

    `wake` is called in another thread when permits are assigned or the quota has changed. The owner
    has to look again after `seconds_to_next`.
    """

    __slots__ = (
        "_corrected", "_corrections", "_costs", "_later", "_ready", "_refused_at", "_renewer",
        "_retry_at", "held", "member", "name", "quota", "quota_in_force", "renew_at",
        "tells_refusal", "wake", "wanted",
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
        #: Quota of the code, and the one in force; None: no answer has arrived.
        self.quota = quota
        self.quota_in_force: Quota | None = None
        self.member = member
        self.wake = wake
        #: All permits of this member: in use, ready, or assigned for later.
        self.held = 0
        #: Number of wanted permits in addition to those in use.
        self.wanted = 0
        #: Whether `wake` is also called when `is_refused` becomes True.
        self.tells_refusal = False
        # Time of the first answer without permits, and the earliest time of a permit then.
        self._refused_at = math.inf
        self._retry_at = -math.inf
        self.renew_at = math.inf
        # Costs of the first wanted permits, in order; empty: each costs one unit.
        self._costs: tuple[float, ...] = ()
        # Permits that may be used now, oldest first, and later, as a heap.
        self._ready: list[_Permit] = []
        self._later: list[_Permit] = []
        # Number of the latest correction, and the corrections to which no answer has arrived.
        self._corrected = 0
        self._corrections: list[Correction] = []

    @property
    def ready(self) -> int:
        """Number of permits that may be used now."""
        with self._renewer.lock:
            self._renewer.settle_due()
            self._collect_due()
            return len(self._ready)

    @property
    def seconds_to_next(self) -> float:
        """Seconds until the next permit may be used, or `settle_due` is due; or infinite."""
        with self._renewer.lock:
            due = self._later[0].due if self._later else math.inf
            due = min(due, self._renewer.settles_at(self.name))
            return max(0.0, due - self._renewer.clock())

    @property
    def is_refused(self) -> bool:
        """Whether the store has answered that no wanted permit can be assigned now."""
        return self._refused_at < math.inf

    def seconds_to_long_wait(self, seconds: float) -> float:
        """Return when the wait is long: no permit for so many seconds, now or in the future.

        :returns: seconds from now, 0 if it is long already, or infinite.
        """
        with self._renewer.lock:
            now = self._renewer.clock()
            if self.is_refused and self._retry_at >= now + seconds:
                return 0.0
            return max(0.0, self._refused_at + seconds - now)

    @property
    def spare(self) -> int:
        return len(self._ready) + len(self._later)

    def set_wanted(self, count: int, costs: tuple[float, ...] = ()) -> None:
        """Set the number of wanted permits in addition to those in use. Release surplus permits.

        :param costs: those of the first ones, in order; empty: each costs one unit.
        """
        with self._renewer.lock:
            is_new = count > self.wanted or costs[: len(self._costs)] != self._costs
            if self._costs and not self._missing_costs():
                is_new = True  # The store received all of the earlier costs.
            self.wanted, self._costs = count, costs
            if not count:
                self._refused_at = math.inf
            if self._trim() or (is_new and count):
                self._renewer.request_soon(self.name)

    def _trim(self) -> bool:
        """Release the permits that no waiting task can use, the latest first."""
        count = self.spare
        if self._costs:
            wanted = Counter(self._costs)
            self._ready = [each for each in self._ready if _take(wanted, each.cost)]
            self._later = [each for each in sorted(self._later) if _take(wanted, each.cost)]
        elif count > self.wanted:
            self._later = sorted(self._later)[: max(0, self.wanted - len(self._ready))]
            del self._ready[max(0, self.wanted) :]
        self.held -= count - self.spare
        return self.spare < count

    def _missing_costs(self) -> tuple[float, ...]:
        """Return the costs of wanted permits that are not assigned."""
        spare = Counter(permit.cost for permit in (*self._ready, *self._later))
        return tuple(cost for cost in self._costs if not _take(spare, cost))

    def use_permit(self, cost: float = 1.0) -> float | None:
        """Use a ready permit of this cost. Return its start for `correct`; None: there is none."""
        with self._renewer.lock:
            self._collect_due()
            permit = next((each for each in self._ready if each.cost == cost), None)
            if permit is None:
                return None
            self._ready.remove(permit)
            self.wanted -= 1
            if self._costs:
                index = self._costs.index(cost)
                self._costs = self._costs[:index] + self._costs[index + 1 :]
                if not self._costs:
                    self._renewer.request_soon(self.name)
            return permit.start

    def correct(self, start: float, units: float) -> None:
        """Correct the cost of a used permit by some units, with the next request."""
        with self._renewer.lock:
            if units:
                self._corrected += 1
                self._corrections.append(Correction(self._corrected, start, units))

    def add_running(self) -> None:
        """Count a task that already runs, even without a permit."""
        with self._renewer.lock:
            self.held += 1
            self._renewer.request_soon(self.name)

    def release(self) -> None:
        """Release the permit of a task that has ended."""
        with self._renewer.lock:
            self.held -= 1
            self._renewer.request_soon(self.name)

    def request(self) -> PermitRequest:
        """Return the current request. The caller must hold the lock."""
        flow, epoch, seconds, _ = self.member
        count, costs = max(0, self.wanted - self.spare), self._missing_costs()
        if self._costs and not costs:
            count = 0  # The costs of the others follow.
        corrections = tuple(self._corrections)
        return PermitRequest(flow, epoch, self.held, count, seconds, costs, corrections)

    def departure(self, keeps_permits: bool) -> PermitRequest:
        """Return the last request, which releases all permits, or only those that are not used."""
        held = self.held - self.spare if keeps_permits else 0
        seconds = KEPT_SECONDS if held else 0
        flow, epoch, _, home = self.member
        return PermitRequest(flow, epoch, held, 0, seconds, (), tuple(self._corrections), home)

    def add(self, request: PermitRequest, answer: Answer, at: float) -> bool:
        """Add the permits of an answer to a request. The caller must hold the lock.

        :param at: the time of the answer on the clock of the renewer.
        :returns: whether there are new permits, or the quota has changed.
        """
        permits, quota = answer.permits[request.flow], answer.quota
        has_changed = self.quota_in_force != quota
        if has_changed and self.spare:
            # Permits of another quota would exceed a lower one.
            self.held -= self.spare
            self._ready, self._later = [], []
            self._renewer.request_soon(self.name)
        self.quota_in_force = quota
        self.held += len(permits)
        for seconds, cost in zip(permits, request.costs or itertools.repeat(1.0), strict=False):
            heapq.heappush(self._later, _Permit(at + seconds, cost, answer.now + seconds))
        if request.corrections:
            latest = request.corrections[-1].number
            self._corrections = [each for each in self._corrections if each.number > latest]
        is_refused = self.wanted > 0 and not self.spare
        self._refused_at = min(self._refused_at, at) if is_refused else math.inf
        self._retry_at = at + (answer.retry_seconds or -math.inf)
        self.renew_at = at + self.member.seconds / _RENEWALS_PER_LEASE
        if self._trim():  # Others are wanted than at the time of the request.
            self._renewer.request_soon(self.name)
        return has_changed or bool(permits)

    def _collect_due(self) -> None:
        """Make due permits ready. Return late ones. The caller must hold the lock."""
        now = self._renewer.clock()
        while self._later and self._later[0].due <= now:
            self._ready.append(heapq.heappop(self._later))
        quota = self.quota_in_force
        if quota is None or quota.interval is None or len(self._ready) < 2:
            return
        oldest = min(now - MAX_LATE_SECONDS, max(self._ready).due)
        in_time = [permit for permit in self._ready if permit.due >= oldest]
        if len(in_time) < len(self._ready):
            self.held -= len(self._ready) - len(in_time)
            self._ready = in_time
            self._renewer.request_soon(self.name)


def _take(costs: Counter[float], cost: float) -> bool:
    """Remove a cost. Return False if it is not there."""
    costs[cost] -= 1
    return costs[cost] >= 0


class _Limit:
    """Memberships of this process in one limit."""

    __slots__ = ("due", "memberships", "pause", "polls_changes")

    def __init__(self) -> None:
        self.memberships: dict[str, Membership] = {}
        #: Time of the next request, and length of the next pause.
        self.due = math.inf
        self.pause = _FIRST_PAUSE_SECONDS
        #: Whether flows wait until a later time than the next read of the changes of limits.
        self.polls_changes = False

    @property
    def is_waiting(self) -> bool:
        """Whether a flow wants more permits than it has."""
        memberships = self.memberships.values()
        return any(membership.wanted > membership.spare for membership in memberships)

    @property
    def quotas(self) -> tuple[Quota, Quota | None]:
        """The quota of the code, and the one in force. All tasks with this limit have the same."""
        membership = next(iter(self.memberships.values()))
        return membership.quota, membership.quota_in_force


class PermitRenewer:
    """Renewer of the permits of this process in one store. Thread-safe."""

    def __init__(
        self, store: account_stores.Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self.clock: Final = clock
        self._store_clock = StoreClock()
        #: Lock of all attributes.
        self.lock: Final = threading.RLock()
        self._changed = conditions.Condition(self.lock)
        self._limits: dict[str, _Limit] = {}
        # Called with the name of a limit, and its quota in the code, when a parked flow can get a
        # permit.
        self._offers: list[Callable[[str, Quota], object]] = []
        # Parked flows of the latest answers that can get a permit, by limit.
        self._resumable: dict[str, frozenset[str]] = {}
        self._thread: threading.Thread | None = None
        # Time of the next read of the changes of limits.
        self._poll_at = 0.0
        # Held during requests to the store, because the last request counts.
        self._request_lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether no flow is under a limit, no thread runs and no conductor waits for permits."""
        return not (self._limits or self._thread or self._offers)

    def close(self) -> None:
        """Close the store. No flow may join afterwards."""
        self._store.close()

    @contextlib.contextmanager
    def offering(self, offer: Callable[[str, Quota], object]) -> Iterator[None]:
        """Call `offer` during the block when an answer shows that a parked flow can get a permit.

        :param offer: receives the name of the limit and its quota in the code, in any thread.
        """
        with self.lock:
            self._offers.append(offer)
        try:
            yield
        finally:
            with self.lock:
                self._offers.remove(offer)

    def join(
        self, name: str, quota: Quota, member: Member, wake: Callable[[], object]
    ) -> Membership:
        """Join a limit. A process has at most one member for each flow."""
        membership = Membership(self, name, quota, member, wake)
        with self.lock:
            limit = self._limits.setdefault(name, _Limit())
            limit.memberships[member.flow] = membership
            if self._thread is None:
                self._start()
        return membership

    def _start(self) -> None:
        thread = threads.Thread(target=self._main, name="wbengine-limits", daemon=True)
        try:
            thread.start()
        finally:  # Set also after an interrupt.
            self._thread = None if thread.ident is None else thread

    def settle_due(self) -> None:
        """Send due requests, if no thread does. The caller must hold the lock."""

    def settles_at(self, name: str) -> float:
        """Return the time of the next request for a limit if no thread sends it, or infinity."""
        return math.inf

    def leave(
        self,
        memberships: list[Membership],
        kept: Collection[Membership] = (),
        parked: Mapping[Membership, float] = types.MappingProxyType({}),
    ) -> None:
        """Release all permits of these memberships at once. If the store fails, they expire.

        :param kept: memberships whose permits stay in use until a later run of the flow.
        :param parked: memberships whose flow is parked until its limit has these units for it.
        """
        with self._request_lock:
            requests = {}
            with self.lock:
                for membership in memberships:
                    limit, flow = self._limits.get(membership.name), membership.member.flow
                    if limit is None or limit.memberships.get(flow) is not membership:
                        continue  # A new run of the flow replaced it.
                    del limit.memberships[flow]
                    if not limit.memberships:
                        del self._limits[membership.name]
                    departure = membership.departure(membership in kept)
                    departures = [departure]
                    if membership in parked:
                        departures.append(PermitRequest.of_parked(flow, parked[membership]))
                    others = [other.request() for other in limit.memberships.values()]
                    requests[membership.name] = membership.quota, [*departures, *others]
                self._changed.notify_all()
            self._settle(requests)

    def request_soon(self, name: str) -> None:
        """Schedule a request for a limit. The caller must hold the lock."""
        limit = self._limits.get(name)
        if limit is not None:
            limit.pause = _FIRST_PAUSE_SECONDS
            if limit.due > 0:
                limit.due = 0.0
                self._changed.notify_all()

    def _main(self) -> None:
        while self._wait():
            with self._request_lock:
                if requests := self._take_due():
                    self._settle(requests)
            self._poll_changes()

    def _take_due(self) -> dict[str, account_stores.Requests]:
        """Return the requests that are due now."""
        now, requests = self.clock(), dict[str, account_stores.Requests]()
        with self.lock:
            for name, limit in self._limits.items():
                if limit.due <= now:
                    limit.due = math.inf
                    permit_requests = [
                        membership.request() for membership in limit.memberships.values()
                    ]
                    requests[name] = limit.quotas[0], permit_requests
        return requests

    def _wait(self) -> bool:
        """Wait until a request is due. Return False if the thread must end."""
        with self.lock:
            while True:
                if not self._limits:
                    self._changed.wait(_IDLE_SECONDS)
                if not self._limits:
                    self._thread = None
                    return False
                seconds = self._due() - self.clock()
                if seconds <= 0:
                    return True
                self._changed.wait(min(seconds, threading.TIMEOUT_MAX))

    def _due(self) -> float:
        limits = self._limits.values()
        due = min(limit.due for limit in limits)
        return min(due, self._poll_at) if any(limit.polls_changes for limit in limits) else due

    def _settle(self, requests: dict[str, account_stores.Requests]) -> None:
        sent = self.clock()
        try:
            answers = self._store.settle(requests)
        except Exception as error:
            LOG.warning("cannot update the limits: %s", error)
            answers = {}
        now, changed = self.clock(), list[Membership]()
        with self.lock:
            for name in requests:
                limit = self._limits.get(name)
                if limit is None:
                    continue
                answer = answers.get(name)
                if answer is None:
                    limit.due = min(limit.due, now + _MAX_PAUSE_SECONDS)
                    continue
                has_new, at = False, self._store_clock.local(answer.now, sent, now)
                for request in requests[name][1]:
                    membership = limit.memberships.get(request.flow)
                    if membership is not None and request.flow in answer.permits:
                        was_refused = membership.is_refused
                        has_changed = membership.add(request, answer, at)
                        has_new = has_new or bool(answer.permits[request.flow])
                        is_refused = membership.is_refused and not was_refused
                        if has_changed or (is_refused and membership.tells_refusal):
                            changed.append(membership)
                limit.due = min(limit.due, self._next(limit, answer, has_new, now))
                limit.polls_changes = limit.due > now + _POLL_SECONDS and limit.is_waiting
                if limit.polls_changes and self._poll_at <= now:
                    self._poll_at = now + _POLL_SECONDS
            offers = [
                (offer, name) for name in self._newly_resumable(answers) for offer in self._offers
            ]
        for membership in changed:
            membership.wake()
        for offer, name in offers:
            offer(name, requests[name][0])

    def _newly_resumable(self, answers: Mapping[str, Answer]) -> list[str]:
        """Return the limits for which further parked flows can get a permit.

        The caller must hold the lock.
        """
        names = []
        for name, answer in answers.items():
            if not answer.resumable <= self._resumable.pop(name, frozenset()):
                names.append(name)
            if answer.resumable:
                self._resumable[name] = answer.resumable
        return names

    def _poll_changes(self) -> None:
        """Schedule requests for the limits of waiting flows that an operator has changed."""
        now = self.clock()
        with self.lock:
            polled = {
                name: limit.quotas
                for name, limit in self._limits.items()
                if limit.polls_changes and limit.due > now
            }
            if self._poll_at > now or not polled:
                return
            self._poll_at = now + _POLL_SECONDS
        try:
            changes = self._store.changes(polled)
        except Exception as error:
            LOG.warning("cannot read the changes of limits: %s", error)
            return
        with self.lock:
            for name, (defined, in_force) in polled.items():
                if limit_changes.apply(name, defined, changes) != in_force:
                    self.request_soon(name)

    def _next(self, limit: _Limit, answer: Answer, has_new: bool, now: float) -> float:
        memberships = limit.memberships.values()
        due = min((membership.renew_at for membership in memberships), default=math.inf)
        if limit.is_waiting:
            retry_seconds = answer.retry_seconds
            if retry_seconds is None:
                limit.pause = (
                    _FIRST_PAUSE_SECONDS if has_new else min(2 * limit.pause, _MAX_PAUSE_SECONDS)
                )
                retry_seconds = limit.pause
            due = min(due, now + retry_seconds)
        return due


class _Renewers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._renewers: dict[str | base.Backend | None, PermitRenewer] = {}

    def __call__(self, place: str | base.Backend | None) -> PermitRenewer:
        with self._lock:
            renewer = self._renewers.get(place)
            if renewer is None:
                for key in [
                    key for key, idle_renewer in self._renewers.items() if idle_renewer.is_idle
                ]:
                    self._renewers.pop(key).close()
                renewer = self._renewers[place] = PermitRenewer(account_stores.store_of(place))
            return renewer


#: `of_process(place)` returns the renewer for a store of limits: the URL of a Redis, a backend, or
#: None.
of_process: Final = per_process.PerProcess(_Renewers)
