"""The limits in use or changed, with the flows that hold permits or wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine._limits import account_stores, limit_changes
from wbengine._limits.limit_changes import LimitChange
from wbengine._tasks.limit_attributes import UNLIMITED, Quota

__all__ = ["FlowUsage", "LimitUsage", "listed"]


@dataclass(frozen=True, slots=True)
class FlowUsage:
    """The permits that a flow holds, and those that it waits for."""

    uuid: str
    held: int
    waiting: int


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """A limit.

    :ivar quota: the rate and the concurrency in force.
    :ivar defined: those of the code; None: no flow uses the limit.
    :ivar used: units of the latest starts of a limit with costs, in one period of its rate.
    :ivar next_permit: seconds until the next permit of its rate; None: it has no rate, or all
        permits of its concurrency are held.
    :ivar changes: the changes that apply, that of its key first.
    :ivar parked: number of parked flows that wait for it, besides `flows`.
    """

    name: str
    quota: Quota
    defined: Quota | None
    used: float | None
    next_permit: float | None
    changes: tuple[LimitChange, ...]
    flows: tuple[FlowUsage, ...]
    parked: int = 0

    @property
    def held(self) -> int:
        return sum(flow.held for flow in self.flows)

    @property
    def waiting(self) -> int:
        return sum(flow.waiting for flow in self.flows) + self.parked

    @property
    def flow_count(self) -> int:
        return len(self.flows) + self.parked

    @property
    def is_unknown(self) -> bool:
        """Whether only parked flows use it, so that the rate and the concurrency are unknown."""
        return self.defined is None and self.parked > 0

    def to_dict(self) -> dict[str, Any]:
        defined = self.defined
        return {
            "name": self.name,
            "rate": self.quota.rate,
            "concurrency": self.quota.concurrency,
            "defined": defined and {"rate": defined.rate, "concurrency": defined.concurrency},
            "used": self.used,
            "next_permit": self.next_permit,
            "changes": [change.to_dict() for change in self.changes],
            "flows": [
                {"uuid": flow.uuid, "held": flow.held, "waiting": flow.waiting}
                for flow in self.flows
            ],
            "parked": self.parked,
        }


def listed(store: account_stores.Store) -> list[LimitUsage]:
    """Return the limits that are in use, and those that operators changed, by name."""
    accounts, changes = store.all(), store.changes()
    # Some of the parked flows take part in limits.
    members = [
        uuid
        for account, now in accounts.values()
        for uuid, row in account.live(now).items()
        if row.is_parked
    ]
    parked = store.parked(members)
    usages = []
    for name in sorted({*accounts, *changes, *parked}):
        applying = tuple(limit_changes.applying(name, changes))
        quota, defined, used, next_permit = UNLIMITED, None, None, None
        flows: tuple[FlowUsage, ...] = ()
        others = parked.get(name, 0)
        if name in accounts:
            account, now = accounts[name]
            flows = tuple(
                FlowUsage(uuid, row.held, row.wanted) for uuid, row in account.live(now).items()
            )
            if flows:
                quota = defined = account.defined
                used, next_permit = account.used(now), account.next_permit(now)
        if flows or others or name in changes:
            quota = limit_changes.apply(name, quota, changes)
            usages.append(
                LimitUsage(name, quota, defined, used, next_permit, applying, flows, others)
            )
    return usages
