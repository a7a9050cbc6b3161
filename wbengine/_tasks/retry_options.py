"""Options of tasks that concern retries."""

from __future__ import annotations

from typing import Any, Final

from wbengine._text import durations
from wbengine.backoff import Backoff

__all__ = ["NAMES", "check"]

#: The options, in the order of the parameters of `check`.
NAMES: Final = ("retries", "backoff", "retry_on", "retry_for")


def check(what: str, retries: Any, backoff: Any, retry_on: Any, retry_for: Any) -> None:
    """Check that options of a task or workflow fit together.

    :raises TypeError, ValueError: if one is invalid, or has no effect without `retries`.
    """
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int)):
        raise TypeError(f"{what} must have a whole number of retries, or None, got {retries!r:.80}")
    if retries is None:
        if retry_for is None:
            raise ValueError(f"{what} has retries=None, so it requires retry_for, as in '2d'")
    elif retries < 0:
        raise ValueError(f"{what} must have 0 or more retries, got {retries}")
    elif not retries:
        options = {"backoff": backoff, "retry_on": retry_on, "retry_for": retry_for}
        for word, value in options.items():
            if value is not None:
                raise ValueError(f"{what} has {word} but no retries: add a number, as in retries=3")
    Backoff.of(backoff)
    if retry_for is not None:
        durations.seconds_of(retry_for)
