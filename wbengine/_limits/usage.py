"""The limits in use, with the flows that hold permits or wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine._limits import shared_accounts

__all__ = ["FlowUsage", "LimitUsage", "in_use"]


@dataclass(frozen=True, slots=True)
class FlowUsage:
    """The permits that a flow holds, and those that it waits for."""

    uuid: str
    held: int
    waiting: int


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """A limit in use.

    :ivar rate: such as 100/m, or None.
    :ivar concurrency: the maximum number of held permits, or None.
    """

    name: str
    rate: str | None
    concurrency: int | None
    flows: tuple[FlowUsage, ...]

    @property
    def held(self) -> int:
        return sum(flow.held for flow in self.flows)

    @property
    def waiting(self) -> int:
        return sum(flow.waiting for flow in self.flows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rate": self.rate,
            "concurrency": self.concurrency,
            "flows": [
                {"uuid": flow.uuid, "held": flow.held, "waiting": flow.waiting}
                for flow in self.flows
            ],
        }


def in_use(store: shared_accounts.Store) -> list[LimitUsage]:
    """Return the limits of which flows hold permits or wait for them, by name."""
    usages = []
    for name, (account, now) in sorted(store.all().items()):
        flows = tuple(
            FlowUsage(uuid, row.held, row.wanted) for uuid, row in account.live(now).items()
        )
        if flows:
            rate, _, concurrency = account.quota
            usages.append(LimitUsage(name, rate, concurrency, flows))
    return usages
