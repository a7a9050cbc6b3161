"""The question what became of requests, which an engine asks workers that answered another one.

Whoever runs one of them answers from now on to whoever asked, and says so at once; whoever knows
how one ended says that.  Peers that do not know the question leave it unanswered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from wbengine import _names
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["ASK", "MOST", "are_pairs", "not_here", "questions", "read", "validate"]

#: The type of the message.
ASK: Final = "wbe-ask"

#: So many requests at most are asked for in one message.
MOST: Final = 500

#: A request's id, and the number under which its engine asks: of two that ask for the same one,
#: the later engine's is higher.
Asked = tuple[str, int]


def questions(asked: Iterable[Asked], to: str, reply_to: str) -> Iterator[env.Envelope]:
    """The messages that ask for these requests whoever listens to the routing key `to`.

    Only who is asked in person says what he does not run: of many, too many would.
    """
    headers: dict[str, Any] = {env.WBE_VERSION: env.VERSION}
    if to != env.ALL_WORKERS:
        headers[env.WBE_ASK] = 1
    pairs = [[request_id, number] for request_id, number in asked]
    for start in range(0, len(pairs), MOST):
        yield env.Envelope(
            ASK,
            {"asked": pairs[start : start + MOST]},
            routing_key=to,
            reply_to=reply_to,
            headers=dict(headers),
        )


def not_here(request_id: str, number: int, worker: str, reply_to: str) -> env.Envelope:
    """The answer of a worker that does not run a request (any more)."""
    headers = {env.WBE_VERSION: env.VERSION, env.WBE_WORKER: worker, env.WBE_ASK: number}
    return env.Envelope(
        pr.RESPONSE,
        {"state": pr.PENDING, "data": {}},
        routing_key=reply_to,
        correlation_id=request_id,
        headers=headers,
    )


def validate(data: Any) -> None:
    """Raise `InvalidFormat` unless `data` is the body of a question."""
    asked = data.get("asked") if isinstance(data, dict) else None
    if not are_pairs(asked):
        raise exc.InvalidFormat("a question is invalid: not a list of ids and numbers")


def read(data: Any) -> list[Asked]:
    """What a validated question asks for."""
    return [(request_id, number) for request_id, number in data["asked"]]


def are_pairs(value: Any) -> bool:
    """Whether it is a list of ids, with a number each, that fits into one message."""
    return isinstance(value, list) and len(value) <= MOST and all(map(_is_pair, value))


def _is_pair(pair: Any) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2):
        return False
    name, number = pair
    return isinstance(name, str) and bool(_names.is_label(name)) and env.is_number(number)
