"""The messages that are our own: what engines and people ask of workers, besides tasks.

`wbe-ask`: who has these requests?  A worker that runs one of them answers from now on to the engine
that asked, and says so at once; one that knows how it ended says that.

`wbe-cancel`: let these requests come to an end soon.  The worker that runs one of them, in this
epoch or an older one, tells its task, and ends it after a grace time where it can.  Where no ledger
knows of it, workers remember it, so as not to start it when it comes to them.

`wbe-control`: take nothing new, take again, or come to an end.

Peers that do not know a message leave it, and go on as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from wbengine import _names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import schemas
from wbengine.types.schemas import Schema

ASK: Final = "wbe-ask"
CANCEL: Final = "wbe-cancel"
CONTROL: Final = "wbe-control"

Order = Literal["suspend", "resume", "drain", "stop"]
#: Take nothing new until told to resume.
SUSPEND: Final = "suspend"
RESUME: Final = "resume"
#: Take nothing new, hand back what is not started, finish what runs, and end.
DRAIN: Final = "drain"
#: The same, but give up at once what runs.
STOP: Final = "stop"

ORDERS: Final = (SUSPEND, RESUME, DRAIN, STOP)

#: A request's id and a number.  Of a question: that under which its engine asks (of two that ask
#: for the same request, the later engine's is higher); of a cancellation: its epoch.
Named = tuple[str, int]

#: What the body of each must look like.
SCHEMAS: Final = {
    ASK: Schema(schemas.ASK, "question"),
    CANCEL: Schema(schemas.CANCEL, "cancellation"),
    CONTROL: Schema(schemas.CONTROL, "order"),
}


def questions(asked: Iterable[Named], to: str, reply_to: str) -> Iterator[env.Envelope]:
    """The messages that ask the workers at the routing key `to` for these requests.

    Only a worker that is asked in person says what it does not run: of many, too many would.
    """
    headers: dict[str, Any] = {env.WBE_VERSION: env.VERSION}
    if to != env.ALL_WORKERS:
        headers[env.WBE_ASK] = 1
    for pairs in _batches(asked):
        body = {"asked": pairs}
        yield env.Envelope(ASK, body, to, reply_to=reply_to, headers=dict(headers))


def not_here(request_id: str, number: int, worker: str, reply_to: str) -> env.Envelope:
    """The answer of a worker that does not run a request (any more)."""
    headers = {env.WBE_VERSION: env.VERSION, env.WBE_WORKER: worker, env.WBE_ASK: number}
    body = {"state": pr.PENDING, "data": {}}
    return env.Envelope(pr.RESPONSE, body, reply_to, request_id, headers=headers)


def cancellations(named: Iterable[Named], to: str) -> Iterator[env.Envelope]:
    """The messages that ask the workers at the routing key `to` to end these requests."""
    for pairs in _batches(named):
        yield env.Envelope(CANCEL, {"cancel": pairs}, to, headers={env.WBE_VERSION: env.VERSION})


def order(what: Order, worker: str | None = None) -> env.Envelope:
    """The message that tells one worker (by its identity), or all that listen.

    :raises ValueError: it cannot be told that, or `worker` is no identity.
    """
    to = env.ALL_WORKERS if worker is None else _names.check_label("worker", worker)
    body = {"do": check_order(what)}
    return env.Envelope(CONTROL, body, to, headers={env.WBE_VERSION: env.VERSION})


def check_order(what: Any) -> Order:
    """`what`, if it can be told to a worker.

    :raises ValueError: it cannot.
    """
    if what not in ORDERS:
        hint = _names.hint(str(what), ORDERS)
        raise ValueError(f"{what!r} is nothing a worker can be told{hint}: {', '.join(ORDERS)}")
    found: Order = what
    return found


def named(body: Any) -> list[Named]:
    """The requests that a validated question or cancellation names."""
    return [(request_id, number) for request_id, number in body.get("asked", body.get("cancel"))]


def _batches(named: Iterable[Named]) -> Iterator[list[list[Any]]]:
    pairs = [[request_id, number] for request_id, number in named]
    for start in range(0, len(pairs), schemas.MAX_IDS):
        yield pairs[start : start + schemas.MAX_IDS]
