"""The saved truth: flows, who owns them, and how far their atoms came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.seams.stores import EPOCHS_PER_RUN
from wbengine import exceptions as exc
from wbengine import invocation

#: Seconds that a lease lasts, and between two renewals.
LEASE: Final = 15.0
RENEWAL: Final = 5.0

PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
ENDED: Final = "ENDED"


@dataclass
class Atom:
    """One task of a flow.  `retries`: how often it is tried again after a failure."""

    uuid: str
    task: Any
    arguments: dict[str, Any]
    priority: int = 0
    retries: int = 0
    state: str = PENDING
    attempt: int = 0
    epoch: int = 0
    outcome: Any = None
    #: It was asked to end.
    cancelled: bool = False

    @property
    def request_id(self) -> str:
        return invocation.request_id(self.uuid, "execute", self.attempt)

    def ids(self) -> list[str]:
        """The requests of it that ended."""
        last = self.attempt + (self.state != RUNNING)
        return [invocation.request_id(self.uuid, "execute", n) for n in range(1, last)]


@dataclass
class Flow:
    """`epoch` is that of its latest lease.  `known`: what `resume` notes of its executors."""

    name: str
    atoms: list[Atom] = field(default_factory=list)
    owner: Any = None
    epoch: int = 0
    until: float = 0.0
    executor: str | None = None
    known: list[str | None] | None = None
    #: Whoever ran it saw its end.
    finished: bool = False

    @property
    def ended(self) -> bool:
        return all(atom.state == ENDED for atom in self.atoms)

    @property
    def fence(self) -> int:
        return self.epoch * EPOCHS_PER_RUN


class Store:
    """Each write is checked against the lease of who writes."""

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.atoms: dict[str, Atom] = {}

    def add(self, flow: Flow) -> None:
        self.flows[flow.name] = flow
        self.atoms.update((atom.uuid, atom) for atom in flow.atoms)

    def orphans(self, now: float) -> list[Flow]:
        """Unfinished flows that nobody owns who is known to live."""
        return [
            flow
            for flow in self.flows.values()
            if not flow.finished and (flow.owner is None or flow.owner.dead or flow.until <= now)
        ]

    def forget(self, owner: Any) -> set[str]:
        """Flows that are kept nowhere end with their owner; the requests that they may have
        sent."""
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
        """:raises LeaseLost: somebody else owns the flow."""
        if flow.owner is not owner or flow.epoch != epoch:
            raise exc.LeaseLost(f"flow {flow.name} is somebody else's")
