"""The queues of one exchange: what waits in them, and who takes from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine import _names, exceptions
from wbengine.engines.worker_based.connections import connecting, queue_counts
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side import describing
from wbengine.views import fleet as fleets
from wbengine.views import formatting

__all__ = ["ENGINE", "REQUESTS", "WORKER", "QueueView", "look", "purge", "tells_all"]

Kind = Literal["requests", "worker", "engine"]
#: Requests for workers that offer the same tasks on the same topic.
REQUESTS: Final = "requests"
#: What one worker is asked and told, and what one engine is.
WORKER: Final = "worker"
ENGINE: Final = "engine"


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue: `messages` wait in it, `consumers` take from it.

    `topic` and `workers` are those of the workers that were heard of.
    """

    name: str
    kind: Kind
    messages: int
    consumers: int
    topic: str | None = None
    workers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self)


def tells_all(fleet: fleets.Fleet) -> bool:
    """Whether the broker tells which queues there are; else only those are known that workers
    announce, and those that somebody names."""
    return queue_counts.tells_all(fleet.target)


def look(
    fleet: fleets.Fleet, names: Collection[str] = (), *, wait: float = fleets.WAIT
) -> list[QueueView]:
    """The queues of a fleet's exchange, by name; `names`: only these.

    :raises TransportFailure: the broker is away, or does not permit it.
    :raises NotFound: there is no queue of such a name.
    """
    workers = fleet.workers(wait=wait)
    served: dict[str, list[fleets.WorkerView]] = {}
    for worker in workers:
        for queue in (*worker.queues, worker.name):
            served.setdefault(queue, []).append(worker)
    # Of itself, nobody wants to know.
    found = [each for each in _count(fleet, {*served, *names}) if each.name != fleet.own_queue]
    seen = [_view(each, served.get(each.name, ())) for each in found]
    if not names:
        return seen
    by_name = {each.name: each for each in seen}
    return [by_name[_known(name, by_name)] for name in dict.fromkeys(names)]


def _count(fleet: fleets.Fleet, names: Iterable[str]) -> list[queue_counts.Counted]:
    connection = fleet.connect()
    try:
        return queue_counts.count(connection, fleet.target, fleet.exchange, names)
    finally:
        connecting.release(connection)


def purge(fleet: fleets.Fleet, queues: Collection[QueueView]) -> dict[str, int]:
    """Remove the messages that wait in these; how many went from each.

    Nothing is lost by that: what is under way is in the records of the engines that wait for it.
    They find out that a request is gone as soon as there is a worker that could take it, and send
    it again (its row in the ledger stays).  So this is for what dead engines left, or for a broker
    that is too full; who wants that something is not run cancels the flow.

    :raises TransportFailure: the broker is away, or does not permit it.
    """
    connection = fleet.connect()
    try:
        return queue_counts.purge(connection, fleet.target, [queue.name for queue in queues])
    finally:
        connecting.release(connection)


def _known(name: str, known: Collection[str]) -> str:
    if name in known:
        return name
    meant = [each for each in known if each.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    raise exceptions.NotFound(
        f"{name!r} are several queues: {', '.join(sorted(meant)[:5])}"
        if meant
        else f"there is no queue {name!r}{_names.hint(name, known)}"
    )


def _view(found: queue_counts.Counted, workers: Collection[fleets.WorkerView]) -> QueueView:
    topics = {
        topic
        for worker in workers
        for topic, queue in zip(worker.topics, worker.queues, strict=True)
        if queue == found.name
    }
    return QueueView(
        found.name,
        _kind(found),
        found.messages,
        len(workers) if found.consumers is None else found.consumers,
        min(topics, default=None),
        tuple(sorted(worker.name for worker in workers)),
    )


def _kind(found: queue_counts.Counted) -> Kind:
    if env.ALL_ENGINES in found.keys:
        return ENGINE
    private = describing.host_and_pid(found.name)[0] is not None
    return WORKER if private or env.ALL_WORKERS in found.keys else REQUESTS
