"""Results of Django tasks, read from the records of their flows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from wbengine import _payloads, states
from wbengine.engines import _allowed
from wbengine.integrations.django import _framework, _tasks
from wbengine.persistence import models

__all__ = ["result_of", "workers_of"]

_STATUSES: Final = {
    states.SUCCESS: _framework.TaskResultStatus.SUCCESSFUL,
    states.FAILURE: _framework.TaskResultStatus.FAILED,
    states.REVERTED: _framework.TaskResultStatus.FAILED,
}


def result_of(flow: models.FlowDetail) -> _framework.TaskResult | None:
    """Return the result of a task; None if the flow is that of no task of Django.

    :raises ImportError: if its function does not exist any more.
    :raises NotTrusted: if the function is not among the allowed flows of this process.
    """
    factory = flow.meta_value(models.FACTORY)
    options = factory["kwargs"].get(_tasks.OPTIONS) if isinstance(factory, dict) else None
    if options is None:
        return None
    task = _allowed.of_process().load(factory["name"])
    (inputs,) = (atom.results for atom in flow if atom.name == models.INJECTOR)
    args, kwargs = _loaded(inputs["args"]), _loaded(inputs["kwargs"])
    result = _tasks.new_result(task, options, flow.uuid, args, kwargs)
    _framework.set_fields(result, enqueued_at=_time(flow.created), status=_status(flow))
    if result.is_finished:
        _framework.set_fields(result, finished_at=_time(flow.history[-1].at))
    for atom in flow:
        if atom.name != models.INJECTOR:
            _add_attempts(result, atom)
    return result


def workers_of(flow: models.FlowDetail, before: int) -> list[str]:
    """Return the workers of the executions before this attempt. Reversions are attempts, too."""
    calls = (atom for atom in flow if atom.name != models.INJECTOR)
    return [
        each.worker or "" for call in calls for each in _executions(call) if each.attempt < before
    ]


def _loaded(value: Any) -> Any:
    return _payloads.loaded(_payloads.opened(), value, "value of a task")


def _executions(call: models.AtomDetail) -> list[models.Attempt]:
    return [each for each in call.all_attempts if each.action == "execute"]


def _add_attempts(result: _framework.TaskResult, call: models.AtomDetail) -> None:
    attempts = _executions(call)
    if attempts:
        _framework.set_fields(
            result,
            started_at=_time(attempts[0].started),
            last_attempted_at=_time(attempts[-1].started),
            worker_ids=[each.worker or "" for each in attempts],
        )
    if result.status == _framework.TaskResultStatus.SUCCESSFUL:
        _framework.set_fields(result, _return_value=_loaded(call.results))
    result.errors.extend(_errors(call))


def _errors(call: models.AtomDetail) -> Iterator[_framework.TaskError]:
    failure = getattr(call, "failure", None)
    if failure is not None:
        name = next(iter(failure))
        lines = (
            "Traceback (most recent call last):",
            failure.traceback_str.rstrip(),
            f"{name}: {failure.exception_str}",
        )
        yield _framework.TaskError(
            exception_class_path=name if "." in name else f"builtins.{name}",
            traceback="\n".join(lines),
        )


def _status(flow: models.FlowDetail) -> _framework.TaskResultStatus:
    if flow.state in states.FLOW_RUNNING:
        return _framework.TaskResultStatus.RUNNING
    return _STATUSES.get(flow.state or states.PENDING, _framework.TaskResultStatus.READY)


def _time(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if settings.USE_TZ else timezone.make_naive(moment)
