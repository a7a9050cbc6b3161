"""Commands of engines and operators to workers. TaskFlow has no such messages and ignores them.

An ask (`wbe-ask`) finds out which worker has some requests. A worker that runs one of them
replies at once, and sends all further replies to the engine that asked. A worker that has the
result sends the result.

A cancellation (`wbe-cancel`) cancels requests. The worker that runs a request at this epoch or a
lower one notifies its task, and terminates the task after a grace period if it can. Without a
ledger, workers remember the cancellation and do not start the request if it arrives later.

A control (`wbe-control`) suspends, resumes, drains or stops workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from wbengine._introspection import object_names
from wbengine.engines.worker_based import _message_schemas
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.types._schema_validation import Schema

ASK: Final = "wbe-ask"
CANCEL: Final = "wbe-cancel"
CONTROL: Final = "wbe-control"

ControlAction = Literal["suspend", "resume", "drain", "stop"]
#: Accept no new requests until RESUME.
SUSPEND: Final = "suspend"
RESUME: Final = "resume"
#: Accept no new requests, requeue requests that have not started, finish running tasks, and stop.
DRAIN: Final = "drain"
#: Like DRAIN, but abandon running tasks at once.
STOP: Final = "stop"

CONTROL_ACTIONS: Final = (SUSPEND, RESUME, DRAIN, STOP)

#: A request id and a number. In an ask, it is the number of the ask (higher for a later
#: engine). In a cancellation, it is the epoch.
Named = tuple[str, int]

SCHEMAS: Final = {
    ASK: Schema(_message_schemas.ASK, "ask"),
    CANCEL: Schema(_message_schemas.CANCEL, "cancellation"),
    CONTROL: Schema(_message_schemas.CONTROL, "control"),
}


class Ask(NamedTuple):
    requests: Sequence[Named]
    reply_to: str | None
    #: Whether the worker also reports requests that it does not have.
    to_this_worker: bool = False

    def to_message(self, to: str) -> env.Envelope:
        headers: dict[str, Any] = {hd.WBE_VERSION: hd.VERSION}
        if self.to_this_worker:
            headers[hd.WBE_ASK] = 1
        body = {"asked": list(map(list, self.requests))}
        return env.Envelope(ASK, body, to, reply_to=self.reply_to, headers=headers)

    @classmethod
    def from_message(cls, message: env.Envelope) -> Ask:
        """Read a message with a validated body."""
        is_direct = hd.WBE_ASK in message.headers
        return cls(_named(message.body["asked"]), message.reply_to, is_direct)


class Cancellation(NamedTuple):
    requests: Sequence[Named]

    def to_message(self, to: str) -> env.Envelope:
        body = {"cancel": list(map(list, self.requests))}
        return env.Envelope(CANCEL, body, to, headers={hd.WBE_VERSION: hd.VERSION})

    @classmethod
    def from_message(cls, message: env.Envelope) -> Cancellation:
        """Read a message with a validated body."""
        return cls(_named(message.body["cancel"]))


def asks(requests: Iterable[Named], to: str, reply_to: str) -> Iterator[env.Envelope]:
    """Return asks for these requests to the workers at the routing key `to`.

    A worker reports requests that it does not run only if `to` is its identity.
    """
    for batch in _batches(requests):
        yield Ask(batch, reply_to, to != env.ALL_WORKERS).to_message(to)


def cancellations(named: Iterable[Named], to: str) -> Iterator[env.Envelope]:
    for batch in _batches(named):
        yield Cancellation(batch).to_message(to)


def control(action: ControlAction, worker: str | None = None) -> env.Envelope:
    """Return the message that controls one worker (by its identity), or all workers.

    :raises ValueError: if `action` is not valid, or `worker` is not a valid identity.
    """
    to = env.ALL_WORKERS if worker is None else object_names.check_label("worker", worker)
    body = {"do": check_action(action)}
    return env.Envelope(CONTROL, body, to, headers={hd.WBE_VERSION: hd.VERSION})


def check_action(action: Any) -> ControlAction:
    """Return `action`.

    :raises ValueError: if it is not in `CONTROL_ACTIONS`.
    """
    if action not in CONTROL_ACTIONS:
        hint = object_names.hint(str(action), CONTROL_ACTIONS)
        raise ValueError(
            f"the control of a worker must be one of {', '.join(CONTROL_ACTIONS)},"
            f" got {action!r}{hint}"
        )
    valid_action: ControlAction = action
    return valid_action


def _named(pairs: Iterable[Sequence[Any]]) -> list[Named]:
    return [(request_id, number) for request_id, number in pairs]


def _batches(requests: Iterable[Named]) -> Iterator[list[Named]]:
    pairs = list(requests)
    for start in range(0, len(pairs), _message_schemas.MAX_IDS):
        yield pairs[start : start + _message_schemas.MAX_IDS]
