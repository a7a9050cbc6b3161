"""Commands of engines and operators to workers. TaskFlow has no such messages and ignores them.

`wbe-ask` is an inquiry: it asks which worker has some requests. A worker that runs one of them
replies at once, and sends all further replies to the engine that inquired. A worker that has the
result sends the result.

`wbe-cancel` cancels requests. The worker that runs a request at this epoch or a lower one notifies
its task, and terminates the task after a grace period if it can. Without a ledger, workers remember
the cancellation and do not start the request if it arrives later.

`wbe-control` suspends, resumes, drains or stops workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from wbengine import _names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import schemas
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import headers as hd
from wbengine.types.schema_validation import Schema

ASK: Final = "wbe-ask"
CANCEL: Final = "wbe-cancel"
CONTROL: Final = "wbe-control"

Order = Literal["suspend", "resume", "drain", "stop"]
#: Accept no new requests until RESUME.
SUSPEND: Final = "suspend"
RESUME: Final = "resume"
#: Accept no new requests, requeue requests that have not started, finish running tasks, and stop.
DRAIN: Final = "drain"
#: Like DRAIN, but abandon running tasks at once.
STOP: Final = "stop"

ORDERS: Final = (SUSPEND, RESUME, DRAIN, STOP)

#: A request id and a number. In an inquiry, it is the number of the inquiry (higher for a later
#: engine). In a cancellation, it is the epoch.
Named = tuple[str, int]

SCHEMAS: Final = {
    ASK: Schema(schemas.ASK, "question"),
    CANCEL: Schema(schemas.CANCEL, "cancellation"),
    CONTROL: Schema(schemas.CONTROL, "order"),
}


def inquiries(requests: Iterable[Named], to: str, reply_to: str) -> Iterator[env.Envelope]:
    """Return inquiries for these requests to the workers at the routing key `to`.

    A worker reports requests that it does not run only if `to` is its identity.
    """
    headers: dict[str, Any] = {hd.WBE_VERSION: hd.VERSION}
    if to != env.ALL_WORKERS:
        headers[hd.WBE_ASK] = 1
    for pairs in _batches(requests):
        body = {"asked": pairs}
        yield env.Envelope(ASK, body, to, reply_to=reply_to, headers=dict(headers))


def not_here(request_id: str, number: int, worker: str, reply_to: str) -> env.Envelope:
    headers = {hd.WBE_VERSION: hd.VERSION, hd.WBE_WORKER: worker, hd.WBE_ASK: number}
    body = {"state": pr.PENDING, "data": {}}
    return env.Envelope(pr.RESPONSE, body, reply_to, request_id, headers=headers)


def cancellations(named: Iterable[Named], to: str) -> Iterator[env.Envelope]:
    for pairs in _batches(named):
        yield env.Envelope(CANCEL, {"cancel": pairs}, to, headers={hd.WBE_VERSION: hd.VERSION})


def order(command: Order, worker: str | None = None) -> env.Envelope:
    """Return the message that controls one worker (by its identity), or all workers.

    :raises ValueError: if `command` is not valid, or `worker` is not a valid identity.
    """
    to = env.ALL_WORKERS if worker is None else _names.check_label("worker", worker)
    body = {"do": check_order(command)}
    return env.Envelope(CONTROL, body, to, headers={hd.WBE_VERSION: hd.VERSION})


def check_order(command: Any) -> Order:
    """Return `command`.

    :raises ValueError: if it is not in `ORDERS`.
    """
    if command not in ORDERS:
        hint = _names.hint(str(command), ORDERS)
        raise ValueError(
            f"the command for a worker must be one of {', '.join(ORDERS)}, got {command!r}{hint}"
        )
    valid_order: Order = command
    return valid_order


def named(body: Any) -> list[Named]:
    return [(request_id, number) for request_id, number in body.get("asked", body.get("cancel"))]


def _batches(named: Iterable[Named]) -> Iterator[list[list[Any]]]:
    pairs = [[request_id, number] for request_id, number in named]
    for start in range(0, len(pairs), schemas.MAX_IDS):
        yield pairs[start : start + schemas.MAX_IDS]
