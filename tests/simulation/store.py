"""The store: flows, their owners and the states of their atoms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.seams.stores import EPOCHS_PER_RUN
from wbengine import exceptions as exc
from wbengine._calls import invocation

#: Duration of a lease, and seconds between renewals.
LEASE: Final = 15.0
RENEWAL: Final = 5.0

PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
ENDED: Final = "ENDED"


@dataclass
class Atom:
    """One task of a flow.  `retries`: number of retries after a failure."""

    uuid: str
    task: Any
    arguments: dict[str, Any]
    priority: int = 0
    retries: int = 0
    state: str = PENDING
    attempt: int = 0
    epoch: int = 0
    outcome: Any = None
    #: True if the task was cancelled.
    cancelled: bool = False

    @property
    def request_id(self) -> str:
        return invocation.request_id(self.uuid, "execute", self.attempt)

    def ids(self) -> list[str]:
        """Return the ids of its ended requests."""
        last = self.attempt + (self.state != RUNNING)
        return [invocation.request_id(self.uuid, "execute", n) for n in range(1, last)]


@dataclass
class Flow:
    """`epoch` is that of the latest lease; `known` contains the ledgers of earlier executors."""

    name: str
    atoms: list[Atom] = field(default_factory=list)
    owner: Any = None
    epoch: int = 0
    until: float = 0.0
    executor: str | None = None
    known: list[str | None] | None = None
    #: True if the owner has processed the end of the flow.
    finished: bool = False

    @property
    def ended(self) -> bool:
        return all(atom.state == ENDED for atom in self.atoms)

    @property
    def fence(self) -> int:
        return self.epoch * EPOCHS_PER_RUN


class Store:
    """A store that checks the lease of the writer at each write."""

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.atoms: dict[str, Atom] = {}

    def add(self, flow: Flow) -> None:
        self.flows[flow.name] = flow
        self.atoms.update((atom.uuid, atom) for atom in flow.atoms)

    def orphans(self, now: float) -> list[Flow]:
        """Return unfinished flows without a live owner."""
        return [
            flow
            for flow in self.flows.values()
            if not flow.finished and (flow.owner is None or flow.owner.dead or flow.until <= now)
        ]

    def forget(self, owner: Any) -> set[str]:
        """Delete the unstored flows of a dead owner; return the ids of their requests."""
        ended = [flow for flow in self.flows.values() if flow.owner is owner]
        for flow in ended:
            del self.flows[flow.name]
        return {
            invocation.request_id(atom.uuid, "execute", attempt)
            for flow in ended
            for atom in flow.atoms
            for attempt in range(1, atom.attempt + 1)
        }

    def take(self, flow: Flow, owner: Any, now: float) -> int:
        flow.owner, flow.until = owner, now + LEASE
        flow.epoch += 1
        return flow.epoch

    def check(self, flow: Flow, owner: Any, epoch: int) -> None:
        """Check the lease.

        :raises LeaseLost: if another engine owns the flow
        """
        if flow.owner is not owner or flow.epoch != epoch:
            raise exc.LeaseLost(f"flow {flow.name} is somebody else's")
