"""The queues of one exchange: what waits in them, and who takes from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine import _names, exceptions
from wbengine._clock import SYSTEM
from wbengine.engines.worker_based.connections import connecting, dead_letters, queue_counts
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life
from wbengine.engines.worker_based.worker_side import describing
from wbengine.views import fleet as fleets
from wbengine.views import formatting

__all__ = [
    "DEAD",
    "ENGINE",
    "REQUESTS",
    "WORKER",
    "DeadLetterView",
    "QueueView",
    "dead",
    "look",
    "named",
    "purge",
    "retry",
    "tells_all",
]

Kind = Literal["requests", "worker", "engine", "dead"]
#: Requests for workers that offer the same tasks on the same topic.
REQUESTS: Final = "requests"
#: What one worker is asked and told, and what one engine is.
WORKER: Final = "worker"
ENGINE: Final = "engine"
#: Requests that were put aside, since all workers that they were sent to were lost.
DEAD: Final = "dead"


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


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A request that was put aside: `why`, and for how many seconds it is (None: not known)."""

    id: str
    epoch: int
    task: str
    action: str
    flow: str | None
    queue: str | None
    why: str
    age: float | None

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
    known = {*served, *names, dead_letters.queue_name(fleet.exchange)}
    # Of itself, nobody wants to know.
    found = [each for each in _count(fleet, known) if each.name != fleet.own_queue]
    seen = [_view(each, served.get(each.name, ()), fleet.exchange) for each in found]
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


def dead(fleet: fleets.Fleet) -> list[DeadLetterView]:
    """The dead letters of a fleet's exchange, the oldest first; the first 1,000 of them.

    :raises TransportFailure: the broker is away, or does not permit it.
    """
    with _dead_letters(fleet) as letters:
        return [_letter(found) for found in letters.look()]


def named(found: Collection[DeadLetterView], ids: Collection[str]) -> list[DeadLetterView]:
    """Those dead letters of these ids, or beginnings of ids; none: all.

    :raises NotFound: there is no such dead letter, or several.
    """
    by_id = {one.id: one for one in found}
    wanted = [_known(id, by_id, "dead letter") for id in ids] if ids else by_id
    return [by_id[id] for id in dict.fromkeys(wanted)]


def retry(
    fleet: fleets.Fleet,
    ledger: ledgers.Ledger | None,
    ids: Collection[str],
    *,
    wait: float = fleets.WAIT,
) -> dict[str, Exception]:
    """Send dead letters, by their whole ids, to workers that run their tasks on their topics now;
    `ledger` is the one that these workers hold, `fleet` is open.

    Each is run as if it was lost once more: under another epoch.  Its flow has gone on without it,
    and learns nothing of what comes of it.

    Returns why letters were not sent, each by its id; they are kept, and can be sent later.  It is
    a `NotFound` where there is no such letter, or no worker that runs its task; a ValueError where
    its row is in another ledger, or it is under way; a `LedgerFailure`; a `TransportFailure`.

    :raises TransportFailure: the broker is away, or does not permit it.
    """
    failed: dict[str, Exception] = {}
    workers = fleet.workers(wait=wait)
    with _dead_letters(fleet) as letters:
        found = {letter.id: letter for letter in letters.look()}
        for id in ids:
            try:
                if id not in found:
                    raise exceptions.NotFound(f"there is no dead letter {id!r}")
                # A row is made last: one that was made, and not sent, is gone on with.
                queue = _serving(found[id], workers)
                letters.send(found[id], queue, _reopened(found[id], ledger))
            except (exceptions.WbengineException, ValueError) as error:
                failed[id] = error
    return failed


def _serving(letter: dead_letters.DeadLetter, workers: Iterable[fleets.WorkerView]) -> str:
    """A queue of workers that run the task of a letter, on its topic; its own if it can be.

    :raises NotFound: there is none.
    """
    own = letter.queue or ""
    topic = own.rpartition(".")[0]  # a queue is called by its topic, and by what it is for
    serving = {
        queue
        for worker in workers
        if letter.task_cls in worker.tasks and worker.state not in (life.DEAD, life.DRAINING)
        for queue in worker.queues
        if queue.rpartition(".")[0] == topic
    }
    if not serving:
        raise exceptions.NotFound(
            f"request {letter.id} cannot be sent again: no worker runs {letter.task_cls} on"
            f" topic {topic!r}"
        )
    return own if own in serving else min(serving)


def _dead_letters(fleet: fleets.Fleet) -> dead_letters.DeadLetters:
    return dead_letters.DeadLetters(
        fleet.target, fleet.exchange, max(1.0, fleet.timeout), fleet.signer
    )


def _letter(found: dead_letters.DeadLetter) -> DeadLetterView:
    age = None if found.at is None else max(0.0, SYSTEM.time() - found.at)
    return DeadLetterView(
        found.id,
        found.epoch,
        found.task,
        found.action,
        found.flow,
        found.queue or None,
        found.why,
        age,
    )


def _reopened(letter: dead_letters.DeadLetter, ledger: ledgers.Ledger | None) -> int:
    """The epoch under which it may be run again: it has its row by then, if there are rows."""
    if letter.digest is None:
        return letter.epoch + 1
    if ledger is None or ledger.digest != letter.digest:
        raise ValueError(
            f"request {letter.id} has its row in ledger {letter.digest}, not in"
            f" {ledger.digest if ledger is not None else 'none'}: name the ledger of its workers"
        )
    row = ledger.state(letter.id)
    if row is not None and row.state == ledgers.ROW_OPEN and row.epoch > letter.epoch:
        return row.epoch  # another retry made it, and ended before it had sent the letter
    if row is not None and row.state != ledgers.ROW_DONE:
        raise ValueError(f"request {letter.id} is under way: its row is {row.state}")
    epoch = max(letter.epoch, row.epoch if row is not None else 0) + 1
    ledger.drop(letter.id)
    ledger.open(letter.id, epoch)
    return epoch


def _known(name: str, known: Collection[str], what: str = "queue") -> str:
    if name in known:
        return name
    meant = [each for each in known if each.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    raise exceptions.NotFound(
        f"{name!r} are several {what}s: {', '.join(sorted(meant)[:5])}"
        if meant
        else f"there is no {what} {name!r}{_names.hint(name, known)}"
    )


def _view(
    found: queue_counts.Counted, workers: Collection[fleets.WorkerView], exchange: str
) -> QueueView:
    topics = {
        topic
        for worker in workers
        for topic, queue in zip(worker.topics, worker.queues, strict=True)
        if queue == found.name
    }
    return QueueView(
        found.name,
        DEAD if found.name == dead_letters.queue_name(exchange) else _kind(found),
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
