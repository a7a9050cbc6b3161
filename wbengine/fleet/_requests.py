"""Lists of requests: those in the ledger, and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine._configuration import named_options
from wbengine.fleet import _ledgers, _message_queues
from wbengine.fleet.client import Fleet, WorkerView
from wbengine.transports import _ledger
from wbengine.views import _formatting

__all__ = [
    "DEAD", "DEFAULT_LIMIT", "MAX_LIMIT", "STATES", "Filter", "RequestPage", "RequestView",
    "list_requests", "of_letter", "of_row", "running_tasks",
]  # fmt: skip

#: State of a dead letter.
DEAD: Final = "dead"
STATES: Final = (*_ledgers.STATES, DEAD)
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request.

    :ivar worker: the worker that claimed it, or None.
    :ivar age: seconds since the request was opened, claimed, done or dead; None if unknown.
    :ivar task: name of the task; None if it is in the ledger and no worker reports it as running.
    :ivar flow, action, queue, reason: known only of dead letters.
    """

    id: str
    epoch: int
    state: str
    age: float | None
    worker: str | None = None
    task: str | None = None
    flow: str | None = None
    action: str | None = None
    queue: str | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        age = None if self.age is None else round(self.age, 3)
        return {**_formatting.as_dict(self), "age": age}


@dataclass(frozen=True, slots=True)
class RequestPage:
    """A page of requests. `after` is the cursor of the next page; None on the last page."""

    requests: tuple[RequestView, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which requests are listed.

    :ivar state: one of `STATES`; None: all requests in the ledger.
    :ivar worker: the beginning of the name of the worker.
    :ivar task: the name of the task.
    :ivar flow: the uuid of the flow.
    :ivar older_than: minimum age in seconds.
    :raises ValueError: if the state is unknown.
    """

    state: str | None = None
    worker: str = ""
    task: str = ""
    flow: str = ""
    older_than: float = 0.0

    def __post_init__(self) -> None:
        if self.state is not None:
            named_options.choice("state", self.state, STATES)

    def includes(self, request: RequestView) -> bool:
        return (
            (request.worker or "").startswith(self.worker)
            and self.task in ("", request.task)
            and self.flow in ("", request.flow)
            and (not self.older_than or (request.age or 0.0) >= self.older_than)
        )


def list_requests(
    fleet: Fleet,
    ledger: _ledger.Ledger | None,
    chosen: Filter,
    tasks: Mapping[str, str],
    limit: int,
    after: str | None,
) -> RequestPage | None:
    """Return a page of requests, dead letters oldest first; None if there is no ledger.

    :param tasks: names of running tasks by request.
    :param after: cursor in the ledger. Dead letters, at most 1,000, have none.
    :raises LedgerFailure, TransportFailure: if the ledger or the broker cannot be read.
    """
    if chosen.state == DEAD:
        letters = map(of_letter, _message_queues.list_dead_letters(fleet))
        return RequestPage(tuple(each for each in letters if chosen.includes(each))[:limit], None)
    if ledger is None:
        return None

    def is_chosen(row: _ledgers.RowView) -> bool:
        return chosen.includes(of_row(row, tasks))

    page = _ledgers.rows(ledger, limit, after, chosen.state, is_chosen)
    return RequestPage(tuple(of_row(row, tasks) for row in page.rows), page.after)


def running_tasks(workers: Iterable[WorkerView]) -> dict[str, str]:
    """Return the names of the tasks that workers run, by request."""
    return {work.request: work.task for worker in workers for work in worker.current}


def of_row(row: _ledgers.RowView, tasks: Mapping[str, str]) -> RequestView:
    return RequestView(row.id, row.epoch, row.state, row.age, row.holder, tasks.get(row.id))


def of_letter(letter: _message_queues.DeadLetterView) -> RequestView:
    return RequestView(
        letter.id,
        letter.epoch,
        DEAD,
        letter.age,
        task=letter.task,
        flow=letter.flow,
        action=letter.action,
        queue=letter.queue,
        reason=letter.why,
    )
