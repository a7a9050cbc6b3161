"""Options of tasks that concern retries."""

from __future__ import annotations

from typing import Any, Final

from wbengine._text import durations

__all__ = ["NAMES", "check"]

#: The options, in the order of the parameters of `check`.
NAMES: Final = ("retries", "backoff", "retry_on", "retry_for")


def check(what: str, retries: Any, backoff: Any, retry_on: Any, retry_for: Any) -> None:
    """Check that options of a task or workflow have an effect together.

    Some invalid values are only rejected when the task is loaded.

    :raises TypeError, ValueError: if one has no effect without `retries`, or `retry_for` is
        missing or invalid.
    """
    if retries is None and retry_for is None:
        raise ValueError(f"{what} has retries=None, so it requires retry_for, as in '2d'")
    if not retries and retries is not None:
        options = {"backoff": backoff, "retry_on": retry_on, "retry_for": retry_for}
        for word, value in options.items():
            if value is not None:
                raise ValueError(f"{what} has {word} but no retries: add a number, as in retries=3")
    if retry_for is not None:
        durations.seconds_of(retry_for)
