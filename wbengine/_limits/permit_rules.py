"""Rules of one limit: the flows that have permits or wait, and the order of new permits.

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

The module is pure: times are arguments, in seconds of the store's clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wbengine._tasks.limit_attributes import UNLIMITED, Quota

__all__ = ["HORIZON", "KEPT_SECONDS", "Account", "Answer", "PermitRequest"]

#: Maximum time in advance at which a permit of a rate is assigned.
HORIZON: Final = 1.0
#: Time for which a parked flow keeps its permits.
KEPT_SECONDS: Final = 1e9
_MAX_ASSIGNABLE: Final = 1000


class PermitRequest(NamedTuple):
    """Request of a flow: the permits that it has, and the number that it wants in addition.

    If both are 0, the flow leaves the limit. `epoch` is that of its lease; requests with an older
    epoch are ignored. Its permits expire after `seconds` without another request.
    """

    flow: str
    epoch: int
    held: int
    wanted: int
    seconds: float


class Answer(NamedTuple):
    """Answer to flows: for each new permit, the seconds until it may be used.

    `retry_seconds`: seconds until another request can succeed; None: only after permits are
    released or shares change. `quota` is in force.
    """

    permits: dict[str, list[float]]
    retry_seconds: float | None
    quota: Quota = UNLIMITED


@dataclass(slots=True)
class _Flow:
    epoch: int
    held: int
    wanted: int
    until: float
    #: Number of permits that the flow got, or would have got if it had always waited.
    served: int


@dataclass(slots=True)
class Account:
    """Account of one limit.

    `quota` is in force, and `defined` is that of the code. `last` is the time from which the last
    permit may be used, and `next` that of the next permit. `served` is that of the flow that got
    the last permit.
    """

    quota: Quota = UNLIMITED
    defined: Quota = UNLIMITED
    last: float = 0.0
    next: float = 0.0
    served: int = 0
    flows: dict[str, _Flow] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Account:
        flows = {
            uuid: _Flow(int(epoch), int(held), int(wanted), float(until), int(served))
            for uuid, (epoch, held, wanted, until, served) in data["flows"].items()
        }
        return cls(
            Quota(*data["terms"]),
            Quota(*data.get("defined", data["terms"])),
            float(data.get("last", data["next"])),
            float(data["next"]),
            int(data["served"]),
            flows,
        )

    def to_dict(self) -> dict[str, Any]:
        flows = {
            uuid: [row.epoch, row.held, row.wanted, row.until, row.served]
            for uuid, row in self.flows.items()
        }
        return {
            "terms": self.quota,
            "defined": self.defined,
            "last": self.last,
            "next": self.next,
            "served": self.served,
            "flows": flows,
        }

    def live(self, now: float) -> dict[str, _Flow]:
        """Return the flows whose permits have not expired."""
        return {uuid: row for uuid, row in self.flows.items() if row.until > now}

    def expires(self, now: float) -> float:
        """Return the seconds until the account can be deleted."""
        return max([self.next, *(row.until for row in self.flows.values())]) - now

    def assignable(self, now: float) -> int:
        """Return the number of permits that could be assigned now, if flows wanted them."""
        available = math.inf
        if self.quota.concurrency is not None:
            available = self.quota.concurrency - sum(row.held for row in self.live(now).values())
        if self.quota.interval is not None:
            left = (now + HORIZON - max(now, self.next)) / self.quota.interval
            available = min(available, math.floor(left + 1e-6) + 1)
        return int(max(0, min(available, _MAX_ASSIGNABLE)))

    def kept(self, now: float) -> list[str]:
        """Return the parked flows that keep permits."""
        return [uuid for uuid, row in self.flows.items() if row.until > now + KEPT_SECONDS / 2]

    def next_permit(self, now: float) -> float | None:
        """Return the seconds until the next permit of a rate; None: it depends on other tasks."""
        held = sum(row.held for row in self.live(now).values())
        is_full = self.quota.concurrency is not None and held >= self.quota.concurrency
        return None if is_full or self.quota.interval is None else max(0.0, self.next - now)

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
        live_flows = self.live(now)
        if len(live_flows) < len(self.flows) and self.next < now + HORIZON:
            # The clock was set forward, or processes died: their permits may still be used.
            self.last = self.next = now + HORIZON
        self.flows = live_flows
        new_permits = dict[str, list[float]]()
        for request in requests:
            row = self.flows.get(request.flow)
            if row is not None and row.epoch > request.epoch:
                continue
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
            until = now + request.seconds
            self.flows[request.flow] = _Flow(request.epoch, held, wanted, until, served)
            new_permits[request.flow] = [0.0] * inherited
        return Answer(new_permits, self._assign_permits(new_permits, now), self.quota)

    def _set_quota(self, quota: Quota) -> None:
        old, new = self.quota.interval, quota.interval
        self.quota = quota
        if old is not None and new is not None and old != new:
            # The next permit has the distance of the new rate from the last one, so a higher rate
            # need not wait for the old interval.
            self.next = self.last + (self.next - self.last) * new / old

    def _assign_permits(self, new_permits: dict[str, list[float]], now: float) -> float | None:
        """Assign permits. Return the seconds until the next request if only time is missing."""
        interval, concurrency = self.quota.interval, self.quota.concurrency
        available = math.inf
        if concurrency is not None:
            available = concurrency - sum(row.held for row in self.flows.values())
        assignable = available
        if interval is not None:
            if self.last > now + 2 * HORIZON:
                # The store's clock was set back. Permits that were assigned before may still be
                # used.
                self.next += now + HORIZON - self.last
                self.last = now + HORIZON
            begin = max(now, self.next)
            assignable = min(assignable, math.floor((now + HORIZON - begin) / interval + 1e-6) + 1)
        # Permits are also reserved for waiting flows that are not part of this call. With a rate,
        # each gets at most its share until its next request, so that a dead flow does not stop
        # others.
        waiting = [
            (row.held if concurrency is not None else 0, row.served, number, uuid, row.wanted)
            for number, (uuid, row) in enumerate(self.flows.items())
            if row.wanted
        ]
        if interval is not None and waiting:
            least = self.served - max(1, round(HORIZON / 2 / interval / len(waiting)))
            waiting = [(held, max(served, least), *others) for held, served, *others in waiting]  # type: ignore[misc]
        heapq.heapify(waiting)
        while waiting and assignable > 0:
            held, served, number, uuid, wanted = waiting[0]
            assignable -= 1
            if uuid in new_permits:
                self._assign_permit(uuid, new_permits[uuid], now)
            still_wanted = wanted - 1
            if still_wanted:
                held += concurrency is not None
                heapq.heapreplace(waiting, (held, served + 1, number, uuid, still_wanted))
            else:
                heapq.heappop(waiting)
        if interval is None or not any(self.flows[uuid].wanted for uuid in new_permits):
            return None
        if available <= 0:
            return None
        return max(HORIZON, self.next - now) - HORIZON / 2

    def _assign_permit(self, uuid: str, permits: list[float], now: float) -> None:
        row = self.flows[uuid]
        row.held += 1
        row.wanted -= 1
        self.served = row.served
        row.served += 1
        if self.quota.interval is None:
            permits.append(0.0)
        else:
            self.last = max(now, self.next)
            permits.append(self.last - now)
            self.next = self.last + self.quota.interval
