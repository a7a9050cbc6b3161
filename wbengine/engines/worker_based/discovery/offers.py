"""What is on offer: which workers take which tasks, as far as somebody with requests cares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from wbengine import _names

#: How many known topics and tasks an error names.
_NAMED: Final = 8


class Offers(Protocol):
    """What a `RequestTracker` needs to know of workers (`ProxyWorkerFinder` knows it)."""

    @property
    def period(self) -> float:
        """Seconds between two beats of a worker."""

    @property
    def patience(self) -> float:
        """Seconds of silence after which a worker is lost that was never heard of; infinite where
        silence is no loss.
        """

    def queue_for(self, task_cls: str, waiting: Any) -> str | None:
        """Where a request for `task_cls` should go, if there is a live worker for it."""

    def queues(self, task_cls: str) -> Sequence[str]:
        """All queues whose live workers offer `task_cls`."""

    def slots(self, queue: str) -> int:
        """How many tasks the live workers of `queue` run at once; 0 when there are none."""

    def free(self, queue: str) -> int:
        """How many of those slots were free when last heard of."""

    def speaks(self, queue: str) -> bool:
        """Whether they speak more than plain TaskFlow."""

    def watch(self, identity: str, silence: float = 0.0) -> None:
        """A worker holds a request: tell if it is lost, even if it was never heard of.

        `silence` is for how many seconds it has been silent already, as its ledger knows.
        """

    def rounds(self, queue: str, since: float) -> int:
        """How often (at most twice) *every* live worker of a queue has spoken since then, of those
        that were there.  0 when there are none at all.
        """

    def idle_rounds(self, queue: str, since: float) -> int:
        """How often (at most twice) every live worker of it reported a free slot since then, as its
        last words.  0 when there are none.
        """

    def missed(self, since: float, now: float) -> float:
        """Seconds of that time in which nothing could be heard of anybody."""

    @property
    def wanted(self) -> Sequence[str]:
        """The topics whose workers are looked for, or patterns of them; none: all."""

    def topics(self) -> list[str]: ...

    def tasks(self) -> list[str]: ...


def why_nobody(offers: Offers, task_cls: str) -> str:
    """Why a request for `task_cls` cannot go anywhere, for people."""
    tasks, topics = offers.tasks(), offers.topics()
    if not topics:
        wanted = ", ".join(map(repr, offers.wanted))
        where = f"on {wanted} (others do not count)" if wanted else "on any topic"
        return f"no worker is known, {where}; none offers {task_cls}"
    return (
        f"no worker offers {task_cls}{_names.hint(task_cls, tasks)};"
        f" known topics: {_some(topics)}; known tasks: {_some(tasks)}"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) or "none") + more
