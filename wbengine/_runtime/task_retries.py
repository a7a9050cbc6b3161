"""Retries of a single task (`Task.retries`): the task is compiled as a flow."""

from __future__ import annotations

from wbengine import exceptions, flow, retry, task
from wbengine._introspection import object_names
from wbengine.patterns import linear_flow

__all__ = ["check", "check_step", "controller_of", "flow_of", "is_retried"]


def is_retried(item: task.Task) -> bool:
    """Return whether a step of a workflow with this task is retried after failures."""
    return bool(item.retries) or (item.retries is None and item.retry_for is not None)


def flow_of(item: task.Task) -> flow.Flow:
    """Return a flow of only `item`, with the retry controller `<name of the task>_retry`.

    Views, drawings and reports show only the task.

    :raises CompilationFailure: if an option of the task is invalid; the message names it.
    """
    _check_number(item)
    controller = controller_of(item)
    controller._of_task = item.name
    if isinstance(item.priority, int | float):  # otherwise the task is rejected later
        controller.priority = item.priority
    name = f"{item.name} with retries"[: object_names.MAX_NAME_LENGTH]
    return linear_flow.Flow(name, controller).add(item)


def check_step(item: task.Task) -> None:
    """Check the options of the task of a step that concern retries.

    :raises CompilationFailure: if one is invalid; the message names it.
    """
    if is_retried(item):
        _check_number(item)
        controller_of(item)


def _check_number(item: task.Task) -> None:
    retries = item.retries
    if (
        isinstance(retries, bool)
        or not isinstance(retries, int | None)
        or (item.retry_for is None if retries is None else retries < 0)
    ):
        hint = ", which requires retry_for" if retries is None else ""
        raise exceptions.CompilationFailure(
            f"The retries of task {item.name!r} must be a whole number of at least 0, got"
            f" {retries!r}{hint}"
        )


def controller_of(item: task.Task) -> retry.Times:
    """Return the retry controller of a task.

    :raises CompilationFailure: if an option is invalid.
    """
    return _times(item, None if item.retries is None else item.retries + 1)


def check(item: task.Task) -> None:
    """Check the options of a task that concern retries.

    :raises CompilationFailure: if an option is invalid.
    """
    _times(item, 1)


def _times(item: task.Task, attempts: int | None) -> retry.Times:
    name, backoff, retry_for = f"{item.name}_retry", item.backoff, item.retry_for
    try:
        return retry.Times(
            attempts, name, backoff=backoff, retry_on=item.retry_on, retry_for=retry_for
        )
    except (TypeError, ValueError) as error:
        raise exceptions.CompilationFailure(f"Task {item.name!r}: {error}") from error
