"""Retries of a single task (`Task.retries`): the flow that such a task is compiled as."""

from __future__ import annotations

from wbengine import exceptions, flow, retry, task
from wbengine.patterns import linear_flow

__all__ = ["check", "flow_of"]


def flow_of(item: task.Task) -> flow.Flow:
    """A flow that holds only `item`, and has the retry `<name of the task>_retry`.

    :raises CompilationFailure: an option of the task makes no sense; the text names it.
    """
    retries = item.retries
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise exceptions.CompilationFailure(
            f"The retries of task {item.name!r} must be a whole number of 0 or more, not"
            f" {retries!r}"
        )
    again = _times(item, retries + 1)
    if isinstance(item.priority, int | float):  # else the task itself is refused
        again.priority = item.priority
    return linear_flow.Flow(f"{item.name} with retries", again).add(item)


def check(item: task.Task) -> None:
    """Refuse wrong options of a task, also while it has no retries.

    :raises CompilationFailure: as `flow_of`.
    """
    _times(item, 1)


def _times(item: task.Task, attempts: int) -> retry.Times:
    name, backoff = f"{item.name}_retry", item.backoff
    try:
        return retry.Times(attempts, name, backoff=backoff, retry_on=item.retry_on)
    except (TypeError, ValueError) as error:
        raise exceptions.CompilationFailure(f"Task {item.name!r}: {error}") from error
