"""The account of one limit: which flows have its permits, which wait, and who gets the next ones.

A flow says each time how many permits it holds and how many more it could use, and is told when it
may use those it gets: who says the same twice changes nothing, and what a flow that died held is
free when its time is over.

Permits go one by one to the flow that waits and holds the fewest (where only the rate is limited:
which was given the fewest since it waits), then to the one that came first.  So each of several
flows gets the same share, whatever it waits for, and what one does not use goes to the others.

A rate is kept by spacing: permits are `interval` apart, and given up to `HORIZON` seconds before
they may be used, so that a flow asks about twice a second, however high the rate is.  What was not
used when its time came is lost: nothing is saved up for a burst.

Pure: times are arguments, in seconds of the store's clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wbengine.permits.limits import UNLIMITED, Quota

__all__ = ["HORIZON", "Account", "Answer", "PermitRequest"]

#: So long before it may be used a permit of a rate is given, at most.
HORIZON: Final = 1.0


class PermitRequest(NamedTuple):
    """What a flow says: it holds permits, and could use more.  Both 0: it has no part any more.

    `epoch` is that of its lease: who had an older one has nothing to say.  For `seconds` what it
    holds is its own without another word.
    """

    flow: str
    epoch: int
    held: int
    wanted: int
    seconds: float


class Answer(NamedTuple):
    """What flows get: for each permit, in how many seconds it may be used.

    `again`: in how many seconds there is something to ask for again; None: when permits are given
    back, or shares change.
    """

    permits: dict[str, list[float]]
    again: float | None


@dataclass(slots=True)
class _Flow:
    epoch: int
    held: int
    wanted: int
    until: float
    #: How many permits it was given, or would have been if it had waited all the time.
    served: int


@dataclass(slots=True)
class Account:
    """`next`: from when on the next permit may be used.  `served` is that of the flow which got
    the last one."""

    quota: Quota = UNLIMITED
    next: float = 0.0
    served: int = 0
    flows: dict[str, _Flow] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Account:
        flows = {
            uuid: _Flow(int(epoch), int(held), int(wanted), float(until), int(served))
            for uuid, (epoch, held, wanted, until, served) in data["flows"].items()
        }
        return cls(Quota(*data["terms"]), float(data["next"]), int(data["served"]), flows)

    def to_dict(self) -> dict[str, Any]:
        flows = {
            uuid: [row.epoch, row.held, row.wanted, row.until, row.served]
            for uuid, row in self.flows.items()
        }
        return {"terms": self.quota, "next": self.next, "served": self.served, "flows": flows}

    def live(self, now: float) -> dict[str, _Flow]:
        """The flows whose time is not over."""
        return {uuid: row for uuid, row in self.flows.items() if row.until > now}

    def expires(self, now: float) -> float:
        """In how many seconds nothing of it is needed any more."""
        return max([self.next, *(row.until for row in self.flows.values())]) - now

    def settle(self, quota: Quota, requests: Iterable[PermitRequest], now: float) -> Answer:
        """Hear what flows say, and give them what they get now."""
        self.quota = quota
        self.flows = self.live(now)
        asked = dict[str, list[float]]()
        for one in requests:
            known = self.flows.get(one.flow)
            if known is not None and known.epoch > one.epoch:
                continue
            if not (one.held or one.wanted):
                self.flows.pop(one.flow, None)
                continue
            served = self.served if known is None else known.served
            if known is not None and not known.wanted:
                served = max(served, self.served)
            until = now + one.seconds
            self.flows[one.flow] = _Flow(one.epoch, one.held, one.wanted, until, served)
            asked[one.flow] = []
        return Answer(asked, self._give(asked, now))

    def _give(self, asked: dict[str, list[float]], now: float) -> float | None:
        """Give them permits; returns when to ask again, if only time is waited for."""
        interval, concurrency = self.quota.interval, self.quota.concurrency
        free = math.inf
        if concurrency is not None:
            free = concurrency - sum(row.held for row in self.flows.values())
        room = free
        if interval is not None:
            if self.next > now + 2 * HORIZON + interval:  # the store's clock was set back
                self.next = now
            self.next = max(now, self.next)
            room = min(room, math.floor((now + HORIZON - self.next) / interval + 1e-6) + 1)
        # What the others would get is left to them: of a rate no more than each gets until it asks
        # again, so that a flow which died does not stop those that live.
        waiting = [
            (row.held if concurrency is not None else 0, row.served, number, uuid, row.wanted)
            for number, (uuid, row) in enumerate(self.flows.items())
            if row.wanted
        ]
        if interval is not None and waiting:
            least = self.served - max(1, round(HORIZON / 2 / interval / len(waiting)))
            waiting = [(held, max(served, least), *rest) for held, served, *rest in waiting]  # type: ignore[misc]
        heapq.heapify(waiting)
        while waiting and room > 0:
            held, served, number, uuid, wanted = waiting[0]
            room -= 1
            if uuid in asked:
                self._take(uuid, asked[uuid], now)
            more = wanted - 1
            if more:
                held += concurrency is not None
                heapq.heapreplace(waiting, (held, served + 1, number, uuid, more))
            else:
                heapq.heappop(waiting)
        if interval is None or not any(self.flows[uuid].wanted for uuid in asked):
            return None
        if free <= 0:
            return None
        return max(HORIZON, self.next - now) - HORIZON / 2

    def _take(self, uuid: str, permits: list[float], now: float) -> None:
        row = self.flows[uuid]
        row.held += 1
        row.wanted -= 1
        self.served = row.served
        row.served += 1
        if self.quota.interval is None:
            permits.append(0.0)
        else:
            permits.append(self.next - now)
            self.next += self.quota.interval
