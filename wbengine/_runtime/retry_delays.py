"""Retry delays: ask a retry controller for its delay, and store when the delay ends."""

from __future__ import annotations

from wbengine import retry as retry_module
from wbengine import storage as storage_module
from wbengine._concurrency import contexts
from wbengine.persistence import models

__all__ = ["clear", "seconds_left"]


def seconds_left(
    storage: storage_module.Storage, retry: retry_module.Retry, now: float, wait_ended: bool
) -> float:
    """Return the seconds from `now` that a retry controller has to wait before it retries.

    The first call asks the controller and stores its answer. Exceptions of the controller
    propagate.

    :param now: Unix seconds.
    :param wait_ended: the wait is over.
    :raises ValueError: if the answer is not a number of seconds.
    :raises Exception: the latest failure, if the `retry_for` of the controller has passed.
    """
    record = storage.record(retry.name)
    history = storage.get_retry_history(retry.name, now)
    retry._check_elapsed(history)
    retry_at = record.meta_value(models.RETRY_AT)
    if retry_at is not None:
        return 0.0 if wait_ended else max(0.0, retry_at - now)
    seconds: float = contexts.run(retry.wait, history)
    if not (isinstance(seconds, int | float) and seconds >= 0):
        raise ValueError(
            f"wait() of retry {retry.name!r} must return 0 or more seconds, got {seconds!r}"
        )
    if seconds:
        record.meta[models.RETRY_AT] = now + seconds
        storage.writer.mark(record)
    return seconds


def clear(record: models.AtomDetail) -> None:
    """Forget the times until which an atom waits, and the signal for which it waits."""
    if record.has_meta:
        record.meta.pop(models.RETRY_AT, None)
        record.meta.pop(models.WAITS_FOR, None)
        record.meta.pop(models.STARTS_AT, None)
