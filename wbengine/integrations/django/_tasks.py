"""Tasks of Django as flows with one task."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from wbengine import task as task_module
from wbengine.integrations.django import _framework
from wbengine.patterns import linear_flow

__all__ = ["OPTIONS", "WbengineTask", "new_result", "options_of"]

#: Name of the result of the call.
_RESULT: Final = "value"
#: Name of the argument of `WbengineTask.__call__`, by which records of Django tasks are recognized.
OPTIONS: Final = "django_task"


class WbengineTask(_framework.Task):  # type: ignore[misc]
    """A task of Django whose object is also the factory of its flows.

    A record of a flow names this object, so the rules of allowed flows apply to its module.
    """

    __slots__ = ()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self.func
        return function

    def __call__(self, *, django_task: Mapping[str, Any]) -> linear_flow.Flow:
        """Return the flow of a call. Only conductors call this: `call` calls the function.

        :param django_task: the changes of `using`, see `options_of`.
        """
        return linear_flow.Flow(self.module_path).add(_Call(self, django_task))


def options_of(task: _framework.Task) -> dict[str, Any]:
    """Return the attributes of a task that `using` can change."""
    run_after = None if task.run_after is None else task.run_after.isoformat()
    return {
        "backend": task.backend,
        "priority": task.priority,
        "queue_name": task.queue_name,
        "run_after": run_after,
    }


def new_result(
    task: _framework.Task,
    options: Mapping[str, Any],
    id: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> _framework.TaskResult:
    """Return the result of a call that has not begun.

    :raises TypeError, ValueError: if an argument cannot be represented in JSON.
    """
    run_after = options["run_after"]
    if run_after is not None:
        options = {**options, "run_after": datetime.fromisoformat(run_after)}
    return _framework.TaskResult(
        task=task.using(**options),
        id=id,
        status=_framework.TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=options["backend"],
        errors=[],
        worker_ids=[],
    )


class _Call(task_module.Task):
    """Calls the function of a task, and sends the signals of Django."""

    default_provides = _RESULT

    def __init__(self, task: _framework.Task, options: Mapping[str, Any]) -> None:
        super().__init__(task.name)
        self._task = task
        self._options = options

    def execute(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        request = self.request
        assert request is not None
        result = new_result(self._task, self._options, request.flow_uuid, args, kwargs)
        backend, now = result.task.get_backend(), timezone.now()
        _framework.set_fields(
            result,
            status=_framework.TaskResultStatus.RUNNING,
            started_at=now,
            last_attempted_at=now,
            worker_ids=[
                *backend.earlier_workers(request.flow_uuid, request.attempt),
                request.worker,
            ],
        )
        sender = type(backend)
        try:
            _framework.task_started.send_robust(sender=sender, task_result=result)
            value = self._value(result)
        except Exception as error:
            failed = _framework.TaskResultStatus.FAILED
            _framework.set_fields(result, status=failed, finished_at=timezone.now())
            result.errors.append(_error_of(error))
            _framework.task_finished.send_robust(sender=sender, task_result=result)
            raise
        else:
            successful = _framework.TaskResultStatus.SUCCESSFUL
            finished_at = timezone.now()
            _framework.set_fields(
                result, status=successful, finished_at=finished_at, _return_value=value
            )
            _framework.task_finished.send_robust(sender=sender, task_result=result)
            return value

    def _value(self, result: _framework.TaskResult) -> Any:
        context = [_framework.TaskContext(task_result=result)] if self._task.takes_context else []
        value = self._task.call(*context, *result.args, **result.kwargs)
        return _framework.normalize_json(value)


def _error_of(error: Exception) -> _framework.TaskError:
    kind = type(error)
    return _framework.TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback="".join(traceback.format_exception(error)),
    )
