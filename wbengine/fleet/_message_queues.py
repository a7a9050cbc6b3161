"""The queues of one exchange, and its dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine import exceptions
from wbengine._concurrency.clocks import SYSTEM
from wbengine._introspection import object_names
from wbengine.engines.worker_based._connections import connecting, dead_letters, queue_counts
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_life
from wbengine.engines.worker_based._worker_side import describing
from wbengine.fleet import client as fleets
from wbengine.persistence._listing import Backlog
from wbengine.transports import _ledger as ledgers
from wbengine.views import _formatting

__all__ = [
    "DEAD",
    "ENGINE",
    "REQUESTS",
    "WORKER",
    "DeadLetterView",
    "QueueView",
    "can_list",
    "describe_backlog",
    "fold",
    "list_dead_letters",
    "list_queues",
    "purge",
    "retry",
    "select_dead_letters",
]

Kind = Literal["requests", "worker", "engine", "dead"]
#: Kind of a queue: requests for all workers that offer the same tasks on the same topic.
REQUESTS: Final = "requests"
#: Kinds of private queues: messages for one worker, messages for one engine.
WORKER: Final = "worker"
ENGINE: Final = "engine"
#: Kind of a queue: dead letters.
DEAD: Final = "dead"


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with the number of its messages and consumers.

    `workers` are the known workers that consume from it, `topic` is their topic. `abandoned`: its
    engine or worker ended without deleting it; the broker deletes the queue later.
    """

    name: str
    kind: Kind
    messages: int
    consumers: int
    topic: str | None = None
    workers: tuple[str, ...] = ()
    abandoned: bool = False

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter. `why` is the reason; `age` is in seconds, or None if unknown."""

    id: str
    epoch: int
    task: str
    action: str
    flow: str | None
    queue: str | None
    why: str
    age: float | None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


def can_list(fleet: fleets.Fleet) -> bool:
    """Return whether the broker can list its queues.

    Otherwise only the queues that workers report, and those that a caller names, are known.
    """
    return queue_counts.can_list_queues(fleet.target)


def list_queues(
    fleet: fleets.Fleet, names: Collection[str] = (), *, wait: float = fleets.WAIT_SECONDS
) -> list[QueueView]:
    """Return the queues of a fleet's exchange, ordered by name.

    :param names: names of queues, or prefixes of names, to return only these queues.
    :param wait: seconds to wait for workers, as in `Fleet.workers`.
    :raises TransportFailure: if the broker refuses or is unavailable.
    :raises NotFound: if a name matches no queue or several.
    """
    served: dict[str, list[fleets.WorkerView]] = {}
    for worker in fleet.workers(wait=wait):
        for queue in (*worker.queues, worker.name):
            served.setdefault(queue, []).append(worker)
    queue_names = {*served, *names, dead_letters.queue_name(fleet.exchange)}
    views = [
        _queue_view(counted, served.get(counted.name, ()), fleet.exchange)
        for counted in _count(fleet, queue_names)
        if counted.name != fleet.own_queue
    ]
    if not names:
        return views
    by_name = {queue_view.name: queue_view for queue_view in views}
    return [by_name[_resolve_name(name, by_name)] for name in dict.fromkeys(names)]


def fold(views: Iterable[QueueView]) -> tuple[list[QueueView], str | None]:
    """Return the queues that are not abandoned, and a line about the others, if there are any."""
    shown, abandoned = list[QueueView](), list[QueueView]()
    for view in views:
        (abandoned if view.abandoned else shown).append(view)
    if not abandoned:
        return shown, None
    engines = sum(view.kind == ENGINE for view in abandoned)
    messages = _formatting.count(sum(view.messages for view in abandoned), "message")
    return shown, (
        f"{_formatting.count(engines, 'queue')} of ended engines and"
        f" {len(abandoned) - engines} of ended workers, with {messages}; the broker deletes them"
    )


def describe_backlog(backlog: Backlog) -> str:
    """Return the number of flows that no engine has started, and the age of the oldest."""
    flows = _formatting.count(backlog.flows, "pending flow")
    if backlog.oldest is None:
        return flows
    return (
        f"{flows}, the oldest for {_formatting.seconds(max(0.0, SYSTEM.time() - backlog.oldest))}"
    )


def _count(fleet: fleets.Fleet, names: Iterable[str]) -> list[queue_counts.QueueCount]:
    connection = fleet.connect()
    try:
        return queue_counts.count(connection, fleet.target, fleet.exchange, names)
    finally:
        connecting.release(connection)


def purge(fleet: fleets.Fleet, queues: Collection[QueueView]) -> dict[str, int]:
    """Remove the messages of these queues.

    Running engines resend their requests when a worker can execute them. Requests of ended engines,
    and dead letters, are deleted permanently. Rows of the ledger remain. Use this to remove
    messages of dead engines, or to relieve a full broker. To prevent a task from running, cancel
    its flow.

    :returns: the number of removed messages by queue.
    :raises TransportFailure: if the broker refuses or is unavailable.
    """
    connection = fleet.connect()
    try:
        return queue_counts.purge(connection, fleet.target, [queue.name for queue in queues])
    finally:
        connecting.release(connection)


def list_dead_letters(fleet: fleets.Fleet) -> list[DeadLetterView]:
    """Return the dead letters of a fleet's exchange, oldest first, at most 1,000.

    :raises TransportFailure: if the broker refuses or is unavailable.
    """
    with _dead_letters(fleet) as letters:
        return [_letter_view(letter) for letter in letters.list_letters()]


def select_dead_letters(
    letters: Collection[DeadLetterView], ids: Collection[str]
) -> list[DeadLetterView]:
    """Return the dead letters with these ids or prefixes of ids; without `ids`, all.

    :raises NotFound: if an id matches no dead letter or several.
    """
    by_id = {letter.id: letter for letter in letters}
    full_ids = [_resolve_name(id, by_id, "dead letter") for id in ids] if ids else by_id
    return [by_id[id] for id in dict.fromkeys(full_ids)]


def retry(
    fleet: fleets.Fleet,
    ledger: ledgers.Ledger | None,
    ids: Collection[str],
    *,
    wait: float = fleets.WAIT_SECONDS,
) -> dict[str, Exception]:
    """Send dead letters to workers that now offer their tasks on their topics.

    Each request runs with a higher epoch, as after the loss of another worker. Its flow has
    continued with the failure and does not receive the result. Dead letters that cannot be sent
    are kept.

    :param fleet: an open fleet.
    :param ledger: the ledger of these workers.
    :param ids: complete ids.
    :param wait: seconds to wait for workers, as in `Fleet.workers`.
    :returns: the error of each dead letter that was not sent, by id: NotFound if the letter does
        not exist or no worker offers its task; ValueError if its row is in another ledger or is not
        done; LedgerFailure; TransportFailure.
    :raises TransportFailure: if the broker refuses or is unavailable.
    """
    failed: dict[str, Exception] = {}
    workers = fleet.workers(wait=wait)
    with _dead_letters(fleet) as letters:
        letters_by_id = {letter.id: letter for letter in letters.list_letters()}
        for id in ids:
            try:
                if id not in letters_by_id:
                    raise exceptions.NotFound(f"unknown dead letter {id!r}")
                # The row is opened last. If the letter cannot be sent after that, the next call
                # continues with this row.
                queue = _queue_for(letters_by_id[id], workers)
                letters.send(letters_by_id[id], queue, _reopen(letters_by_id[id], ledger))
            except (exceptions.WbengineException, ValueError) as error:
                failed[id] = error
    return failed


def _queue_for(letter: dead_letters.DeadLetter, workers: Iterable[fleets.WorkerView]) -> str:
    """Return a queue of workers that offer the task on its topic, preferably its own queue.

    :raises NotFound: if no worker offers it.
    """
    own = letter.queue or ""
    topic = own.rpartition(".")[0]  # The name of a queue is its topic, a dot and a digest.
    serving = {
        queue
        for worker in workers
        if letter.task_cls in worker.tasks
        and worker.state not in (worker_life.DEAD, worker_life.DRAINING)
        for queue in worker.queues
        if queue.rpartition(".")[0] == topic
    }
    if not serving:
        raise exceptions.NotFound(
            f"cannot send request {letter.id}: no worker offers {letter.task_cls} on"
            f" topic {topic!r}"
        )
    return own if own in serving else min(serving)


def _dead_letters(fleet: fleets.Fleet) -> dead_letters.DeadLetters:
    return dead_letters.DeadLetters(
        fleet.target, fleet.exchange, max(1.0, fleet.timeout), fleet.signer
    )


def _letter_view(letter: dead_letters.DeadLetter) -> DeadLetterView:
    age = None if letter.at is None else max(0.0, SYSTEM.time() - letter.at)
    return DeadLetterView(
        letter.id,
        letter.epoch,
        letter.task,
        letter.action,
        letter.flow,
        letter.queue or None,
        letter.why,
        age,
    )


def _reopen(letter: dead_letters.DeadLetter, ledger: ledgers.Ledger | None) -> int:
    """Return the epoch with which the request can run again. Open its row if it uses a ledger."""
    if letter.digest is None:
        return letter.epoch + 1
    if ledger is None or ledger.digest != letter.digest:
        raise ValueError(
            f"request {letter.id} needs ledger {letter.digest}, got"
            f" {ledger.digest if ledger is not None else 'none'}; use the ledger of its workers"
        )
    row = ledger.state(letter.id)
    if row is not None and row.state == ledgers.ROW_OPEN and row.epoch > letter.epoch:
        return row.epoch  # An earlier call opened the row, but did not send the letter.
    if row is not None and row.state != ledgers.ROW_DONE:
        raise ValueError(
            f"request {letter.id} must be done before it is sent again, got row state {row.state}"
        )
    epoch = max(letter.epoch, row.epoch if row is not None else 0) + 1
    ledger.drop(letter.id)
    ledger.open(letter.id, epoch)
    return epoch


def _resolve_name(name: str, names: Collection[str], kind: str = "queue") -> str:
    if name in names:
        return name
    matches = [each for each in names if each.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    raise exceptions.NotFound(
        f"{kind} {name!r} is ambiguous: {', '.join(sorted(matches)[:5])}"
        if matches
        else f"unknown {kind} {name!r}{object_names.hint(name, names)}"
    )


def _queue_view(
    counted: queue_counts.QueueCount, workers: Collection[fleets.WorkerView], exchange: str
) -> QueueView:
    topics = {
        topic
        for worker in workers
        for topic, queue in zip(worker.topics, worker.queues, strict=True)
        if queue == counted.name
    }
    return QueueView(
        counted.name,
        DEAD if counted.name == dead_letters.queue_name(exchange) else _kind_of(counted),
        counted.messages,
        len(workers) if counted.consumers is None else counted.consumers,
        min(topics, default=None),
        tuple(sorted(worker.name for worker in workers)),
        counted.silent,
    )


def _kind_of(counted: queue_counts.QueueCount) -> Kind:
    if env.ALL_ENGINES in counted.keys:
        return ENGINE
    private = describing.host_and_pid(counted.name)[0] is not None
    return WORKER if private or env.ALL_WORKERS in counted.keys else REQUESTS
