"""What an answer says, and whether it still matters."""

from __future__ import annotations

import logging
from typing import Any

from wbengine import exceptions as exc
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.entries import Entry
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)


def refusal(entry: Entry | None, answer: env.Envelope) -> str | None:
    """Why a validated RESPONSE is to be dropped; None for one that tells something new."""
    if entry is None:
        return "unknown"
    state = answer.body["state"]
    if not entry.live or (state == pr.RUNNING and entry.state == pr.RUNNING):
        return "late"
    if answer.number(env.WBE_EPOCH, entry.epoch) != entry.epoch:
        return "old_epoch"
    if state in pr.WAITING_STATES:
        return "unexpected"
    # Only events need their numbers: RUNNING changes nothing twice, and the first end wins.
    worker, number = answer.text(env.WBE_WORKER), answer.number(env.WBE_SEQ)
    if state == pr.EVENT and not entry.fresh(worker, number):
        return "duplicate"
    return None


def value_of(answer: env.Envelope) -> Any:
    """The result in a terminal answer, or its failure; never raises: what came is an end."""
    data = answer.body["data"]["result"]
    try:
        if answer.body["state"] == pr.FAILURE:
            return ft.Failure.from_dict(data)
        return env.unpacker(answer.ours)(data)
    except Exception as error:
        return ft.Failure.from_exception(error)


def details_of(answer: env.Envelope) -> dict[str, Any] | None:
    """The details in an EVENT, or None if they can not be read."""
    try:
        details = env.unpacker(answer.ours)(answer.body["data"]["details"])
    except exc.InvalidFormat as error:
        LOG.warning("an event of request %s can not be read: %s", answer.correlation_id, error)
        return None
    return details if isinstance(details, dict) else None
