"""Operations on many flows: each is stored with its flows and carried out in their order."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions

__all__ = [
    "CANCELLED", "COMPLETE", "RUNNING", "STATES", "Bulk", "BulkFlow", "BulkStore", "Skipped",
    "Work", "after", "check_change",
]  # fmt: skip

RUNNING: Final = "RUNNING"
COMPLETE: Final = "COMPLETE"
CANCELLED: Final = "CANCELLED"
STATES: Final = (RUNNING, COMPLETE, CANCELLED)


class BulkFlow(NamedTuple):
    """A flow of an operation.

    :ivar state: the stored state of the flow when the operation was confirmed.
    :ivar arguments: arguments for this flow only.
    :ivar current_state: the stored state of the flow now; None: the flow was deleted.
    """

    uuid: str
    state: str
    arguments: Mapping[str, Any] | None = None
    current_state: str | None = None


class Skipped(NamedTuple):
    """Flows that an operation skipped for the same reason, in which `ID` replaces their uuids."""

    reason: str
    flows: int
    example: str


class Bulk(NamedTuple):
    """An operation on many flows.

    :ivar operation: its name in the table of operations, with its `arguments` for each flow.
    :ivar filter: how the flows were selected, for reports.
    :ivar by: who requested it. `created` and `ended` are Unix seconds.
    :ivar rate: maximum number of flows per second; None: no limit.
    :ivar total: number of its flows.
    :ivar done: number of flows on which it was carried out, and `skipped` that of the others, which
        are reported with reasons. Both are the first ones in the order of the flows.
    :ivar owner: the process that carries it out now, or None.
    """

    uuid: str
    operation: str
    arguments: Mapping[str, Any]
    filter: Mapping[str, Any]
    reason: str | None
    by: str | None
    rate: float | None
    created: float
    total: int
    state: str = RUNNING
    done: int = 0
    skipped: int = 0
    ended: float | None = None
    owner: str | None = None

    @property
    def settled(self) -> int:
        """Number of flows that were done or skipped."""
        return self.done + self.skipped

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON. Arguments are only names, because the values may be secret."""
        names = {"arguments": sorted(self.arguments)}
        return {**self._asdict(), **names, "open": self.total - self.settled}


#: Carries an operation out on flows of a `base.Backend`. Returns the reasons of skipped flows by
#: uuid.
Work = Callable[[Any, Bulk, Sequence[BulkFlow]], Mapping[str, str]]


class BulkStore(abc.ABC):
    """The operations on many flows in a store. Thread-safe."""

    @abc.abstractmethod
    def add(self, bulk: Bulk, flows: Sequence[BulkFlow]) -> None:
        """Store an operation and its flows, which are different, in one step."""

    @abc.abstractmethod
    def get(self, uuid: str) -> Bulk:
        """Return an operation.

        :raises NotFound: if it does not exist.
        """

    @abc.abstractmethod
    def latest(self, states: Sequence[str] = STATES, limit: int = 100) -> list[Bulk]:
        """Return operations in these states, the latest first."""

    @abc.abstractmethod
    def advance(self, uuid: str, owner: str, seconds: float, limit: int, work: Work) -> Bulk | None:
        """Claim an operation for a number of seconds, and carry it out on its next flows.

        SQL stores do all this in one transaction, which also contains the changes that `work` makes
        in the store that it receives: if the process dies, either all of them are written or none.
        Concurrent calls for an operation wait for each other. `work` may be called again if the
        database rolled the transaction back.

        :param limit: maximum number of flows.
        :returns: the operation after the changes; None: it is over, or has another owner.
        :raises Exception: errors of `work`; then nothing has changed.
        """

    @abc.abstractmethod
    def release(self, uuid: str, owner: str) -> None:
        """End the claim of an owner, if it has one."""

    @abc.abstractmethod
    def change_state(self, uuid: str, state: str) -> Bulk:
        """Cancel an operation, or continue a cancelled one. Idempotent.

        :raises InvalidState: if it is complete.
        :raises NotFound: if it does not exist.
        """

    @abc.abstractmethod
    def skipped(self, uuid: str) -> list[Skipped]:
        """Return the reasons of skipped flows, the most frequent first."""

    @abc.abstractmethod
    def flows(self, uuid: str, limit: int = 1000, start: int = 0) -> list[tuple[str, str | None]]:
        """Return the uuids of flows from a position, and the reasons of skipped ones."""

    @abc.abstractmethod
    def has_own_arguments(self, uuid: str) -> bool:
        """Return whether some flows of an operation have arguments of their own."""

    @abc.abstractmethod
    def delete_ended(self, before: float) -> None:
        """Delete operations that ended before a time in Unix seconds."""


def check_change(bulk: Bulk, state: str) -> None:
    """Check that the state of an operation can be changed.

    :raises InvalidState: if it cannot.
    """
    if bulk.state == COMPLETE:
        verb = "cancelled" if state == CANCELLED else "resumed"
        raise exceptions.InvalidState(f"Operation {bulk.uuid} is {COMPLETE}: it cannot be {verb}")


def after(bulk: Bulk, count: int, skipped: int) -> Bulk:
    """Return an operation after its next flows, of which some were skipped."""
    done = bulk.done + count - skipped
    is_complete = bulk.settled + count >= bulk.total
    state = COMPLETE if is_complete else bulk.state
    return bulk._replace(done=done, skipped=bulk.skipped + skipped, state=state)
