"""Lua scripts of the job board in Redis. The functions return the replies of the server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from wbengine._redis import lua_scripts

#: In the order of the script `shared/board.lua`.
KEYS: Final = (
    *("jobs", "all", "free", "owners", "ends", "claims", "updated", "trash", "sequence"),
    *("places", "waiting", "begun", "turns", "idle", "tags", "pauses", "served", "repeated"),
)
SCRIPTS: Final = lua_scripts.Scripts(Path(__file__).parent / "redis_scripts")


class NewJob(NamedTuple):
    """A job to post."""

    uuid: str
    rank: int
    document: str
    queue: str
    fair_key: bytes
    weight: float


@SCRIPTS.declare
def post(reply: Any, new_jobs: Sequence[NewJob]) -> Any:
    return reply


@SCRIPTS.declare
def take(
    reply: Any,
    claim: bytes,
    expiry: int | None,
    limit: int,
    seed: int,
    queues: Sequence[str],
    excluded: Collection[str],
) -> Any:
    """Claim jobs.

    :param claim: token and owner.
    :param expiry: milliseconds until the claims expire.
    :param queues: names of queues; '*' means all others, in a random order.
    :param excluded: jobs that are not claimed.
    """
    return reply


@SCRIPTS.declare
def claim(reply: Any, uuid: str, claim: bytes, expiry: int | None) -> Any:
    """Claim a job.

    :param claim: token and owner.
    :param expiry: milliseconds until the claim expires.
    """
    return reply


@SCRIPTS.declare
def end(reply: Any, uuid: str, token: str, who: bytes, how: str) -> Any:
    """End a claim.

    :param token: token of the claim, or ''.
    :param how: 'abandon', 'trash' or 'consume'.
    """
    return reply


@SCRIPTS.declare
def extend(reply: Any, uuid: str, token: str, expiry: int) -> bool:
    return bool(reply)


@SCRIPTS.declare
def read(reply: Any, uuid: str) -> Any:
    return reply


@SCRIPTS.declare
def page(reply: Any, only_unclaimed: bool, after: str, limit: int) -> Any:
    return reply


@SCRIPTS.declare
def places(reply: Any, after: str, limit: int) -> Any:
    return reply


@SCRIPTS.declare
def due(reply: Any, uuid: str) -> None: ...


@SCRIPTS.declare
def queues(reply: Any) -> Any:
    return reply


@SCRIPTS.declare
def report(reply: Any, names: Collection[str]) -> None: ...


@SCRIPTS.declare
def pause(reply: Any, name: str, note: str) -> None:
    """Pause a queue.

    :param name: the name of a queue, or '*'.
    :param note: reason and sender as JSON.
    """


@SCRIPTS.declare
def resume(reply: Any, name: str) -> Any:
    return reply
