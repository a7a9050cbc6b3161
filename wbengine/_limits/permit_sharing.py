"""How flows share one limit: the flows that have permits or wait, and the order of new permits.

Each request of a flow contains the number of its permits and the number that it wants in addition,
so a repeated request changes nothing. The answer contains when new permits may be used. The permits
of a dead flow expire.

If only the concurrency is limited, the next run of a flow, with a higher epoch, inherits the
permits of the flow.

Each permit is assigned to the waiting flow with the fewest permits (if only the rate is limited: to
the one that was served least since it waits), then to the one that came first. So flows get equal
shares, and other flows get the unused ones.

The permits of a rate limit become usable one by one, `interval` seconds apart. They are assigned up
to `HORIZON` seconds before that, so a flow sends only about two requests per second, even if the
rate is high. A permit that no flow wants is lost; later flows cannot use it for a burst.

A permit of a weighted limit takes a cost in units of the rate. The next permit is then `cost` times
`interval` later. In addition, the account logs the units of the starts in the last period, so that
no window of this length contains more units than the limit. The first waiting task of a flow gets
the next permit, even if tasks behind it cost less, and no flow overtakes the one whose turn it is.
If that flow is dead and its cost takes longer than `HORIZON`, the others wait until its request
expires. Corrections take units from the next permits, or give back those of their start in the log.

A parked flow gets no permit, because its next run requests it. Engines that park a flow, and
conductors for the first parked flows, send requests for them. The answer names those that can get a
permit now, so that conductors resume them. For these, and for one of the others, permits are
reserved for `RESERVED_SECONDS`.

The module is pure: times are arguments, in seconds of the store's clock.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wbengine._tasks.limit_attributes import UNLIMITED, Quota

__all__ = [
    "HORIZON", "KEPT_SECONDS", "MAX_COSTS", "RESERVED_SECONDS", "Account", "Answer", "Correction",
    "PermitRequest",
]  # fmt: skip

#: Maximum time in advance at which a permit of a rate is assigned.
HORIZON: Final = 1.0
#: Time for which a parked flow keeps its permits.
KEPT_SECONDS: Final = 1e9
#: Time for which a permit is reserved for a parked flow.
RESERVED_SECONDS: Final = 5.0
#: Maximum number of costs in a request. Costs of later tasks follow when these have permits.
MAX_COSTS: Final = 100
#: The log counts starts in such a part of a period as one start at its end, and for one part
#: longer than the period, because tasks start late.
_PARTS_PER_PERIOD: Final = 100
_TOLERANCE: Final = 1e-6
#: Epoch of the requests of parked flows. Runs have higher ones.
_PARKED_EPOCH: Final = -1


class Correction(NamedTuple):
    """A correction of the cost of a start by some units.

    :ivar number: the order of the corrections of a member, from 1.
    :ivar start: the time of the start on the clock of the store.
    """

    number: int
    start: float
    units: float


class PermitRequest(NamedTuple):
    """Request of a flow: the permits that it has, and the number that it wants in addition.

    If both are 0, the flow leaves the limit. `epoch` is that of its lease; requests with an older
    epoch are ignored. Its permits expire after `seconds` without another request.

    `costs` are those of the first wanted permits, in order; empty: each costs one unit.
    `corrections` are those to which no answer has arrived; a repeated one is ignored. `home` names
    the store of a parked flow that keeps permits, if several stores share the limit.
    """

    flow: str
    epoch: int
    held: int
    wanted: int
    seconds: float
    costs: tuple[float, ...] = ()
    corrections: tuple[Correction, ...] = ()
    home: str = ""

    @classmethod
    def of_parked(cls, flow: str, units: float) -> PermitRequest:
        """Return the request for a parked flow, whose next run wants a permit of these units."""
        costs = () if units == 1.0 else (units,)
        return cls(flow, _PARKED_EPOCH, 0, 1, RESERVED_SECONDS, costs)


class Answer(NamedTuple):
    """Answer to flows: for each new permit, in order, the seconds until it may be used.

    `retry_seconds`: seconds until another request can succeed; None: only after permits are
    released or shares change. `quota` is in force, and `now` is the time of the store. `resumable`
    contains parked flows that can get a permit now.
    """

    permits: dict[str, list[float]]
    retry_seconds: float | None
    quota: Quota
    now: float
    resumable: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Flow:
    epoch: int
    held: int
    wanted: int
    until: float
    #: Units that the flow got, or would have got if it had always waited.
    served: float
    costs: tuple[float, ...] = ()
    #: Number of the latest correction.
    corrected: int = 0
    home: str = ""

    @property
    def is_parked(self) -> bool:
        return self.epoch == _PARKED_EPOCH

    @property
    def others(self) -> tuple[Any, ...]:
        """Fields that only some flows have: costs, corrections, and a home."""
        if self.home:
            return (self.costs, self.corrected, self.home)
        return (self.costs, self.corrected) if self.costs or self.corrected else ()


@dataclass(slots=True)
class Account:
    """Account of one limit.

    `quota` is in force, and `defined` is that of the code. `last` is the time from which the last
    permit may be used, and `next` that of the next permit. `served` is that of the flow that got
    the last permit. `log` contains times and units of the latest starts; None: each start costs one
    unit, and their distance suffices.
    """

    quota: Quota = UNLIMITED
    defined: Quota = UNLIMITED
    last: float = 0.0
    next: float = 0.0
    served: float = 0
    flows: dict[str, _Flow] = field(default_factory=dict)
    log: list[tuple[float, float]] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Account:
        flows = {
            uuid: _Flow(
                int(epoch), int(held), int(wanted), float(until), float(served),
                tuple(map(float, others[0])) if others else (),
                int(others[1]) if others else 0,
                str(others[2]) if len(others) > 2 else "",
            )
            for uuid, (epoch, held, wanted, until, served, *others) in data["flows"].items()
        }  # fmt: skip
        log = data.get("log")
        return cls(
            Quota(*data["terms"]),
            Quota(*data.get("defined", data["terms"])),
            float(data.get("last", data["next"])),
            float(data["next"]),
            float(data["served"]),
            flows,
            None if log is None else [(float(at), float(units)) for at, units in log],
        )

    def to_dict(self) -> dict[str, Any]:
        flows = {
            uuid: [row.epoch, row.held, row.wanted, row.until, row.served, *row.others]
            for uuid, row in self.flows.items()
        }
        return {
            "terms": self.quota,
            "defined": self.defined,
            "last": self.last,
            "next": self.next,
            "served": self.served,
            "flows": flows,
            "log": self.log,
        }

    def live(self, now: float) -> dict[str, _Flow]:
        """Return the flows whose permits have not expired."""
        return {uuid: row for uuid, row in self.flows.items() if row.until > now}

    def expires(self, now: float) -> float:
        """Return the seconds until the account can be deleted."""
        logged = self.log[-1][0] + self._logged_seconds if self.log else 0.0
        return max([self.next, logged, *(row.until for row in self.flows.values())]) - now

    def kept(self, now: float) -> list[str]:
        """Return the parked flows that keep permits."""
        return [uuid for uuid, row in self.flows.items() if row.until > now + KEPT_SECONDS / 2]

    def next_permit(self, now: float) -> float | None:
        """Return the seconds until the next permit of a rate; None: it depends on other tasks."""
        held = sum(row.held for row in self.live(now).values())
        is_full = self.quota.concurrency is not None and held >= self.quota.concurrency
        return None if is_full or self.quota.interval is None else max(0.0, self.next - now)

    def used(self, now: float) -> float | None:
        """Return the units of the starts in the last period; None: each start costs one unit."""
        if self.log is None:
            return None
        return sum(units for at, units in self.log if at + self._logged_seconds > now)

    def settle(
        self,
        quota: Quota,
        requests: Iterable[PermitRequest],
        now: float,
        in_force: Quota | None = None,
    ) -> Answer:
        """Process requests of flows whose code defines a quota.

        :param in_force: the quota that replaces it; None: it is in force.
        """
        self.defined = quota
        self._set_quota(quota if in_force is None else in_force)
        has_expired = any(row.held for row in self.flows.values() if row.until <= now)
        if has_expired and self.quota.interval is not None and self.next < now + HORIZON:
            # The clock was set forward, or processes died: their permits may still be used.
            self.last = self.next = now + HORIZON
        self.flows = self.live(now)
        if self.log is not None:
            begin = now - self._logged_seconds
            self.log = [each for each in self.log if each[0] > begin]
        new_permits, kept = dict[str, list[float]](), dict[str, list[float]]()
        parked = list[PermitRequest]()
        for request in requests:
            if request.epoch == _PARKED_EPOCH:
                parked.append(request)
                continue
            row = self.flows.get(request.flow)
            if row is not None and row.epoch > request.epoch:
                continue
            if request.costs and self.log is None:
                self.log = []
            corrected = row.corrected if row is not None and row.epoch == request.epoch else 0
            for correction in request.corrections:
                # Without a row, the request is repeated, or the permits have expired.
                if row is not None and correction.number > corrected:
                    self._correct(correction, now)
                corrected = max(corrected, correction.number)
            if not (request.held or request.wanted):
                self.flows.pop(request.flow, None)
                continue
            served = self.served if row is None else row.served
            if row is not None and not row.wanted:
                served = max(served, self.served)
            inherited = 0
            if row is not None and request.epoch > row.epoch and self.quota.interval is None:
                inherited = min(max(0, row.held - request.held), request.wanted)
            held, wanted = request.held + inherited, request.wanted - inherited
            self.flows[request.flow] = _Flow(
                request.epoch, held, wanted, now + request.seconds, served,
                request.costs[inherited:], corrected, request.home,
            )  # fmt: skip
            new_permits[request.flow] = []
            kept[request.flow] = [0.0] * inherited
        self._add_parked(parked, now)
        retry_seconds, resumable = self._assign_permits(new_permits, now)
        reserved = [
            uuid for uuid, row in self.flows.items() if row.is_parked and uuid not in resumable
        ]
        for uuid in {*reserved[1:]}.intersection(request.flow for request in parked):
            del self.flows[uuid]
        permits = {uuid: kept[uuid] + assigned for uuid, assigned in new_permits.items()}
        return Answer(permits, retry_seconds, self.quota, now, resumable)

    def _add_parked(self, requests: Iterable[PermitRequest], now: float) -> None:
        """Let parked flows wait, in this order. Ignore those that run."""
        rows = [(request, self.flows.get(request.flow)) for request in requests]
        waiting = [(request, row) for request, row in rows if row is None or row.is_parked]
        served = min([self.served, *(row.served for _, row in waiting if row is not None)])
        parked = {
            request.flow: _Flow(
                request.epoch, 0, request.wanted, now + request.seconds, served, request.costs
            )
            for request, _ in waiting
        }
        if self.log is None and any(row.costs for row in parked.values()):
            self.log = []
        # At the earlier place of these flows, or after other parked ones: later flows stay behind.
        flows = [*self.flows.items()]
        places = [number for number, (uuid, _) in enumerate(flows) if uuid in parked] or [
            number + 1 for number, (_, row) in enumerate(flows) if row.is_parked
        ][-1:]
        place = places[0] if places else len(flows)
        before = {uuid: row for uuid, row in flows[:place] if uuid not in parked}
        after = {uuid: row for uuid, row in flows[place:] if uuid not in parked}
        self.flows = {**before, **parked, **after}

    def reserves(self, uuid: str, now: float) -> bool:
        """Return whether a permit is reserved for a parked flow for some time."""
        row = self.flows.get(uuid)
        return row is not None and row.is_parked and row.until > now + RESERVED_SECONDS / 2

    def _set_quota(self, quota: Quota) -> None:
        old, new = self.quota.interval, quota.interval
        self.quota = quota
        if old is not None and new is not None and old != new:
            # The next permit has the distance of the new rate from the last one, so a higher rate
            # need not wait for the old interval.
            self.next = self.last + (self.next - self.last) * new / old

    @property
    def _logged_seconds(self) -> float:
        """The time for which the log counts a start."""
        window = self.quota.window
        return 0.0 if window is None else window[1] * (1 + 1 / _PARTS_PER_PERIOD)

    def _log_start(self, at: float, units: float) -> None:
        window = self.quota.window
        if self.log is None or window is None or not units:
            return
        part = window[1] / _PARTS_PER_PERIOD
        end = _end_of_part(at, part)
        if self.log and self.log[-1][0] > end - part / 2:
            last, logged = self.log.pop()
            self.log.append((last, logged + units))
        else:
            self.log.append((end, units))

    def _correct(self, correction: Correction, now: float) -> None:
        """Take units from the next permits, or give back units of the last period."""
        units, window, interval = correction.units, self.quota.window, self.quota.interval
        if interval is None or window is None:
            return
        if units > 0:
            if self.next < now:
                self.last = self.next = now
            self.next += units * interval
            self._log_start(now, units)
        elif self.log is not None and correction.start > now - self._logged_seconds:
            self.next = max(self.last, self.next + units * interval)
            self._give_back(-units, correction.start, window[1] / _PARTS_PER_PERIOD)

    def _give_back(self, units: float, start: float, part: float) -> None:
        """Remove units of a start from the log, or of earlier starts, which leave it sooner."""
        assert self.log is not None
        end = _end_of_part(start, part) + part / 2
        for index in range(bisect.bisect(self.log, (end, 0.0)) - 1, -1, -1):
            at, logged = self.log[index]
            returned = min(units, logged)
            self.log[index] = at, logged - returned
            units -= returned
        self.log = [each for each in self.log if each[1]]

    def _fits_from(self, units: float) -> float:
        """Return the time from which a start exceeds the limit in no window."""
        window = self.quota.window
        if self.log is None or window is None:
            return -math.inf
        free = window[0] * (1 + _TOLERANCE) - sum(logged for _, logged in self.log)
        fits = -math.inf
        for at, logged in self.log:
            if units <= free:
                break
            free += logged
            fits = at + self._logged_seconds
        return fits

    def _assign_permits(
        self, new_permits: dict[str, list[float]], now: float
    ) -> tuple[float | None, frozenset[str]]:
        """Assign permits to the flows in `new_permits`.

        :returns: the seconds until the next request if only time is missing, and the parked flows
            that can get a permit now.
        """
        interval, concurrency, window = (
            self.quota.interval, self.quota.concurrency, self.quota.window,
        )  # fmt: skip
        available = math.inf
        if concurrency is not None:
            available = concurrency - sum(row.held for row in self.flows.values())
        if interval is not None and self.last > now + 2 * HORIZON:
            # The store's clock was set back. Permits that were assigned before may still be used.
            self.next += now + HORIZON - self.last
            self.last = now + HORIZON
            self.log = self.log and [(min(at, self.last), units) for at, units in self.log]
        # Permits are also reserved for waiting flows that are not part of this call. With a rate,
        # each gets at most its share until its next request, so that a dead flow does not stop
        # others.
        waiting = [
            (row.held if concurrency is not None else 0, row.served, number, uuid, 0)
            for number, (uuid, row) in enumerate(self.flows.items())
            if row.wanted
        ]
        if interval is not None and waiting:
            least = self.served - max(1, round(HORIZON / 2 / interval / len(waiting)))
            waiting = [(held, max(served, least), *others) for held, served, *others in waiting]  # type: ignore[misc]
        heapq.heapify(waiting)
        # Time of the next start, if the reserved permits are used too.
        planned, fits = max(now, self.next), -math.inf
        resumable, reserved_units = set[str](), 0.0
        while waiting and available > 0:
            held, served, number, uuid, count = waiting[0]
            row = self.flows[uuid]
            cost = row.costs[count] if count < len(row.costs) else 1.0
            if (row.costs and count == len(row.costs)) or (window and cost > window[0]):
                heapq.heappop(waiting)  # The flow has to send more costs, or ends the task.
                if row.is_parked:
                    resumable.add(uuid)
                continue
            if interval is not None:
                fits = self._fits_from(cost + reserved_units)
                if max(planned, fits) > now + HORIZON + _TOLERANCE * interval:
                    break
                planned = max(planned, fits) + cost * interval
            available -= 1
            if uuid in new_permits:
                self._assign_permit(row, cost, new_permits[uuid], max(now, self.next, fits), now)
            elif row.is_parked:
                resumable.add(uuid)
                reserved_units += cost
            if count + 1 < row.wanted:
                held += concurrency is not None
                heapq.heapreplace(waiting, (held, served + cost, number, uuid, count + 1))
            else:
                heapq.heappop(waiting)
        for uuid, permits in new_permits.items():
            row = self.flows[uuid]
            row.wanted -= len(permits)
            row.costs = row.costs[len(permits) :]
        retry_seconds = None
        is_waiting = any(self.flows[uuid].wanted for uuid in new_permits)
        if interval is not None and is_waiting and available > 0:
            retry_seconds = max(HORIZON, max(self.next, fits) - now) - HORIZON / 2
        return retry_seconds, frozenset(resumable)

    def _assign_permit(
        self, row: _Flow, cost: float, permits: list[float], at: float, now: float
    ) -> None:
        row.held += 1
        self.served = row.served
        row.served += cost
        if self.quota.interval is None:
            permits.append(0.0)
            return
        self.last = at
        self.next = at + cost * self.quota.interval
        self._log_start(at, cost)
        permits.append(at - now)


def _end_of_part(at: float, part: float) -> float:
    return math.ceil(at / part) * part
