"""What becomes of a chord once all tasks of its group have ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wbengine.interop.celery.canvas import sequel
from wbengine.interop.celery.protocol import errors, results
from wbengine.interop.celery.protocol.steps import Missed

if TYPE_CHECKING:
    from wbengine.interop.celery.protocol.message import TaskMessage
    from wbengine.interop.celery.protocol.steps import Step

__all__ = ["Part", "finished"]

LOG = logging.getLogger(__name__)

#: One task of the group: `(id, state, value)`, the value as results have it.
Part = tuple[str, str, Any]


def finished(
    message: TaskMessage,
    parts: Sequence[Part],
    now: float,
    new_id: Callable[[], str],
    part: results.ChordPart,
) -> tuple[list[results.Fallen], list[Step]]:
    """What is to be stored, and to be sent, when `part`, which `message` leads to, was the last.

    All `parts` are given, in their order: the body is called with the list of their values.  If one
    of them failed, or was revoked, it is not: whoever waits for the body, or for what comes after
    it, gets a `ChordError`, and its errbacks are called.  Never raises.
    """
    broken = next((one for one in parts if one[1] in (results.FAILURE, results.REVOKED)), None)
    try:
        if broken is None:
            values = [value for _, _, value in parts]
            return [], sequel.body_of(part.body, values, message, new_id=new_id, now=now).steps
    except Exception as error:  # whatever a signature does
        LOG.error("the body of chord %s cannot be called: %s", part.group, error)
        reason = f"Callback error: {error!r}"[:1000]
    else:
        reason = f"Dependency {broken[0]} raised {_shown(broken[2])}"
    steps, missed = _broken(message, part, now, new_id)
    told = results.of_error(
        message,
        errors.describe("ChordError", "celery.exceptions", reason),
        now,
        part.serializer,
    )
    told.traceback = f"Traceback (most recent call last):\ncelery.exceptions.ChordError: {reason}\n"
    return [results.of_missed(one, told) for one in missed], steps


def _broken(
    message: TaskMessage, part: results.ChordPart, now: float, new_id: Callable[[], str]
) -> tuple[list[Step], list[Missed]]:
    """The errbacks of a body that is not called, and whoever waits for it in vain."""
    try:
        following, missed = sequel.chord_broken(part.body, message, new_id=new_id, now=now)
    except Exception as error:
        LOG.error("the body of chord %s cannot be read: %s", part.group, error)
        options = part.body.get("options")
        id = options.get("task_id") if isinstance(options, Mapping) else None
        return [], [Missed(id)] if isinstance(id, str) and id else []
    return following.steps, missed


def _shown(value: Any) -> str:
    try:
        return errors.shown_of(value)
    except Exception:  # by another worker, in whatever form
        return errors.shown_of(errors.describe("Exception", "builtins", value))
